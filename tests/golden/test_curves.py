"""Every method still learns as it did: its losses, round by round, are those that were written down."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("curves", HERE / "curves.py")
curves = importlib.util.module_from_spec(spec)
spec.loader.exec_module(curves)
KNOWN = json.loads((HERE / "curves.json").read_text())
REMEDY = "if this was meant: raise LEARNING and VERSION in stages/train.py, and run python tests/golden/curves.py"


@pytest.fixture(scope="module")
def found():
    return json.loads(json.dumps(curves.curves()))


def test_every_method_has_a_curve():
    new = sorted(curves.methods.names() - KNOWN.keys())
    assert not new, f"run python tests/golden/curves.py: {new} has no curve yet"
    assert KNOWN.keys() == curves.methods.names()


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_method_learns_as_it_did(found, name):
    assert found[name].keys() == KNOWN[name].keys()
    # Other processors round differently; four rounds amplify that by far less than this.
    assert found[name] == pytest.approx(KNOWN[name], rel=1e-3), REMEDY


def test_methods_differ_from_each_other():
    """A curve twice would be a method that does nothing of its own."""
    last = {name: round(curve[max(curve, key=int)], 9) for name, curve in KNOWN.items()}
    alike = {frozenset(other for other in last if last[other] == value) for value in last.values()}
    # FedAvg-local is FedAvg looked at earlier; after one part of a network there is only its head.
    same = {frozenset({"fedavg", "fedavg_local"}), frozenset({"lg_fedavg", "splitnn"})}
    assert {group for group in alike if len(group) > 1} <= same
