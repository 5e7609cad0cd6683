"""The drawing of the house is a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
ROOMS = ("harmonize", "federation", "personalize", "privacy", "evaluation", "pipelines")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def test_arrows_run_down(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True) == 0


def test_the_tree_is_read_at_all():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_library_code_raises_and_never_asserts_or_unpickles(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert), (
            f"{path}:{node.lineno} uses assert; raise, with the value and the remedy"
        )
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {n.split(".")[0] for n in names} & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
    if any(part in str(path) for part in ("federation", "privacy", "harmonize", "personalize")):
        loads = [
            n
            for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and n.attr == "load" and isinstance(n.value, ast.Name)
        ]
        assert not [n for n in loads if n.value.id == "torch"], f"{path} calls torch.load"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert text.count("\n") <= 320, "split it where a reader would"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 70, f"{node.name} has {length} lines"


def test_functions_are_short_on_the_whole():
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
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


def test_the_picture_of_the_rooms_is_that_of_the_code(monkeypatch):
    """Otherwise draw it again: python benchmarks/architecture_picture.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import architecture_picture

    assert architecture_picture.PICTURE.read_text(encoding="utf-8") == architecture_picture.picture()
