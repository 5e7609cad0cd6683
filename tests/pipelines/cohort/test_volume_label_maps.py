"""Label maps of volumes: several classes of each voxel, whatever numbers a hospital writes for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.cohort import Reading, read_cohort, survey
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.examples import open_source
from pipelines.data.grids.geometry import Grid
from pipelines.data.images import Slices, Volumes
from pipelines.data.intake import foresee_rejection, measure_study
from pipelines.data.measures import MeasuredStudy, measure_volume
from pipelines.data.prepare import prepare_slices, prepare_volume, prepared_grid
from pipelines.data.restore import to_source_grid
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, NiftiSource, VolumeMasks
from pipelines.data.stored import target_masks
from pipelines.data.study import Volume
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import ResultMaker
from pipelines.loader.validation import to_plain
from pipelines.models.translator_file import remove_places
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.sites import SiteSettings, find_missing_site_files
from privacy.settings_error import SettingsError

KEY = b"a hospital's secret key"
SHARES = {"train": 0.5, "validation": 0.0, "test": 0.5}
SHAPE = (24, 22, 6)
AFFINE = np.array([[-2.0, 0, 0, 30], [0, -2, 0, 25], [0, 0, 4, -10], [0, 0, 0, 1]])
CLASSES = ("peripheral", "transition")
VALUES = {"peripheral": (1,), "transition": (2,)}
SLICES = Slices(values="standardized", size=24, spacing_mm=2.0, centre="image")
VOLUMES = Volumes(values="standardized", size=24, spacing_mm=2.0, depth=8, depth_mm=4.0, centre="image")


def drawn(number: int) -> np.ndarray:
    """A patient's classes; the last patient has none."""
    classes = np.zeros(SHAPE, np.int16)
    if number < 3:
        classes[5 : 18 - number, 6:16, 1:5] = 1
        classes[8:12, 8:12, 2:4] = 2
    return classes


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, affine), path)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    for number in range(4):
        values = np.random.default_rng(number).uniform(1, 9, SHAPE).astype(np.float32)
        save(tmp_path / "images" / f"P{number}.nii.gz", values)
        save(tmp_path / "masks" / f"P{number}.nii.gz", drawn(number))
    return tmp_path


def source(home: Path, values: Mapping[str, tuple[int, ...]] = VALUES, **options: Any) -> NiftiSource:
    return NiftiSource(
        folder=str(home / "images"), masks=VolumeMasks(folder=str(home / "masks"), values=values, **options)
    )


