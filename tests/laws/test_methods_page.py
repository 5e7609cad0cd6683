"""docs/methods.md says of every method what is true of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import methods

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


def test_every_method_has_its_line_and_every_line_is_a_method():
    named = {name for cells in LINES for name in re.findall(r"`([a-z_]+)`", cells[0])}
    assert named == methods.names() | {"central"}


def test_its_keys_are_those_that_a_yaml_may_say():
    kinds = {one.name: type(one) for one in methods.ALL}
    for cells in LINES:
        if len(cells) < 5:
            continue
        (name, *_) = re.findall(r"`([a-z_]+)`", cells[0])
        told = cells[-3].split(";")[0]
        fields = {field.name for field in dataclasses.fields(kinds[name])} - {"name", "weights"}
        said = {key.strip() for key in told.split(",")} - {"weights", ""}
        own = {"splitnn": {"depth"}, "fedper": set(), "lg_fedavg": set(), "fedbn": set()}
        assert said == own.get(name, fields), name


def test_it_says_which_may_be_trained_privately():
    privately = {one.name for one in methods.private()}
    privately |= {"fedbn", "fedavg_turns"}  # on networks that have norms, and of square images
    for cells in LINES:
        if len(cells) >= 5:
            for name in re.findall(r"`([a-z_]+)`", cells[0]):
                assert (name in privately) == (cells[-1] != "no"), name
