"""Of a class the largest component only, where validation patients say so; the evaluation and `predict` do the same."""

from __future__ import annotations

import copy
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from federation.task import Task
from pipelines.data.cohort import Cohort
from pipelines.hospital.segmentation import find_largest, keep_components, score_patients
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.models.file import LARGEST, parse_ready, read_ready
from pipelines.models.largest import keep_largest
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from privacy.dp.access import Rows
from privacy.message import Message, from_bytes, seal_parts, to_bytes, unseal_parts

SHAPES = st.one_of(st.tuples(*[st.integers(1, 6)] * 2), st.tuples(*[st.integers(1, 4)] * 3))


def grow(places: set[tuple[int, ...]]) -> list[set[tuple[int, ...]]]:
    """Components of places, in the order of their first: two are neighbours where no index differs by more than 1."""
    components, left = [], sorted(places)
    while left:
        component, new = set[tuple[int, ...]](), {left[0]}
        while new:
            component |= new
            new = {
                place
                for place in places - component
                if any(max(abs(a - b) for a, b in zip(place, other, strict=True)) <= 1 for other in component)
            }
        components.append(component)
        left = [place for place in left if place not in component]
    return components


@settings(max_examples=60)
@given(
    SHAPES.flatmap(lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 2))),
    st.sampled_from([(), ((1,),), ((2,),), ((1,), (2,)), ((1, 2),), ((1, 2), (2,))]),
)
def test_what_is_kept_is_what_a_slow_search_finds(class_map, structures):
    slow = class_map.copy()
    for numbers in structures:
        components = grow({tuple(map(int, place)) for place in np.argwhere(np.isin(slow, numbers))})
        for component in components:
            if component is not max(components, key=len):
                for place in component:
                    slow[place] = 0
    before = class_map.copy()
    kept = keep_largest(class_map, structures)
    assert np.array_equal(kept, slow) and kept.dtype == class_map.dtype and np.array_equal(class_map, before)
    if structures != ((1, 2), (2,)):  # what a region within another loses may divide the other
        assert np.array_equal(keep_largest(kept, structures), kept)


def rows_of(truth: torch.Tensor) -> tuple[Cohort, Rows]:
    count = len(truth)
    patient = torch.arange(count)
    cohort = Cohort(
        images=torch.zeros(count, 1, *truth.shape[1:]),
        labels=torch.zeros(count, dtype=torch.int64),
        patient=patient,
        position=torch.zeros(count),
        lesion=torch.zeros(count, *truth.shape[1:], dtype=torch.uint8),
        gland=torch.zeros(count, *truth.shape[1:], dtype=torch.uint8),
        split=torch.ones(count, dtype=torch.int8),
        patients=tuple(f"p{number}" for number in range(count)),
        unit="",
        mask=truth.to(torch.uint8),
    )
    return cohort, Rows(cohort.images, truth, patient)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_class_is_cleaned_if_and_only_if_that_raises_its_mean_dice(seed):
    """Each class by itself, by scores of their own; so cleaning never lowers the Dice that decided."""
    rng = np.random.default_rng(seed)
    truth, found = (torch.from_numpy((rng.random((4, 5, 6)) < 0.3) * rng.integers(1, 3, (4, 5, 6))) for _ in range(2))
    cohort, rows = rows_of(truth)
    chosen = find_largest(cohort, rows, found, 3)
    for number in (1, 2):
        means = [
            np.nanmean(score_patients(cohort, rows, keep_components(found, kept), 3).scores[:, number - 1, 0])
            for kept in ((), [(number,)])
        ]
        assert (number in chosen) == (means[1] > means[0] + 1e-12)
    assert find_largest(cohort, Rows(rows.x[:0], rows.y[:0], rows.patient[:0]), found[:0], 3) == ()


def test_specks_are_dropped_and_two_kidneys_stay():
    truth = torch.zeros(3, 6, 8, dtype=torch.int64)
    truth[:, 1:3, 1:4], truth[:, 1:5, 6] = 1, 2
    truth[:, 4:6, 1:3] = 1
    cohort, rows = rows_of(truth)
    found = truth.clone()
    found[:, 0, 4] = 2
    assert find_largest(cohort, rows, found, 3) == (2,)
    assert torch.equal(keep_components(found, [(2,)]), truth)


