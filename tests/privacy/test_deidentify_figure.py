"""How many of the actions that PS3.15 table E.1-1 requires are done right, by an independent reader of the table.

The figure is made like MIDI-B's (arXiv:2507.23608), but not on its data, which were not at hand: the files are those of
`shared/data` and images with identifiers planted by chance.
`-s --thorough` prints the table of docs/reference/deidentification.md.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pydicom
import pytest
from dicomanonymizer.dicom_anonymization_databases import dicomfields_2026c as edition
from hypothesis import HealthCheck, Phase, given, settings
from pydicom.dataset import Dataset
from pydicom.uid import UID, UID_dictionary

from dicom_with_identifiers import KEY, confirmed, images_with_identifiers
from privacy.deidentify.actions import SAFE_PRIVATE
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, as_bytes, deidentify_image
from privacy.deidentify.leftovers import find_leftovers
from privacy.deidentify.quiet import silence_warnings
from real_files import files_below

LISTS = {
    "X": edition.X_TAGS, "Z": edition.Z_TAGS, "D": edition.D_TAGS, "U": edition.U_TAGS, "Z/D": edition.Z_D_TAGS,
    "X/Z": edition.X_Z_TAGS, "X/D": edition.X_D_TAGS, "X/Z/D": edition.X_Z_D_TAGS, "X/Z/U*": edition.X_Z_U_STAR_TAGS,
}  # fmt: skip


@cache
def required(tag: int) -> str:
    """The action of the table for a tag, "private" or "" if it names none."""
    group, element = tag >> 16, tag & 0xFFFF
    if group % 2:
        return "private"
    for action, tags in LISTS.items():
        for entry in tags:
            masks = entry[2:] or (0xFFFF, 0xFFFF)
            if group & masks[0] == entry[0] & masks[0] and element & masks[1] == entry[1] & masks[1]:
                return action
    return ""


def right(action: str, before: object, after: object | None, vr: str) -> bool:
    """Whether one of the allowed actions was done; None = absent. A moved date is right (the modified-dates option)."""
    old, new = ("" if value is None else str(value) for value in (before, after))
    if action == "private":
        return after is None or new == old
    if vr in {"DA", "DT"} and after is not None and new:
        return (new[:8] != old[:8] or new == "19000101") and len(new) >= 8  # the dummy may be what stood there
    if action == "U":
        same = old in UID_dictionary and new == old
        return same or (not old and not new) or (new != old and UID(new.split("'")[1] if "'" in new else new).is_valid)
    if "X" in action and after is None:
        return True
    if after is None:
        return False
    if vr == "SQ":
        return (
            ("Z" in action and not after) or ("D" in action and bool(after)) or "U" in action
        )  # items are counted alone
    return (not new and ("Z" in action or not old)) or ("D" in action and bool(new) and new != old)


def actions(original: Dataset, cleaned: Dataset | None) -> Iterator[tuple[str, bool, str]]:
    """Yield (action, right, place) for every element of the original that the table or its privacy asks about."""
    for tag in list(original.keys()):
        if tag in (0x7FE00010, 0x00100020, 0x00100010, 0x00120064) or tag & 0xFFFF == 0:
            continue
        try:
            element = original[tag]
        except Exception:
            element = pydicom.DataElement(tag, "UN", original.get_item(tag).value)
        there = cleaned is not None and tag in cleaned
        after = cleaned[tag].value if there else None
        if there and after is None:
            after = ""
        action = required(int(tag))
        if action == "private" and there and tag & 0xFFFF > 0xFF:
            creator = str(original[tag >> 16, (tag & 0xFFFF) >> 8].value).strip()
            yield (
                "private",
                right(action, element.value, after, element.VR) and ((creator, tag >> 16, tag & 0xFF) in SAFE_PRIVATE),
                str(tag),
            )
        elif action:
            yield action, right(action, element.value, after, element.VR), str(tag)
        if element.VR == "SQ" and action in {"", "X/Z/U*"}:  # of another one, no item of the original is left
            yield from items(list(element.value or ()), list(after or ()))
    if (0x0010, 0x0020) in original and "PatientIdentityRemoved" in (cleaned or ()):
        yield "Z/D", cleaned.PatientID != original.PatientID, "(0010,0020)"
        yield "Z", cleaned.PatientName != original.get("PatientName"), "(0010,0010)"


def items(before: list[Dataset], after: list[Dataset]) -> Iterator[tuple[str, bool, str]]:
    """Actions in the items of a sequence; one of which nothing is left is not in the output."""
    for place, one in enumerate(before):
        lost = len(after) < len(before) - place and not (after and after[0].keys() <= one.keys())
        yield from actions(one, Dataset() if lost else after.pop(0))


def counted(original: Dataset) -> tuple[Counter[tuple[str, bool]], list[str]]:
    with silence_warnings():
        there = all(int(original.get(side) or 0) for side in ("Rows", "Columns"))
        corner = (0, 0, min(8, original.Rows), min(8, original.Columns)) if there else None
        profile = confirmed(original, corner) if corner else Profile()
        data = as_bytes(deidentify_image(original, key=KEY, profile=profile))
        assert find_leftovers(original, data) == []
        found = list(actions(original, pydicom.dcmread(io.BytesIO(data))))
    return Counter((action, good) for action, good, _ in found), [place for _, good, place in found if not good]


def told(title: str, counts: Counter[tuple[str, bool]], files: int) -> None:
    print(f"\n{title}: {files} files")  # noqa: T201
    for action in sorted({action for action, _ in counts}):
        good, bad = counts[action, True], counts[action, False]
        print(f"| {action} | {good + bad} | {good} | {100 * good / (good + bad):.2f} % |")  # noqa: T201


@pytest.mark.parametrize("folder", ["phi", "dicom_zoo", "prostatex"])
def test_every_required_action_is_done_right_on_real_files(data: Path, folder: str, thorough: bool) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    wrong: list[str] = []
    files = 0
    for path in files_below(data, folder, thorough)[:: 1 if thorough else 3]:
        try:
            with silence_warnings():
                original = pydicom.dcmread(path)
            more, places = counted(original)
        except (NotDeidentifiable, pydicom.errors.InvalidDicomError):
            continue
        files += 1
        counts += more
        wrong += [f"{path.name} {place}" for place in places]
    if not files:
        pytest.skip(f"no DICOM below {folder}")
    told(folder, counts, files)
    assert wrong == [] and sum(counts.values()) > 100


@pytest.mark.parametrize("examples", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_every_required_action_is_done_right_on_planted_files(examples: int) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    wrong: list[str] = []

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(images_with_identifiers())
    def count(original: Dataset) -> None:
        more, places = counted(original)
        counts.update(more)
        wrong.extend(places)

    count()
    told("planted", counts, examples)
    assert wrong == [] and sum(counts.values()) > 17 * examples


def test_the_count_sees_what_is_wrong() -> None:
    assert not right("X", "a", "a", "LO") and not right("X", "a", "b", "LO") and right("X", "a", None, "LO")
    assert not right("Z", "a", "a", "LO") and right("Z", "a", "", "LO") and not right("Z", "a", None, "LO")
    assert not right("D", "a", "", "LO") and not right("D", "a", "a", "LO") and right("D", "a", "b", "LO")
    assert not right("U", "1.2.3", "1.2.3", "UI") and right("U", "1.2.3", "2.25.7", "UI")
    assert not right("X/Z", "a", "b", "LO") and right("X/D", "a", "b", "LO") and not right("X/D", "a", "a", "LO")
    assert not right("X", "20200101", "20200101", "DA") and right("X", "20200101", "20190101", "DA")
    assert not right("X", [1], [1], "SQ") and right("X/Z", [1], [], "SQ")
