"""How new values of a translator are stored: within half a step, in bits that hold them."""

from __future__ import annotations

import nibabel
import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicom_with_identifiers import KEY, confirmed
from harmonize.cyclegan import CycleGan
from harmonize.intensity import Identity
from harmonize.scale import Scale
from pipelines.batch.confirmations import record_confirmation
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.writing.coding import Coding, encode_values, fit_line, value_range
from pipelines.runs.exits import Exit
from privacy.deidentify.dicom_image import blank_image
from translating import (
    SELECT,
    by_position,
    oblique,
    only,
    phantom,
    run,
    table,
    through,
    translator,
)

# -- coding -----------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([8, 12, 16]), st.booleans(), st.floats(-3000, 3000),
    st.sampled_from([1.0, 0.5, 0.001, 7.3]), st.booleans(),
)  # fmt: skip
def test_new_stored_values_are_the_changed_real_ones_within_half_a_step(seed, bits, signed, by, slope, table):
    generator = np.random.default_rng(seed)
    low, high = value_range(bits, signed)
    stored = [generator.integers(low, high + 1, (6, 5)).astype(np.int32) for _ in range(2)]
    real = [(plane * slope).astype(np.float32) for plane in stored]
    change = [np.full((6, 5), by * slope, np.float32) for _ in stored]
    new, coding = encode_values(stored, real, change, Coding(bits, signed), 8 if bits == 8 else 16, table=table)
    for before, plane in zip(stored, new, strict=True):
        least, most = value_range(coding.bits, coding.signed)
        assert least <= plane.min() and plane.max() <= most
        told = plane * coding.slope + coding.intercept
        found = told * slope if coding.relative else told
        step = abs(coding.slope) * (slope if coding.relative else 1)
        assert np.abs(found - (before * slope + by * slope)).max() <= step * 0.51 + 2e-6 * np.abs(found).max()
    if by == 0 and not table:
        assert coding.same and all(np.array_equal(a, b) for a, b in zip(stored, new, strict=True))


def test_a_table_is_no_line_and_one_value_is_no_table():
    stored = np.arange(100).reshape(10, 10)
    assert fit_line(stored, (stored * 0.25 + 3).astype(np.float32)) == pytest.approx(0.25)
    assert fit_line(stored, (stored.astype(np.float32) ** 1.3)) is None
    assert fit_line(np.full((2, 2), 7), np.full((2, 2), 3, np.float32)) == 0.0


def test_values_that_leave_twelve_bits_are_stored_in_sixteen_with_the_same_rescale(tmp_path, monkeypatch):
    images = phantom(tmp_path / "p", "P")
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        values = file.pixel_array.copy()
        values[values > 0] = np.minimum(values[values > 0] + 1500, 4090)
        file.PixelData = values.tobytes()
        file.add_new("SmallestImagePixelValue", "US", 0)
        file.save_as(path)
    through(monkeypatch, lambda x: x + 0.2)
    file_ = translator(tmp_path, CycleGan(), scale=Scale(low=0, high=10))
    assert run(file_, images, tmp_path / "out") == Exit.OK
    after, before = only(tmp_path / "out"), only(images)
    assert after.image.values.max() > 4095
    assert np.array_equal(after.image.values, np.where(before.image.values == 0, 0, before.image.values + 1000))
    for new in by_position(tmp_path / "out").values():
        assert (new.BitsStored, new.HighBit, "RescaleSlope" in new) == (16, 15, False)


def test_a_real_world_map_and_its_range_hold_for_the_new_values(tmp_path, monkeypatch):
    images = phantom(tmp_path / "p", "A")
    through(monkeypatch, lambda x: x + 0.4)
    file = translator(tmp_path, CycleGan(), scale=Scale(low=0, high=10))
    assert run(file, images, tmp_path / "out") == Exit.OK
    before, after = only(images), only(tmp_path / "out")
    assert after.unit == before.unit == "um2/s"
    expected = np.where(before.image.values == 0, 0, before.image.values + 2000)
    assert np.abs(after.image.values - expected).max() <= 0.5 and after.image.values.max() > 3600
    for new in by_position(tmp_path / "out").values():
        (item,) = new.RealWorldValueMappingSequence
        assert item.RealWorldValueFirstValueMapped == 0
        assert item.RealWorldValueLastValueMapped == max(
            one.pixel_array.max() for one in by_position(tmp_path / "out").values()
        )
        assert np.allclose(float(new.RescaleSlope), item.RealWorldValueSlope)


