"""What was not used: codes on pages and in artifacts, the rest beside the hospital's key."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from pipelines.data.study import Rejected
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.quarantine import LINKAGE, MEANING, add_to_linkage, list_quarantine
from pipelines.runs.exits import format_trace
from privacy.release.gate import Refused

READERS = [
    path
    for path in (Path(__file__).parents[2] / "pipelines" / "data").rglob("*.py")
    # What writes files is not at work at intake, and what is wrong inside a segmentation ends as `bad_mask`.
    if path.parent.name != "writing" and (path.parent.name, path.name) != ("dicom", "segmentation.py")
]
GONE = Rejected("ann_miller/1.2.3", "gap", "slices of Ann Miller are 3 mm apart")


def hospital(root: Path) -> Hospital:
    return Hospital("north", root, None, lambda: "")


def reasons() -> set[str]:
    """Every reason that the readers give: the first argument of Unusable, the second of Rejected."""
    found = set()
    for path in READERS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = {"Unusable": 0, "Rejected": 1}.get(node.func.id)
                if place is not None and len(node.args) > place and isinstance(node.args[place], ast.Constant):
                    found.add(node.args[place].value)
    return found


def test_every_reason_of_a_reader_has_a_meaning_and_none_is_idle():
    assert len(reasons()) > 30
    assert reasons() - set(MEANING) == set()
    source = "".join(path.read_text() for path in READERS)
    assert [reason for reason in MEANING if f'"{reason}"' not in source] == []


def test_a_code_is_stable_and_tells_nothing(tmp_path):
    (one,) = list_quarantine(hospital(tmp_path), [GONE])
    assert list_quarantine(hospital(tmp_path), [GONE]) == [one]
    assert one.reason == "gap"
    assert "miller" not in json.dumps(one).lower()
    (other,) = list_quarantine(hospital(tmp_path / "south"), [GONE])
    assert other.study != one.study


def test_the_linkage_says_what_a_code_stands_for_and_keeps_earlier_ones(tmp_path):
    here = hospital(tmp_path)
    add_to_linkage(here, [GONE], {"abc": "Ann Miller"})
    add_to_linkage(here, [Rejected("x", "gap", "y")], {"def": "Bob"})
    known = json.loads((tmp_path / LINKAGE).read_text())
    assert known["patients"] == {"abc": "Ann Miller", "def": "Bob"}
    (one,) = list_quarantine(here, [GONE])
    assert known["studies"][one.study] == {"study": GONE.study, "reason": "gap", "detail": GONE.detail}


def test_a_damaged_linkage_is_written_anew(tmp_path):
    hospital(tmp_path).key()
    (tmp_path / LINKAGE).write_text("{")
    add_to_linkage(hospital(tmp_path), [], {"abc": "Ann Miller"})
    assert json.loads((tmp_path / LINKAGE).read_text())["patients"] == {"abc": "Ann Miller"}


class Broken(Exception):
    pass


def test_a_trace_tells_where_and_not_whom():
    try:
        try:
            int("Ann Miller")
        except ValueError as error:
            raise Broken("Ann Miller's file") from error
    except Broken as error:
        told = format_trace(error)
    assert "Miller" not in told.replace('int("Ann Miller")', "").replace('raise Broken("Ann Miller\'s file")', "")
    assert "ValueError" in told
    assert "Broken" in told
    assert "test_quarantine.py" in told


def test_a_full_disk_is_named_without_the_file():
    told = format_trace(OSError(28, "No space left on device", "/data/Ann Miller.dcm"))
    assert told.endswith("OSError: No space left on device")


def test_a_lost_key_is_not_replaced_behind_the_hospitals_back(tmp_path):
    here = hospital(tmp_path)
    key = here.key()
    assert here.key() == key
    add_to_linkage(here, [GONE], {"abc": "Ann Miller"})
    (tmp_path / "pseudonym.key").rename(tmp_path / "backup")
    with pytest.raises(Refused, match="lost_key"):
        here.key()
    (tmp_path / "backup").rename(tmp_path / "pseudonym.key")
    assert here.key() == key
