from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import math
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydicom.pixels import apply_modality_lut

from pipelines.phantom.files import render, write
from pipelines.phantom.organs import NON_SIGNIFICANT, PIXEL_MM, SIGNIFICANT
from pipelines.phantom.patients import DEFECTS, PhantomSource, draw_anatomy, find_defect, patient_name
from pipelines.phantom.scanner import SCANNERS, Scanner, acquire, fit_adc

EVERY_SCANNER = tuple(SCANNERS)
IDEAL = Scanner(b_values=(0, 400, 800))


def source(scanner: str = "A", **options: object) -> PhantomSource:
    return PhantomSource(**{"scanner": scanner, "patients": 2, "slices": 4, **options})  # type: ignore[arg-type]


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def plain(patient: int = 0, slices: int = 4):  # type: ignore[no-untyped-def]
    """An anatomy whose signal is one pure exponential in every pixel."""
    body = draw_anatomy(0, patient, slices)
    zero = np.zeros_like(body.kurtosis)
    return dataclasses.replace(body, kurtosis=zero, perfusion=zero)


def blocks(image: np.ndarray) -> np.ndarray:
    return image.reshape(*image.shape[:-2], 48, 2, 48, 2).mean(axis=(-3, -1))


def read_series(folder: Path) -> tuple[np.ndarray, list[pydicom.Dataset]]:
    """A slow, independent reader: the modality transform by pydicom, slices in order along the normal."""
    datasets = [pydicom.dcmread(path) for path in folder.iterdir()]
    row, column = np.reshape(np.array(datasets[0].ImageOrientationPatient, float), (2, 3))
    datasets.sort(key=lambda dataset: float(np.dot(np.cross(row, column), dataset.ImagePositionPatient)))
    return np.stack([apply_modality_lut(dataset.pixel_array, dataset) for dataset in datasets]), datasets


# settings


@given(
    patients=st.integers(-5, 12000),
    seed=st.integers(-5, 2**33),
    slices=st.integers(-5, 20),
    damaged=st.integers(-5, 200),
)
def test_settings_are_accepted_exactly_within_their_ranges(patients, seed, slices, damaged):
    wrong = {
        name
        for name, found, low, high in (
            ("patients", patients, 1, 9999),
            ("seed", seed, 0, 2**32 - 1),
            ("slices", slices, 4, 10),
            ("damaged", damaged, 0, 99),
        )
        if not low <= found <= high
    }
    fields = {"scanner": "A", "patients": patients, "seed": seed, "slices": slices, "damaged": damaged}
    if not wrong:
        assert PhantomSource(**fields).patients == patients
        return
    with pytest.raises(ValueError, match="found") as caught:
        PhantomSource(**fields)
    assert {part.split()[0] for part in str(caught.value).split("; ")} == wrong


@pytest.mark.parametrize(("field", "value"), [("scanner", "Z"), ("format", "png"), ("colour", 1), ("kind", "dicom")])
def test_settings_refuse_unknown_words(field, value):
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(PhantomSource).validate_python({"scanner": "A", "patients": 3, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("b_values", (50.0, 50.0)), ("b_values", (-1.0, 50.0)), ("snr", 0.0), ("averages", 0), ("matrix", 49)],
)
def test_a_scanner_that_cannot_exist_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must"):
        dataclasses.replace(IDEAL, **{field: value})


# anatomy


@given(seed=st.integers(0, 2**32 - 1), patient=st.integers(0, 500), slices=st.integers(4, 10))
@settings(max_examples=25, deadline=None)
def test_an_anatomy_is_whole(seed, patient, slices):
    body = draw_anatomy(seed, patient, slices)
    for image in (body.diffusivity, body.kurtosis, body.density, body.perfusion):
        assert image.shape == (slices, 96, 96)
        assert image.dtype == np.float32
        assert np.isfinite(image).all()
    assert body.diffusivity.min() > 100
    assert body.diffusivity.max() < 4095
    assert not body.grade[body.zone == 0].any()
    assert (body.zone > 0).any(axis=(1, 2)).all()
    edge = np.concatenate([body.zone[:, [0, -1]].ravel(), body.zone[:, :, [0, -1]].ravel()])
    assert not edge.any()


