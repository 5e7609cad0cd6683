"""Settings of tracking: the tools to which the coordinator's figures are copied, and where they store them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field
from typing_extensions import TypedDict

from privacy.settings_error import Problem, refuse

FORBID: dict[str, Any] = {"extra": "forbid"}
SERVERS = ("http", "https")
SCHEMES = (*SERVERS, "file", "sqlite")
EXPERIMENT = re.compile(r"[A-Za-z0-9 _.-]{1,100}")


class Tracked(TypedDict):
    """A question to a hospital: the places to which released figures may be copied, and the digest of what they rest
    on.
    """

    places: list[Annotated[str, Field(max_length=200)]]
    server: bool
    rests_on: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """folder: in which each run has one of its own; null = `tracking/tensorboard` in the run's folder."""

    __pydantic_config__: ClassVar = FORBID

    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """uri: of a tracking server (`https://...`), a database (`sqlite:///...`) or a folder; null = `tracking/mlflow` in
    the run's folder. A password stands in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or
    MLFLOW_TRACKING_TOKEN. experiment: its name there. patience_s: after which a server counts as down.
    """

    __pydantic_config__: ClassVar = FORBID

    uri: str | None = None
    experiment: str = "consilium"
    patience_s: int = 20

    def __post_init__(self) -> None:
        problems = list(_uri_problems(self.uri))
        if not EXPERIMENT.fullmatch(self.experiment):
            text = f"must be 1 to 100 of A-Z a-z 0-9 _ . - and space, found {self.experiment[:60]!r}"
            problems.append(Problem(("experiment",), text))
        if not 1 <= self.patience_s <= 600:
            problems.append(Problem(("patience_s",), f"must be in [1, 600] seconds, found {self.patience_s}"))
        refuse(problems)

    @property
    def server(self) -> bool:
        """Whether figures go to a server, and so to a further recipient."""
        return self.uri is not None and urlsplit(self.uri).scheme in SERVERS

    @property
    def place(self) -> str:
        """The place in words, for the question to hospitals."""
        return f"MLflow at {self.uri}" if self.server else "MLflow, on the coordinator's disk"


def _uri_problems(uri: str | None) -> Iterator[Problem]:
    """Problems of a URI: its length, its scheme, or a password in it."""
    if uri is None:
        return
    parts = urlsplit(uri)
    if len(uri) > 180 or not uri.isprintable():
        yield Problem(("uri",), f"must be at most 180 printable characters, found {len(uri)}")
    if parts.scheme and parts.scheme not in SCHEMES:
        yield Problem(("uri",), f"must be of {', '.join(SCHEMES)}, or a folder, found {parts.scheme!r}")
    if parts.username or parts.password or parts.query:
        remedy = "say MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, where it runs"
        yield Problem(("uri",), f"holds what the page of settings would show; {remedy}")


@dataclass(frozen=True, kw_only=True)
class Track:
    """tensorboard, mlflow: where figures are copied to, null = not there. pages: whether the coordinator's page, the
    tables of scores and the privacy statement are copied, too.
    """

    __pydantic_config__: ClassVar = FORBID

    tensorboard: TensorBoard | None = None
    mlflow: MLflow | None = None
    pages: bool = True

    def __post_init__(self) -> None:
        if self.tensorboard is None and self.mlflow is None:
            refuse([Problem((), "names no tool; say tensorboard: {}, or mlflow: {}, or remove track")])

    @property
    def server(self) -> bool:
        """Whether anything goes to a server."""
        return self.mlflow is not None and self.mlflow.server

    @property
    def places(self) -> tuple[str, ...]:
        """The places to which figures go, in words."""
        local = () if self.tensorboard is None else ("TensorBoard, on the coordinator's disk",)
        return (*local, *(() if self.mlflow is None else (self.mlflow.place,)))
