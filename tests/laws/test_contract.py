"""The contract that others run on theirs: it holds for the example package, and tells each kind of fault by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

import installed_example
from consilium.testing import extractor_laws, method_laws, model_laws, reader_laws, translator_laws
from federation.features.colour import Colour
from federation.fedavg import FedAvg
from federation.fedprox import FedProx
from federation.models.cnn import Cnn
from federation.task import Output
from harmonize.intensity import ZScore
from harmonize.own import SiteImages
from personalize.fedrep import FedRep
from pipelines.data.images import Pictures
from privacy.message import Message

FORBID: dict[str, Any] = {"extra": "forbid"}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    installed_example.installed_in(tmp_path)
    yield
    installed_example.removed()


def test_the_example_package_keeps_it(example: None) -> None:
    from consilium_example.middle import Middle
    from consilium_example.plain_cnn import PlainCnn
    from consilium_example.trimmed_mean import TrimmedMean

    checks = method_laws(TrimmedMean())
    assert {name.rpartition("-")[2] for name in checks} >= {"tables", "masks", "private"}
    for check in (*checks.values(), *model_laws(PlainCnn()).values(), *translator_laws(Middle()).values()):
        check()


def bundled(folder: Path) -> str:
    chance = np.random.default_rng(0)
    path = str(folder / "pictures.npz")
    images = chance.integers(0, 255, (6, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(6) % 2, patients=np.arange(6) // 2)
    return path


def test_the_example_reader_keeps_it(example: None, tmp_path: Path) -> None:
    from consilium_example.bundle import Bundle

    checks = reader_laws(Bundle(file=bundled(tmp_path)), Pictures(size=16))
    assert len(checks) == 5
    for check in checks.values():
        check()


def test_a_readers_faults_are_told_by_the_law_that_they_break(example: None, tmp_path: Path) -> None:
    from consilium_example.bundle import Bundle

    path = bundled(tmp_path)

    class Fixed(Bundle):  # type: ignore[misc]
        def described(self, folder: str) -> Any:
            return super().described("/srv/pictures")

    class Adding(Bundle):  # type: ignore[misc]
        def write(self, folder: Path) -> None:
            (folder / "a").mkdir(exist_ok=True)
            super().write(folder / "a")
            for one in (folder / "a").iterdir():
                one.rename(folder / one.name)
            (folder / "a").rmdir()

    class Linked(Bundle):  # type: ignore[misc]
        def write(self, folder: Path) -> None:
            super().write(folder)
            (folder / "original").symlink_to(path)

    class Beside(Bundle):  # type: ignore[misc]
        def write(self, folder: Path) -> None:
            super().write(folder)
            (folder.parent / "cache").write_text("")

    class Damaging(Bundle):  # type: ignore[misc]
        def write(self, folder: Path) -> None:
            super().write(folder)
            (folder / "3.png").write_bytes(b"no picture")

    class Empty(Bundle):  # type: ignore[misc]
        def write(self, folder: Path) -> None:
            pass

    told = {
        Fixed: {"it_describes": "what it describes names nothing in its folder", "all_that": "does not exist"},
        Adding: {"it_writes_the_same": "over what lay there it leaves something else: ['left_over"},
        Linked: {"it_writes_files": "links, or no files: ['original']"},
        Beside: {"it_writes_files": "it wrote beside the folder"},
        Damaging: {"all_that": "1 of what it wrote cannot be used: line 4: 3"},
        Empty: {"it_writes_files": "it wrote no file", "all_that": "", "it_writes_the_same": ""},
    }
    for kind, laws in told.items():
        found = broken(reader_laws(kind(file=path), Pictures(size=16)))
        assert len(found) == len(laws), (kind, found)
        for law, words in laws.items():
            (said,) = [text for name, text in found.items() if name.startswith(law + "_")]
            assert words in said, (kind, said)


def test_an_installed_package_is_tested_without_a_line(example: None) -> None:
    sys.modules.pop("consilium.testing.test_installed", None)
    from consilium.testing.test_installed import _list_cases

    names = [case.id for case in _list_cases()]
    assert {name.partition("-")[0] for name in names} == {"trimmed_mean", "plain_cnn", "middle", "bundle"}
    assert len(names) > 25 and "bundle-unknown_keys_are_refused" in names


def broken(checks: dict[str, Any]) -> dict[str, str]:
    """The laws that do not hold, with what they say."""
    found = {}
    for name, check in checks.items():
        try:
            check()
        except Exception as error:
            found[name] = str(error)
    return found


@dataclass(frozen=True, kw_only=True)
class Bad(FedAvg):
    __pydantic_config__: ClassVar = FORBID

    name: Literal["bad"] = "bad"  # type: ignore[assignment]


SEEN: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Remembers(Bad):
    """Its training depends on what happened in this process."""

    def train(self, site: Any, received: Any, memory: Any, call: Any) -> Any:
        reply, kept = super().train(site, received, memory, call)
        SEEN.append(call.round)
        return Message({name: t + 1e-3 * len(SEEN) for name, t in reply.tensors.items()}, reply.facts), kept


@dataclass(frozen=True, kw_only=True)
class Tells(Bad):
    """It sends another tensor from the second round on, which no rehearsal saw."""

    def train(self, site: Any, received: Any, memory: Any, call: Any) -> Any:
        reply, kept = super().train(site, received, memory, call)
        more = {"extra/head.bias": torch.ones(2)} if call.round > 1 else {}
        return Message({**reply.tensors, **more}, reply.facts), kept


@dataclass(frozen=True, kw_only=True)
class Orders(Bad):
    """What it merges depends on the order in which sites are named."""

    def merge(self, state: Any, replies: Any) -> Any:
        turn = 1.0 + 1e-3 * len(SEEN)
        SEEN.append(0)
        return Message({name: t * turn for name, t in super().merge(state, replies).tensors.items()})


@dataclass(frozen=True, kw_only=True)
class Peeks(Bad):
    """It looks at patients more often than when it was rehearsed."""

    def train(self, site: Any, received: Any, memory: Any, call: Any) -> Any:
        if call.round > 1:
            super().train(site, received, memory, call)
        return super().train(site, received, memory, call)


@pytest.mark.parametrize(
    ("algorithm", "law"),
    [
        (Remembers(), "a_resumed_run_is_the_uninterrupted_one-tables"),
        (Tells(), "every_reply_looks_as_it_was_rehearsed-tables"),
        (Orders(), "neither_the_wire_nor_the_order_of_sites_changes_anything-tables"),
        (Peeks(), "what_was_done_is_what_was_rehearsed-private"),
    ],
)
def test_a_method_with_a_fault_is_told(algorithm: Bad, law: str) -> None:
    said = broken({name: check for name, check in method_laws(algorithm).items() if name == law})
    assert said.get(law)


def test_a_method_that_refuses_everything_is_told_why_it_was_not_tested() -> None:
    said = broken(method_laws(FedRep(head_epochs=1)))
    assert said == {}
    never = replace(FedProx(), mu=0.1)
    object.__setattr__(never, "complaints", lambda *_: ["never suits"])
    assert "never suits" in broken(method_laws(never))["it_accepts_some_network"]


@dataclass(frozen=True, kw_only=True)
class Loose(FedAvg):
    """Its name is no literal and unknown keys pass."""

    __pydantic_config__: ClassVar = {}

    name: str = "loose"  # type: ignore[assignment]


def test_settings_that_would_pass_typos_are_told() -> None:
    said = broken(method_laws(Loose()))["settings_are_read_strictly_and_written_whole"]
    assert "__pydantic_config__" in said and "Literal" in said


@dataclass(frozen=True, kw_only=True)
class Headless(Cnn):
    __pydantic_config__: ClassVar = FORBID

    name: Literal["headless"] = "headless"  # type: ignore[assignment]

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        return HeadlessModule(inputs[0], classes)


class HeadlessModule(nn.Module):
    """Another name for its last layer; logits that depend on the whole batch; a layer that learns nothing."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(channels, classes)
        self.stem = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Output:
        features = x.flatten(2).mean(dim=2)
        return Output(self.last(features) + x.mean(), features)


