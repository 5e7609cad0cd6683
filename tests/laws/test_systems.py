"""The table of all systems: keys are known, laws are tests, figures are cells, and its words hold of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from benchmarks.tables import cells, systems_tables
from federation.models import AnyModel
from harmonize.translation import Translators
from personalize import AnyAlgorithm

ROOT = Path(__file__).parents[2]
ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks/tables/systems.yaml").read_text(encoding="utf-8"))


def names(union: Any) -> set[str]:
    kinds = get_args(get_args(union)[0]) or get_args(union)
    return {str(name) for kind in kinds for name in get_args(get_type_hints(kind)["name"])}


KNOWN = names(AnyAlgorithm) | names(AnyModel) | names(Translators) | {"central", "wgan_gp", "routing", "tent"}


def test_every_row_is_there_once() -> None:
    assert sorted(one["row"] for one in ROWS) == list(range(1, 29))


@pytest.mark.parametrize("one", ROWS, ids=lambda one: f"row {one['row']}")
def test_keys_are_known_and_laws_are_tests(one: dict[str, Any]) -> None:
    assert set(re.findall(r"name: (\w+)", one["key"])) <= KNOWN
    file, _, function = one["law"].partition("::")
    assert (ROOT / file).is_file()
    assert not function or re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("one", ROWS, ids=lambda one: f"row {one['row']}")
def test_figures_are_cells_and_words_hold_of_them(one: dict[str, Any]) -> None:
    """The paper's figures are the paper's; every other one of a row is where its address says."""
    for text in (one["ours"], one["why"]):
        assert not re.findall(r"\d*\.\d+", re.sub(r"\{[^{}]*\}|\(PGFed[^)]*\)", "", text)), (
            "a figure without an address"
        )
    assert f"{one['page']}." in one["ours"], "the page that is linked"
    assert not [claim for claim in one.get("claims", []) if not cells.holds(claim, "systems")]
    assert one["why"]


def test_the_table_is_that_of_the_rows() -> None:
    """Otherwise: python -m benchmarks.tables.derived --write systems."""
    table = json.loads((ROOT / "docs/results/data/systems.json").read_text(encoding="utf-8"))["systems"]
    assert table["rows"] == [systems_tables.cells(one) for one in systems_tables.systems()]
