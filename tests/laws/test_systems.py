"""The table of all systems: keys are known, laws are tests, and figures stand on the pages that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from federation.models import AnyModel
from harmonize.translation import Translators
from personalize import AnyAlgorithm

ROOT = Path(__file__).parents[2]
ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks/systems.yaml").read_text(encoding="utf-8"))
NUMBER = re.compile(r"(?<![\w.])[+−-]?\d*\.\d+")


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


@pytest.mark.parametrize("one", [one for one in ROWS if one["page"]], ids=lambda one: f"row {one['row']}")
def test_figures_stand_on_the_page(one: dict[str, Any]) -> None:
    page = (ROOT / f"docs/results/{one['page']}.md").read_text(encoding="utf-8")
    there = {number.lstrip("+").replace("−", "-").lstrip("0") for number in NUMBER.findall(page)}
    ours = {number.lstrip("+").replace("−", "-").lstrip("0") for number in NUMBER.findall(one["ours"])}
    assert ours <= there
    assert one["why"]