def test_a_network_with_faults_is_told() -> None:
    said = broken(model_laws(Headless()))
    assert "found ['last']" in said["outputs_have_the_promised_shapes-2"]
    assert "stem.weight" in said["every_parameter_learns_from_losses_of_single_examples-2"]


@dataclass(frozen=True, kw_only=True)
class Lies(ZScore):
    """It says that it does not learn, and shifts by the mean of all patients."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["lies"] = "lies"  # type: ignore[assignment]

    def fit(self, site_images: SiteImages, shared: torch.Tensor, **unused: object) -> Any:
        return {"mean": site_images.images.mean()}

    def translate(self, params: Any, images: torch.Tensor, patient: torch.Tensor) -> torch.Tensor:
        return (images - params["mean"]).clamp(-1, 1)


def test_a_translator_that_lies_about_learning_is_told() -> None:
    said = broken(translator_laws(Lies()))
    assert list(said) == ["a_patient_taken_away_changes_others_images_only_where_it_says_that_it_learns"]


@dataclass(frozen=True, kw_only=True)
class Mixed(Colour):
    """Features of an image minus the mean of all."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["mixed"] = "mixed"  # type: ignore[assignment]

    def extract(self, images: Any) -> Any:
        found = images.reshape(len(images), -1)
        return found - np.mean(found, axis=0)

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        return []


def test_an_extractor_that_looks_at_other_images_is_told() -> None:
    assert "rows_are_finite_and_each_from_its_own_image" in broken(extractor_laws(Mixed()))
