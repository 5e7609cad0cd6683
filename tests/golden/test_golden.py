"""A small run comes out as it did, and a stage that changes its source raises its version."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from pipelines.run import main

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("remake", HERE / "remake.py")
remake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(remake)
REMEDY = "if this was meant: raise VERSION in the stage where it changed, and run python tests/golden/remake.py"


def test_the_golden_run_comes_out_as_it_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(HERE / "tiny" / "tiny.yaml")]) == 0
    expected, found = json.loads((HERE / "tiny" / "expected.json").read_text()), remake.result(tmp_path)
    assert found["sites"] == expected["sites"], REMEDY
    assert found["losses"].keys() == expected["losses"].keys()
    for method, losses in expected["losses"].items():
        # Other processors round differently; three rounds amplify that by far less than this.
        assert found["losses"][method] == pytest.approx(losses, rel=5e-3), REMEDY
    assert found["auc"] == {k: pytest.approx(v, abs=0.05) for k, v in expected["auc"].items()}, REMEDY


def test_a_stage_whose_source_changed_has_a_new_version():
    """Its artifacts would otherwise be kept although they would come out differently."""
    known, found = json.loads((HERE / "stages.json").read_text()), remake.stages()
    assert found.keys() == known.keys(), "a stage is new or gone; write it down: python tests/golden/remake.py"
    for name, stage in found.items():
        if stage["source"] != known[name]["source"]:
            assert stage["version"] > known[name]["version"], f"stage {name}: raise VERSION; then {REMEDY}"
            pytest.fail(f"stage {name} has a new version; write it down: python tests/golden/remake.py")