def test_an_anatomy_depends_on_its_arguments_only():
    again, once = draw_anatomy(3, 7, 5), draw_anatomy(3, 7, 5)
    for field in dataclasses.fields(once):
        assert np.array_equal(getattr(once, field.name), getattr(again, field.name))
    assert not np.array_equal(once.diffusivity, draw_anatomy(3, 8, 5).diffusivity)
    assert not np.array_equal(once.diffusivity, draw_anatomy(4, 7, 5).diffusivity)


def test_the_case_mix_holds_and_about_28_percent_of_slices_are_positive():
    bodies = [draw_anatomy(seed, patient, 6) for seed in range(2) for patient in range(80)]
    worst = [int(body.grade.max()) for body in bodies]
    assert worst.count(SIGNIFICANT) / len(bodies) == pytest.approx(0.45, abs=0.03)
    assert worst.count(NON_SIGNIFICANT) / len(bodies) == pytest.approx(0.35, abs=0.06)
    positive = np.mean([(body.grade == SIGNIFICANT).any(axis=(1, 2)) for body in bodies])
    assert positive == pytest.approx(0.28, abs=0.04)


def test_lesions_are_darker_than_their_zone_and_the_grades_differ():
    bodies = [draw_anatomy(1, patient, 6) for patient in range(60)]
    values = np.concatenate([body.diffusivity.ravel() for body in bodies])
    grade = np.concatenate([body.grade.ravel() for body in bodies])
    zone = np.concatenate([body.zone.ravel() for body in bodies])
    means = [values[(zone > 0) & (grade == code)].mean() for code in (SIGNIFICANT, NON_SIGNIFICANT, 0)]
    assert means == sorted(means)
    assert means[0] < 950 < 1050 < means[1] < 1250 < 1400 < means[2]


# physics


def test_without_noise_kurtosis_and_perfusion_the_fit_returns_the_diffusivity():
    body = plain()
    inside = blocks((body.zone > 0).astype(float)) == 1
    uniform = dataclasses.replace(body, diffusivity=np.full_like(body.diffusivity, 1300.0))
    adc = acquire(uniform, IDEAL, np.random.default_rng(0)).image
    np.testing.assert_allclose(adc[inside], 1300, rtol=1e-3)
    varied = acquire(body, IDEAL, np.random.default_rng(0)).image
    error = varied[inside] - blocks(body.diffusivity)[inside]
    assert abs(error.mean()) < 15
    assert np.abs(error).mean() < 60


def test_the_fit_agrees_with_least_squares_pixel_by_pixel():
    generator = np.random.default_rng(5)
    b = np.array([50, 400, 800, 1000], np.float32)
    images = generator.uniform(0.05, 1, (4, 2, 6, 6)).astype(np.float32)
    images *= np.exp(-b * 1.2e-3)[:, None, None, None]
    slow = np.empty((2, 6, 6))
    for where in np.ndindex(2, 6, 6):
        design = np.stack([np.ones(4), -b], axis=1)
        (_, rate), *_ = np.linalg.lstsq(design, np.log(images[(slice(None), *where)]), rcond=None)
        slow[where] = np.clip(1e6 * rate, 0, 4095)
    np.testing.assert_allclose(fit_adc(images, b), slow, rtol=1e-4, atol=0.05)


