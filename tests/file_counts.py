"""Check that a command's answer and its table of files have the same counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

CLASSES = {
    "used": "used_files",
    "quarantined": "quarantined_files",
    "not_selected": "unselected_files",
    "not_imaging": "ignored_files",
}


def check_file_counts(told: Mapping[str, Any], table: Sequence[Mapping[str, str]]) -> None:
    """files = used + quarantined + not selected + not imaging, in the answer and in the table, a line for each file."""
    assert told["files"] == sum(told[name] for name in CLASSES.values()) == len(table)
    counts = Counter(line["class"] for line in table)
    assert {what: counts[what] for what in CLASSES} == {what: told[name] for what, name in CLASSES.items()}
    assert len({line["file"] for line in table}) == len(table)
    assert all(line["reason"] and line["detail"] for line in table if line["class"] != "used")
