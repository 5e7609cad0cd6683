"""T2-weighted phantoms: the same patients, lesions and files as of ADC, in arbitrary units."""

from __future__ import annotations

import dataclasses

import nibabel
import numpy as np
import pydicom
import pytest

from pipelines.data.cohort import read_cohort
from pipelines.data.images import Slices
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, NiftiSource
from pipelines.phantom.files import render, write
from pipelines.phantom.organs import NON_SIGNIFICANT, SIGNIFICANT, Kind
from pipelines.phantom.patients import PhantomSource, draw_anatomy, patient_name
from pipelines.phantom.scanner import SCANNERS, Scanner, mask_of
from pipelines.phantom.t2w import PROTOCOLS, RELAXING, Protocol, Tissues, acquire_t2w, relaxation
from translating import errors

IDEAL = Scanner(b_values=(0, 800))
EVERY_SCANNER = tuple(SCANNERS)
ADC_MEANS = {"A": 811.415, "B": 521.859, "D": 469.454, "P": 823.486, "L": 647.069, "E": 491.924}
"""Of ADC maps of patient 1 of population 5, by scanner, before there was another contrast."""


def source(scanner: str = "A", **options: object) -> PhantomSource:
    return PhantomSource(**{"scanner": scanner, "contrast": "t2w", "patients": 2, "slices": 4, **options})  # type: ignore[arg-type]


def tissues(patient: int = 0, field: float = 3.0, draw: int = 0) -> Tissues:
    return relaxation(draw_anatomy(0, patient, 4), field, np.random.default_rng(draw))


def signals(image: np.ndarray, patient: int, scanner: str) -> dict[str, float]:
    """Medians of an image (slices, 48, 48) by tissue, over muscle's."""
    body = draw_anatomy(3, patient, 6)
    where = {kind.name: mask_of(body.kind == kind, SCANNERS[scanner]) > 0 for kind in Kind}
    found = {name: float(np.median(image[mask])) for name, mask in where.items() if mask.sum() > 15}
    return {name: value / found["MUSCLE"] for name, value in found.items()}


def test_adc_maps_are_what_they_were():
    """Relaxation times have draws of their own: an anatomy, and its ADC, are as if there were none."""
    for scanner, mean in ADC_MEANS.items():
        image = render(source(scanner, contrast="adc", seed=5), 1).image.values
        assert image.mean() == pytest.approx(mean, rel=1e-5)


def test_a_signal_is_that_of_the_equation():
    """Without noise and shading, an image is PD (1 - exp(-TR/T1)) exp(-TE/T2), times one gain."""
    body = draw_anatomy(0, 1, 4)
    flat = Tissues(np.ones_like(body.density), np.full_like(body.density, 1500.0), np.full_like(body.density, 100.0))
    gains = []
    for repetition, echo in ((5000, 100), (5000, 50), (1500, 100)):
        protocol = Protocol(repetition_ms=repetition, echo_ms=echo, gain=500)
        seen = acquire_t2w(body, flat, IDEAL, protocol, np.random.default_rng(0)).image
        expected = (1 - np.exp(-repetition / 1500)) * np.exp(-echo / 100)
        middle = seen[:, 8:40, 8:40]
        assert middle.std() < 1e-3 * middle.mean()
        gains.append(float(middle.mean()) / expected)
    np.testing.assert_allclose(gains, gains[0], rtol=1e-3)


def test_t1_is_longer_at_the_higher_field_and_t2_is_the_patients():
    low, high, other = tissues(field=1.5), tissues(field=3.0), tissues(draw=1)
    np.testing.assert_allclose(high.t1 / low.t1, 1.21, rtol=1e-5)
    assert np.array_equal(low.t2, high.t2) and not np.array_equal(high.t2, other.t2)