def read(of: NiftiSource | DicomSource, images: Slices | Volumes = SLICES, **options: Any) -> Reading:
    given = {"target": "masks", "classes": CLASSES, "fractions": SHARES, "seed": 0, "key": KEY} | options
    return read_cohort(of, given.pop("labels", None), images, **given)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """A grid near the middle of the patient, of any axes' order and direction, spacing and size."""
    order = draw(st.permutations([0, 1, 2]))
    axes = np.zeros((3, 3))
    for axis, along in enumerate(order):
        spacing = draw(st.sampled_from([2.0, 3.7, 5.1]) if along == 2 else st.sampled_from([0.9, 1.3, 1.8]))
        axes[along, axis] = spacing * draw(st.sampled_from([-1, 1]))
    shape = tuple(draw(st.integers(5, 14)) for _ in range(3))
    off = np.array([draw(st.floats(-2, 2)) for _ in range(3)])
    affine = np.eye(4)
    affine[:3, :3] = axes
    affine[:3, 3] = off - axes @ ((np.array(shape) - 1) / 2)
    return Grid(affine, shape)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(grids(), grids(), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_voxel_of_an_example_has_the_class_of_the_nearest_voxel_of_its_map(image_grid, map_grid, whole, seed):
    """A second implementation, voxel by voxel: world coordinates, rounded to the map's index; outside is background."""
    rng = np.random.default_rng(seed)
    image = Volume(rng.normal(size=image_grid.shape).astype(np.float32), image_grid.affine)
    classes = np.zeros(map_grid.shape, np.uint8)
    classes[1:-1, 1:-1, 1:-1] = rng.integers(0, 4, np.array(map_grid.shape) - 2)
    size = {"values": "standardized", "size": 9, "spacing_mm": 1.1, "centre": "image"}
    images = Volumes(**size, depth=5, depth_mm=2.3) if whole else Slices(**size)
    shown = Volume(classes, map_grid.affine)
    if isinstance(images, Volumes):
        found = prepare_volume(image, lesion=None, gland=None, images=images, classes=shown).mask[0]
    else:
        found = prepare_slices(image, lesion=None, gland=None, images=images, classes=shown).mask
    grid = prepared_grid(image_grid, images, None)
    assert found.shape == grid.shape[::-1] and found.dtype == np.uint8
    back = np.linalg.inv(map_grid.affine) @ grid.affine
    for place in np.ndindex(*grid.shape):
        index = (back @ [*place, 1.0])[:3]
        if np.any(np.abs(index - np.floor(index) - 0.5) < 1e-6):
            continue  # as near to two voxels
        nearest = np.rint(index).astype(int)
        inside = np.all(nearest >= 0) and np.all(nearest < map_grid.shape)
        assert found[place[::-1]] == (classes[tuple(nearest)] if inside else 0)


@pytest.mark.parametrize("images", [SLICES, VOLUMES])
def test_a_network_that_is_right_gives_the_map_back_on_the_study_s_own_grid(images):
    image, shown = Volume(np.ones(SHAPE, np.float32), AFFINE), Volume(drawn(0).astype(np.uint8), AFFINE)
    if isinstance(images, Volumes):
        found = prepare_volume(image, lesion=None, gland=None, images=images, classes=shown)
    else:
        found = prepare_slices(image, lesion=None, gland=None, images=images, classes=shown)
    sure = np.moveaxis(np.eye(3, dtype=np.float32)[found.mask], -1, 1)
    back = to_source_grid(sure, found.position, Grid(AFFINE, SHAPE), images, None)
    assert np.array_equal(back.values, drawn(0)) and back.values.dtype == np.uint8


@pytest.mark.parametrize("images", [SLICES, VOLUMES])
def test_classes_come_into_the_cohort_in_the_task_s_order(hospital, images):
    read_once = read(source(hospital), images)
    assert not read_once.rejected and read_once.cohort.recipe["classes"] == [*CLASSES]
    classes = target_masks(read_once.cohort, "masks").long()
    assert classes.shape == (len(read_once.cohort.images), *read_once.cohort.images.shape[2:])
    assert classes.unique().tolist() == [0, 1, 2]
    turned = read(source(hospital), images, classes=CLASSES[::-1]).cohort
    swapped = torch.tensor([0, 2, 1])[classes]
    assert torch.equal(target_masks(turned, "masks").long(), swapped)
    assert torch.equal(read_once.cohort.labels, classes.flatten(1).any(dim=1).long())


@pytest.mark.parametrize(
    "values", [{"transition": (70,), "peripheral": (300,)}, {"peripheral": (0,), "transition": (5,)}]
)
def test_hospitals_that_write_other_numbers_have_the_same_classes(hospital, values):
    """Also where 0 is a class, and the background is said."""
    known = read(source(hospital)).cohort
    values = {**values, "background": (9,)}
    codes = np.array([9, values["peripheral"][0], values["transition"][0]], np.int16)
    for number in range(4):
        save(hospital / "masks" / f"P{number}.nii.gz", codes[drawn(number)])
    assert torch.equal(read(source(hospital, values)).cohort.mask, known.mask)


def test_a_class_may_be_a_union(hospital):
    both = read(source(hospital, {"gland": (1, 2)}), classes=("gland",)).cohort
    assert torch.equal(both.mask, (read(source(hospital)).cohort.mask > 0).to(torch.uint8))


def test_a_study_whose_map_cannot_be_believed_is_set_aside_alone_with_its_reason(hospital):
    odd, half = drawn(0), drawn(1).astype(np.float32)
    odd[0, 0, 0] = 3
    half[0, 0, 0] = 0.5
    save(hospital / "masks" / "P0.nii.gz", odd)
    save(hospital / "masks" / "P1.nii.gz", half)
    (hospital / "masks" / "P2.nii.gz").write_bytes(b"no image")
    found = read(source(hospital))
    assert Counter(each.reason for each in found.rejected) == {"mask_value": 2, "bad_mask": 1}
    said = {each.study: each.detail for each in found.rejected}
    assert "[3]" in said["P0.nii.gz"] and "[0.5]" in said["P1.nii.gz"] and "source.masks.values" in said["P0.nii.gz"]
    assert len(found.cohort.patients) == 1
    assert not read(source(hospital, {**VALUES, "background": (0, 3)}), exclude=("P1", "P2")).rejected


def test_a_missing_map_is_foreseen_and_is_not_an_empty_one(hospital):
    (hospital / "masks" / "P0.nii.gz").unlink()
    assert [each.reason for each in read(source(hospital)).rejected] == ["no_mask"]
    waiting = open_source(source(hospital), None, SLICES, None, "masks", CLASSES).waiting
    reasons = [each.reason for study in waiting if (each := foresee_rejection(study))]
    assert reasons == ["no_mask"]


def test_a_map_of_another_patient_is_refused(hospital):
    far = AFFINE.copy()
    far[:3, 3] += 400
    save(hospital / "masks" / "P0.nii.gz", drawn(0), far)
    assert [each.reason for each in read(source(hospital)).rejected] == ["mask_outside"]


def test_names_lead_from_images_to_maps(hospital):
    (hospital / "names.csv").write_text("image,map\n" + "".join(f"P{n},case-{n}\n" for n in range(4)))
    known = read(source(hospital)).cohort
    for number in range(4):
        (hospital / "masks" / f"P{number}.nii.gz").rename(hospital / "masks" / f"case-{number}.nii.gz")
    assert torch.equal(read(source(hospital, names=str(hospital / "names.csv"))).cohort.mask, known.mask)


def test_a_patient_may_have_several_images_on_one_grid_where_each_has_its_own_map(hospital):
    """As in nnU-Net's folders: P0_a_0000.nii.gz goes with P0_a.nii.gz."""
    for number in range(4):
        names = f"P{number // 2}_{'ab'[number % 2]}"
        (hospital / "images" / f"P{number}.nii.gz").rename(hospital / "images" / f"{names}_0000.nii.gz")
        (hospital / "masks" / f"P{number}.nii.gz").rename(hospital / "masks" / f"{names}.nii.gz")
    of = replace(source(hospital, pattern="{case}.nii.gz"), patient="^(P[0-9])_")
    found = read(of)
    assert not found.rejected and sorted(found.names.values()) == ["P0", "P1"]
    shown = [np.bincount(mask.flatten(), minlength=3)[1:].tolist() for mask in read(of, VOLUMES).cohort.mask.numpy()]
    assert sorted(shown) == sorted(np.bincount(drawn(n).flatten(), minlength=3)[1:].tolist() for n in range(4))
    assert {
        each.reason for each in read(replace(of, masks=replace(of.masks, pattern="{patient}.nii.gz"))).rejected
    } == {"ambiguous"}
    (hospital / "images" / "more").mkdir()
    (hospital / "images" / "P0_a_0000.nii.gz").rename(hospital / "images" / "more" / "P1_a_0000.nii.gz")
    assert Counter(each.reason for each in read(of).rejected) == {"ambiguous_mask": 2}
    with pytest.raises(SettingsError, match=r"names: go with \{patient\}"):
        source(hospital, pattern="{case}.nii.gz", names="names.csv")
    with pytest.raises(SettingsError, match=r"masks\.pattern: \{case\} is of files in NIfTI"):
        DicomSource(folder=".", masks=of.masks)


def test_volumes_of_classes_are_those_of_the_files(hospital):
    opened = open_source(source(hospital), None, VOLUMES, None, "masks", CLASSES[::-1])
    for number, study in enumerate(opened.waiting):
        measured = measure_study(study)
        assert isinstance(measured, MeasuredStudy)
        cubes = [np.count_nonzero(drawn(number) == value) * 16.0 for value in (2, 1)]
        assert measured.volumes == pytest.approx(cubes)
        image = np.asarray(nibabel.load(hospital / "images" / f"P{number}.nii.gz").dataobj)
        inside = image[drawn(number) > 0]
        assert measured.moments[0] == pytest.approx(float(inside.mean()) if inside.size else 0.0, rel=1e-5)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_mask_is_measured_as_a_map_of_one_class(seed):
    rng = np.random.default_rng(seed)
    image = Volume(rng.normal(size=SHAPE).astype(np.float32), AFFINE)
    mask = Volume(rng.integers(0, 2, SHAPE).astype(np.uint8), AFFINE)
    one, other = measure_volume("p", "s", image, mask), measure_volume("p", "s", image, mask, classes=1)
    assert (one.volumes, one.moments) == (other.volumes, other.moments)
    assert np.array_equal(one.foreground, other.foreground)


def test_segmentations_in_dicom_are_label_maps_of_their_segments(tmp_path):
    """Of images in DICOM; the same classes as from NIfTI."""
    home = tmp_path / "phantom"
    write(PhantomSource(scanner="A", patients=3, seed=4, slices=5), home)
    maker = ResultMaker(KEY, "m", "d", datetime(2024, 1, 1))
    for name in ("seg", "nifti"):
        (home / name).mkdir()
    select = {"ImageType": "ADC"}
    for candidate in index_dicom(DicomSource(folder=str(home / "images"), select=select)).candidates:
        gland, lesion = (
            np.asarray(nibabel.load(home / "masks" / kind / f"{candidate.patient}.nii.gz").dataobj) > 0
            for kind in ("gland", "lesion")
        )
        both = Volume(np.where(lesion, 2, gland).astype(np.uint8), candidate.affine)
        data = seg_bytes(both, candidate.stack, ("gland", "lesion"), maker)  # type: ignore[arg-type]
        (home / "seg" / f"{candidate.patient}.dcm").write_bytes(data)
        save(home / "nifti" / f"{candidate.patient}.nii.gz", both.values, candidate.affine)  # type: ignore[arg-type]
    values = {"rest": (1,), "lesion": (2,)}
    cohorts = [
        read(
            DicomSource(
                folder=str(home / "images"),
                select=select,
                masks=VolumeMasks(folder=str(home / folder), pattern=pattern, values=values),
            ),
            Slices(values="standardized", spacing_mm=1.7, centre="image"),
            classes=("rest", "lesion"),
        ).cohort
        for folder, pattern in (("seg", "{patient}.dcm"), ("nifti", "{patient}.nii.gz"))
    ]
    assert len(cohorts[0].patients) == 3 and torch.equal(cohorts[0].mask, cohorts[1].mask)
    assert set(cohorts[0].mask.unique().tolist()) == {0, 1, 2}


def test_a_label_of_a_table_may_stand_beside_a_map(hospital):
    labelled = read(source(hospital), labels=MaskLabels(folder=str(hospital / "masks"))).cohort
    assert torch.equal(labelled.mask, read(source(hospital)).cohort.mask)


# Settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"values": {}}, "values: no class"),
        ({"values": {"a": ()}}, "values.a: empty"),
        ({"values": {"a": (1,), "b": (1,)}}, r"\[1\] stand for several"),
        ({"values": {"a": (0,)}}, r"\[0\] stand for several"),
        ({"values": {"a": (70000,)}}, "must be in"),
        ({"pattern": "map.nii.gz"}, "has no {patient}"),
    ],
)
def test_values_and_pattern_must_make_sense(changes, said):
    with pytest.raises(SettingsError, match=said):
        VolumeMasks(**{"folder": "m", "values": VALUES} | changes)