def test_kurtosis_lowers_and_perfusion_raises_the_adc_as_the_equations_say():
    b, d, k, f = np.array([0.0, 800.0]), 1.2e-3, 0.9, 0.05
    body = plain()
    flat = {"diffusivity": np.full_like(body.diffusivity, 1200.0), "density": np.ones_like(body.density)}
    inside = blocks((body.zone > 0).astype(float)) == 1
    for kurtosis, perfusion in ((k, 0.0), (0.0, f), (k, f)):
        signal = (1 - perfusion) * np.exp(-b * d + (b * d) ** 2 * kurtosis / 6) + perfusion * np.exp(-b * 0.012)
        expected = 1e6 * np.log(signal[0] / signal[1]) / 800
        fields = {"kurtosis": body.kurtosis + np.float32(kurtosis), "perfusion": body.perfusion + np.float32(perfusion)}
        full = dataclasses.replace(body, **flat, **fields)
        adc = acquire(full, Scanner(b_values=(0, 800)), np.random.default_rng(0)).image
        assert adc[inside].mean() == pytest.approx(expected, rel=2e-3)


def test_the_noise_floor_raises_low_signals_and_so_lowers_a_high_adc():
    body = plain()
    bladder = dataclasses.replace(body, diffusivity=np.full_like(body.diffusivity, 2800.0))
    noisy = Scanner(b_values=(0, 2000), snr=15)
    clean = acquire(bladder, dataclasses.replace(noisy, snr=math.inf), np.random.default_rng(1)).image
    floored = acquire(bladder, noisy, np.random.default_rng(1)).image
    inside = blocks((body.zone > 0).astype(float)) == 1
    assert clean[inside].mean() == pytest.approx(2800, rel=0.01)
    assert floored[inside].mean() < 0.65 * clean[inside].mean()


def test_background_noise_is_rayleigh_at_the_stated_snr():
    """The mean log of a Rayleigh variable is log(sigma·sqrt(2)) - γ/2; it is read where S(b) is noise only."""
    body = plain()
    flat = dataclasses.replace(
        body, diffusivity=np.full_like(body.diffusivity, 50000.0), density=np.ones_like(body.density)
    )
    scanner = Scanner(b_values=(0, 2000), snr=30)
    adc = acquire(flat, scanner, np.random.default_rng(2)).image
    inside = blocks((body.zone > 0).astype(float)) == 1
    floor = math.sqrt(2) / 30 * math.exp(-np.euler_gamma / 2)
    surface = 1.06  # the coil's mean sensitivity over the gland
    assert adc[inside].mean() == pytest.approx(500 * math.log(surface / floor), rel=0.015)


@pytest.mark.parametrize(
    ("change", "lowers_noise"),
    [({"averages": 8}, True), ({"smoothing": 0.8}, True), ({"snr": 10.0}, False)],
)
def test_averages_and_smoothing_lower_the_noise(change, lowers_noise):
    body = plain()
    scanner = Scanner(b_values=(50, 800), snr=25)
    clean = acquire(body, dataclasses.replace(scanner, snr=math.inf), np.random.default_rng(0)).image
    inside = blocks((body.zone > 0).astype(float)) == 1

    def noise(which: Scanner) -> float:
        return float(np.std((acquire(body, which, np.random.default_rng(4)).image - clean)[inside]))

    assert (noise(dataclasses.replace(scanner, **change)) < 0.8 * noise(scanner)) is lowers_noise


def test_gradient_nonlinearity_biases_the_adc_by_the_local_loss_of_b():
    body = dataclasses.replace(plain(), density=np.ones((4, 96, 96), np.float32))
    flat = dataclasses.replace(body, diffusivity=np.full_like(body.diffusivity, 1300.0))
    adc = acquire(flat, Scanner(b_values=(0, 800), gradient_nonlinearity=0.2), np.random.default_rng(0)).image
    line = (np.arange(48) - 23.5) * 1.5
    loss = 0.2 * ((line[None, :] - 28) ** 2 + (line[:, None] + 30) ** 2) / 60**2
    middle = (slice(None), slice(12, 36), slice(12, 36))
    expected = np.broadcast_to(1300 * (1 - loss), adc.shape)
    np.testing.assert_allclose(adc[middle], expected[middle], rtol=5e-3)


