"""From files to a cohort: geometry, labels, units, splits and names, and the counts of what was used and what not."""

from __future__ import annotations

import dataclasses
import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.spatial.transform import Rotation

from pipelines.data.cohort import Cohort, from_message, read_cohort, survey, to_message
from pipelines.data.images import Slices
from pipelines.data.prepare import prepare_slices
from pipelines.data.pseudonym import make_pseudonym
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, NiftiSource, TableLabels
from pipelines.data.study import Volume
from privacy.message import Message, from_bytes, to_bytes

KEY = b"a hospital's secret key"
SHARES = {"train": 0.5, "validation": 0.15, "test": 0.35}
SHAPE = (30, 28, 6)
AFFINE = np.array([[-2.0, 0, 0, 30], [0, -2, 0, 25], [0, 0, 4, -10], [0, 0, 0, 1]])  # stored as it is read


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values, affine)
    image.header["descrip"] = b"ADC"
    nibabel.save(image, path)


def adc_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).uniform(800, 1600, SHAPE).astype(np.float32)


def boxed(*bounds: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(SHAPE, np.uint8)
    mask[tuple(slice(*bound) for bound in bounds)] = 1
    return mask


LESION = boxed((10, 13), (12, 15), (2, 4))
GLAND = boxed((6, 20), (8, 20), (1, 5))


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Eight patients; those with an even number have a lesion in slices 2 and 3."""
    for number in range(8):
        save(tmp_path / "images" / f"P{number}.nii.gz", adc_of(number))
        save(tmp_path / "lesion" / f"P{number}.nii.gz", LESION * (number % 2 == 0))
        save(tmp_path / "gland" / f"P{number}.nii.gz", GLAND)
    return tmp_path


def read(hospital: Path, images: Slices | None = None, **options: Any) -> Any:
    arguments: dict[str, Any] = {"fractions": SHARES, "seed": 0, "key": KEY, **options}
    source = arguments.pop("source", NiftiSource(folder=str(hospital / "images")))
    labels = arguments.pop("labels", MaskLabels(folder=str(hospital / "lesion")))
    gland = arguments.pop("gland", GlandMask(folder=str(hospital / "gland")))
    return read_cohort(source, labels, images or Slices(), gland=gland, **arguments)[:3]


def equal(one: Cohort, two: Cohort) -> bool:
    return to_bytes(to_message(one)) == to_bytes(to_message(two))


def test_shapes_units_labels_and_names(hospital: Path) -> None:
    cohort, rejected, facts = read(hospital, Slices(size=20))
    assert not rejected
    assert (cohort.images.shape, cohort.images.dtype) == ((48, 1, 20, 20), torch.float32)
    assert (cohort.lesion.shape, cohort.lesion.dtype) == ((48, 20, 20), torch.uint8)
    assert (cohort.labels.dtype, cohort.patient.dtype, cohort.split.dtype) == (torch.int64, torch.int64, torch.int8)
    assert cohort.patients == tuple(sorted(make_pseudonym(KEY, f"P{number}") for number in range(8)))
    inside = cohort.images[:, 0][cohort.gland == 1]
    assert 0.8 <= float(inside.min()) <= float(inside.max()) <= 1.6
    for number in range(8):
        mine = cohort.patient == cohort.patients.index(make_pseudonym(KEY, f"P{number}"))
        assert cohort.position[mine].tolist() == [0, 1, 2, 3, 4, 5]
        assert cohort.labels[mine].tolist() == ([0, 0, 1, 1, 0, 0] if number % 2 == 0 else [0] * 6)
    assert facts["positives"] == 8
    assert facts["scanners"] == {"unknown": 8}


def test_counts_agree_with_the_cohort(hospital: Path) -> None:
    (hospital / "images" / "P9.nii.gz").write_bytes(b"\x1f\x8b broken")
    (hospital / "images" / "notes.txt").write_text("x")
    cohort, rejected, facts = read(hospital)
    assert [found.reason for found in rejected] == ["unreadable"]
    assert facts["rejected_by_reason"] == {"unreadable": 1}
    assert (facts["files"], facts["ignored_files"], facts["studies"], facts["patients"]) == (10, 1, 8, 8)
    assert facts["images"] == len(cohort.labels) == sum(part["images"] for part in facts["splits"].values())
    for number, name in enumerate(("train", "validation", "test")):
        here = cohort.split == number
        assert facts["splits"][name] == {
            "patients": len(set(cohort.patient[here].tolist())),
            "images": int(here.sum()),
            "positives": int(cohort.labels[here].sum()),
        }
    assert not any(f"P{number}" in json.dumps(facts) for number in range(10))


@pytest.mark.parametrize("seed", range(5))
def test_a_patient_is_in_one_split_and_each_class_in_training(hospital: Path, seed: int) -> None:
    cohort, _, _ = read(hospital, seed=seed)
    for number in range(len(cohort.patients)):
        assert len(set(cohort.split[cohort.patient == number].tolist())) == 1
    train = cohort.split == 0
    assert len(set(cohort.patient[train].tolist())) == 4
    assert len(set(cohort.patient[train & (cohort.labels == 1)].tolist())) == 2


def test_reading_twice_gives_the_same_bytes_and_the_key_moves_nobody(hospital: Path) -> None:
    one, two = read(hospital)[0], read(hospital)[0]
    assert equal(one, two)
    other = read(hospital, key=b"another secret, longer")[0]
    for number in range(8):
        mine, theirs = (
            cohort.split[cohort.patient == cohort.patients.index(make_pseudonym(key, f"P{number}"))]
            for cohort, key in ((one, KEY), (other, b"another secret, longer"))
        )
        assert torch.equal(mine, theirs)


def test_no_identifier_is_in_the_stored_bytes(hospital: Path) -> None:
    for folder in ("images", "lesion", "gland"):
        (hospital / folder / "P3.nii.gz").rename(hospital / folder / "Ann Miller 1950.nii.gz")
    assert b"Miller" not in to_bytes(to_message(read(hospital)[0]))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_storage_order_does_not_change_a_prepared_slice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tilt = np.eye(4)
    tilt[:3, :3] = Rotation.from_rotvec(rng.uniform(-0.3, 0.3, 3)).as_matrix()
    flips = np.stack([rng.permutation(3), rng.choice([-1, 1], 3)], axis=1)
    pictures = []
    for reorient in (False, True):
        volumes = []
        for values in (adc_of(seed), LESION, GLAND):
            image = nibabel.Nifti1Image(values, tilt @ AFFINE)
            image = image.as_reoriented(flips) if reorient else image
            volumes.append(Volume(np.asarray(image.dataobj), image.affine))
        image, lesion, gland = volumes
        pictures.append(prepare_slices(image, lesion=lesion, gland=gland, images=Slices(size=24)))
    one, two = pictures
    assert np.allclose(one.images, two.images, atol=0.1)
    assert np.array_equal(one.lesion, two.lesion)
    assert np.array_equal(one.gland, two.gland)


def test_a_radiologist_sees_right_on_the_left_and_anterior_on_top() -> None:
    values = np.ones(SHAPE, np.float32)
    for stored in (AFFINE, np.diag([2.0, 2.0, 4.0, 1.0])):
        volume = Volume(values.copy(), stored)
        index = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), axis=-1)
        world = index @ stored[:3, :3].T + stored[:3, 3]
        centre = world.reshape(-1, 3).mean(0)
        right_anterior_low = (world > centre) == [True, True, False]
        volume.values[right_anterior_low.all(axis=-1)] = 100
        slices = prepare_slices(volume, lesion=None, gland=None, images=Slices(size=16)).images
        low = slices[0, 0]
        assert low[:7, :7].min() == 100
        assert max(low[9:].max(), low[:, 9:].max(), slices[-1].max()) == 1


def test_masks_on_another_grid_land_where_they_belong(hospital: Path) -> None:
    reference = read(hospital)[0]
    fine = AFFINE @ np.array([[0.25, 0, 0, -0.375], [0, 0.25, 0, -0.375], [0, 0, 1, 0], [0, 0, 0, 1]])
    for number in range(8):
        for folder, mask in (("lesion", LESION * (number % 2 == 0)), ("gland", GLAND)):
            save(hospital / folder / f"P{number}.nii.gz", mask.repeat(4, 0).repeat(4, 1).astype(np.uint8), fine)
    again = read(hospital)[0]
    assert torch.equal(reference.labels, again.labels)
    assert float((reference.lesion != again.lesion).float().mean()) < 1e-3
    assert float((reference.gland != again.gland).float().mean()) < 0.02


def test_a_slice_is_centred_on_the_gland_and_filled_with_zeros() -> None:
    volume = Volume(np.ones(SHAPE, np.float32), AFFINE)
    gland = Volume(boxed((2, 5), (20, 23), (2, 4)), AFFINE)
    found = prepare_slices(volume, lesion=None, gland=gland, images=Slices(size=21, spacing_mm=2))
    rows, columns = np.nonzero(found.gland[2])
    assert (rows.mean(), columns.mean()) == (10, 10)
    assert found.images[0, 0, 10, :7].max() == 0  # three columns lie to the left of the gland's middle column
    assert found.images[0, 0, 10, 7:].min() == 1


def test_only_slices_with_gland_if_asked_for(hospital: Path) -> None:
    cohort = read(hospital, Slices(slices="gland"))[0]
    assert cohort.position[cohort.patient == 0].tolist() == [1, 2, 3, 4]
    assert len(cohort.labels) == 8 * 4


@pytest.mark.parametrize(("minimum", "positives"), [(9, 8), (10, 0)])
def test_minimum_pixels_counts_prepared_pixels(hospital: Path, minimum: int, positives: int) -> None:
    labels = MaskLabels(folder=str(hospital / "lesion"), minimum_pixels=minimum)  # the lesion has 6 x 6 mm
    assert read(hospital, Slices(spacing_mm=2), labels=labels)[2]["positives"] == positives
    assert read(hospital, Slices(spacing_mm=1), labels=labels)[2]["positives"] == 8


def test_table_labels(hospital: Path) -> None:
    lines = [f"P{number},{k},{int(k == 2)}" for number in range(7) for k in range(6)]
    (hospital / "labels.csv").write_text("\n".join(["patient,slice,label", *lines]))
    labels = TableLabels(file=str(hospital / "labels.csv"), slice="slice")
    cohort, rejected, facts = read(hospital, labels=labels)
    assert cohort.position[cohort.labels == 1].tolist() == [2] * 7
    assert [found.reason for found in rejected] == ["no_label"]
    assert int(cohort.lesion.sum()) == 0
    assert facts["studies"] == 7


def broken(hospital: Path, expected: str) -> None:
    cohort, rejected, facts = read(hospital)
    assert [found.reason for found in rejected] == [expected]
    assert (facts["studies"], len(cohort.patients)) == (7, 7)


def test_a_missing_or_broken_mask_rejects_its_study(hospital: Path) -> None:
    (hospital / "gland" / "P1.nii.gz").unlink()
    broken(hospital, "no_gland")
    save(hospital / "gland" / "P1.nii.gz", np.zeros(SHAPE, np.uint8))
    broken(hospital, "no_gland")
    save(hospital / "gland" / "P1.nii.gz", GLAND)
    (hospital / "lesion" / "P1.nii.gz").unlink()
    broken(hospital, "no_label")
    (hospital / "lesion" / "P1.nii.gz").write_bytes(b"x")
    broken(hospital, "bad_mask")


def test_a_mask_of_another_place_rejects_its_study(hospital: Path) -> None:
    away = AFFINE.copy()
    away[0, 3] += 500
    save(hospital / "lesion" / "P2.nii.gz", LESION, away)
    broken(hospital, "mask_outside")


def test_units_and_planes_reject_a_study(hospital: Path) -> None:
    save(hospital / "images" / "P1.nii.gz", adc_of(1) / 50)
    broken(hospital, "unit_unknown")
    coronal = np.array([[2.0, 0, 0, -30], [0, 0, 4, -20], [0, 2, 0, -30], [0, 0, 0, 1]])
    save(hospital / "images" / "P1.nii.gz", adc_of(1), coronal)
    broken(hospital, "not_axial")
    save(hospital / "images" / "P1.nii.gz", adc_of(1) * np.float32(1e-3))
    cohort, rejected, _ = read(hospital)
    assert not rejected
    assert float(cohort.images[cohort.gland[:, None] == 1].min()) >= 0.8


def test_two_studies_of_a_patient_stay_in_one_split(hospital: Path) -> None:
    moved = AFFINE.copy()
    moved[:3, 3] += 3
    save(hospital / "images" / "second" / "P2.nii.gz", adc_of(99), moved)
    cohort, rejected, facts = read(hospital)
    assert not rejected
    assert (facts["studies"], facts["patients"]) == (9, 8)
    mine = cohort.patient == cohort.patients.index(make_pseudonym(KEY, "P2"))
    assert int(mine.sum()) == 12
    assert len(set(cohort.split[mine].tolist())) == 1


def test_excluded_patients_are_out_by_either_name(hospital: Path) -> None:
    cohort, rejected, facts = read(hospital, exclude=("P3", make_pseudonym(KEY, "P4"), "nobody"))
    assert make_pseudonym(KEY, "P3") not in cohort.patients
    assert make_pseudonym(KEY, "P4") not in cohort.patients
    assert (facts["studies"], facts["excluded"], facts["unmatched_exclusions"], rejected) == (6, 2, 1, ())


def test_nothing_usable_is_an_empty_cohort_not_an_error(hospital: Path) -> None:
    for path in (hospital / "images").iterdir():
        path.write_bytes(b"x")
    cohort, rejected, facts = read(hospital)
    assert (len(rejected), facts["studies"], cohort.images.shape) == (8, 0, (0, 1, 48, 48))
    assert equal(cohort, from_message(from_bytes(to_bytes(to_message(cohort)))))


def test_wrong_settings_are_told_all_at_once(hospital: Path) -> None:
    with pytest.raises(ValueError, match=r"source\.folder.*labels\.file.*gland\.folder"):
        read(
            hospital,
            gland=GlandMask(folder=str(hospital / "no gland")),
            source=DicomSource(folder=str(hospital / "no images")),
            labels=TableLabels(file=str(hospital / "no table.csv")),
        )
    with pytest.raises(ValueError, match="slices: gland needs a gland mask"):
        read(hospital, Slices(slices="gland"), gland=None)
    with pytest.raises(ValueError, match=r"spacing_mm must be in.*size must be in"):
        Slices(spacing_mm=0, size=4)


@pytest.mark.parametrize("kind", [DicomSource, NiftiSource, MaskLabels, TableLabels, GlandMask, Slices])
def test_settings_forbid_what_they_do_not_know(kind: type) -> None:
    required = {"folder": "x"} if "folder" in {field.name for field in dataclasses.fields(kind)} else {"file": "x"}
    plain = {} if kind is Slices else required
    assert isinstance(TypeAdapter(kind).validate_python(plain), kind)
    with pytest.raises(ValidationError, match="surprise"):
        TypeAdapter(kind).validate_python({**plain, "surprise": 1})


def test_a_cohort_survives_storage_and_a_broken_one_is_refused(hospital: Path) -> None:
    cohort = read(hospital)[0]
    message = to_message(cohort)
    assert equal(from_message(from_bytes(to_bytes(message))), cohort)
    with pytest.raises(ValueError, match="without images, patients"):
        from_message(Message({name: part for name, part in message.tensors.items() if name != "images"}, {}))
    wrong = {
        "labels": cohort.labels.float(),
        "images": cohort.images[:, :, 1:],
    }
    with pytest.raises(ValueError, match=r"labels is .*lesion is "):
        from_message(Message({**message.tensors, **wrong}, message.facts))
    for name, value in (("split", 3), ("labels", 2), ("patient", 8)):
        changed = message.tensors[name].clone()
        changed[0] = value
        with pytest.raises(ValueError, match=f"{name} goes from"):
            from_message(Message({**message.tensors, name: changed}, message.facts))
    changed = cohort.split.clone()
    changed[0] = (int(changed[0]) + 1) % 3
    with pytest.raises(ValueError, match="a patient is in two splits"):
        from_message(Message({**message.tensors, "split": changed}, message.facts))


def test_a_survey_notices_every_change_and_nothing_else(hospital: Path) -> None:
    source = NiftiSource(folder=str(hospital / "images"))
    labels, gland = MaskLabels(folder=str(hospital / "lesion")), GlandMask(folder=str(hospital / "gland"))
    before = survey(source, labels, gland)
    assert survey(source, labels, gland) == before
    assert before["files"] == 24
    assert before["bytes"] == sum(path.stat().st_size for path in hospital.rglob("*.nii.gz"))
    seen = {before["digest"]}
    path = hospital / "images" / "P1.nii.gz"
    for change in (
        lambda: os.utime(path, ns=(0, path.stat().st_mtime_ns + 1)),
        lambda: path.rename(path.with_name("P11.nii.gz")),
        lambda: (hospital / "gland" / "P1.nii.gz").unlink(),
        lambda: (hospital / "lesion" / "new").write_bytes(b""),
    ):
        change()
        seen.add(survey(source, labels, gland)["digest"])
    assert len(seen) == 5
    path = hospital / "images" / "P2.nii.gz"
    times = path.stat()
    path.write_bytes(b"x" * times.st_size)  # a survey opens no image
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert survey(source, labels, gland)["digest"] in seen
    assert survey(source, TableLabels(file=str(hospital / "none.csv")))["files"] == 8


def test_a_study_whose_lesion_is_cut_off_is_not_called_healthy(hospital: Path) -> None:
    save(hospital / "lesion" / "P2.nii.gz", boxed((27, 30), (0, 3), (2, 4)))
    cohort, rejected, _ = read(hospital, Slices(size=16), gland=None)
    assert [(found.reason, found.study.split(".")[0]) for found in rejected] == [("lesion_cut", "P2")]
    assert make_pseudonym(KEY, "P2") not in cohort.patients
    assert not read(hospital, Slices(size=48), gland=None)[1]


def test_a_study_without_a_slice_of_gland_is_told(hospital: Path) -> None:
    between = AFFINE @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.2, 2.4], [0, 0, 0, 1]])
    save(hospital / "gland" / "P3.nii.gz", boxed((6, 20), (8, 20), (0, 1)), between)  # thin, between two slices
    _, rejected, facts = read(hospital, Slices(slices="gland"))
    assert [found.reason for found in rejected] == ["no_gland"]
    assert facts["studies"] == 7


def test_names_of_files_in_any_encoding_are_patients_too(hospital: Path) -> None:
    source = os.fsencode(hospital / "images" / "P3.nii.gz")
    os.rename(source, source.replace(b"P3", b"M\xfcller"))
    _, rejected, facts = read(hospital)
    assert [found.reason for found in rejected] == ["no_label"]  # its masks have another name
    assert facts["studies"] == 7


def test_an_umlaut_is_one_whatever_spells_it(hospital: Path) -> None:
    for folder, form in (("images", "NFD"), ("lesion", "NFC"), ("gland", "NFD")):
        name = unicodedata.normalize(form, "Müller")
        (hospital / folder / "P3.nii.gz").rename(hospital / folder / f"{name}.nii.gz")
    assert not read(hospital)[1]
    (hospital / "labels.csv").write_text(unicodedata.normalize("NFD", "patient,label\nMüller,1.0\n"))
    _, rejected, facts = read(hospital, labels=TableLabels(file=str(hospital / "labels.csv")))
    assert (facts["studies"], facts["positives"], len(rejected)) == (1, 6, 7)
