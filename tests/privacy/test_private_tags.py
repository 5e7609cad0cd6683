"""Private attributes as a law: those on the list stay, with their creator and value; whatever else stands there goes,
however harmless its value looks, and wherever it lies.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from dicom_with_identifiers import image
from pipelines.data.dicom.frames import GRID, read_frames
from pipelines.data.dicom.stored_values import vendor_slope
from privacy.deidentify.actions import SAFE_PRIVATE
from privacy.deidentify.dicom_image import Profile, as_bytes, deidentify_image
from privacy.deidentify.stored_values import B_VALUES, SLICE_COUNTS, TILES, VENDOR_HEADER, VENDOR_SLOPE

KEY = b"0123456789abcdef"
READ = [*B_VALUES, *SLICE_COUNTS, TILES]
listed = st.sampled_from(sorted(SAFE_PRIVATE - {("SIEMENS MR HEADER", 0x0019, 0x0C)}))  # which every image has
others = st.tuples(
    st.sampled_from(["SIEMENS MR HEADER", "GEMS_ACQU_01", "Philips Imaging DD 001", "ACME 1", "SIEMENS CSA HEADER"]),
    st.sampled_from([0x0019, 0x0043, 0x2001, 0x2005, 0x0009, 0x0029]),
    st.integers(0, 255),
).filter(lambda entry: entry not in SAFE_PRIVATE)
harmless = st.sampled_from(
    [("IS", "800"), ("DS", "1.5"), ("US", 7), ("FD", 0.25), ("CS", "YES"), ("FL", 50.0), ("LO", "A")]
)


def private_of(dataset: Dataset) -> dict[tuple[str, int, int], object]:
    """Creator, group and element without its block, of all private attributes at any depth, with their values."""
    found: dict[tuple[str, int, int], object] = {}
    for element in dataset:
        if element.VR == "SQ":
            for item in element.value:
                found |= private_of(item)
        elif element.tag.is_private and element.tag.element >= 0x1000:
            creator = str(dataset[element.tag.group, element.tag.element >> 8].value)
            found[creator, element.tag.group, element.tag.element & 0xFF] = element.value
    return found


@settings(max_examples=60)
@given(st.lists(st.tuples(others | listed, harmless), max_size=6, unique_by=lambda one: one[0]), st.booleans())
def test_a_private_attribute_stays_only_if_it_is_on_the_list(planted, nested):
    made = image()
    place = made
    if nested:
        made.MRDiffusionSequence = [Dataset()]
        place = made.MRDiffusionSequence[0]
    for (creator, group, element), (vr, value) in planted:
        place.private_block(group, creator, create=True).add_new(element, vr, value)
    here = {one for one, _ in planted}
    kept = private_of(deidentify_image(made, key=KEY))
    assert set(kept) <= SAFE_PRIVATE
    numbers = {
        one: value for one, (vr, value) in planted if one in SAFE_PRIVATE and vr in ("IS", "DS", "FD", "FL", "US")
    }
    assert {one: float(str(kept[one])) for one in numbers} == {one: float(value) for one, value in numbers.items()}
    bare = private_of(deidentify_image(made, key=KEY, profile=Profile(keep_private=frozenset())))
    assert bare == {} and here >= set(kept) - {("SIEMENS MR HEADER", 0x0019, 0x0C)}


def test_of_a_private_sequence_nothing_stays_but_what_is_on_the_list_itself():
    def made(slope: bool) -> Dataset:
        item, whole = Dataset(), image()
        item.PatientName, item.StudyDate, item.SeriesDescription = "Zyxw^Ana", "20200229", "Zyxw"
        item.private_block(0x0009, "ACME 1", create=True).add_new(1, "LO", "Zyxw")
        block = item.private_block(VENDOR_SLOPE.group, VENDOR_SLOPE.creator, create=True)
        block.add_new(0x99, "LO", "Zyxw")
        if slope:
            block.add_new(VENDOR_SLOPE.element, "FL", 2.0)
        block = whole.private_block(VENDOR_HEADER.group, VENDOR_HEADER.creator, create=True)
        block.add_new(VENDOR_HEADER.element, "SQ", [item])
        return whole

    safe = deidentify_image(made(slope=True), key=KEY)
    (kept,) = safe.private_block(VENDOR_HEADER.group, VENDOR_HEADER.creator)[VENDOR_HEADER.element].value
    assert private_of(kept) == {tuple(VENDOR_SLOPE): 2.0} and len(kept) == 2, "the slope and its creator"
    assert vendor_slope(safe) == 2.0 and b"Zyxw" not in as_bytes(safe)
    bare = deidentify_image(made(slope=False), key=KEY)
    assert VENDOR_HEADER.group not in {element.tag.group for element in bare}


@pytest.mark.parametrize("place", READ, ids=lambda place: f"{place[0]} {place[1]:04x},{place[2]:02x}")
def test_what_the_reader_takes_from_a_private_attribute_is_the_same_after_deidentification(place, tmp_path):
    def read(dataset, name):
        dataset.save_as(tmp_path / name, enforce_file_format=True)
        (frame,) = read_frames(tmp_path / name, ("SeriesInstanceUID",), diffusion=True, seen={})
        return frame.b_value, frame.slices, frame.values.get(GRID)

    made = image()
    for keyword in ("DiffusionBValue", "SequenceName", "ImageType", "NumberOfSlices"):
        made.pop(keyword, None)
    for tag in [element.tag for element in made if element.tag.is_private]:
        del made[tag]
    creator, group, element = place
    made.private_block(group, creator, create=True).add_new(element, "IS", "37")
    before = read(made, "before.dcm")
    assert before != (None, None, None) and read(deidentify_image(made, key=KEY), "after.dcm") == before