def test_what_is_to_be_learnt_must_be_named_alike(hospital):
    for classes, said in (
        (("peripheral",), "they name peripheral, transition, and peripheral are"),
        ((), "classes: mi"),
    ):
        with pytest.raises(ValueError, match=said):
            read(source(hospital), classes=classes)
    with pytest.raises(ValueError, match=r"source\.masks: missing"):
        read(NiftiSource(folder=str(hospital / "images")))


def test_a_hospital_with_label_maps_needs_no_other_labels(hospital):
    site = SiteSettings(source=source(hospital))
    assert find_missing_site_files({"source": to_plain(site.source)}) == []
    gone = source(hospital / "elsewhere", names="names.csv")
    places = {problem.where for problem in find_missing_site_files({"source": to_plain(gone)})}
    assert {("source", "masks", "folder"), ("source", "masks", "names")} <= places
    with pytest.raises(SettingsError, match="unlabelled"):
        SiteSettings(source=source(hospital), unlabelled=True)


def test_a_map_that_changed_makes_another_digest_and_a_model_does_not_say_where_maps_lie(hospital):
    (hospital / "names.csv").write_text("a,b\n")
    of = source(hospital, names=str(hospital / "names.csv"))
    before = survey(of, None)["digest"]
    save(hospital / "masks" / "P0.nii.gz", drawn(1))
    after = survey(of, None)["digest"]
    (hospital / "names.csv").write_text("a,b\nP1,P2\n")
    assert len({before, after, survey(of, None)["digest"]}) == 3
    assert str(hospital) not in str(remove_places(of))
    assert "masks" not in to_plain(NiftiSource(folder="f")) and "masks" not in to_plain(DicomSource(folder="f"))  # type: ignore[operator]


