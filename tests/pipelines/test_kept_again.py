"""A run whose stages are all kept starts fast: it imports nothing that trains or draws, and books what it asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import small_run
import yaml

from pipelines.run import main
from pipelines.runs.exits import Exit

ROOT = Path(__file__).parents[2]
SLOW = {"monai", "sklearn", "scipy.stats", "opacus", "matplotlib", "torchio", "torch._dynamo", "skimage", "onnxruntime"}
AGAIN = """
import collections, json, sys
from federation.engine import InProcess
from pipelines.run import main

asked, ask = collections.Counter(), InProcess.ask

def counting(self, call, messages, **how):
    asked.update(messages.keys())
    return ask(self, call, messages, **how)

InProcess.ask = counting
code = main(["tiny.yaml"])
print(json.dumps([int(code), asked, [*sys.modules]]))
"""


def lines(folder: Path) -> dict[str, int]:
    """Of each hospital's ledger."""
    return {
        path.parent.name: len(path.read_text().splitlines()) for path in folder.glob("runs/tiny/sites/*/ledger.jsonl")
    }


def test_a_kept_run_imports_little_and_each_question_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(small_run.smallest()))
    assert main(["tiny.yaml"]) == Exit.OK
    for _ in range(2):
        before = lines(tmp_path)
        again = subprocess.run(
            [sys.executable, "-c", AGAIN], cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        code, asked, modules = json.loads(again.stdout.splitlines()[-1])
        assert code == Exit.OK and asked
        assert not SLOW & set(modules)
        assert {name: number - before[name] for name, number in lines(tmp_path).items()} == asked
