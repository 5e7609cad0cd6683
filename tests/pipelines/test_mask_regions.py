"""Regions of masks, which may overlap: scores, sizes and written masks are of unions of classes, in every method."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import methods
from consilium.testing import testbed
from evaluation import by_round
from evaluation.masks import score_masks
from federation.task import IGNORED
from pipelines.data.cohort import read_cohort
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.dicom.segmentation import read_segmentation
from pipelines.data.images import Slices
from pipelines.data.regions import find_region_problems, list_members, pack_regions, read_regions, unpack_regions
from pipelines.data.sources import DicomSource, VolumeMasks
from pipelines.data.study import Volume
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import ResultMaker
from pipelines.dataset import main as dataset
from pipelines.export import main as export
from pipelines.hospital.hospital import SPLITS, read_cohort_file
from pipelines.init import main as init
from pipelines.loader.validation import to_plain
from pipelines.models.file import parse_ready, read_ready
from pipelines.models.signed import find_reading_differences, reading_of, settings_of
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.plan import main as plan
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.load import load_config
from pipelines.settings.task import Segmentation
from privacy.message import Message, from_bytes, seal_parts, to_bytes, unseal_parts
from privacy.settings_error import SettingsError

CLASSES = ("edema", "necrosis", "enhancing")
REGIONS = {"whole": CLASSES, "core": ("necrosis", "enhancing"), "enhancing": ("enhancing",), "ring": CLASSES[:1]}
REGIONS |= {"odd": ("edema", "enhancing")}  # neither holds core nor lies in it
MEMBERS = ((1, 2, 3), (2, 3), (3,), (1,), (1, 3))
AFFINE = np.diag([1.5, 1.5, 3.0, 1.0])
SHAPE = (16, 16, 8)

# What a region is

MASKS = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).choice([0, 0, 1, 2, 3, IGNORED], size=(2, 3, 4, 5, 3))
)


@settings(max_examples=40, deadline=None)
@given(MASKS, st.lists(st.sets(st.integers(1, 3), min_size=1), min_size=1, max_size=4))
def test_a_region_has_the_scores_of_its_union_as_the_only_class(both, structures):
    truth, predicted = both[0], np.where(both[1] == IGNORED, 0, both[1])
    expected = np.random.default_rng(0).random((len(truth), 3)) * 20
    how: dict[str, Any] = {"spacing_mm": (2.0, 1.0, 0.7), "ignored": IGNORED}
    patients, members = np.array([5, 5, 9]), [sorted(own) for own in structures]
    made = score_masks(truth, predicted, patients, classes=4, expected=expected, structures=members, **how)
    rounds = []
    for place, own in enumerate(members):
        union = np.where(truth == IGNORED, IGNORED, np.isin(truth, own))
        alone = np.isin(predicted, own).astype(int)
        sums = expected[:, [number - 1 for number in own]].sum(axis=1, keepdims=True)
        single = score_masks(union, alone, patients, classes=2, expected=sums, **how)
        assert np.array_equal(made.scores[:, [place]], single.scores, equal_nan=True)
        assert np.array_equal(made.present[:, [place]], single.present) and made.sizes is not None
        assert np.allclose(made.sizes[:, [place]], single.sizes, equal_nan=True)
        rounds += [*by_round.score_masks(union, alone, patients, 2, IGNORED).scores.values()]
    known = [value for value in rounds if value == value]
    (mean,) = by_round.score_masks(truth, predicted, patients, 4, IGNORED, members).scores.values()
    assert mean == pytest.approx(np.mean(known)) if known else mean != mean


@settings(max_examples=20, deadline=None)
@given(MASKS)
def test_without_regions_each_class_is_a_structure(both):
    truth, predicted = both[0], np.where(both[1] == IGNORED, 0, both[1])
    how: dict[str, Any] = {"spacing_mm": (2.0, 1.0, 0.7), "classes": 4, "ignored": IGNORED}
    made = [score_masks(truth, predicted, [1, 1, 2], structures=s, **how) for s in (None, [[1], [2], [3]])]
    for name in ("scores", "present", "sizes"):
        assert np.array_equal(*(getattr(each, name) for each in made), equal_nan=name != "present")
    fast = score_masks(truth, predicted, [1, 1, 2], surfaces=False, **how).scores
    assert np.array_equal(fast[..., 0], made[0].scores[..., 0], equal_nan=True) and np.isnan(fast[..., 1]).all()


def test_structures_that_are_no_classes_are_refused():
    mask = np.zeros((1, 2, 2), int)
    for wrong in ([], [[]], [[0]], [[1, 4]]):
        with pytest.raises(ValueError, match=r"structures are .* needed are classes from 1 to 3 of each"):
            score_masks(mask, mask, [0], spacing_mm=(1, 1), classes=4, structures=wrong)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sets(st.sampled_from(CLASSES), min_size=1)))
def test_what_is_packed_is_read_again_in_its_order_or_refused(drawn):
    regions = {name: tuple(sorted(own)) for name, own in drawn.items()}
    packed = pack_regions(regions)
    if regions and find_region_problems(regions, CLASSES):
        with pytest.raises(ValueError, match=r"regions: "):
            unpack_regions(packed, CLASSES)
        return
    assert list(unpack_regions(packed, CLASSES).items()) == list(regions.items())
    numbers = read_regions(json.loads(json.dumps({"regions": packed}, sort_keys=True)), CLASSES)
    assert list(numbers) == list(regions)
    assert all([CLASSES[n - 1] for n in own] == [c for c in CLASSES if c in regions[k]] for k, own in numbers.items())
    assert list_members(numbers, 4) == (tuple(numbers.values()) or ((1,), (2,), (3,)))


@pytest.mark.parametrize(
    ("regions", "where", "said"),
    [
        ({"whole": CLASSES, "core": ()}, "regions.core", "a region is one or more of the classes, each once: edema"),
        ({"whole": CLASSES, "core": ("cyst",)}, "regions.core", "found ['cyst']"),
        ({"whole": CLASSES, "core": ("edema", "edema")}, "regions.core", "each once"),
        ({"whole": CLASSES, "all": CLASSES[::-1]}, "regions.all", "it has the classes of whole"),
        ({"whole": CLASSES, "edema": ("edema", "necrosis")}, "regions.edema", "a class has this name"),
        ({"whole": CLASSES, "No Name": ("edema",)}, "regions.No Name", "is no name of a region"),
        ({"whole": CLASSES, "ignore": ("edema",)}, "regions.ignore", "is no name of a region"),
        ({"core": ("necrosis", "enhancing")}, "regions", "no region has edema, so nobody would score it"),
    ],
)
def test_wrong_regions_are_refused_where_they_stand(regions, where, said):
    with pytest.raises(SettingsError) as raised:
        Segmentation(kind="segmentation", target="masks", classes=CLASSES, regions=regions)
    assert [".".join(map(str, problem.where)) for problem in raised.value.problems] == [where]
    assert said in str(raised.value)


def test_all_wrong_regions_are_told_at_once_and_a_gland_has_none():
    with pytest.raises(SettingsError) as raised:
        Segmentation(kind="segmentation", target="masks", classes=CLASSES, regions={"a": (), "b": ("cyst",)})
    assert len(raised.value.problems) == 3
    many = find_region_problems({f"r{number}": ("edema",) for number in range(8)}, CLASSES)[""]
    assert "no region has necrosis, enhancing" in many and "8 regions, and 7 are scored at most" in many
    with pytest.raises(SettingsError, match="the target gland is one; remove them"):
        Segmentation(kind="segmentation", target="gland", regions={"a": ("gland",)})


def test_a_task_without_regions_has_the_digest_that_it_always_had():
    plain = to_plain(Segmentation(kind="segmentation", target="masks", classes=CLASSES))
    assert plain == {"kind": "segmentation", "target": "masks", "classes": [*CLASSES]}
    masks = to_plain(VolumeMasks(folder="m", values={"a": (1,)}))
    assert masks == {"folder": "m", "values": {"a": [1]}}


# Whole runs

LABELS = {"background": 0, "Whole": [1, 2, 3], "core": [2, 3], "Enhancing": 3, "ignore": 4}


def write_dataset(folder: Path, cases: int = 6, seed: int = 0, labels: Mapping[str, Any] = LABELS) -> Path:
    """Blocks in blocks, brighter inside, as a folder of nnU-Net's."""
    rng = np.random.default_rng(seed)
    for name in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / name).mkdir(parents=True)
    for number in range(cases + 1):
        classes = np.zeros(SHAPE, np.uint8)
        first = int(rng.integers(1, 5))
        classes[first : first + 10, 3:13, 1:7] = 1
        classes[first + 2 : first + 8, 5:11, 2:6] = 2
        classes[first + 4 : first + 6, 7:9, 3:5] = 3
        classes[0, 0, 0] = 4
        values = (3 + 2 * (classes % 4) + rng.normal(0, 0.2, SHAPE)).astype(np.float32)
        images = folder / ("imagesTr" if number < cases else "imagesTs")
        nibabel.save(nibabel.Nifti1Image(values, AFFINE), images / f"c{seed}_{number:02d}_0000.nii.gz")
        if number < cases:
            nibabel.save(nibabel.Nifti1Image(classes, AFFINE), folder / "labelsTr" / f"c{seed}_{number:02d}.nii.gz")
    described = {"channel_names": {"0": "T1"}, "labels": labels, "numTraining": cases, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(described | {"regions_class_order": [1, 2, 3]}))
    return folder


