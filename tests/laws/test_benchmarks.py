"""Every script of benchmarks says what it measures, answers `--help` at once, and has a reader: a page or a test."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "benchmarks"
FOLDERS = ("speed", "studies", "faults", "tables")
SCRIPTS = sorted(path for folder in FOLDERS for path in (HERE / folder).glob("*.py"))
NAMES = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SCRIPTS}
ASK_ALL = """
import contextlib, importlib, io, json, runpy, sys
told = {}
for name in sys.argv[1:]:
    sys.argv, out = [name, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            runpy.run_module(name, run_name="__main__")
        code = "it ran"
    except SystemExit as end:
        code = end.code
    except Exception as error:
        code = f"{type(error).__name__}: {error}"
    told[name] = [code, out.getvalue()]
print(json.dumps(told))
"""


def is_run(path: Path) -> bool:
    """Whether a file is a program and not only read by others."""
    return 'if __name__ == "__main__":' in path.read_text()


@cache
def written_elsewhere() -> str:
    """The pages, the tests and the settings, where scripts are named."""
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.md")]
    return " ".join(re.sub(r"\s+", " ", path.read_text()) for path in files)


def imports_of(path: Path) -> set[str]:
    """The modules of benchmarks that a file imports, or names in words as `derived.py` does."""
    text = path.read_text()
    found = set(re.findall(r"\"((?:speed|studies|faults|tables)\.\w+)\"", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            module = str(node.module).removeprefix("benchmarks.")
            found |= {module, *(f"{module}.{one.name}" for one in node.names)}
    return {f"benchmarks.{name}" for name in found}


@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES.get)
def test_a_script_says_what_it_measures(path: Path) -> None:
    told = ast.get_docstring(ast.parse(path.read_text()))
    assert told and len(told.split()) > 5


@pytest.mark.slow
def test_every_script_answers_help_with_its_words_and_does_nothing() -> None:
    """With `make_parser(__doc__)`, before anything is read, measured or written. All in one process: half a minute."""
    programs = {NAMES[path]: path for path in SCRIPTS if is_run(path)}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, "-c", ASK_ALL, *programs],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    answers: dict[str, tuple[object, str]] = json.loads(said.stdout.splitlines()[-1])
    failed = {name: code for name, (code, _) in answers.items() if code != 0}
    assert failed == {}
    for name, (_, words) in answers.items():
        told = str(ast.get_docstring(ast.parse(programs[name].read_text()))).split()
        assert told[:8] == words[words.index(told[0], words.index("\n\n")) :].split()[:8], name


def test_every_script_is_named_by_a_page_or_a_test_or_serves_one_that_is() -> None:
    """What nobody reads goes; its figures are in the history."""
    named = {
        path
        for path in SCRIPTS
        if re.search(rf"{NAMES[path]}\b|{path.relative_to(ROOT)}\b", written_elsewhere())
        or re.search(rf"from {NAMES[path].rpartition('.')[0]} import [^\n]*\b{path.stem}\b", written_elsewhere())
    }
    grown = True
    while grown:
        used = {name for path in named for name in imports_of(path)}
        grown = bool(new := {path for path in SCRIPTS if NAMES[path] in used} - named)
        named |= new
    assert not [NAMES[path] for path in SCRIPTS if path not in named]
