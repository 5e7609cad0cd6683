"""Examples that are tensors already: the same cohort as from a table, their own splits, and what is refused of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from pipelines.data.cohort import Reading, read_cohort
from pipelines.data.images import Features, Target, Tensors
from pipelines.data.partition import Part
from pipelines.data.sources import Files, TableSource, TensorSource
from pipelines.data.split import Fold
from pipelines.data.stored import target_masks
from pipelines.data.tensors.file import open_tensor_file, tensor_bytes, write_private
from pipelines.models.translator_file import remove_places
from pipelines.settings.sites import SiteSettings
from privacy.settings_error import SettingsError

SHARES = {"train": 0.5, "validation": 0.25, "test": 0.25}
KEY = b"k" * 32
COUNT = 12
NAMES = [f"p{number // 2}" for number in range(COUNT)]


def arrays(shape: tuple[int, ...] = (3,), seed: int = 0) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(COUNT, *shape)).astype(np.float32)
    return {"x": x, "y": np.array([number // 2 % 2 for number in range(COUNT)], np.int64)}


def written(path: Path, parts: dict[str, Any], **lists: Any) -> TensorSource:
    write_private(path, tensor_bytes(parts, lists.pop("patient", NAMES), **lists))
    return TensorSource(file=str(path))


def read(source: Files, images: Any = None, target: Target | None = None, **more: Any) -> Reading:
    given: dict[str, Any] = {"fractions": SHARES, "seed": 3, "key": KEY, "target": target, **more}
    return read_cohort(source, None, images or Tensors(inputs=(3,)), **given)


@pytest.mark.parametrize("independent", [False, True])
def test_tensors_are_the_lines_of_a_table(tmp_path: Path, independent: bool) -> None:
    parts = arrays()
    with (tmp_path / "t.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["who", "a", "b", "c", "ill"])
        rows = zip(NAMES, parts["x"].astype(float), parts["y"], strict=True)
        lines.writerows([name, *map(repr, x.tolist()), label] for name, x, label in rows)
    table = TableSource(file=str(tmp_path / "t.csv"), patient="who", label="ill")
    other = read(table, Features(numbers=("a", "b", "c"), normalize="none"), independent=independent).cohort
    own = read(written(tmp_path / "t.safetensors", parts), independent=independent).cohort
    for name in ("images", "labels", "patient", "split", "position"):
        assert torch.equal(getattr(own, name), getattr(other, name)), name
    assert own.patients == other.patients and own.recipe["cut"] == other.recipe["cut"]


@given(st.lists(st.sampled_from(["train", "validation", "test"]), min_size=6, max_size=6), st.booleans())
def test_a_file_that_divides_its_patients_is_followed(
    tmp_path_factory: pytest.TempPathFactory, said: list[str], independent: bool
) -> None:
    split = [said[number // 2] for number in range(COUNT)]
    path = tmp_path_factory.mktemp("t") / "t.safetensors"
    found = read(written(path, arrays(), split=split), independent=independent)
    for patient, code in zip(found.cohort.patient.tolist(), found.cohort.split.tolist(), strict=True):
        own = found.names[found.cohort.patients[patient]]
        assert ["train", "validation", "test"][code] == said[int(own[1:])]


def test_another_division_has_another_name(tmp_path: Path) -> None:
    one = read(written(tmp_path / "a", arrays(), split=["train"] * 10 + ["test"] * 2)).cohort.recipe["cut"]
    two = read(written(tmp_path / "b", arrays(), split=["train"] * 8 + ["test"] * 4)).cohort.recipe["cut"]
    none = read(written(tmp_path / "c", arrays())).cohort.recipe["cut"]
    assert len({one, two, none}) == 3


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("part", {"part": Part(kind="even", of=2, number=1, least=1)}),
        ("split.folds", {"fold": Fold(0, 3)}),
        ("test", {"test": ("p1",)}),
    ],
)
def test_settings_do_not_divide_what_the_file_divides(tmp_path: Path, name: str, more: dict[str, Any]) -> None:
    source = written(tmp_path / "t", arrays(), split=["train"] * 10 + ["test"] * 2)
    with pytest.raises(ValueError, match=f"divides its patients itself, and so does {name}"):
        read(source, **more)
    read(written(tmp_path / "u", arrays()), **more)


def bad(**changes: Any) -> dict[str, Any]:
    return {**arrays(), **changes}


WRONG = {
    "nan": ("not_finite", lambda p, s: p["x"].__setitem__((3, 1), np.nan)),
    "infinite": ("not_finite", lambda p, s: p["x"].__setitem__((3, 0), -np.inf)),
    "a class too many": ("bad_label", lambda p, s: p["y"].__setitem__(3, 2)),
    "a negative class": ("bad_label", lambda p, s: p["y"].__setitem__(3, -1)),
    "no patient": ("no_patient", lambda p, s: s["patient"].__setitem__(3, "  ")),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_wrong_example_is_told_and_changes_nothing_for_others(tmp_path: Path, what: str) -> None:
    reason, spoil = WRONG[what]
    parts, said = arrays(), {"patient": [*NAMES]}
    whole = read(written(tmp_path / "whole", parts, **said), independent=True).cohort
    spoil(parts, said)
    found = read(written(tmp_path / "t", parts, **said), independent=True)
    assert [(one.study, one.reason) for one in found.rejected] == [("example 3", reason)]
    assert found.rejected[0].detail.endswith(".") and found.facts["files"] == COUNT
    kept = [row for row in range(COUNT) if not torch.equal(whole.images[row], torch.from_numpy(arrays()["x"][3]))]
    for name in ("images", "labels", "split"):
        assert torch.equal(getattr(found.cohort, name), getattr(whole, name)[kept]), name


def test_a_patient_in_two_splits_is_in_none(tmp_path: Path) -> None:
    split = ["train"] * 6 + ["validation"] * 3 + ["test"] * 2 + ["tset"]
    found = read(written(tmp_path / "t", arrays(), split=split))
    told = {one.study: one.detail for one in found.rejected if one.reason == "bad_split"}
    assert set(told) == {f"example {number}" for number in (8, 9, 10, 11)}
    assert "'test and validation'" in told["example 8"] and "'test and tset'" in told["example 10"]
    assert found.facts["patients"] == 4


@pytest.mark.parametrize(
    ("parts", "lists", "words"),
    [
        (bad(x=arrays()["x"].astype(np.float64)), {}, ["x is F64", "F32 (float32) is needed"]),
        (bad(y=arrays()["y"].astype(np.int32)), {}, ["y is I32", "I64 (int64)"]),
        (bad(y=arrays()["y"][:5]), {}, ["x has 12 examples and y is of shape (5,)"]),
        (bad(x=arrays((4,))["x"]), {}, ["x holds examples of shape [4], and images.inputs is [3]"]),
        ({"x": arrays()["x"]}, {}, ["y must be (n,), a class for each example, found none"]),
        (bad(z=arrays()["x"]), {}, ["unknown tensor 'z'; allowed are x, y, mask"]),
        ({"y": arrays()["y"]}, {}, ["no tensor x; give the examples"]),
        (
            bad(x=np.zeros((0, 3), np.float32), y=np.zeros(0, np.int64)),
            {"patient": []},
            ["x has no example", "missing"],
        ),
        (bad(), {"patient": NAMES[:3]}, ["12 examples and metadata 'patient' 3"]),
        (bad(), {"split": ["train"]}, ["12 examples and metadata 'split' 1"]),
        (bad(), {"patient": []}, ["metadata 'patient' is missing"]),
        (bad(), {"classes": ["well", "ill"]}, ["classes are well, ill, and the task's are negative, positive"]),
        (
            bad(x=arrays()["x"].astype(np.float64), y=arrays()["y"].astype(np.int8)),
            {"patient": NAMES[:2]},
            ["x is F64", "y is I8", "metadata 'patient' 2"],
        ),
    ],
)
def test_a_file_of_another_form_is_refused_with_all_that_is_wrong(
    tmp_path: Path, parts: dict[str, Any], lists: dict[str, Any], words: list[str]
) -> None:
    source = written(tmp_path / "t", parts, **lists)
    with pytest.raises(ValueError, match=r"source\.file: ") as caught:
        read(source)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"patient": "p0"}, "must be a JSON list of texts, found 'p0'"),
        ({"patient": json.dumps([0] * COUNT)}, "must be a JSON list of texts"),
        ({"patient": json.dumps(NAMES), "splits": "[]"}, "unknown metadata 'splits'; allowed are patient, split"),
    ],
)
def test_metadata_of_another_form_are_refused(tmp_path: Path, metadata: dict[str, str], word: str) -> None:
    save_file({name: torch.from_numpy(part) for name, part in arrays().items()}, tmp_path / "t", metadata)
    with pytest.raises(ValueError, match=r"source\.file") as caught:
        read(TensorSource(file=str(tmp_path / "t")))
    assert word in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\x00" * 20, b"PK\x03\x04 a pickle or a zip", None])
def test_what_is_no_such_file_is_refused(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "t").write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        read(TensorSource(file=str(tmp_path / "t")))


def test_torchs_own_writer_makes_a_file_that_is_read(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(part) for name, part in arrays().items()}
    said = {"format": "pt", "patient": json.dumps(NAMES)}
    save_file(tensors, tmp_path / "t", said)
    own = read(written(tmp_path / "u", arrays())).cohort
    assert torch.equal(read(TensorSource(file=str(tmp_path / "t"))).cohort.images, own.images)


def test_equal_examples_are_equal_bytes_and_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "t"
    source = written(path, arrays(), split=["train"] * COUNT, classes=["a", "b"])
    before = path.stat()
    written(path, arrays(), split=["train"] * COUNT, classes=["a", "b"])
    assert path.stat().st_mtime_ns == before.st_mtime_ns and before.st_mode & 0o077 == 0
    found = open_tensor_file(path)
    assert (
        found.classes == ("a", "b")
        and found.patient == tuple(NAMES)
        and np.array_equal(found.part["x"](4), arrays()["x"][4:5])
    )
    written(path, arrays(seed=1))
    assert path.stat().st_mtime_ns != before.st_mtime_ns
    assert remove_places(source) == {"kind": "tensors", "file": "."}


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 3, 4, 4)])
def test_masks_of_any_shape_are_targets(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = arrays(shape)["x"]
    mask = (x[:, 0] > 0.5).astype(np.uint8) + (x[:, 0] > 1).astype(np.uint8)
    source = written(tmp_path / "t", {"x": x, "mask": mask})
    read_as = {"target": "masks", "classes": ("disc", "cup")}
    cohort = read(source, Tensors(inputs=shape), **read_as).cohort
    found = {tuple(image.flatten().tolist()): row for row, image in enumerate(cohort.images)}
    order = [found[tuple(image.flatten().tolist())] for image in x]
    assert torch.equal(target_masks(cohort, "masks")[order].long(), torch.from_numpy(mask).long())
    rejected = read(source, Tensors(inputs=shape), target="masks", classes=("disc",)).rejected
    assert {one.reason for one in rejected} == {"bad_label"}
    with pytest.raises(ValueError, match="mask must be"):
        read(written(tmp_path / "u", {"x": x, "mask": mask[:, :1]}), Tensors(inputs=shape), **read_as)


def test_labels_beside_the_file_are_refused() -> None:
    from pipelines.data.sources import TableLabels

    with pytest.raises(SettingsError, match="the file holds its labels"):
        SiteSettings(source=TensorSource(file="t"), labels=TableLabels(file="l.csv"))


@pytest.mark.parametrize("inputs", [(), (0,), (1, 2, 3, 4, 5), (3, -1)])
def test_inputs_have_one_to_four_sides(inputs: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="inputs"):
        Tensors(inputs=inputs)
