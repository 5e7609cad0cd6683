"""Every exception of the project crosses processes as it is: its class, its words, its fields."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import EntryPoint, distribution
from multiprocessing import get_context
from typing import Any

import pytest

from federation.installed import Offer
from pipelines.loader.document import ConfigError
from pipelines.runs.exits import Exit
from privacy.release.form import Flaw
from privacy.settings_error import Problem
from rooms import ROOMS, ROOT

POINT = EntryPoint("own", "pluggy:PluginManager", "consilium.algorithms")
OFFER = Offer("algorithms", "own", "pluggy", "1.0", ROOT, POINT, distribution("pluggy"))
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "FarFailed": ((4,), {}),
    "RunFailed": (("it failed", Exit.SITE, ["a: one", "b: two"]), {}),
    "NotPermitted": ((OFFER,), {}),
    "QuorumLost": (("r", 3, {"b": "busy", "a": "failed"}), {}),
    "NotDeidentifiable": (("burnt", "pixels show text"), {}),
    "privacy.release.gate.Refused": (("budget",), {}),
    "Unsigned": (("tampered_model", "it is not what was signed"), {}),
    "SettingsError": (([Problem(("a", 1), "must be 2, found 3"), Problem((), "wrong")],), {}),
    "NoAnswer": (("survey", "older_ledger"), {}),
    "SitesMissing": (("survey", {"b": "busy", "a": "failed"}), {"where": "log.txt"}),
    "pipelines.data.study.Unusable": (("gap", "a slice is missing"), {}),
    "ConfigError": (([Problem(("x",), "wrong", 3), Problem((), "no text")],), {}),
    "FilesMissing": (([Problem(("x",), "is not there", 3)],), {}),
    "_TooLargeError": ((("a", 1), "too large"), {}),
    "Failed": ((0xA700,), {}),
    "Misformed": (([Flaw("'x'", "missing"), Flaw("'y'", "int_type", "malformed_route")],), {}),
    "pipelines.pacs.http.Refused": ((503,), {}),
    "pipelines.pacs.http.Unusable": (("too_large", "more than 3 GB"), {}),
    "Unfit": (("no_image", "it has no pixels"), {}),
    "Passing": (("busy", 2.5), {}),
    "StageFailed": (("train", ValueError("no"), "python -m pipelines.run x.yaml"), {}),
    "Stopped": (("Ctrl+C", "python -m pipelines.run x.yaml"), {}),
}
"""Of constructors of their own. By name, or with the module where there are several of one name."""


def exceptions() -> dict[str, type[BaseException]]:
    """All exceptions of the project, by module and name; found in the sources, so that none is forgotten."""
    names, found = {"Exception", "BaseException"}, dict[str, type[BaseException]]()
    trees = {path: ast.parse(path.read_text()) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    classes = [(path, node) for path, tree in trees.items() for node in tree.body if isinstance(node, ast.ClassDef)]
    for _ in range(4):  # bases stand in other files
        for path, node in classes:
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if not any(base in names or base.endswith(("Error", "Exception")) for base in bases):
                continue
            names.add(node.name)
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if f"{module}.{node.name}" not in found:
                found[f"{module}.{node.name}"] = getattr(importlib.import_module(module), node.name)
    return found


FOUND = exceptions()


def example(name: str) -> BaseException:
    kind = FOUND[name]
    given, named = ARGUMENTS.get(name) or ARGUMENTS.get(kind.__name__) or (("some words",), {})
    return kind(*given, **named)


def told(error: BaseException) -> tuple[Any, ...]:
    """All that can be seen of an exception, where an exception inside counts by its class and words."""
    fields = {key: repr(value) if isinstance(value, Exception) else value for key, value in vars(error).items()}
    return type(error), str(error), repr(error), error.args, fields


def test_they_are_found_and_those_with_arguments_of_their_own_have_an_example() -> None:
    assert len(FOUND) >= 40 and all(issubclass(kind, BaseException) for kind in FOUND.values())
    own = {name for name, kind in FOUND.items() if "__init__" in vars(kind)}
    examples = {name for name in FOUND if name in ARGUMENTS or name.rpartition(".")[2] in ARGUMENTS}
    assert own <= examples, "give it an example in ARGUMENTS, and `__reduce__ = pickled`"


@pytest.mark.parametrize("name", FOUND)
def test_an_exception_is_the_same_in_another_process(name: str) -> None:
    error = example(name)
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301
        assert told(again) == told(error)


def fails(name: str) -> None:
    raise example(name)


def test_what_a_worker_raises_arrives() -> None:
    """Where it cannot be put together again, a pool of processes breaks, and nobody hears what it was."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        for name in ("federation.rounds.QuorumLost", "pipelines.data.study.Unusable"):
            with pytest.raises(FOUND[name]) as raised:
                pool.submit(fails, name).result()
            assert told(raised.value)[:2] == told(example(name))[:2]


def test_a_subclass_keeps_its_class_and_its_problems() -> None:
    error = FOUND["pipelines.loader.document.FilesMissing"]([Problem(("x",), "is not there", 3)])
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error) and isinstance(again, ConfigError)
    assert again.problems == (Problem(("x",), "is not there", 3),)
