"""The scripts of benchmarks/peers: their lines are counted right, and the page tells the count of today's scripts."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "benchmarks" / "peers"
RUNNER = runpy.run_path(str(HERE / "__main__.py"))
lines_of, PEERS = RUNNER["lines_of"], RUNNER["PEERS"]
NOTHING = '"""Two\nlines."""\n\n# a comment\nimport os\nfrom a import (\n    b,\n    c,\n)\n\n\n'


def test_only_code_counts():
    assert lines_of(NOTHING) == 0
    assert lines_of(NOTHING + "x = 1  # why\n") == 1
    assert lines_of("def f():\n    '''Said.'''\n    import os\n\n    return (\n        1\n    )\n") == 4
    assert lines_of("x = '''a\nb\n'''\n") == 3, "a text that is no docstring is code"


def test_every_script_is_counted_and_the_table_tells_the_count_of_today():
    scripts = {path.name for path in HERE.glob("fenda_*.py")}
    assert scripts == {name for peer in PEERS.values() for name in (peer.script, *peer.others)}
    table = json.loads((ROOT / "docs/results/data/peers.json").read_text())["runs"]
    told = {row[0]: int(row[table["columns"].index("user's lines")]) for row in table["rows"]}
    assert len(told) >= 4
    for peer in PEERS.values():
        counted = sum(lines_of((HERE / name).read_text()) for name in (peer.script, *peer.others))
        assert told.get(peer.title, counted) == counted, "python benchmarks/peers --only … writes the table"


@pytest.mark.slow
def test_a_script_runs_and_tells_the_accuracy_at_each_hospital(tmp_path):
    done = subprocess.run(
        [sys.executable, str(HERE / "fenda_monai.py"), str(tmp_path)], cwd=tmp_path, capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert len(found["sites"]) == 4 and found["mean"] > 0.8, done.stderr
