"""`--check` says what a run would not do, and whose code fails; it ends in words, not in a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml
from torch import nn

from federation.algorithm import Memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models import MODELS
from federation.models.mlp import Mlp
from federation.registry import register, unregister
from personalize import ALGORITHMS
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import Call, Message
from privacy.release.policy import REQUESTS

FORBID: dict[str, Any] = {"extra": "forbid"}
TRAIN = {**BASE["train"], "schedule": {"rounds": 1}, "methods": {"one": {"name": "fedavg"}}}


@dataclass(frozen=True, kw_only=True)
class Complaining(FedAvg):
    """Its complaints fail."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["complaining"] = "complaining"  # type: ignore[assignment]

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        raise KeyError("depth")


@dataclass(frozen=True, kw_only=True)
class Unbuilt(FedAvg):
    """Its network cannot be made."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["unbuilt"] = "unbuilt"  # type: ignore[assignment]

    def network(self, task: object) -> nn.Module:
        raise TypeError("no network today")


@dataclass(frozen=True, kw_only=True)
class Untrained(FedAvg):
    """Its training fails."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["untrained"] = "untrained"  # type: ignore[assignment]

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        raise AttributeError("no work")


@dataclass(frozen=True, kw_only=True)
class Unmade(Mlp):
    """A network that cannot be made."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["unmade"] = "unmade"  # type: ignore[assignment]

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        raise KeyError("layers")


METHODS = (Complaining, Unbuilt, Untrained)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for kind in METHODS:
        register(ALGORITHMS, kind)
    register(MODELS, Unmade)
    yield
    for kind in METHODS:
        unregister(ALGORITHMS, kind)
    unregister(MODELS, Unmade)


def checked(capsys: pytest.CaptureFixture[str], *more: str, **changes: Any) -> tuple[int, str]:
    Path("x.yaml").write_text(yaml.safe_dump({**BASE, "train": TRAIN, "evaluate": {"copies": 0}, **changes}))
    code = main(["x.yaml", "--check", *more])
    said = capsys.readouterr()
    return code, said.out if more else " ".join(said.err.split())


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("complaining", "train.methods.one: cannot be checked (KeyError: 'depth', at test_cautions.py line "),
        ("unbuilt", "train.methods.one: cannot be checked (TypeError: no network today, at test_cautions.py"),
        ("untrained", "train.methods.one: cannot be checked (AttributeError: no work, at test_cautions.py"),
    ],
)
@pytest.mark.parametrize("privacy", ["none", {"epsilon": 8.0, "delta": 1e-3, "sampling": 0.5}])
def test_a_method_that_fails_is_told_with_whose_code_it_is(
    method: str, words: str, privacy: object, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {**TRAIN, "methods": {"one": {"name": method}}}
    more = {"pooling": "refused", "model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    code, said = checked(capsys, train=train, privacy=privacy, **more)
    assert code == Exit.CONFIG and words in said and "Traceback" not in said
    assert f"takes part: {method} of " in said and "ask who made it, or name another" in said


def test_a_network_that_fails_is_told_with_whose_code_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(capsys, model={"name": "unmade"})
    assert code == Exit.CONFIG and "(KeyError: 'layers', at test_cautions.py" in said and "unmade of " in said


def test_an_error_in_our_own_code_is_not_blamed_on_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "complaints", Complaining.complaints)
    code, said = checked(capsys)
    assert code == Exit.FAILED and "'depth'" in said and "takes part" not in said


REFUSING = {"requests": [name for name in REQUESTS if name != "track"], "pooling": True}
SERVER = {"mlflow": {"uri": "https://tracking.example"}}


@pytest.mark.parametrize(
    ("track", "policy", "words"),
    [
        (
            {"tensorboard": {}},
            REFUSING,
            "! a: its policy does not answer track, which the stage track asks, so no figure of it goes to TensorBoard",
        ),
        (
            SERVER,
            {"pooling": True},
            "! a: its policy names no recipient tracking, so no figure of it goes to MLflow at",
        ),
        ({"tensorboard": {}}, {"pooling": True}, None),
        (SERVER, {"pooling": True, "recipients": ["coordinator", "tracking"]}, None),
    ],
)
def test_a_policy_that_keeps_figures_from_tracking_is_told(
    track: object,
    policy: object,
    words: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipelines.settings.checks.track.find_spec", lambda name: True)
    sites = {**BASE["sites"], "a": {**BASE["sites"]["a"], "policy": policy}}
    sites["b"] = {**sites["b"], "policy": {"pooling": True, "recipients": ["coordinator", "tracking"]}}
    code, said = checked(capsys, track=track, sites=sites)
    assert code == Exit.OK
    if words is None:
        assert "!" not in said.partition("Methods")[2] and "in order. privacy: none" in said
        return
    assert words in said and "! b:" not in said and "in order, but mind the lines with !. privacy: none" in said
    answer = json.loads(checked(capsys, "--json", track=track, sites=sites)[1])
    assert len(answer["warnings"]) == 1 and words[2:] in answer["warnings"][0]
