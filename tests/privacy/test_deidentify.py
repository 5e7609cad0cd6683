"""De-identification: nothing of a person is left, whatever attribute held it, and the image is what it was."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from datetime import datetime

import numpy as np
import pydicom
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.pixels import pixel_array
from pydicom.uid import UID_dictionary

from dicom_with_identifiers import HOMER, KEY, confirmed, file_of, image, images_with_identifiers, insert_raw
from pipelines.data.pseudonym import make_pseudonym as cohort_pseudonym
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, as_bytes, deidentify_image
from privacy.deidentify.keyed import make_pseudonym, new_uid
from privacy.deidentify.layouts import Layout, Rectangle
from privacy.deidentify.leftovers import find_leftovers

DAYS = st.dates(datetime(1971, 1, 1).date(), datetime(2150, 1, 1).date())


LAYOUT = Layout(manufacturer="A", model="", rows=4, columns=6, rectangles=())


def cleaned(dataset: Dataset, **profile: object) -> Dataset:
    return pydicom.dcmread(io.BytesIO(as_bytes(deidentify_image(dataset, key=KEY, profile=Profile(**profile)))))


def holds(data: bytes, secret: str) -> bool:
    low, wanted = data.lower(), secret.lower()
    plain = wanted.replace("ü", "u"), wanted.replace("ü", "ue"), wanted
    return any(form.encode(code, "ignore") in low for form in plain for code in ("utf-8", "latin-1", "utf-16-le"))


@settings(
    max_examples=80, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(images_with_identifiers())
def test_nothing_of_a_person_is_left_and_the_image_is_what_it_was(dataset: Dataset) -> None:
    data = as_bytes(deidentify_image(dataset, key=KEY))
    assert find_leftovers(dataset, data) == []
    assert not [secret for secret in HOMER.secrets if holds(data, secret)]
    assert b"19290307" not in data and b"171923" not in data
    again = pydicom.dcmread(io.BytesIO(data))
    str(again)  # every value parses
    assert np.array_equal(again.pixel_array, np.arange(24).reshape(4, 6))
    for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "DiffusionBValue", "Rows"):
        assert again[keyword].value == dataset[keyword].value
    assert again[0x0019, 0x100C].value == 800
    assert again.PatientID == again.PatientName == cohort_pseudonym(KEY, HOMER.number)


def test_the_second_opinion_sees_what_is_put_back() -> None:
    original = image()
    for tag, vr, text in [
        (0x00081090, "LO", f"scanner of {HOMER.surname.upper()}"),
        (0x00081090, "LO", "Zwetschgenmuller"),
        (0x00189073, "FD", b"70417762"),
        (0x00180015, "CS", HOMER.number),
        (0x00081090, "LO", "2019-05-07"),
        (0x00080080, "LO", HOMER.hospital),
        (0x00100030, "DA", "19290307"),
        (0x0020000D, "UI", HOMER.uid),
        (0x00080020, "DA", HOMER.day),
        (0x00090010, "LO", "ACME"),
        (0x0019100D, "LO", "name"),
        (0x00281050, "DS", HOMER.number),
        (0x00204000, "LT", HOMER.doctor.lower()),
    ]:
        again = cleaned(original)
        assert find_leftovers(original, file_of(again)) == []
        insert_raw(again, tag, vr, text)
        assert find_leftovers(original, file_of(again)), (hex(tag), text)
    hidden = bytearray(file_of(cleaned(original)))
    hidden[:5] = b"Homer"
    assert find_leftovers(original, bytes(hidden)) == ["the preamble is not empty"]


def test_a_cohort_of_the_same_key_has_the_same_pseudonyms() -> None:
    for name in ("7", " Zoé ", "Zoe\u0301"):
        assert make_pseudonym(KEY, name) == cohort_pseudonym(KEY, name)


@given(st.text("0123456789.", min_size=1, max_size=64), st.binary(min_size=16, max_size=40))
def test_uids_are_valid_stable_and_keyed(uid: str, key: bytes) -> None:
    found = pydicom.uid.UID(new_uid(key, uid))
    assert found.is_valid and found.startswith("2.25.")
    assert found == new_uid(key, uid + "\0") != new_uid(key + b"x", uid)
    assert new_uid(key, uid + "1") != found


@pytest.mark.parametrize("uid", [*list(UID_dictionary)[:40], "1.2.840.10008.2.16.4", "1.2.840.10008.1.4.1.1"])
def test_registered_uids_stay(uid: str) -> None:
    assert new_uid(KEY, uid) == uid


def test_references_between_files_still_fit() -> None:
    one, other = image(), image(SOPInstanceUID=HOMER.uid + ".10")
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = one.SOPClassUID, one.SOPInstanceUID
    other.ReferencedImageSequence = [item]
    first, second = cleaned(one), cleaned(other)
    (reference,) = second.ReferencedImageSequence
    assert reference.ReferencedSOPInstanceUID == first.SOPInstanceUID == first.file_meta.MediaStorageSOPInstanceUID
    assert reference.ReferencedSOPClassUID == one.SOPClassUID
    assert first.StudyInstanceUID == second.StudyInstanceUID and first.SOPInstanceUID != second.SOPInstanceUID


@settings(max_examples=30)
@given(DAYS, DAYS, st.binary(min_size=16, max_size=20))
def test_intervals_between_dates_are_kept_and_dates_are_not(one, other, key) -> None:
    files = [image(StudyDate=f"{day:%Y%m%d}", AcquisitionDateTime=f"{day:%Y%m%d}101010") for day in (one, other)]
    first, second = (deidentify_image(file, key=key) for file in files)
    moved = [datetime.strptime(found.StudyDate, "%Y%m%d").date() for found in (first, second)]
    assert moved[1] - moved[0] == other - one
    assert 365 <= (one - moved[0]).days <= 3650
    assert first.AcquisitionDateTime == first.StudyDate


def test_patients_move_by_different_days() -> None:
    assert len({cleaned(image(PatientID=f"P{number}")).StudyDate for number in range(30)}) > 25


def test_times_ages_and_devices_stay_only_when_asked() -> None:
    original = image(DeviceSerialNumber="SN-4471", StudyTime="101010", PatientWeight="80")
    bare = cleaned(original)
    assert not bare.get("StudyTime") and bare.DeviceSerialNumber == "REMOVED" and not bare.PatientSex
    assert "PatientAge" not in bare and "PatientWeight" not in bare and not bare.PatientBirthDate
    kept = cleaned(original, keep_times=True, keep_device=True, keep_characteristics=True)
    assert (kept.StudyTime, kept.DeviceSerialNumber, kept.PatientSex, kept.PatientAge) == (
        "101010",
        "SN-4471",
        "M",
        "090Y",
    )
    assert kept.AcquisitionDateTime.endswith("171923.5") and not kept.PatientBirthDate
    assert [item.CodeValue for item in kept.DeidentificationMethodCodeSequence] == [
        "113100",
        "113107",
        "113108",
        "113109",
        "113111",
    ]


def test_the_file_says_what_was_done() -> None:
    found = cleaned(image())
    assert found.PatientIdentityRemoved == "YES" and found.LongitudinalTemporalInformationModified == "MODIFIED"
    assert "PS3.15" in found.DeidentificationMethod
    assert {item.CodeValue for item in found.DeidentificationMethodCodeSequence} == {"113100", "113107", "113111"}
    assert found.file_meta.ImplementationVersionName == "CONSILIUM"


def test_the_input_is_not_changed() -> None:
    original = image()
    before = file_of(original)
    deidentify_image(original, key=KEY)
    assert file_of(original) == before


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"BurnedInAnnotation": "YES"}, "burned_in"),
        ({"BurnedInAnnotation": "MAYBE"}, "burned_in"),
        ({"Modality": "US"}, "burned_in"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7"}, "burned_in"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7.4"}, "burned_in"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.3.1"}, "burned_in"),
        ({"ConversionType": "DF"}, "burned_in"),
        ({"ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]}, "burned_in"),
        ({"RecognizableVisualFeatures": "YES"}, "recognizable"),
        ({"PatientID": " "}, "no_patient"),
        ({"SOPClassUID": "1.2.3.4"}, "not_image"),
        ({"Rows": None}, "unparsable"),
        ({"SOPInstanceUID": ""}, "unparsable"),
    ],
)
def test_what_must_not_leave_is_refused(header, reason) -> None:
    dataset = image()
    dataset.update(header)
    with pytest.raises(NotDeidentifiable) as refusal:
        deidentify_image(dataset, key=KEY)
    assert refusal.value.reason == reason
    assert not [secret for secret in HOMER.secrets if secret.lower() in str(refusal.value).lower()]


def test_documents_and_overlays_in_pixels_are_refused() -> None:
    report = image()
    del report.PixelData
    overlaid = image()
    overlaid.add_new(0x60000102, "US", 12)
    for dataset, reason in ((report, "not_image"), (overlaid, "overlay_in_pixels")):
        with pytest.raises(NotDeidentifiable, match=reason):
            deidentify_image(dataset, key=KEY)


@pytest.mark.parametrize("kind", ["ConversionType", "Modality"])
def test_a_flag_that_says_no_is_believed(kind) -> None:
    assert cleaned(image(BurnedInAnnotation="NO", **{kind: "SD" if kind == "ConversionType" else "US"}))


@pytest.mark.parametrize(("frames", "samples"), [(1, 1), (3, 1), (1, 3), (2, 3)])
def test_blanking_reaches_every_frame_and_colour_and_nothing_else(frames, samples) -> None:
    values = np.random.default_rng(0).integers(1, 255, (frames, 5, 7, samples), np.uint8)
    dataset = image(BurnedInAnnotation="YES")
    dataset.NumberOfFrames, dataset.SamplesPerPixel, dataset.Rows, dataset.Columns = frames, samples, 5, 7
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    if samples == 3:
        dataset.PhotometricInterpretation, dataset.PlanarConfiguration = "RGB", 0
    dataset.PixelData = values.tobytes() + b"\0" * (values.size % 2)
    profile = confirmed(dataset, (0, 1, 2, 3), (4, 6, 5, 7))
    found = deidentify_image(dataset, key=KEY, profile=profile)
    wanted = values.copy()
    wanted[:, 0:2, 1:3] = wanted[:, 4, 6] = 0
    assert np.array_equal(found.pixel_array.reshape(wanted.shape), wanted)
    assert found.BurnedInAnnotation == "NO"
    assert "113101" in {item.CodeValue for item in found.DeidentificationMethodCodeSequence}
    assert find_leftovers(dataset, as_bytes(found)) == []


def test_rectangles_leave_images_alone_that_show_no_text() -> None:
    found = deidentify_image(image(), key=KEY, profile=confirmed(image(), (0, 0, 4, 6)))
    assert np.array_equal(found.pixel_array, image().pixel_array) and "BurnedInAnnotation" not in found
    assert "113101" not in {item.CodeValue for item in found.DeidentificationMethodCodeSequence}


def changed(dataset: Dataset, how: str) -> tuple[Dataset, bytes]:
    """Another image, or another key, of which nobody confirmed anything."""
    if how == "pixel within":
        dataset.PixelData = b"\7" + dataset.PixelData[1:]
    elif how == "pixel outside":
        dataset.PixelData = dataset.PixelData[:-2] + b"\7\0"
    elif how == "image":
        dataset.SOPInstanceUID += ".7"
    return dataset, KEY[::-1] if how == "key" else KEY


@pytest.mark.parametrize("how", ["pixel within", "pixel outside", "image", "key", "rectangle", "nothing"])
def test_nothing_is_certified_that_was_not_confirmed_as_it_is(how) -> None:
    profile = confirmed(image(BurnedInAnnotation="YES"), (0, 0, 2, 3))
    if how == "rectangle":
        (layout,) = profile.blank
        profile = replace(profile, blank=(replace(layout, rectangles=(Rectangle(top=0, left=0, bottom=2, right=4),)),))
    dataset, key = changed(image(BurnedInAnnotation="YES"), how)
    if how == "nothing":
        assert deidentify_image(dataset, key=key, profile=profile).BurnedInAnnotation == "NO"
        return
    with pytest.raises(NotDeidentifiable, match="unconfirmed"):
        deidentify_image(dataset, key=key, profile=profile)


@pytest.mark.parametrize("other", [{"Manufacturer": "Other"}, {"ManufacturerModelName": "M"}, {"Rows": 3}])
def test_a_rectangle_is_for_one_layout_only(other) -> None:
    profile = confirmed(image(BurnedInAnnotation="YES"), (0, 0, 2, 3))
    with pytest.raises(NotDeidentifiable, match="burned_in"):
        deidentify_image(image(BurnedInAnnotation="YES", **other), key=KEY, profile=profile)
    assert deidentify_image(image(BurnedInAnnotation="YES", Manufacturer=" acme "), key=KEY, profile=profile)


@pytest.mark.parametrize("photometric", ["YBR_FULL", "YBR_FULL_422"])
def test_blanked_colours_are_rgb_and_say_so(photometric) -> None:
    samples = 2 if photometric == "YBR_FULL_422" else 3
    dataset = image(BurnedInAnnotation="YES", PhotometricInterpretation=photometric, SamplesPerPixel=3)
    dataset.PlanarConfiguration, dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 0, 8, 8, 7
    dataset.PixelData = np.random.default_rng(0).integers(0, 255, 24 * samples, np.uint8).tobytes()
    found = deidentify_image(dataset, key=KEY, profile=confirmed(dataset, (0, 0, 2, 6)))
    assert found.PhotometricInterpretation == "RGB" and not found.pixel_array[:2].any()
    assert np.array_equal(found.pixel_array[2:], pixel_array(dataset)[2:])


def test_colours_that_cannot_be_told_are_refused() -> None:
    dataset = image(BurnedInAnnotation="YES", PhotometricInterpretation="YBR_PARTIAL_422", SamplesPerPixel=3)
    with pytest.raises(NotDeidentifiable, match="undecodable"):
        confirmed(dataset, (0, 0, 2, 6))


def test_dates_are_called_modified_only_where_one_was() -> None:
    found = deidentify_image(image(), key=KEY)
    assert found.LongitudinalTemporalInformationModified == "MODIFIED"
    dataset = image()
    for element in list(dataset.iterall()):
        if element.VR in {"DA", "DT"}:
            del dataset[element.tag]
    dataset.StudyDate = "19000101"
    found = deidentify_image(dataset, key=KEY)
    assert found.LongitudinalTemporalInformationModified == "REMOVED"
    assert [item.CodeValue for item in found.DeidentificationMethodCodeSequence] == ["113100", "113111"]
    kept = deidentify_image(image(), key=KEY, profile=Profile(keep_times=True))
    assert "times of day kept" in kept.DeidentificationMethod and "times" not in found.DeidentificationMethod


def test_bytes_behind_the_last_pixel_are_cut() -> None:
    dataset = image()
    dataset.PixelData += b"Zwetschge Aloysius"
    assert len(cleaned(dataset).PixelData) == 48


def test_codes_of_a_hospitals_own_scheme_are_unknown_and_public_ones_stay() -> None:
    dataset = image()
    items = []
    for scheme in ("SCT", "99EVERGREEN"):
        item = Dataset()
        item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = "41216001", scheme, "Prostate"
        items.append(item)
    dataset.AnatomicRegionSequence = items
    found = cleaned(dataset).AnatomicRegionSequence
    assert [item.CodeMeaning for item in found] == ["Prostate", "Unknown"]


@pytest.mark.parametrize("coil", ["Receive", "Transmit"])
def test_who_made_a_coil_stays_unless_it_names_the_patient(coil) -> None:
    """The standard wants the attribute there, and its table E.1-1 does not name it (PS3.3 C.8.13.5.7 and .8)."""
    dataset, item = image(), Dataset()
    keyword = f"{coil}CoilManufacturerName"
    for told, kept in (("Siemens", "Siemens"), (f"made for {HOMER.surname}", "REMOVED")):
        setattr(item, keyword, told)
        setattr(dataset, f"MR{coil}CoilSequence", [item])
        assert cleaned(dataset)[f"MR{coil}CoilSequence"].value[0].get(keyword) == kept


def test_a_reader_that_quotes_values_says_nothing(caplog, capfd) -> None:
    dataset = image()
    for tag, vr in ((0x00181088, "IS"), (0x00100010, "PN"), (0x00081155, "UI"), (0x00181020, "SH")):
        insert_raw(dataset, tag, vr, f"{HOMER.surname} {HOMER.number} " * 9)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        as_bytes(deidentify_image(dataset, key=KEY))
    assert (heard, caplog.records, *capfd.readouterr()) == ([], [], "", "")


def test_sequences_without_end_are_refused() -> None:
    dataset = inner = image()
    for _ in range(45):
        inner.AnatomicRegionSequence = [Dataset()]
        inner = inner.AnatomicRegionSequence[0]
    with pytest.raises(NotDeidentifiable, match="unparsable"):
        deidentify_image(dataset, key=KEY)


def test_settings_out_of_range_are_told_all_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?=.*shift_days)(?=.*blank)(?=.*keep_private)"):
        Profile(shift_days=(-1, 1), blank=(LAYOUT, LAYOUT), keep_private=frozenset({("A", 0x0010, 1)}))
    with pytest.raises(ValueError, match="16 bytes"):
        deidentify_image(image(), key=b"short")


@pytest.mark.parametrize(
    ("tag", "vr"), [(0x00189073, "FD"), (0x00181320, "FL"), (0x00189037, "AT"), (0x00281201, "US")]
)
def test_numbers_whose_bytes_spell_a_name_are_removed(tag, vr) -> None:
    dataset = image()
    insert_raw(dataset, tag, vr, HOMER.given.encode())
    assert HOMER.given.encode() in file_of(dataset)
    assert tag not in cleaned(dataset)


def test_curves_and_overlays_are_removed_as_a_whole() -> None:
    dataset = image()
    for tag, vr in ((0x60000010, "US"), (0x60020040, "CS"), (0x50000005, "US"), (0x60003000, "OW")):
        insert_raw(dataset, tag, vr, b"G ")
    assert not [tag for tag in cleaned(dataset).keys() if 0x5000 <= tag.group <= 0x60FF]  # noqa: SIM118 - as keys


def test_small_pictures_and_embedded_documents_are_removed() -> None:
    dataset, icon = image(), image()
    dataset.IconImageSequence = [icon]
    dataset.EncapsulatedDocument = b"%PDF of Zwetschgenmueller"
    dataset.SequenceOfUltrasoundRegions = [Dataset()]
    dataset.SequenceOfUltrasoundRegions[0].RegionLocationMinX0 = 3
    found = cleaned(dataset)
    assert "IconImageSequence" not in found and found.EncapsulatedDocument == b"\0\0"
    assert found.SequenceOfUltrasoundRegions[0].RegionLocationMinX0 == 3


def test_a_palette_s_blanked_pixels_have_one_colour() -> None:
    dataset = image(BurnedInAnnotation="YES", PhotometricInterpretation="PALETTE COLOR", BitsAllocated=8)
    dataset.BitsStored, dataset.HighBit, dataset.PixelData = 8, 7, bytes(range(24))
    for colour in ("Red", "Green", "Blue"):
        setattr(dataset, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(dataset, f"{colour}PaletteColorLookupTableData", np.arange(65535, -1, -256, dtype="<u2").tobytes())
    found = deidentify_image(dataset, key=KEY, profile=confirmed(dataset, (0, 0, 2, 6)))
    assert found.PhotometricInterpretation == "PALETTE COLOR" and "RedPaletteColorLookupTableData" in found
    assert not found.pixel_array[:2].any() and found.pixel_array.ravel()[12:].tolist() == list(range(12, 24))