AFFINE = np.diag([2.0, 2.0, 3.0, 1.0])
SHAPE = (16, 16, 8)
BASE = {
    "name": "tiny",
    "privacy": "none",
    "task": {"kind": "segmentation", "target": "masks", "classes": ["organ"]},
    "images": {
        "kind": "volumes",
        "values": "standardized",
        "centre": "image",
        "size": 16,
        "spacing_mm": 2.0,
        "depth": 8,
        "depth_mm": 3.0,
    },
    "split": {"train": 0.4, "validation": 0.3, "test": 0.3},
    "model": {"name": "unet", "width": 4, "levels": 2, "norm": "batch"},
    "train": {
        "schedule": {"rounds": 1},
        "work": {"batch": 2, "epochs": None, "steps": 1},
        "methods": {"local": {"name": "local"}},
    },
    "evaluate": {"copies": 5, "reference": None, "variants": {"clean": {"of": "local", "calibration": "largest"}}},
    "audit": {"membership": False},
}


def write_study(folder: Path, name: str, place: int) -> None:
    """A bright organ of 72 voxels, and a speck of 8 as bright that is none."""
    organ, speck = np.zeros(SHAPE, np.uint8), np.zeros(SHAPE, np.uint8)
    organ[2 + place : 8 + place, 3:7, 2:5] = 1
    speck[12:14, 12:14, 4:6] = 1
    for path, values in ((folder / "images", (organ + speck) * 100.0 + 10), (folder / "masks", organ)):
        path.mkdir(exist_ok=True, parents=True)
        nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), AFFINE), path / f"{name}.nii.gz")


def test_the_variant_is_scored_and_predicts_without_specks(tmp_path, monkeypatch):
    """With a network that everybody can check: what is bright is organ."""
    monkeypatch.chdir(tmp_path)

    def probabilities(self: Task, module: torch.nn.Module, x: torch.Tensor, **more: object) -> torch.Tensor:
        bright = x[:, 0] > x[:, 0].amax() / 2
        return torch.stack([~bright, bright], dim=1).float()

    monkeypatch.setattr(Task, "probabilities", probabilities)
    for number in range(10):
        write_study(Path("north"), f"p{number}", number % 3)
    made = copy.deepcopy(BASE)
    maps = {"folder": "north/masks", "values": {"organ": [1]}}
    made["sites"] = {"north": {"source": {"kind": "nifti", "folder": "north/images", "masks": maps}}}
    Path("tiny.yaml").write_text(yaml.safe_dump(made))
    assert run(["tiny.yaml", "--until", "evaluate"]) == Exit.OK
    write_study(Path("new"), "q", 1)
    sizes = {}
    for label in ("local", "clean"):
        ready = Path("runs/tiny/sites/north/ready") / f"{label}.safetensors"
        assert read_ready(ready).largest == ((1,) if label == "clean" else ())
        assert predict([str(ready), "new/images", "--out", f"out_{label}"]) == Exit.OK
        sizes[label] = int(np.asarray(nibabel.load(f"out_{label}/masks/q.nii.gz").dataobj).sum())
    assert sizes == {"local": 80, "clean": 72}
    scores = [
        from_bytes(path.read_bytes()).tensors["scores"] for path in Path("runs/tiny/sites/north/scores").iterdir()
    ]
    assert sorted(float(each[:, 0, 0].mean()) for each in scores) == pytest.approx([2 * 72 / (72 + 80), 1.0])
    message = from_bytes(unseal_parts(ready.read_bytes()))
    for wrong in ([0], [2]):
        data = seal_parts(to_bytes(Message(message.tensors, {**message.facts, LARGEST: wrong})))
        with pytest.raises(ValueError, match="largest must name structures of a mask, from 1 to 1"):
            parse_ready(data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": {"kind": "slices", "values": "standardized", "centre": "image", "size": 16}}, "a slice cuts"),
        ({"split": {"train": 0.5, "validation": 0.0, "test": 0.5}}, "split.validation is 0"),
        ({"task": {"kind": "classification"}, "model": {"name": "cnn"}}, "largest is for masks"),
    ],
)
def test_largest_is_refused_where_it_has_no_meaning(changes, said):
    source = {"kind": "nifti", "folder": "f", "masks": {"folder": "m", "values": {"organ": [1]}}}
    made = copy.deepcopy(BASE) | {"sites": {"north": {"source": source, "labels": {"kind": "table", "file": "t"}}}}
    with pytest.raises(ConfigError, match=said):
        validate_settings(read_yaml(yaml.safe_dump(made | changes), environment={}), Config)