@pytest.mark.parametrize("mapped", [False, True])
def test_eight_bits_that_cannot_hold_the_values_become_sixteen_with_a_slope_of_their_own(tmp_path, monkeypatch, mapped):
    images = phantom(tmp_path / "p", "A")
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        file.PixelData = np.minimum(file.pixel_array // 15, 255).astype(np.uint8).tobytes()
        file.BitsAllocated = file.BitsStored = 8
        file.HighBit, file.RescaleSlope, file.RescaleIntercept, file.RescaleType = 7, "13", "0", "1e-6 mm2/s"
        (item,) = file.RealWorldValueMappingSequence
        item.RealWorldValueSlope, item.RealWorldValueLastValueMapped = 13.0, 255
        if not mapped:
            del file.RealWorldValueMappingSequence
        file.save_as(path)
    through(monkeypatch, lambda x: x + 0.4)
    file_ = translator(tmp_path, CycleGan(), scale=Scale(low=0, high=10))
    assert run(file_, images, tmp_path / "out") == Exit.OK
    before, after = only(images), only(tmp_path / "out")
    assert after.unit == before.unit
    assert np.abs(after.image.values - np.where(before.image.values == 0, 0, before.image.values + 2000)).max() < 0.1
    for new in by_position(tmp_path / "out").values():
        assert (new.BitsAllocated, new.BitsStored, new.HighBit) == (16, 16, 15)


def test_text_that_is_blanked_for_the_reader_is_blanked_in_the_output(tmp_path):
    images = phantom(tmp_path / "p", "P")
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        values = file.pixel_array.copy()
        values[2:5, 3:9] = 4095
        file.PixelData, file.BurnedInAnnotation = values.tobytes(), "YES"
        file.save_as(path)
    plain = translator(tmp_path, Identity())
    assert run(plain, images, tmp_path / "refused") == Exit.DATA
    assert table(tmp_path / "refused", "quarantine")[0]["reason"] == "burned_in"
    paths = sorted(images.rglob("*.dcm"))
    profile = confirmed(pydicom.dcmread(paths[0]), (2, 3, 5, 9))
    source = DicomSource(folder=".", select=SELECT, blank=profile.blank)
    blanking_ = translator(tmp_path, Identity(), source=source)
    assert run(blanking_, images, tmp_path / "unseen") == Exit.DATA
    assert {line["reason"] for line in table(tmp_path / "unseen", "quarantine")} == {"unconfirmed"}
    digests = [blank_image(pydicom.dcmread(path), KEY, profile).digest for path in paths]
    record_confirmation(tmp_path / "site.key", "0" * 16, digests)
    assert run(blanking_, images, tmp_path / "out") == Exit.OK
    for place, new in by_position(tmp_path / "out").items():
        old = by_position(images)[place].pixel_array
        assert new.pixel_array.max() < 4095 and len(np.unique(new.pixel_array[2:5, 3:9])) == 1
        assert new.BurnedInAnnotation == "NO" and np.array_equal(new.pixel_array[6:], old[6:])


def test_a_nifti_type_that_cannot_hold_the_values_becomes_float32(tmp_path, monkeypatch):
    through(monkeypatch, lambda x: x + 0.1)
    values = np.random.default_rng(0).integers(200, 255, (50, 50, 2)).astype(np.uint8)
    image = nibabel.Nifti1Image(values, oblique((1.5, 1.5, 3.0)))
    image.header.set_slope_inter(8.0, 0)
    (tmp_path / "in").mkdir()
    nibabel.save(image, tmp_path / "in" / "a.nii.gz")
    assert (
        run(
            translator(tmp_path, CycleGan(), source=NiftiSource(folder=".", unit="1e-6 mm2/s")),
            tmp_path / "in",
            tmp_path / "out",
        )
        == 0
    )
    (path,) = (tmp_path / "out").rglob("*.nii.gz")
    new = nibabel.load(path)
    assert new.get_data_dtype() == np.float32
    assert np.abs(np.asarray(new.dataobj) - (values * 8.0 + 175)).max() < 0.01
