"""The scripts of `examples/` run as they are, and say what their first lines promise."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from consilium import Results

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def ran(name: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.chdir(folder)
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_examples_are_short() -> None:
    assert len(SCRIPTS) == 3
    assert [path.name for path in SCRIPTS if path.read_text().count("\n") > 41] == []


@pytest.mark.slow
def test_fenda_on_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results: Results = ran("fenda_own_data", tmp_path, monkeypatch)["results"]
    mean = {name: results.score(name, "private mean").value for name in ("local", "fedavg", "fenda")}
    assert mean["fenda"] > mean["fedavg"] > 0.9
    assert "AUC" in capsys.readouterr().out


@pytest.mark.slow
def test_a_private_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results: Results = ran("private_run", tmp_path, monkeypatch)["results"]
    assert all(0 < one.epsilon < 10 for one in results.statements.values())
    assert results.score("fedavg", "private mean").value > 0.8
    assert "not covered:" in capsys.readouterr().out


def test_a_new_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran("new_method", tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "fedavgm" in said and "what fedavgm computes" in said


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may differ between machines, words may not."""
    notebook = json.loads((FOLDER / "first_steps.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    printed = importlib.import_module("benchmarks.tables.notebook").printed
    shown = ["".join(out["text"]) for cell in notebook["cells"] for out in cell.get("outputs", ())]

    def words(text: str) -> list[str]:
        return re.sub(r"[-+]?\d+(\.\d*)?\*?", "#", text).split()

    assert [words(text) for text in printed(notebook) if text] == [words(text) for text in shown]