def test_t2_is_tied_to_diffusion_in_the_zones_and_less_in_tumours():
    """Over patients: correlations of T2 and ADC as Simpkin et al. found them in zones, within the sample's error."""
    by_kind: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in Kind}
    for patient in range(90):
        body = draw_anatomy(1, patient, 4)
        t2 = relaxation(body, 3.0, np.random.default_rng([1, patient, 6])).t2
        for kind in (Kind.PERIPHERAL, Kind.TRANSITION, Kind.LESION):
            where = body.kind == kind
            if where.sum() > 60:
                by_kind[kind].append((float(body.diffusivity[where].mean()), float(t2[where].mean())))
    for kind, usual, r in ((Kind.PERIPHERAL, 149, 0.52), (Kind.TRANSITION, 112, 0.30), (Kind.LESION, 97, 0.5)):
        adc, t2_of = np.array(by_kind[kind]).T
        assert np.corrcoef(adc, t2_of)[0, 1] == pytest.approx(r, abs=0.25)
        assert t2_of.mean() == pytest.approx(usual, rel=0.08)


def test_signal_ratios_are_near_those_of_two_real_patients():
    """ProstateX-0000 and -0001 (Siemens 3 T, TR 5660, TE 104) against scanner A, which has their protocol."""
    found = [
        signals(render(source("A", patients=12, seed=3, slices=6), p).image.values.transpose(2, 1, 0), p, "A")
        for p in range(12)
    ]
    middle = {name: np.median([one[name] for one in found if name in one]) for name in ("PERIPHERAL", "TRANSITION")}
    assert 3.5 < middle["PERIPHERAL"] < 5.6 and 2.1 < middle["TRANSITION"] < 4.0
    lesions = [one["LESION"] / one["PERIPHERAL"] for one in found if "LESION" in one]
    assert 0.55 < np.median(lesions) < 0.95


@pytest.mark.parametrize(
    "change",
    [
        {"corrected": 0.0},
        {"shading": 0.5},
        {"matrix": 32},
        {"gamma": 1.5},
        {"snr": 8.0},
        {"window": 0.4},
        {"smoothing": 1.0},
        {"sharpening": 1.0},
        {"echo_ms": 60.0},
    ],
)
def test_what_a_protocol_names_changes_the_standardized_image(change):
    body, own = draw_anatomy(0, 1, 4), tissues(1)
    plain = Protocol(repetition_ms=5000, echo_ms=100)
    pair = [
        acquire_t2w(body, own, IDEAL, one, np.random.default_rng(0)).image
        for one in (plain, dataclasses.replace(plain, **change))
    ]
    one, two = ((image - image.mean()) / image.std() for image in pair)
    assert np.abs(one - two).mean() > 0.01


def test_a_gain_is_a_studys_own_and_vanishes_when_standardized():
    body, own = draw_anatomy(0, 1, 4), tissues(1)
    pair = [
        acquire_t2w(
            body, own, IDEAL, Protocol(repetition_ms=5000, echo_ms=100, gain=gain), np.random.default_rng(draw)
        ).image
        for gain, draw in ((1000, 0), (1500, 0), (1000, 1))
    ]
    one, two, three = ((image - image.mean()) / image.std() for image in pair)
    assert np.abs(one - two).max() < 0.01 and np.abs(one - three).max() < 0.01
    assert pair[0].mean() != pytest.approx(pair[2].mean(), rel=0.01)


@pytest.mark.parametrize("wrong", [{"echo_ms": 0.0}, {"corrected": 1.5}, {"gain": 0.0}])
def test_a_protocol_that_cannot_exist_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Protocol(**{"repetition_ms": 4000.0, "echo_ms": 100.0, **wrong})


def test_every_scanner_has_a_protocol_and_every_tissue_its_times():
    assert set(PROTOCOLS) == set(SCANNERS) and set(RELAXING) == set(Kind)


