"""The drawing of the house is a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from importlinter.cli import lint_imports

from rooms import ROOMS, ROOT

PICKLE = "federation/features/lite0_file.py"
"""Reads the one pickle that is ever read, after comparing its digest."""
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def test_arrows_run_down(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True) == 0


def test_the_tree_is_read_at_all():
    assert len(FILES) > 40


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and number of lines of each, without its docstring: shapes, units and errors need as many as they need."""
    found = [node for node in nodes(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [(node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)) for node in found]


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many lines a function's docstring has."""
    first = node.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return (first.end_lineno or 0) - first.lineno + 1 if is_text else 0


def unsafe(path: Path) -> Iterator[str]:
    """What library code may not do: assert, unpickle."""
    for node in nodes(path):
        if isinstance(node, ast.Assert):
            yield f"{path}:{node.lineno} uses assert; raise, with the value and the remedy"
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if {n.split(".")[0] for n in names} & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}:
            yield f"{path}:{node.lineno} imports what unpickles"
        loads = isinstance(node, ast.Attribute) and node.attr == "load" and isinstance(node.value, ast.Name)
        if loads and node.value.id == "torch" and path.relative_to(ROOT).as_posix() != PICKLE:
            yield f"{path}:{node.lineno} calls torch.load"


def test_library_code_raises_and_never_asserts_or_unpickles():
    assert [said for path in FILES for said in unsafe(path)] == []


def test_files_and_functions_are_short():
    assert [str(path) for path in FILES if path.read_text().count("\n") > 500] == [], "split it where a reader would"
    assert [f"{path}: {name}" for path in FILES for name, length in functions(path) if length > 70] == []


def test_functions_are_short_on_the_whole():
    lengths = sorted(length for path in FILES for _, length in functions(path))
    assert lengths[len(lengths) // 2] <= 12
    assert lengths[int(0.9 * len(lengths))] <= 35


def test_two_files_know_flare():
    known = [path for path in FILES if "import nvflare" in (text := path.read_text()) or "from nvflare" in text]
    assert {str(path.relative_to(ROOT)) for path in known} == {"federation/flare.py", "federation/flare_hooks.py"}


def test_every_pin_can_be_had_from_the_package_index():
    """A local version, as in `torch==2.13.0+cpu`, is in no public index but its maker's; without it both match."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert len(pins) > 100
    assert not [pin for pin in pins if "+" in pin or "==" not in pin]


def test_the_picture_of_the_rooms_is_that_of_the_code():
    """Otherwise draw it again: python -m benchmarks.tables.architecture_picture."""
    from benchmarks.tables import architecture_picture

    assert architecture_picture.PICTURE.read_text(encoding="utf-8") == architecture_picture.picture()