def draft(folder: Path) -> dict[str, Any]:
    """What init writes for two hospitals, small enough to train here."""
    for seed, name in enumerate(("north", "south")):
        write_dataset(folder / name, seed=seed)
    assert init([str(folder), "--out", "my.yaml"]) == Exit.OK
    drafted: dict[str, Any] = yaml.safe_load(Path("my.yaml").read_text())
    drafted["images"] |= {"size": 16, "spacing_mm": 1.5, "depth": 8, "depth_mm": 3.0}
    drafted["model"] = {"name": "unet", "width": 4, "levels": 2, "norm": "group"}
    drafted["train"] |= {"schedule": {"rounds": 1}, "work": {"optimizer": "sgd", "lr": 0.02, "batch": 2, "steps": 2}}
    drafted["train"]["work"]["epochs"] = None
    drafted["split"] = {"train": 0.34, "validation": 0.33, "test": 0.33}
    drafted["evaluate"] = {"copies": 5, "reference": None, "rounds": True}
    return drafted


def union(classes: np.ndarray, region: str) -> np.ndarray:
    return np.isin(classes, {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}[region])


def test_from_a_folder_of_nnunet_to_masks_of_regions(tmp_path, monkeypatch):
    """Scores at home are Dice of unions of the masks that the model itself gives; pages name regions, not classes."""
    monkeypatch.chdir(tmp_path)
    drafted = draft(Path("raw"))
    named = {"whole": ["whole-only", "core-whole-only", "enhancing"], "core": ["core-whole-only", "enhancing"]}
    assert drafted["task"]["regions"] == named | {"enhancing": ["enhancing"]}
    assert drafted["task"]["classes"] == ["whole-only", "core-whole-only", "enhancing"]
    values = drafted["sites"]["north"]["source"]["masks"]["values"]
    assert values == {"whole-only": [1], "core-whole-only": [2], "enhancing": [3], "ignore": [4]}
    drafted["evaluate"]["variants"] = {"clean": {"of": "local", "calibration": "largest"}}
    Path("my.yaml").write_text(yaml.safe_dump(drafted, sort_keys=False))
    assert plan(["my.yaml", "--small", "-o", "planned.yaml"]) == Exit.OK
    planned = Path("planned.yaml").read_text()
    assert load_config("planned.yaml").task.structures == ("whole", "core", "enhancing")  # type: ignore[union-attr]
    assert "core-whole-only: " in planned, "figures are of classes, which exclude each other"
    assert run(["my.yaml", "--check", "--headers"]) == Exit.OK and run(["my.yaml"]) == Exit.OK
    (home,) = Path("runs").glob("*/sites/north")
    (scores,) = Path("runs").glob("*/report/*/scores.json")
    measures = {row["measure"] for row in json.loads(scores.read_text())}
    assert measures == {f"{name}{of}" for name in ("Dice", "HD95") for of in ("", " whole", " core", " enhancing")}
    page = (home / "report.html").read_text()
    assert "Dice whole" in page and "Dice core-whole-only" not in page
    ready = read_ready(home / "ready" / "clean.safetensors")
    assert ready.structures == {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
    model = str(home / "ready" / "local.safetensors")
    assert predict([model, "raw/north/imagesTs", "--out", "out"]) == Exit.OK
    (line,) = csv.DictReader(Path("out/predictions.csv").read_text().splitlines())
    classes = np.asarray(nibabel.load(Path("out") / line["mask"]).dataobj)
    for region in ("whole", "core", "enhancing"):
        made = np.asarray(nibabel.load(Path("out") / line[f"region_{region}"]).dataobj)
        assert np.array_equal(made, union(classes, region)), region
        assert float(line[f"{region}_ml"]) == pytest.approx(made.sum() * 6.75e-3, abs=1e-4)
    assert predict([model, "raw/south/imagesTs", "--out", "out"]) == Exit.OK
    assert len([*Path("out/regions").rglob("*.nii.gz")]) == 3, "masks of the studies before are removed"
    card = str(home / "ready" / "local.safetensors"), "--out", "card", "--card"
    assert export([*card]) == Exit.OK
    told = "regions, each a union of classes: whole (whole-only, core-whole-only, enhancing), core (core-whole-only"
    assert told in Path("card/local.card.md").read_text()
    check_model_file(home / "ready" / "local.safetensors", next(home.glob("cohorts/*/cohort.safetensors")))


def check_model_file(path: Path, cohort: Path) -> None:
    """A benchmark reads a hospital's files with the model's regions, and a file with wrong ones is none."""
    ready, recipe = read_ready(path), read_cohort_file(cohort).recipe
    wanted = reading_of(ready)
    assert [*wanted.regions] == recipe["regions"] == settings_of(ready)["regions"]
    assert find_reading_differences(ready, recipe) is None
    assert find_reading_differences(ready, {**recipe, "regions": []}) == "regions"
    message = from_bytes(unseal_parts(path.read_bytes()))
    with pytest.raises(ValueError, match="regions: a: a region is one or more of the classes"):
        parse_ready(seal_parts(to_bytes(Message(message.tensors, {**message.facts, "regions": [["a", "b"]]}))))


@pytest.mark.slow
def test_every_method_of_masks_learns_the_same_and_is_scored_by_unions(tmp_path, monkeypatch):
    compare_methods(tmp_path, monkeypatch, [one.name for one in methods.fit(testbed.dense_task(norm="group"))])


def test_methods_of_masks_learn_the_same_and_are_scored_by_unions(tmp_path, monkeypatch):
    compare_methods(tmp_path, monkeypatch, ["local", "fedavg", "fedper"])


def compare_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """A run with regions, and one of the same classes without: models are equal bit by bit, and the Dice of a region is
    that of unions of the masks of the run without.
    """
    monkeypatch.chdir(tmp_path)
    drafted = draft(Path("raw"))
    for site in drafted["sites"].values():
        site["policy"] = {"recipients": ["coordinator", "sites"]}
    drafted["train"]["methods"] = {name: to_plain(methods.SETTLED.get(name, {"name": name})) for name in names}
    weights = dict[tuple[str, str], Message]()
    for kind in ("regions", "classes"):
        made = copy.deepcopy(drafted) | {"name": kind}
        if kind == "classes":
            del made["task"]["regions"]
        Path(f"{kind}.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
        assert load_config(f"{kind}.yaml").task.names[1:] == ("whole-only", "core-whole-only", "enhancing")
        assert run([f"{kind}.yaml", "--until", "evaluate"]) == Exit.OK
        for name in names:
            path = Path("runs") / kind / "sites" / "north" / "ready" / f"{name}.safetensors"
            weights[kind, name] = from_bytes(unseal_parts(path.read_bytes()))
    home = Path("runs/regions/sites/north")
    (cohort,) = (read_cohort_file(path) for path in home.glob("cohorts/*/cohort.safetensors"))
    test = cohort.split == SPLITS.index("test")
    truth, patients = cohort.mask[test].numpy(), cohort.patient[test].numpy()
    for name in names:
        mine, theirs = weights["regions", name], weights["classes", name]
        assert mine.tensors.keys() == theirs.tensors.keys() and mine.tensors
        assert all(torch.equal(mine.tensors[key], theirs.tensors[key]) for key in mine.tensors), name
        ready = read_ready(Path(f"runs/classes/sites/north/ready/{name}.safetensors"))
        predicted = ready.probabilities(cohort.images[test]).argmax(dim=1).numpy()
        unions = [
            score_masks(  # each by itself, as a map of one class
                np.where(truth == IGNORED, IGNORED, union(truth, region)),
                union(predicted, region).astype(int),
                patients,
                spacing_mm=(3.0, 1.5, 1.5),
                classes=2,
                ignored=IGNORED,
            ).scores
            for region in ("whole", "core", "enhancing")
        ]
        (path,) = (home / "scores").glob(f"{str(mine.facts['run']).rpartition('/')[2]}.*")
        scores = from_bytes(path.read_bytes()).tensors["scores"].numpy()
        assert np.array_equal(scores, np.concatenate(unions, axis=1), equal_nan=True), name


# DICOM


def test_segments_of_regions_overlap_and_each_is_its_union(tmp_path):
    write(PhantomSource(scanner="A", patients=1, seed=4, slices=5), tmp_path)
    source = DicomSource(folder=str(tmp_path / "images"), select={"ImageType": "ADC"})
    (candidate,) = index_dicom(source).candidates
    values = np.random.default_rng(0).integers(0, 4, candidate.shape).astype(np.uint8)
    values[..., 0] = 0
    maker = ResultMaker(b"k" * 32, "m", "d", datetime(2024, 1, 1))
    members = dict(zip(REGIONS, MEMBERS, strict=True))
    mask = Volume(values, candidate.affine)
    path = tmp_path / "seg.dcm"
    path.write_bytes(seg_bytes(mask, candidate.stack, CLASSES, maker, regions=members))  # type: ignore[arg-type]
    for region, own in members.items():
        read = read_segmentation(path, (region,)).values
        assert np.array_equal(read > 0, np.isin(values, own)[..., -read.shape[2] :]), region
    plain = [seg_bytes(mask, candidate.stack, CLASSES, maker, **how) for how in ({}, {"regions": None})]  # type: ignore[arg-type]
    assert plain[0] == plain[1]


def test_overlapping_segments_are_read_as_the_classes_that_they_were_made_of(tmp_path):
    """A mask that was written by regions is a hospital's label map again; a set of segments without a class is not."""
    home = tmp_path / "phantom"
    write(PhantomSource(scanner="A", patients=3, seed=4, slices=5), home)
    select, maker = {"ImageType": "ADC"}, ResultMaker(b"k" * 32, "m", "d", datetime(2024, 1, 1))
    rng, members = np.random.default_rng(0), {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
    for candidate in index_dicom(DicomSource(folder=str(home / "images"), select=select)).candidates:
        mask = Volume(rng.integers(0, 4, candidate.shape).astype(np.uint8), candidate.affine)
        for folder, how in (("regions", {"regions": members}), ("classes", {})):
            (home / folder).mkdir(exist_ok=True)
            data = seg_bytes(mask, candidate.stack, CLASSES, maker, **how)  # type: ignore[arg-type]
            (home / folder / f"{candidate.patient}.dcm").write_bytes(data)

    def read(folder: str, **what: Any) -> Any:
        masks = VolumeMasks(folder=str(home / folder), pattern="{patient}.dcm", **what)
        source = DicomSource(folder=str(home / "images"), select=select, masks=masks)
        images = Slices(values="standardized", spacing_mm=1.7, centre="image", slices="all")
        shares = {"train": 0.5, "validation": 0.0, "test": 0.5}
        how: dict[str, Any] = {"fractions": shares, "seed": 0, "key": b"k" * 32, "target": "masks"}
        return read_cohort(source, None, images, classes=CLASSES, **how)

    sets = {"edema": (1,), "necrosis": (1, 2), "enhancing": (1, 2, 3)}
    cohort, plain = (
        read("regions", segments=sets).cohort,
        read("classes", values={c: (n,) for n, c in enumerate(CLASSES, 1)}),
    )
    assert len(cohort.patients) == 3 and torch.equal(cohort.mask, plain.cohort.mask) and cohort.mask.max() == 3
    rejected = read("regions", segments=sets | {"necrosis": (2,)}).rejected
    assert {each.reason for each in rejected} == {"mask_value"} and "in the segments [1, 2] alone" in rejected[0].detail
    assert {
        each.reason
        for each in read("regions", values=sets | {"necrosis": (2,), "edema": (1,), "enhancing": (3,)}).rejected
    } == {"bad_mask"}


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ({"a": (1,), "b": (1, 17)}, "segments.b must name segments from 1 to 16, found [1, 17]"),
        ({"a": (1, 2), "b": (2, 1)}, "segments.b: these are the segments of a"),
        ({"a": ()}, "segments.a must name segments"),
        ({"ignore": (1,)}, "segments: no class"),
        ({"a": (1,), "background": (2,)}, "segments.background: it is where no segment is"),
    ],
)
def test_wrong_segments_are_refused(segments, said):
    with pytest.raises(SettingsError) as raised:
        VolumeMasks(folder=".", pattern="{patient}.dcm", segments=segments)
    assert said in str(raised.value)
    with pytest.raises(SettingsError, match="values: segments say what classes are"):
        VolumeMasks(folder=".", pattern="{patient}.dcm", segments={"a": (1,)}, values={"a": (1,)})
    with pytest.raises(
        SettingsError, match=r"pattern: '\{patient\}\.nii\.gz' names NIfTI files, and segments are of DICOM"
    ):
        VolumeMasks(folder=".", segments={"a": (1,)})


def test_of_dicom_a_model_writes_a_segment_of_each_region(tmp_path, monkeypatch):
    """And its hospital's cohort is written for nnU-Net with these regions, called by pseudonyms."""
    monkeypatch.chdir(tmp_path)
    write(PhantomSource(scanner="A", patients=6, seed=4, slices=6), Path("site"))
    for path in Path("site/masks/gland").iterdir():
        gland = nibabel.load(path)
        lesion = np.asarray(nibabel.load(Path("site/masks/lesion") / path.name).dataobj) > 0
        both = np.where(lesion, 2, np.asarray(gland.dataobj) > 0).astype(np.uint8)
        Path("maps").mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(both, gland.affine), Path("maps") / path.name)
    masks = {"folder": "maps", "values": {"rest": [1], "lesion": [2]}}
    source = {"kind": "dicom", "folder": "site/images", "select": {"ImageType": "ADC"}, "masks": masks}
    regions = {"prostate": ["rest", "lesion"], "lesion": ["lesion"]}
    task = {"kind": "segmentation", "target": "masks", "classes": ["rest", "lesion"], "regions": regions}
    images = {"kind": "slices", "size": 16, "spacing_mm": 4.0, "values": "standardized", "centre": "image"}
    made = {"name": "d", "privacy": "none", "task": task, "sites": {"a": {"source": source}}}
    made |= {"images": images | {"slices": "all"}, "split": {"train": 0.4, "validation": 0.3, "test": 0.3}}
    made |= {"model": {"name": "unet", "width": 4, "levels": 2, "norm": "group"}, "audit": {"membership": False}}
    work = {"batch": 4, "epochs": None, "steps": 2}
    made["train"] = {"schedule": {"rounds": 1}, "work": work, "methods": {"local": {"name": "local"}}}
    made["evaluate"] = {"copies": 5, "reference": None}
    Path("d.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    assert run(["d.yaml", "--until", "evaluate"]) == Exit.OK
    assert predict(["runs/d/sites/a/ready/local.safetensors", "site/images", "--out", "out"]) == Exit.OK
    lines = [*csv.DictReader(Path("out/predictions.csv").read_text().splitlines())]
    assert len(lines) == 6 and "region_prostate" not in lines[0] and not Path("out/regions").exists()
    for line in lines:
        whole, part = (
            read_segmentation(Path("out") / line["mask"], (region,)) if float(line[f"{region}_ml"]) else None
            for region in regions
        )
        assert part is None or whole is not None
        if whole is not None:
            voxel = abs(np.linalg.det(whole.affine[:3, :3])) / 1000
            assert (whole.values > 0).sum() * voxel == pytest.approx(float(line["prostate_ml"]), rel=1e-3)
    assert dataset(["d.yaml", "--out", "raw"]) == Exit.OK
    described = json.loads(Path("raw/dataset.json").read_text())
    assert described["labels"] == {"background": 0, "prostate": [1, 2], "lesion": 2}
    assert described["regions_class_order"] == [1, 2]


def test_of_pictures_too_the_disc_is_rim_and_cup(tmp_path, monkeypatch):
    """A PNG of classes, and one of each region beside it; shares are of regions."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(8):
        classes = np.zeros((24, 24), np.uint8)
        classes[4:18, 5:19], classes[8:13, 9:14] = 1, 2
        shown = np.clip(40 + 80 * classes[..., None] + rng.normal(0, 5, (24, 24, 3)), 0, 255).astype(np.uint8)
        for folder, values in (("pictures", shown), ("maps", classes)):
            Path(folder).mkdir(exist_ok=True)
            Image.fromarray(values).save(Path(folder) / f"p{number}.png")
    masks = {"folder": "maps", "values": {"rim": [1], "cup": [2]}}
    source = {"kind": "picture", "folder": "pictures", "table": None, "label": None, "masks": masks}
    regions = {"disc": ["rim", "cup"], "cup": ["cup"]}
    task = {"kind": "segmentation", "target": "masks", "classes": ["rim", "cup"], "regions": regions}
    made = {"name": "f", "privacy": "none", "task": task, "sites": {"a": {"source": source}}}
    made |= {"images": {"kind": "pictures", "size": 16}, "split": {"train": 0.4, "validation": 0.3, "test": 0.3}}
    made |= {"model": {"name": "unet", "width": 4, "levels": 2, "norm": "group"}, "audit": {"membership": False}}
    work = {"lr": 0.02, "batch": 2, "epochs": 4}
    made["train"] = {"schedule": {"rounds": 3}, "work": work, "methods": {"local": {"name": "local"}}}
    made["evaluate"] = {"copies": 5, "reference": None}
    Path("f.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    assert run(["f.yaml", "--until", "evaluate"]) == Exit.OK
    assert predict(["runs/f/sites/a/ready/local.safetensors", "pictures", "--out", "out"]) == Exit.OK
    for line in csv.DictReader(Path("out/predictions.csv").read_text().splitlines()):
        classes = np.asarray(Image.open(Path("out") / line["mask"]))
        for region, own in (("disc", [1, 2]), ("cup", [2])):
            alone = np.asarray(Image.open(Path("out") / line[f"region_{region}"]))
            assert np.array_equal(alone, np.isin(classes, own))
            assert float(line[f"{region}_share"]) == pytest.approx(alone.mean(), abs=1e-5)
    assert Path("out/regions/disc/p0.png.png").is_file()