@pytest.mark.parametrize("other", EVERY_SCANNER)
def test_oracle_pairs_have_the_masks_of_their_adc(other):
    mine, adc = render(source(other), 1), render(source(other, contrast="adc"), 1)
    assert np.array_equal(mine.lesion.values, adc.lesion.values) and np.array_equal(mine.gland.values, adc.gland.values)
    np.testing.assert_array_equal(mine.image.affine, adc.image.affine)
    pair = render(dataclasses.replace(source(other), scanner="P"), 1)
    assert (other == "P") == np.array_equal(mine.image.values, pair.image.values)


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_files_read_back_are_the_grey_values_and_say_no_unit(tmp_path, kind):
    settings = source("B", format=kind, patients=2)
    write(settings, tmp_path / "site")
    rendered, name = render(settings, 1), patient_name(settings, 1)
    if kind == "nifti":
        image = nibabel.as_closest_canonical(nibabel.load(tmp_path / "site" / "images" / f"{name}.nii.gz"))
        expected = nibabel.as_closest_canonical(nibabel.Nifti1Image(rendered.image.values, rendered.image.affine))
        np.testing.assert_allclose(image.get_fdata(), expected.get_fdata(), atol=0.51)
        return
    found = [pydicom.dcmread(path) for path in (tmp_path / "site" / "images" / name).iterdir()]
    found.sort(key=lambda one: float(one.SliceLocation))
    stored = np.stack([one.pixel_array for one in found])
    np.testing.assert_allclose(stored, rendered.image.values.transpose(2, 1, 0), atol=0.51)
    header = found[0]
    assert list(header.ImageType) == ["ORIGINAL", "PRIMARY", "M"] and header.EchoTime == PROTOCOLS["B"].echo_ms
    assert (header.ScanningSequence, header.MagneticFieldStrength) == ("SE", 1.5)
    assert not {"RescaleSlope", "ModalityLUTSequence", "RealWorldValueMappingSequence"} & set(header.dir())


def test_both_contrasts_are_series_of_one_study(tmp_path):
    headers = []
    for contrast in ("adc", "t2w"):
        write(source("P", contrast=contrast, patients=1), tmp_path / contrast)
        headers.append(pydicom.dcmread(next((tmp_path / contrast / "images").rglob("*.dcm"))))
    adc, t2w = headers
    assert adc.StudyInstanceUID == t2w.StudyInstanceUID and adc.FrameOfReferenceUID == t2w.FrameOfReferenceUID
    assert adc.SeriesInstanceUID != t2w.SeriesInstanceUID and adc.PatientID == t2w.PatientID


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_standardized_cohorts_are_read_and_damaged_studies_are_not(tmp_path, kind):
    settings = source("E", format=kind, patients=5, damaged=4 if kind == "dicom" else 2, slices=6)
    write(settings, tmp_path / "site")
    images = str(tmp_path / "site" / "images")
    read = read_cohort(
        DicomSource(folder=images, select={"ImageType": "ORIGINAL"}) if kind == "dicom" else NiftiSource(folder=images),
        MaskLabels(folder=str(tmp_path / "site" / "masks" / "lesion")),
        Slices(values="standardized"),
        gland=GlandMask(folder=str(tmp_path / "site" / "masks" / "gland")),
        fractions={"train": 1.0, "validation": 0.0, "test": 0.0},
        seed=0,
        key=bytes(32),
    )
    assert len(read.cohort.patients) == 5 and len(read.cohort.images) == 30
    assert 0 < int(read.cohort.labels.sum()) < 30
    assert abs(float(read.cohort.images.mean())) < 0.5 and 0.6 < float(read.cohort.images.std()) < 1.4


def test_an_adc_is_not_read_from_a_t2w_image(tmp_path):
    write(source("P", patients=1), tmp_path / "site")
    read = read_cohort(
        DicomSource(folder=str(tmp_path / "site" / "images")),
        MaskLabels(folder=str(tmp_path / "site" / "masks" / "lesion")),
        Slices(),
        gland=GlandMask(folder=str(tmp_path / "site" / "masks" / "gland")),
        fractions={"train": 1.0, "validation": 0.0, "test": 0.0},
        seed=0,
        key=bytes(32),
    )
    assert not read.cohort.patients


@pytest.mark.parametrize("name", EVERY_SCANNER)
def test_dciodvfy_finds_no_error(tmp_path, name):
    write(source(name, patients=1), tmp_path / "site")
    assert errors(tmp_path / "site" / "images") == set()


def test_t2_tells_grades_apart_as_far_as_it_does_in_patients():
    """AUC .74 in Mai et al., of Gleason 6 against higher."""
    t2: dict[int, list[float]] = {NON_SIGNIFICANT: [], SIGNIFICANT: []}
    for patient in range(150):
        body = draw_anatomy(2, patient, 4)
        values = relaxation(body, 3.0, np.random.default_rng([2, patient, 6])).t2
        for grade, each in t2.items():
            if (body.grade == grade).any():
                each.append(float(np.median(values[body.grade == grade])))
    lower = np.array(t2[SIGNIFICANT])[:, None] < np.array(t2[NON_SIGNIFICANT])
    assert lower.mean() == pytest.approx(0.74, abs=0.1)
