"""De-identification makes no file less valid: `dciodvfy` before and after, and a law that needs no such program."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pydicom
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pydicom.dataset import Dataset

from dicom_with_identifiers import HOMER, KEY, image, images_with_identifiers
from privacy.deidentify.dicom_image import NotDeidentifiable, as_bytes, deidentify_image
from privacy.deidentify.quiet import silence_warnings
from real_files import PYDICOM, files_below

TYPE_2 = {
    "AcquisitionContextSequence", "SpecimenPreparationSequence", "IssuerOfTheSpecimenIdentifierSequence",
    "IssuerOfTheContainerIdentifierSequence", "VerifyingObserverIdentificationCodeSequence",
    "PrescriptionNotesSequence",
}  # fmt: skip
"""Sequences that the table allows to be emptied only, and that PS3.3 allows to be empty."""
REAL = ("phi", "dicom_zoo", "prostatex", PYDICOM)
CODE = {"CodeValue", "LongCodeValue", "URNCodeValue"}


@pytest.fixture(scope="module")
def files(data: Path, thorough: bool) -> list[tuple[str, Dataset, bytes]]:
    """Name, original and de-identified bytes of each file that can be de-identified without blanking."""
    return list(before_and_after(data, thorough))


def before_and_after(data: Path, thorough: bool) -> Iterator[tuple[str, Dataset, bytes]]:
    for path in itertools.chain.from_iterable(files_below(data, name, thorough) for name in REAL):
        with silence_warnings():
            try:
                original = pydicom.dcmread(path)
                if "SOPClassUID" not in original or "TransferSyntaxUID" not in original.file_meta:
                    continue
                original.BurnedInAnnotation = "NO"
                yield path.name, original, as_bytes(deidentify_image(original, key=KEY))
            except (NotDeidentifiable, pydicom.errors.InvalidDicomError, EOFError):
                continue


def spoiled(before: Dataset, after: Dataset, path: str = "") -> Iterator[str]:
    """Sequences and items that are empty in `after` and were not before, and codes that lost a part."""
    for element in after:
        if element.VR != "SQ":
            continue
        here = f"{path}/{element.keyword}"
        old = list(before[element.tag].value or ()) if element.tag in before else []
        if not element.value and old and element.keyword not in TYPE_2:
            yield f"{here} is empty"
        kept = [item for item in old if len(item)]
        for number, item in enumerate(element.value):
            if not len(item) and all(map(len, old)):
                yield f"{here} has an empty item"
            if item.keys() & keys(CODE | {"CodingSchemeDesignator", "CodeMeaning"}):
                whole = item.get("CodeMeaning") and item.keys() & keys(CODE)
                if not whole and not any(incomplete(one) for one in old):
                    yield f"{here} has half a code"
            if len(kept) == len(element.value):
                yield from spoiled(kept[number], item, here)


def keys(names: set[str]) -> set[int]:
    return {pydicom.datadict.tag_for_keyword(name) for name in names}


def incomplete(item: Dataset) -> bool:
    return not (item.get("CodeMeaning") and any(item.get(name) for name in CODE))


def test_no_real_file_gets_an_empty_sequence_an_empty_item_or_half_a_code(
    files: list[tuple[str, Dataset, bytes]], thorough: bool
) -> None:
    for name, original, written in files:
        with silence_warnings():
            assert list(spoiled(original, pydicom.dcmread(io.BytesIO(written)))) == [], name
    assert len(files) > (100 if thorough else 40)


@settings(max_examples=60, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(images_with_identifiers())
def test_no_planted_file_gets_one(original: Dataset) -> None:
    with silence_warnings():
        written = as_bytes(deidentify_image(original, key=KEY))
        assert list(spoiled(original, pydicom.dcmread(io.BytesIO(written)))) == []


@pytest.mark.parametrize(
    ("scheme", "meaning"),
    [("99EVERGREEN", "Prostate"), ("SCT", f"of {HOMER.surname}"), (HOMER.surname, "Prostate"), (None, "Prostate")],
)
def test_a_code_that_may_not_stay_becomes_unknown_as_a_whole(scheme: str | None, meaning: str) -> None:
    dataset, item, context = image(), Dataset(), Dataset()
    item.CodeValue, item.CodeMeaning, item.ContextIdentifier = "123", meaning, "4031"
    if scheme:
        item.CodingSchemeDesignator = scheme
    item.EquivalentCodeSequence = [context]
    context.CodeValue, context.CodingSchemeDesignator, context.CodeMeaning = "T-9200B", "SRT", "Prostate"
    dataset.AnatomicRegionSequence = [item]
    (found,) = deidentify_image(dataset, key=KEY).AnatomicRegionSequence
    assert (found.CodeValue, found.CodingSchemeDesignator, found.CodeMeaning) == ("261665006", "SCT", "Unknown")
    assert len(found) == 3


def test_a_public_code_stays_as_it_is_also_one_that_was_half() -> None:
    dataset, item = image(), Dataset()
    item.CodeValue, item.CodingSchemeDesignator = "41216001", "SCT"
    dataset.AnatomicRegionSequence = [item]
    assert deidentify_image(dataset, key=KEY).AnatomicRegionSequence[0] == item


def errors(path: Path, data: bytes) -> Counter[str]:
    """What `dciodvfy` calls an error; UIDs, which are new, do not count."""
    path.write_bytes(data)
    done = subprocess.run(["dciodvfy", str(path)], capture_output=True, check=False)
    lines = (done.stderr + done.stdout).decode("latin-1").splitlines()
    return Counter(re.sub(r"<[\d.]+>", "<UID>", line) for line in lines if line.startswith("Error"))


def rewritten(original: Dataset) -> bytes:
    """The original as pydicom writes it: an error that an unknown VR hid from `dciodvfy` is none of ours."""
    stream = io.BytesIO()
    str(original)
    original.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="needs dciodvfy, of Debian's dicom3tools")
def test_dciodvfy_finds_no_error_that_was_not_there_before(
    files: list[tuple[str, Dataset, bytes]], tmp_path: Path, thorough: bool
) -> None:
    new: dict[str, list[str]] = {}
    some = files if thorough else files[::3]
    for name, original, written in some:
        with silence_warnings():
            before = errors(tmp_path / "before.dcm", Path(original.filename).read_bytes())
            found = errors(tmp_path / "after.dcm", written)
            if found - before:
                before |= errors(tmp_path / "before.dcm", rewritten(original))
        for line in found - before:
            new.setdefault(line, []).append(name)
    assert new == {} and len(some) > (100 if thorough else 15)


def test_the_law_sees_what_is_spoiled() -> None:
    before, after = image(), image()
    full, half = Dataset(), Dataset()
    full.CodeValue, full.CodingSchemeDesignator, full.CodeMeaning = "41216001", "SCT", "Prostate"
    half.CodeValue = "41216001"
    for new, said in (([], "is empty"), ([Dataset()], "empty item"), ([half], "half a code"), ([full], "")):
        before.AnatomicRegionSequence, after.AnatomicRegionSequence = [full], new
        assert (said in "".join(spoiled(before, after))) and bool(said) == bool(list(spoiled(before, after)))
