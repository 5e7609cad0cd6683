"""docs/reference/methods.md says of every method what is true of it."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import get_args, get_type_hints

import methods
import personalize
from federation.algorithm import recipient_of
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.settings.checks.route import has_common_model
from pipelines.settings.route import How

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/methods.md").read_text()


def rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]


LINES = rows(PAGE.partition("## Masks")[0])
WAYS = rows(PAGE.partition("| `how.name`")[2].partition("\n\n")[0])
KINDS = get_args(get_args(How)[0])
OTHER_VALUES = {"set", "trained", "online", "paper", "official", "head"}
"""In the table, beside a default."""


def test_every_method_has_its_line_and_every_line_is_a_method():
    named = {name for cells in LINES for name in re.findall(r"`([a-z_]+)`", cells[0])}
    lost, gone = sorted(methods.names() - named), sorted(named - methods.names() - {"central"})
    assert not lost, f"give {lost} a line in a table of docs/reference/methods.md"
    assert not gone, f"docs/reference/methods.md has lines on {gone}, which no YAML can name"


def test_every_method_of_the_two_rooms_can_be_named_in_a_yaml():
    """A class with `__pydantic_config__` and `merge` is a method, and stands in the union of its room."""
    known = {kind.__name__ for kind in get_args(personalize.AnyAlgorithm)}
    for path in (one for room in ("federation", "personalize") for one in (ROOT / room).glob("*.py")):
        for found in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)):
            said = {name for line in found.body for name in _named(line)}
            assert not {"__pydantic_config__", "merge"} <= said or found.name in known, (
                f"no YAML can name {found.name} of {path.name}: import it in {path.parent.name}/__init__.py, and add "
                "it to the union there"
            )


def _named(line: ast.stmt) -> list[str]:
    targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
    return [getattr(line, "name", ""), *(one.id for one in targets if isinstance(one, ast.Name))]


def test_every_method_has_a_test_of_its_own():
    """Beside the contracts that all of them are under."""
    others = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    for kind in get_args(personalize.AnyAlgorithm):
        assert any(re.search(rf"\b{kind.__name__}\(", text) for text in others), (
            f"no test makes a {kind.__name__}(...): write its law (which setting makes it another method?) and a step "
            f"computed by hand, in tests/{kind.__module__.replace('.', '/test_')}.py"
        )


def test_what_a_method_hands_on_is_said_beside_what_leaves():
    kinds = {one.name: one for one in methods.ALL}
    for cells in LINES:
        for name in re.findall(r"`([a-z_]+)`", cells[0]) if len(cells) >= 5 else []:
            to_all = recipient_of(kinds[name]) == "sites"
            assert ("**to all sites**" in cells[-2]) == to_all, (
                f"{name}: recipient is {recipient_of(kinds[name])}; its line in docs/reference/methods.md says what "
                "leaves, and **to all sites** where other sites get it as it is"
            )


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
        assert said == own.get(name, fields), f"the keys of {name} in docs/reference/methods.md are not its fields"


def test_it_says_which_may_be_trained_privately():
    privately = {one.name for one in methods.private()}
    privately |= {"fedbn", "fedavg_turns", *methods.ON_PROMPTS}  # on networks that have norms, square images, prompts
    for cells in LINES:
        if len(cells) >= 5:
            for name in re.findall(r"`([a-z_]+)`", cells[0]):
                assert (name in privately) == (cells[-1] != "no"), (
                    f"{name}: by its complaints it may {'' if name in privately else 'not '}be trained privately"
                )


def test_the_keys_of_ways_outside_are_those_that_a_yaml_may_say_with_their_defaults():
    told = {name: cells[1] for cells in WAYS for name in re.findall(r"`([a-z_]+)`", cells[0])}
    for kind in KINDS:
        fields = {field.name: field.default for field in dataclasses.fields(kind) if field.name != "name"}
        for name in get_args(get_type_hints(kind)["name"]):
            spans = re.findall(r"`([^`]+)`", told.pop(name).partition("in `route:` only")[0])
            said = [(span.partition(":")[0], span) for span in spans if span.partition(":")[0] not in OTHER_VALUES]
            assert [key for key, _ in said] == list(dict(said)) and set(dict(said)) == set(fields), name
            for span in (span for _, span in said if ":" in span):
                assert validate_settings(read_yaml(f"{{name: {name}, {span}}}", environment={}), kind) == kind(
                    name=name
                ), span
    assert not told


def test_the_rooms_tell_which_methods_have_one_model_for_all():
    one_for_all = rows(PAGE.partition("## One model for all")[2].partition("## One model for each")[0])
    told = {name for cells in one_for_all for name in re.findall(r"`([a-z_]+)`", cells[0])}
    wrong = sorted(told ^ {one.name for one in methods.ALL if has_common_model(one)})
    assert not wrong, f"{wrong}: its line stands under one model for all, or under one for each hospital"
