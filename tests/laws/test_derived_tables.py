"""Tables of results whose measurements are kept are those that the measurements make; otherwise a figure was typed."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared.records import read_measured
from benchmarks.studies import beside_nnunet
from benchmarks.tables import derived

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Any]]:
    """By the scripts that measured, in a process of their own: names of theirs are names of tests, too."""
    command = [sys.executable, "-m", "benchmarks.tables.derived", "--json"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True, cwd=ROOT
    )
    found: dict[str, dict[str, Any]] = json.loads(told.stdout)
    return found


def committed(page: str) -> dict[str, Any]:
    path = ROOT / "docs/results/data" / f"{page}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("page", derived.DERIVED)
def test_tables_are_what_their_measurements_make(page: str, made: dict[str, dict[str, Any]]) -> None:
    """Otherwise: python -m benchmarks.tables.derived --write PAGE."""
    assert made[page]
    assert not derived.differences(page, made[page], committed(page))


@pytest.mark.parametrize("page", derived.DERIVED)
def test_a_figure_that_was_typed_is_told(page: str, made: dict[str, dict[str, Any]]) -> None:
    """In each table in turn: its last cell, a column's name, the order of its rows, the table itself."""
    tables = committed(page)
    for name in made[page]:
        typed, named, turned = (copy.deepcopy(tables) for _ in range(3))
        typed[name]["rows"][-1][-1] += "1"
        named[name]["columns"][-1] += "1"
        turned[name]["rows"].reverse()
        without = {key: table for key, table in tables.items() if key != name}
        for changed in (typed, named, without, *([turned] if turned != tables else [])):
            assert derived.differences(page, made[page], changed), name


@pytest.mark.parametrize("name", beside_nnunet.COMPARISONS)
def test_a_draw_that_was_not_finished_is_told(name: str) -> None:
    """Lines of a table are those of its first draw, so that one that others lack would be left out, or fail."""
    for line in (beside_nnunet.OWN, beside_nnunet.POOLED):
        for place in (0, -1):
            book = read_measured("beside_nnunet")
            del [*book[name].values()][place][line]
            with pytest.raises(ValueError, match=f"draws of {name} have other lines"):
                beside_nnunet.tables(book)
