"""Names are the field's: functions are verbs with an object, variables say what they hold, private ones are explained.

The limits are what five admired codebases keep to, or better: bare participles as names of functions, identifiers that
are pronouns or odd words, names of one word, and private functions without a docstring.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("harmonize", "federation", "personalize", "privacy", "evaluation", "pipelines", "consilium")
ODD_WORDS = """
told said say asked heard own found whom kept alike apart beside held given wanted whole elsewhere anew ahead
home homes ruins verdict one others there here begun learnt dealt beyond crew rests hands forgone untold some
few
"""
IRREGULAR_WORDS = """
begun written told known drawn chosen kept held made found sent said learnt given taken seen left built lost
spent paid gone heard
"""
NO_PARTICIPLES_WORDS = """
embed feed seed need proceed exceed speed shed read cut put send build hold
"""
# by protocols of this project and of frameworks
FIXED_WORDS = """
network complaints introduce start send train merge model forward main parser run settings fit translate
problems draw gradient measure moments descend steps size shares epoch device ask name answer state_dict
parameters backward update
"""
ODD, IRREGULAR, NO_PARTICIPLES, FIXED = (
    frozenset(words.split()) for words in (ODD_WORDS, IRREGULAR_WORDS, NO_PARTICIPLES_WORDS, FIXED_WORDS)
)
MOST_PARTICIPLES, MOST_ODD, MOST_SINGLE, MOST_UNEXPLAINED = 0.01, 0.002, 0.40, 0.20
"""Shares of functions, of identifiers that are bound, of functions, and of private functions."""


class Function(NamedTuple):
    """A function's or method's name, and whether it has a docstring."""

    name: str
    explained: bool


@functools.cache  # each file is parsed once, for all laws
def read_room(room: str) -> tuple[tuple[Function, ...], tuple[str, ...]]:
    """All functions and methods of a room, but those that Python names; and every name that is bound: arguments,
    variables, functions and classes.
    """
    functions, names = list[Function](), list[str]()
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arg):
                names.append(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append(node.name)
                if not isinstance(node, ast.ClassDef) and not node.name.startswith("__"):
                    functions.append(Function(node.name, ast.get_docstring(node) is not None))
    return tuple(functions), tuple(names)


def functions(room: str) -> tuple[Function, ...]:
    return read_room(room)[0]


def is_participle(name: str) -> bool:
    """Whether a name is a bare participle."""
    bare = name.strip("_")
    regular = bare.isalpha() and bare.islower() and bare.endswith("ed") and len(bare) > 4
    return bare not in NO_PARTICIPLES and (regular or bare in IRREGULAR)


@pytest.mark.parametrize("room", ROOMS)
def test_few_functions_are_named_by_a_bare_participle(room: str) -> None:
    names = [node.name for node in functions(room)]
    participles = sorted(filter(is_participle, names))
    assert len(participles) <= MOST_PARTICIPLES * len(names) + 1, f"give these a verb and an object: {participles}"


@pytest.mark.parametrize("room", ROOMS)
def test_few_names_are_pronouns_or_odd_words(room: str) -> None:
    names = read_room(room)[1]
    odd = sorted(name for name in names if name.strip("_").lower() in ODD)
    assert len(odd) <= MOST_ODD * len(names), f"name these for what they hold: {odd}"


@pytest.mark.parametrize("room", ROOMS)
def test_most_functions_have_names_of_several_words(room: str) -> None:
    names = [node.name.strip("_") for node in functions(room)]
    single = sorted(name for name in names if "_" not in name and name not in FIXED)
    assert len(single) <= MOST_SINGLE * len(names), f"give some of these an object: {single}"


@pytest.mark.parametrize("room", ROOMS)
def test_most_private_functions_are_explained(room: str) -> None:
    private = [node for node in functions(room) if node.name.startswith("_")]
    silent = sorted(node.name for node in private if not node.explained)
    assert len(silent) <= MOST_UNEXPLAINED * len(private), f"say in a line what some of these return: {silent}"


def test_what_the_laws_look_for_is_seen() -> None:
    assert all(map(is_participle, ("told", "_opened", "chosen", "listed")))
    assert not any(map(is_participle, ("read", "need", "seed", "select_series", "open_source")))