def test_the_stretch_moves_tissue_at_the_rectum_by_its_stated_length():
    body = dataclasses.replace(plain(), gas=True)
    cx, cy, _, ry = body.rectum
    step = np.zeros_like(body.diffusivity)
    line = (np.arange(96) - 47.5) * 0.75
    step[:, line > cy - ry, :] = 1000
    edge = dataclasses.replace(body, diffusivity=step + 500, density=np.ones_like(body.density))
    column = round(cx / 1.5 + 23.5)
    front = []
    for shift in (0.0, 3.0):
        adc = acquire(edge, Scanner(b_values=(0, 50), distortion_mm=shift), np.random.default_rng(0)).image
        profile = adc[:, 6:42, column - 1 : column + 2].mean(axis=(0, 2))
        front.append(6 + float(np.interp(1000, profile[20:], np.arange(20, 36))))
    assert (front[0] - front[1]) * 1.5 == pytest.approx(3.0, abs=0.6)


@pytest.mark.parametrize("zoom", [1.0, 0.9, 1.2])
def test_image_and_masks_lie_on_the_same_pixels(zoom):
    """The gland's half contour in the ADC map has the centroid of the mask, to a fifth of a pixel."""
    body = plain()
    contrast = np.where(body.zone > 0, 1500, 500).astype(np.float32)
    bright = dataclasses.replace(body, diffusivity=contrast, density=np.ones_like(body.density))
    seen = acquire(bright, dataclasses.replace(IDEAL, b_values=(0, 50), zoom=zoom), np.random.default_rng(0))
    for image, mask in zip(seen.image, seen.gland, strict=True):
        found, drawn = (np.argwhere(where).mean(axis=0) for where in (image > 1000, mask > 0))
        np.testing.assert_allclose(found, drawn, atol=0.2)
        assert (image > 1000).sum() == pytest.approx(mask.sum(), rel=0.05)


def test_the_ghost_is_the_image_shifted_by_half_the_field_of_view():
    body = plain()
    only = np.full_like(body.density, 1e-4)
    only[:, 20:28, 44:52] = 1.0
    spot = dataclasses.replace(body, density=only, diffusivity=np.full_like(body.diffusivity, 1000.0))
    other = (slice(None), slice(35, 37), slice(23, 25))
    adc = [
        acquire(spot, Scanner(b_values=(0, 800), ghost=ghost, threshold=0.05), np.random.default_rng(0)).image[other]
        for ghost in (0.0, 0.2)
    ]
    assert not adc[0].any()
    np.testing.assert_allclose(adc[1], 1000, rtol=0.02)


def test_the_scanners_mean_adc_of_gland_and_lesion(thorough):
    """Within 12 % of the means that the design was calibrated on (gland, lesion)."""
    bodies = [draw_anatomy(0, patient, 6) for patient in range(24 if thorough else 8)]
    for name, gland, lesion in (("A", 1254, 843), ("B", 1122, 796), ("D", 840, 639)):
        seen = [acquire(body, SCANNERS[name], np.random.default_rng(i)) for i, body in enumerate(bodies)]
        values, dark, inside = (np.concatenate([image[k] for image in seen]) for k in range(3))
        assert values[inside > 0].mean() == pytest.approx(gland, rel=0.12)
        assert values[dark > 0].mean() == pytest.approx(lesion, rel=0.12)


# oracle pairs


@pytest.mark.parametrize("other", EVERY_SCANNER)
def test_oracle_pairs_are_one_patient_in_one_place(other):
    mine, pair = render(source("P"), 1), render(source(other), 1)
    middle = [23.5, 23.5, 1.5, 1]
    np.testing.assert_allclose(mine.image.affine @ middle, pair.image.affine @ middle, atol=1e-9)
    volume = [abs(np.linalg.det(each.affine[:3, :3])) for each in (mine.gland, pair.gland)]
    for one, two in ((mine.gland, pair.gland), (mine.lesion, pair.lesion)):
        if SCANNERS[other].zoom == SCANNERS["P"].zoom:
            assert np.array_equal(one.values, two.values)
        assert one.values.sum() * volume[0] == pytest.approx(two.values.sum() * volume[1], rel=0.06, abs=60)
        assert np.array_equal(one.values.any(axis=(0, 1)), two.values.any(axis=(0, 1)))
    assert (other == "P") == np.array_equal(mine.image.values, pair.image.values)


