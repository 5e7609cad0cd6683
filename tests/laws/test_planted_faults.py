"""The list of faults to plant (benchmarks/faults/planted_faults.yaml) fits the code as it is, and runs any day.

Whether each fault is seen is what `python -m benchmarks.faults.planted_faults` finds out, which takes minutes.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

from benchmarks.faults import planted_faults as planting

ROOT = Path(__file__).parents[2]


FAULTS = planting.faults()


def read_meaning(path: Path, text: str) -> str:
    """What the code says, without comments and spaces; of a script of the pages the text itself."""
    return ast.dump(ast.parse(text)) if path.suffix == ".py" else text


def test_each_fault_can_be_put_in_once_and_leaves_code_that_can_be_read():
    wrong = [f"{fault.name}: {problem}" for fault in FAULTS for problem in planting.problems(fault)]
    assert not wrong, "\n".join(wrong)
    sources = {edit.file: (ROOT / edit.file).read_text() for fault in FAULTS for edit in fault.edits}
    meanings = {ROOT / file: read_meaning(ROOT / file, text) for file, text in sources.items()}
    for fault in FAULTS:
        for path, text in planting.changed(fault, ROOT).items():
            assert read_meaning(path, text) != meanings[path], f"{fault.name}: the fault changes nothing"


def test_the_tests_that_must_see_a_fault_exist():
    named = {name for fault in FAULTS for name in fault.tests}
    assert all(fault.tests for fault in FAULTS)
    for file in {name.partition("::")[0] for name in named}:
        tree = ast.parse((ROOT / file).read_text())
        there = {f"{file}::{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not {name for name in named if name.startswith(f"{file}::")} - there


def test_every_fault_has_a_name_of_its_own_and_each_area_has_one():
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    assert len(FAULTS) >= 26


def test_the_list_its_figures_and_the_pages_tell_the_same_faults():
    """Who adds a fault tries it (`--only`), writes its row down, and raises both numbers; then results_tables.py."""
    told = json.loads((ROOT / "docs/results/data/planted-faults.json").read_text())["faults"]["rows"]
    assert sorted(name for name, _ in told) == sorted(fault.name for fault in FAULTS)
    page = " ".join((ROOT / "docs/results/planted-faults.md").read_text().split())
    assert f"In all, {len(FAULTS)} faults were tried" in page
    claims = (ROOT / "docs/results.md").read_text()
    assert f"is seen by a test that was run with it | {len(FAULTS)} |" in claims


TOY = """\
- name: a sum is a difference
  area: toy
  edits: [{file: toy.py, old: a + b, new: a - b}]
  tests: [test_toy.py::test_sum]
- name: what nobody looks at
  area: toy
  edits: [{file: toy.py, old: DEPTH = 3, new: DEPTH = 4}]
  tests: [test_toy.py::test_sum]
- name: what cannot run
  area: toy
  edits: [{file: toy.py, old: "def sum_of(a, b):", new: "def other(a, b):"}]
  tests: [test_toy.py::test_sum]
"""


def test_a_fault_is_put_in_seen_or_not_and_taken_out_again(tmp_path):
    (tmp_path / "list.yaml").write_text(TOY)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    source = "DEPTH = 3\n\n\ndef sum_of(a, b):\n    return a + b\n"
    (tmp_path / "toy.py").write_text(source)
    (tmp_path / "test_toy.py").write_text("from toy import sum_of\n\n\ndef test_sum():\n    assert sum_of(2, 3) == 5\n")
    found = [planting.tried(fault, tmp_path) for fault in planting.faults(tmp_path / "list.yaml")]
    assert [one.verdict for one in found] == [planting.SEEN, planting.UNSEEN, planting.BROKEN]
    assert found[0].by == ["test_toy.py::test_sum"] and (tmp_path / "toy.py").read_text() == source
