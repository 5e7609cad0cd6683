"""A trained method, as the stage `train` writes it for later stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from federation.notices import Outlier
from pipelines.runs.listing import list_paths
from pipelines.runs.store import MANIFEST
from pipelines.settings.learning import name_training

OPTIONAL = ("start", "last", "same_as", "training", "outliers")


class Matrix(TypedDict):
    """Numbers between sites: values (K, K), in the order of `sites`."""

    sites: list[str]
    values: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class TrainedMethod:
    """label: of the settings; name: the method's; space: of the images. train_run: the conversation. best: the round
    with the lowest validation loss over all sites, None if no round was scored. losses: site -> round -> validation
    loss; totals: round -> loss over all sites. missing: [round, site, code]. parameters: how many. received: bytes that
    the site got that got most. between: matrices between sites. start: what hospitals hear of the start; None: random
    numbers. last: the last round, of a training that sites may leave and join. same_as: the method whose
    training this is, because every hospital refused the translation that would tell them apart. training: its number,
    where a method is trained several times; None: the first. outliers: hospitals whose updates stand out;
    None: there are none.
    """

    label: str
    name: str
    space: str
    train_run: str
    rounds: int
    best: int | None
    losses: Mapping[str, Mapping[str, float | None]]
    totals: Mapping[str, float]
    missing: list[tuple[int, str, str]]
    parameters: int
    received: int
    between: Mapping[str, Matrix]
    start: dict[str, Any] | None = None
    last: int | None = None
    same_as: str | None = None
    training: int | None = None
    outliers: list[Outlier] | None = None


_FILE = TypeAdapter(TrainedMethod)


def write_trained(folder: Path, method: TrainedMethod) -> None:
    """Write a method as `<label>.json` into the artifact of the stage `train`."""
    facts = {field.name: getattr(method, field.name) for field in fields(method)}
    written_facts = {name: value for name, value in facts.items() if name not in OPTIONAL or value is not None}
    if method.outliers is not None:
        written_facts["outliers"] = [asdict(outlier) for outlier in method.outliers]
    (folder / f"{name_training(method.label, method.training)}.json").write_text(json.dumps(written_facts, indent=1))


def read_trained(artifact: Path, label: str, training: int | None = None) -> TrainedMethod:
    """A method of the artifact. training: its number; None: the first. Raises: ValueError: its file is damaged."""
    return _FILE.validate_json((artifact / f"{name_training(label, training)}.json").read_bytes())


def read_trainings(artifact: Path) -> dict[str, TrainedMethod]:
    """All trainings of the artifact by their names. Raises: ValueError: a file is damaged."""
    names = [path.stem for path in list_paths(artifact, "*.json") if path.name != MANIFEST]
    return {name: read_trained(artifact, name) for name in names}
