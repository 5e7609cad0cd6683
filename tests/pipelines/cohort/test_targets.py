"""What a segmenting network learns of a cohort, what says that nobody knows, and a slice between its neighbours."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.cohort import Cohort, Reading, from_message, read_cohort, to_message
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.examples import open_source
from pipelines.data.images import Features, Slices, Volumes
from pipelines.data.prepare import prepare_slices
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, NiftiSource, TableLabels, TableSource
from pipelines.data.stored import NoMasks, target_masks
from pipelines.data.studies import read_mask
from pipelines.data.study import Volume
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import ResultMaker
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource

KEY = b"a hospital's secret key"
SHARES = {"train": 0.5, "validation": 0.0, "test": 0.5}
SHAPE = (24, 22, 5)
AFFINE = np.array([[-2.0, 0, 0, 30], [0, -2, 0, 25], [0, 0, 4, -10], [0, 0, 0, 1]])
GLAND = np.zeros(SHAPE, np.uint8)
GLAND[6:18, 6:16, 1:4] = 1


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values, AFFINE)
    image.header["descrip"] = b"ADC"
    nibabel.save(image, path)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Four patients with a gland; the first two have a lesion."""
    lesion = np.zeros(SHAPE, np.uint8)
    lesion[9:13, 9:12, 2] = 1
    lines = ["patient,label"]
    for number in range(4):
        values = np.random.default_rng(number).uniform(800, 1600, SHAPE).astype(np.float32)
        save(tmp_path / "images" / f"P{number}.nii.gz", values)
        save(tmp_path / "gland" / f"P{number}.nii.gz", GLAND)
        save(tmp_path / "lesion" / f"P{number}.nii.gz", lesion * (number < 2))
        lines.append(f"P{number},{int(number < 2)}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path


def read(home: Path, images: Any = None, **options: Any) -> Reading:
    given = {
        "source": NiftiSource(folder=str(home / "images")),
        "labels": MaskLabels(folder=str(home / "lesion")),
        "gland": GlandMask(folder=str(home / "gland")),
    } | options
    source, labels = given.pop("source"), given.pop("labels")
    return read_cohort(source, labels, images or Slices(size=24), fractions=SHARES, seed=0, key=KEY, **given)


def patients(cohort: Cohort, which: torch.Tensor) -> int:
    return len(set(cohort.patient[(which != 0).flatten(1).any(dim=1)].tolist()))


@pytest.mark.parametrize("images", [Slices(size=24), Volumes(size=24, depth=8), Slices(size=24, context=3)])
def test_gland_and_lesion_are_classes_of_each_voxel(hospital, images):
    for target, drawn in (("gland", 4), ("lesion", 2)):
        cohort = read(hospital, images, target=target).cohort
        found = target_masks(cohort, target)
        assert (found.dtype, found.shape) == (torch.uint8, (len(cohort.images), *cohort.images.shape[2:]))
        assert set(found.unique().tolist()) == {0, 1}
        assert patients(cohort, found) == drawn
        assert torch.equal(target_masks(from_message(to_message(cohort)), target), found)


def test_a_patient_whose_gland_nobody_drew_is_not_one_without_a_gland(hospital):
    (hospital / "gland" / "P0.nii.gz").unlink()
    save(hospital / "gland" / "P1.nii.gz", GLAND * 0)
    found = read(hospital, target="gland")
    assert Counter(one.reason for one in found.rejected) == {"no_gland": 2}
    assert patients(found.cohort, target_masks(found.cohort, "gland")) == 2


def test_a_gland_that_no_example_shows_is_not_learnt_as_none(hospital):
    """Thinner than the pixels, it falls between them."""
    thin = np.zeros(SHAPE, np.uint8)
    thin[12, 10, 2] = 1
    save(hospital / "gland" / "P0.nii.gz", thin)
    images = Slices(size=8, spacing_mm=9.0)
    with_target, without = read(hospital, images, target="gland"), read(hospital, images)
    drawn = patients(without.cohort, without.cohort.gland)
    assert len(with_target.cohort.patients) == drawn
    assert Counter(one.reason for one in with_target.rejected) == ({"no_gland": 1} if drawn == 3 else {})
    save(hospital / "gland" / "P0.nii.gz", GLAND)
    cohort = read(hospital).cohort
    cohort.gland[cohort.patient == 2] = 0
    with pytest.raises(NoMasks, match="1 of 4 patients"):
        target_masks(cohort, "gland")


def test_a_cohort_read_without_the_masks_has_no_targets(hospital):
    table = TableLabels(file=str(hospital / "labels.csv"))
    bare = read(hospital, labels=table, gland=None).cohort
    assert int(bare.labels.sum()) == 10
    for target in ("gland", "lesion", "masks"):
        with pytest.raises(NoMasks):
            target_masks(bare, target)
    for target, said in (("gland", "gland: missing"), ("lesion", "labels: the target"), ("masks", r"source\.masks")):
        with pytest.raises(ValueError, match=said):
            read(hospital, labels=table, gland=None, target=target)


def test_a_hospital_without_any_lesion_is_believed_if_it_says_so(hospital):
    for number in range(2):
        save(hospital / "lesion" / f"P{number}.nii.gz", GLAND * 0)
    assert not target_masks(read(hospital, target="lesion").cohort, "lesion").any()
    with pytest.raises(NoMasks, match="no lesion is drawn"):
        target_masks(read(hospital).cohort, "lesion")


def test_a_study_without_a_lesion_mask_is_not_one_without_a_lesion(hospital):
    (hospital / "lesion" / "P0.nii.gz").unlink()
    found = read(hospital, target="lesion")
    assert [one.reason for one in found.rejected] == ["no_label"]


def test_gland_masks_alone_are_enough_to_learn_glands(hospital):
    cohort = read(hospital, labels=None, target="gland").cohort
    assert int(cohort.labels.sum()) == 0
    assert patients(cohort, target_masks(cohort, "gland")) == 4


def test_lines_of_a_table_have_no_masks(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n")
    source = TableSource(file=str(tmp_path / "t.csv"), label="y")
    images = Features(numbers=("a",), normalize="none")
    cohort = read_cohort(source, None, images, fractions=SHARES, seed=0, key=KEY).cohort
    assert cohort.mask.shape == (2, 0)
    with pytest.raises(NoMasks):
        target_masks(cohort, "masks")
    with pytest.raises(ValueError, match=r"source\.masks"):
        open_source(source, None, images, None, "masks", ("disc",))


def test_no_target_changes_nothing_but_what_is_said(hospital):
    plain, asked = read(hospital).cohort, read(hospital, target="gland").cohort
    assert "target" not in plain.recipe
    assert asked.recipe == {**plain.recipe, "target": "gland"}
    for name, part in to_message(plain).tensors.items():
        assert torch.equal(to_message(asked).tensors[name], part)


# A slice between its neighbours


@settings(max_examples=25)
@given(st.integers(2, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_slice_lies_between_its_neighbours(count, gland_only, seed):
    rng = np.random.default_rng(seed)
    image = Volume(rng.normal(size=(12, 12, count)).astype(np.float32), AFFINE)
    inside = np.zeros((12, 12, count), np.uint8)
    low = int(rng.integers(0, count))
    inside[3:9, 3:9, low : int(rng.integers(low, count)) + 1] = 1
    gland = Volume(inside, AFFINE)
    how = {"size": 12, "spacing_mm": 2.0}
    every = prepare_slices(image, lesion=None, gland=gland, images=Slices(**how)).images[:, 0]
    chosen = "gland" if gland_only else "all"
    found = prepare_slices(image, lesion=None, gland=gland, images=Slices(**how, context=3, slices=chosen))
    alone = prepare_slices(image, lesion=None, gland=gland, images=Slices(**how, slices=chosen))
    assert np.array_equal(found.images[:, 1:2], alone.images)
    assert np.array_equal(found.gland, alone.gland)
    for row, place in enumerate(found.position.astype(int)):
        assert np.array_equal(found.images[row, 0], every[max(place - 1, 0)])
        assert np.array_equal(found.images[row, 2], every[min(place + 1, count - 1)])


def test_context_is_a_channel_count():
    assert Slices(size=32).inputs == (1, 32, 32)
    assert Slices(size=32, context=3).inputs == (3, 32, 32)


# Segmentations


@pytest.fixture(scope="module")
def clinic(tmp_path_factory) -> Path:
    """A phantom hospital in DICOM, with a DICOM Segmentation of each gland, and one of gland and lesion."""
    home = tmp_path_factory.mktemp("clinic") / "phantom"
    write(PhantomSource(scanner="A", patients=3, seed=4), home)
    maker = ResultMaker(KEY, "m", "d", datetime(2024, 1, 1))
    (home / "alone").mkdir()
    (home / "both").mkdir()
    for candidate in index_dicom(DicomSource(folder=str(home / "images"))).candidates:
        parts = [
            np.asarray(nibabel.load(home / "masks" / kind / f"{candidate.patient}.nii.gz").dataobj) > 0
            for kind in ("gland", "lesion")
        ]
        name, classes = f"{candidate.patient}.dcm", ("gland", "lesion")
        both = Volume(np.where(parts[1], 2, parts[0]).astype(np.uint8), candidate.affine)
        (home / "both" / name).write_bytes(seg_bytes(both, candidate.stack, classes, maker))
        alone = Volume(parts[0].astype(np.uint8), candidate.affine)
        (home / "alone" / name).write_bytes(seg_bytes(alone, candidate.stack, classes[:1], maker))
    return home


def test_masks_in_dicom_are_those_in_nifti(clinic):
    source = DicomSource(folder=str(clinic / "images"), select={"ImageType": "ADC"})
    masks, seg = clinic / "masks", {"pattern": "{patient}.dcm"}
    nifti = read(
        clinic,
        Slices(),
        source=source,
        labels=MaskLabels(folder=str(masks / "lesion")),
        gland=GlandMask(folder=str(masks / "gland")),
    ).cohort
    dicom = read(
        clinic,
        Slices(),
        source=source,
        labels=MaskLabels(**seg, folder=str(clinic / "both"), segment="lesion"),
        gland=GlandMask(**seg, folder=str(clinic / "alone")),
    ).cohort
    assert len(nifti.images) == 18
    assert int(nifti.lesion.sum()) > 0
    assert torch.allclose(nifti.images, dicom.images, atol=1e-4)  # DICOM and NIfTI round the grid otherwise
    for name in ("labels", "lesion", "gland"):
        assert torch.equal(getattr(nifti, name), getattr(dicom, name)), name


def test_a_mask_is_told_by_its_bytes_and_a_bad_one_says_why(clinic, hospital):
    (seg,) = sorted((clinic / "both").glob("*"))[:1]
    (hospital / "gland" / "P0.nii.gz").write_bytes(seg.read_bytes())
    assert read_mask(hospital / "gland" / "P0.nii.gz").values.any()
    (hospital / "gland" / "P0.nii.gz").write_bytes(seg.read_bytes()[:3000])
    image = next((clinic / "images").rglob("*.dcm"))
    (hospital / "gland" / "P1.nii.gz").write_bytes(image.read_bytes())
    found = read(hospital)
    assert [one.reason for one in found.rejected] == ["bad_mask"] * 2
    assert "not_a_segmentation" in found.rejected[1].detail


# Real studies


def test_glands_of_prostatex_are_targets(data):
    labels = data / "prostatex" / "labels"
    if not labels.is_dir():
        pytest.skip(f"no prostatex at {labels}")
    names = str(labels / "ProstateX-mapping.json")
    found = read(
        data,
        Slices(size=64, context=3),
        source=DicomSource(folder=str(data / "prostatex" / "dicom"), select={"ImageType": "ADC"}),
        labels=MaskLabels(folder=str(labels / "lesion_expert"), names=names),
        gland=GlandMask(folder=str(labels / "whole_gland_Bosma22b"), names=names),
        target="gland",
    )
    assert not found.rejected
    assert found.cohort.images.shape == (38, 3, 64, 64)
    gland, own = target_masks(found.cohort, "gland") > 0, found.cohort.images[:, 1]
    means = sorted(float(own[gland & (found.cohort.patient == p)[:, None, None]].mean()) for p in (0, 1))
    assert means == pytest.approx([1.290, 1.454], rel=0.02)
