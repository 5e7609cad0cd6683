"""Pseudonyms and the header allow-list."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.datadict import tag_for_keyword

from pipelines.data.pseudonym import ALLOWED_HEADERS, allowed_facts, make_pseudonym

KEY = bytes(range(16))
names = st.text(min_size=1).filter(lambda text: text.strip())


@given(names)
def test_stable_short_and_plain(patient: str) -> None:
    found = make_pseudonym(KEY, patient)
    assert found == make_pseudonym(KEY, f"  {patient} ")
    assert re.fullmatch(r"[a-z2-7]{16}", found)


@given(names, st.binary(min_size=16, max_size=64))
def test_another_key_gives_another_name(patient: str, key: bytes) -> None:
    assert (make_pseudonym(key, patient) == make_pseudonym(KEY, patient)) == (key.rstrip(b"\0") == KEY.rstrip(b"\0"))


def test_a_known_answer() -> None:
    # HMAC-SHA256 of RFC 4231, test case 1: key 20 x 0x0b, data "Hi There": b0344c61d8db38535ca8...
    assert make_pseudonym(b"\x0b" * 20, "Hi There") == "wa2eyyoy3m4fgxfi"


def test_two_spellings_of_one_name_are_one_patient() -> None:
    assert make_pseudonym(KEY, "Mu\u0308ller") == make_pseudonym(KEY, "M\u00fcller")
    assert make_pseudonym(KEY, "Muller") != make_pseudonym(KEY, "M\u00fcller")


@pytest.mark.parametrize(("key", "patient"), [(b"short", "a"), (KEY, " "), (b"", "a")])
def test_weak_keys_and_empty_names_are_refused(key: bytes, patient: str) -> None:
    with pytest.raises(ValueError, match=r"at least 16 bytes|identifier that is not empty"):
        make_pseudonym(key, patient)


def test_only_allowed_headers_pass() -> None:
    headers = {
        "PatientName": "Miller^Ann",
        "PatientID": "7",
        "StudyDate": "20200101",
        "InstitutionName": "Here",
        "StationName": "MR1",
        "DeviceSerialNumber": "12345",
        "Manufacturer": " Maker \n Inc ",
        "MagneticFieldStrength": "3",
        "SliceThickness": "thick",
        "SoftwareVersions": "v" * 500,
    }
    assert allowed_facts(headers) == {
        "Manufacturer": "Maker Inc",
        "MagneticFieldStrength": 3.0,
        "SoftwareVersions": "v" * 64,
    }
    assert all(tag_for_keyword(keyword) is not None for keyword in ALLOWED_HEADERS)


@pytest.mark.parametrize(
    "word", ["Patient", "Date", "Institution", "Station", "Serial", "UID", "Operator", "Description"]
)
def test_no_allowed_header_identifies(word: str) -> None:
    assert not [keyword for keyword in ALLOWED_HEADERS if word in keyword]