# Real studies


def test_zones_of_prostatex_are_those_of_its_files_and_together_about_the_gland(data):
    labels = data / "prostatex" / "labels"
    if not labels.is_dir():
        pytest.skip(f"no prostatex at {labels}")
    names = str(labels / "ProstateX-mapping.json")
    of = DicomSource(
        folder=str(data / "prostatex" / "dicom"),
        select={"SeriesDescription": "t2"},
        masks=VolumeMasks(folder=str(labels / "zonal_Yuan23"), names=names, values={"one": (1,), "two": (2,)}),
    )
    images = Volumes(values="standardized", size=96, spacing_mm=1.0, depth=20, depth_mm=3.0, centre="image")
    opened = open_source(of, None, images, None, "masks", ("one", "two"))
    found = sorted(study.volumes for each in opened.waiting if isinstance(study := measure_study(each), MeasuredStudy))
    counted = []
    for path in (labels / "zonal_Yuan23").glob("*.nii.gz"):
        image = nibabel.load(path)
        cube = float(np.prod(image.header.get_zooms()))  # type: ignore[attr-defined]
        zones = np.asarray(image.dataobj)  # type: ignore[attr-defined]
        counted.append(tuple(float((zones == value).sum()) * cube for value in (1, 2)))
    assert found == [pytest.approx(volumes, rel=1e-4) for volumes in sorted(counted)] and len(found) == 2
    gland = GlandMask(folder=str(labels / "whole_gland_Bosma22b"), names=names)
    both = read(of, images, classes=("one", "two"), gland=gland).cohort
    inside, whole = both.mask > 0, both.gland > 0
    assert 2 * int((inside & whole).sum()) / int(inside.sum() + whole.sum()) > 0.8