def test_a_lesion_is_at_least_three_pixels_or_absent_in_every_scanner(thorough):
    for patient in range(40 if thorough else 10):
        body = draw_anatomy(2, patient, 6)
        assert all(area * PIXEL_MM**2 >= 20 for area in (body.grade > 0).sum(axis=(1, 2)) if area)
        for name in ("P", "B"):
            areas = acquire(body, SCANNERS[name], np.random.default_rng(0)).lesion.sum(axis=(1, 2))
            drawn = (body.grade == SIGNIFICANT).any(axis=(1, 2))
            assert ((areas >= 3) == drawn).all()


def test_a_patient_does_not_depend_on_how_many_there_are():
    few, many = render(source(patients=2), 1), render(source(patients=90, damaged=3), 1)
    assert np.array_equal(few.image.values, many.image.values)


# files


@pytest.mark.parametrize("file_format", ["dicom", "nifti"])
def test_writing_twice_gives_the_same_bytes(tmp_path, file_format):
    settings_ = source("B", format=file_format, damaged=4)
    write(settings_, tmp_path / "one")
    write(settings_, tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    for path in (tmp_path / "one").rglob("*.gz"):
        assert path.read_bytes()[4:8] == bytes(4), "the gzip header must not carry the time of writing"


def test_a_folder_that_holds_something_is_refused_and_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        write(source(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_a_killed_write_left_is_replaced(tmp_path):
    stale = tmp_path / "site.part" / "images" / "other"
    stale.mkdir(parents=True)
    write(source(), tmp_path / "site")
    assert not (tmp_path / "site" / "images" / "other").exists()
    assert not (tmp_path / "site.part").exists()


@pytest.mark.parametrize("name", EVERY_SCANNER)
def test_dicom_read_back_is_the_adc_within_rounding(tmp_path, name):
    settings_, scanner = source(name), SCANNERS[name]
    write(settings_, tmp_path / "site")
    for patient in range(2):
        rendered = render(settings_, patient)
        expected = np.minimum(rendered.image.values.transpose(2, 1, 0), scanner.window)
        found, datasets = read_series(tmp_path / "site" / "images" / patient_name(settings_, patient))
        if scanner.gamma == 1 and scanner.rescale:
            found = found / scanner.per_unit
        rounding = 0.5 * scanner.gamma * scanner.window / 4095 + (0.5 if scanner.gamma != 1 else 0.0) + 0.01
        assert np.abs(found - expected).max() <= max(rounding, 0.51 if not scanner.rescale else 0)
        row, column = np.reshape(np.array(datasets[0].ImageOrientationPatient, float), (2, 3))
        corner = np.diag([-1.0, -1, 1, 1]) @ rendered.image.affine @ [47, 47, 3, 1]
        spacing = np.array(datasets[3].PixelSpacing, float)
        mine = datasets[3].ImagePositionPatient + 47 * (row * spacing[1] + column * spacing[0])
        np.testing.assert_allclose(mine, corner[:3], atol=1e-4)


def test_each_way_of_export_is_met_once(tmp_path):
    headers = {}
    for name in EVERY_SCANNER:
        write(source(name, patients=1), tmp_path / name)
        headers[name] = pydicom.dcmread(next((tmp_path / name / "images").rglob("*.dcm")))
    assert {name for name, header in headers.items() if "ModalityLUTSequence" in header} == {"B", "L"}
    assert {name for name, header in headers.items() if "RescaleSlope" in header} == {"A", "D", "E"}
    assert {name for name, header in headers.items() if "RealWorldValueMappingSequence" in header} == {"A"}
    real = headers["A"].RealWorldValueMappingSequence[0]
    assert real.MeasurementUnitsCodeSequence[0].CodeValue == "um2/s"
    assert real.RealWorldValueSlope == pytest.approx(float(headers["A"].RescaleSlope))
    stored = headers["A"].pixel_array
    assert real.RealWorldValueFirstValueMapped <= stored.min()
    assert stored.max() <= real.RealWorldValueLastValueMapped


def test_headers_hold_identifiers_and_order_says_nothing(tmp_path):
    settings_ = source("P", slices=8, patients=3)
    write(settings_, tmp_path / "site")
    uids: set[str] = set()
    straight = 0
    for patient in range(3):
        _, datasets = read_series(tmp_path / "site" / "images" / patient_name(settings_, patient))
        numbers = [int(dataset.InstanceNumber) for dataset in datasets]
        assert sorted(numbers) == list(range(1, 9))
        straight += numbers in (sorted(numbers), sorted(numbers, reverse=True))
        assert {dataset.PatientID for dataset in datasets} == {patient_name(settings_, patient)}
        assert len({dataset.SeriesInstanceUID for dataset in datasets}) == 1
        uids |= {dataset.SOPInstanceUID for dataset in datasets}
        for keyword in ("PatientName", "PatientBirthDate", "StudyDate", "InstitutionName", "AccessionNumber"):
            assert datasets[0][keyword].value
        assert str(datasets[0].PatientName) in str(datasets[0].private_block(0x31, "PHANTOM ARCHIVE 1.0")[0x10].value)
        assert datasets[0].ImageOrientationPatient[4] != 1
    assert len(uids) == 24
    assert all(pydicom.uid.UID(uid).is_valid for uid in uids)
    assert straight == 0


@pytest.mark.parametrize("name", EVERY_SCANNER)
def test_nifti_read_back_is_the_adc_in_its_unit_and_place(tmp_path, name):
    settings_, scanner = source(name, format="nifti"), SCANNERS[name]
    write(settings_, tmp_path / "site")
    rendered = render(settings_, 0)
    image = nibabel.load(tmp_path / "site" / "images" / f"{patient_name(settings_, 0)}.nii.gz")
    assert nibabel.aff2axcodes(image.affine) == tuple(scanner.axes)
    assert image.header["descrip"].tobytes().rstrip(b"\0").decode() == f"ADC {scanner.unit}"
    for coded, code in (image.get_sform(coded=True), image.get_qform(coded=True)):
        assert code == 1
        np.testing.assert_allclose(coded, image.affine, atol=1e-4)
    same = nibabel.as_closest_canonical(image)
    reference = nibabel.as_closest_canonical(nibabel.Nifti1Image(rendered.image.values, rendered.image.affine))
    np.testing.assert_allclose(same.affine, reference.affine, atol=1e-4)
    expected = np.minimum(reference.get_fdata(), scanner.window)
    np.testing.assert_allclose(same.get_fdata() / scanner.per_unit, expected, atol=0.51)


@pytest.mark.parametrize("name", ["P", "B", "L"])
def test_grey_values_are_the_scanners_and_no_file_tells_a_unit(tmp_path, name):
    """By the window and the tone curve, which a reader of `export: adc` undoes and one of `grey` cannot."""
    scanner = SCANNERS[name]
    adc = render(source(name), 0).image.values
    wanted = 3500 * (np.clip(adc, 0, scanner.window) / scanner.window) ** (1 / scanner.gamma)
    for form in ("dicom", "nifti"):
        greys = source(name, format=form, export="grey")
        assert np.allclose(render(greys, 0).image.values, wanted, atol=0.01)
        write(greys, tmp_path / form)
    found, datasets = read_series(tmp_path / "dicom" / "images" / patient_name(greys, 0))
    assert np.abs(found - wanted.transpose(2, 1, 0)).max() <= 0.51
    assert not any("RescaleSlope" in one or "ModalityLUTSequence" in one for one in datasets)
    image = nibabel.load(tmp_path / "nifti" / "images" / f"{patient_name(greys, 0)}.nii.gz")
    assert np.abs(nibabel.as_closest_canonical(image).get_fdata().max() - wanted.max()) <= 0.5
    assert bytes(image.header["descrip"]).rstrip(b"\0") == b"ADC"


@pytest.mark.parametrize("file_format", ["dicom", "nifti"])
def test_masks_and_labels_agree_with_each_other_and_the_image(tmp_path, file_format):
    settings_ = source("L", format=file_format, patients=5, slices=6)
    write(settings_, tmp_path / "site")
    with (tmp_path / "site" / "labels.csv").open(newline="") as stream:
        rows = {(row["patient"], int(row["slice"])): int(row["label"]) for row in csv.DictReader(stream)}
    assert len(rows) == 30
    assert set(rows.values()) == {0, 1}
    for patient in range(5):
        name, rendered = patient_name(settings_, patient), render(settings_, patient)
        for kind, volume in (("lesion", rendered.lesion), ("gland", rendered.gland)):
            mask = nibabel.load(tmp_path / "site" / "masks" / kind / f"{name}.nii.gz")
            np.testing.assert_allclose(mask.affine, volume.affine, atol=1e-4)
            assert np.array_equal(np.asarray(mask.dataobj), volume.values)
        assert [rows[name, k] for k in range(6)] == list(rendered.lesion.values.any(axis=(0, 1)).astype(int))
        if file_format == "nifti":
            image = nibabel.load(tmp_path / "site" / "images" / f"{name}.nii.gz")
            np.testing.assert_allclose(image.affine, rendered.image.affine, atol=1e-4)


# damage


def test_damaged_studies_are_extra_and_cycle(tmp_path):
    settings_ = source(patients=3, damaged=5)
    assert [find_defect(settings_, patient) for patient in range(3)] == [None] * 3
    assert [find_defect(settings_, 3 + extra) for extra in range(5)] == [*DEFECTS["dicom"], DEFECTS["dicom"][0]]
    write(settings_, tmp_path / "damaged")
    write(source(patients=3), tmp_path / "good")
    good, damaged = digests(tmp_path / "good"), digests(tmp_path / "damaged")
    del good["labels.csv"]
    assert good.items() <= damaged.items()
    assert len(list((tmp_path / "damaged" / "images").iterdir())) == 8


def test_damaged_dicom_is_damaged_and_each_in_its_way(tmp_path):
    settings_ = source(patients=1, damaged=4, slices=6)
    write(settings_, tmp_path / "site")
    folders = [tmp_path / "site" / "images" / patient_name(settings_, 1 + extra) for extra in range(4)]
    missing, duplicate, truncated, mixed = folders

    gaps = np.diff([float(dataset.SliceLocation) for dataset in read_series(missing)[1]])
    assert len(gaps) == 4
    assert sorted(np.round(gaps / 3.6)) == [1, 1, 1, 2]

    values, datasets = read_series(duplicate)
    places = [tuple(dataset.ImagePositionPatient) for dataset in datasets]
    (twice,) = {place for place in places if places.count(place) == 2}
    first, second = (values[index] for index, place in enumerate(places) if place == twice)
    assert not np.array_equal(first, second)
    assert len({dataset.SOPInstanceUID for dataset in datasets}) == 7

    broken = 0
    for path in truncated.iterdir():
        try:
            pydicom.dcmread(path).pixel_array  # noqa: B018
        except (ValueError, EOFError, AttributeError):
            broken += 1
    assert broken == 1

    orientations = [tuple(pydicom.dcmread(path).ImageOrientationPatient) for path in mixed.iterdir()]
    assert sorted(map(orientations.count, set(orientations))) == [1, 5]


def test_damaged_nifti_is_damaged_and_each_in_its_way(tmp_path):
    settings_ = source("L", format="nifti", patients=1, damaged=2)
    write(settings_, tmp_path / "site")
    truncated, singular = (
        tmp_path / "site" / "images" / f"{patient_name(settings_, 1 + extra)}.nii.gz" for extra in range(2)
    )
    with pytest.raises(EOFError):
        gzip.GzipFile(fileobj=io.BytesIO(truncated.read_bytes())).read()
    affine = nibabel.load(singular).affine
    assert np.linalg.matrix_rank(affine[:3, :3]) == 2
