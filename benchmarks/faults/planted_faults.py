"""Faults put into a copy of the code, one at a time: which test sees each of them?

    python -m benchmarks.faults.planted_faults [--only WORDS] [--out results/planted_faults.json]

`planted_faults.yaml` lists them: what is replaced by what, and the tests that must then fail. The tree is copied to a
temporary folder; a fault is put in, its tests run there, and the fault is taken out again. First all these tests run
without a fault, and must pass. Each run is a fork of this process, which has imported the libraries once.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_suffix(".yaml")
LIBRARIES = ("torch", "opacus", "monai", "dp_accounting.pld", "pydicom", "hypothesis", "scipy.stats", "pydantic")
SEEN, UNSEEN, BROKEN = "seen", "not seen", "no test could run"


@dataclass(frozen=True)
class Edit:
    """One replacement. old: text that occurs once in the file."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """tests: pytest's names of what must fail while the fault is in."""

    name: str
    area: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


class Tried(NamedTuple):
    """What became of a fault. by: the tests that failed, where the first that did ended the run."""

    fault: str
    area: str
    files: list[str]
    verdict: str
    by: list[str]
    seconds: float


def faults(path: Path = LIST) -> list[Fault]:
    """The list, in its order."""
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Fault(one["name"], one["area"], tuple(Edit(**edit) for edit in one["edits"]), tuple(one["tests"]))
        for one in said
    ]


def problems(fault: Fault, root: Path = ROOT) -> list[str]:
    """Why a fault cannot be put in: an old text that does not occur exactly once."""
    counts = [(edit, (root / edit.file).read_text(encoding="utf-8").count(edit.old)) for edit in fault.edits]
    return [f"{edit.file}: {edit.old!r} occurs {found} times; once is needed" for edit, found in counts if found != 1]


def changed(fault: Fault, root: Path) -> dict[Path, str]:
    """The text of each file with the fault in it."""
    texts: dict[Path, str] = {}
    for edit in fault.edits:
        path = root / edit.file
        texts[path] = texts.get(path, path.read_text(encoding="utf-8")).replace(edit.old, edit.new)
    return texts


def tried(fault: Fault, copy: Path) -> Tried:
    """Put a fault into a copy, run its tests, take it out again."""
    before = {path: path.read_text(encoding="utf-8") for path in changed(fault, copy)}
    started = time.monotonic()
    try:
        for path, text in changed(fault, copy).items():
            path.write_text(text, encoding="utf-8")
        code, failed = run(fault.tests, copy)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
    verdict = SEEN if code == pytest.ExitCode.TESTS_FAILED and failed else UNSEEN if code == 0 else BROKEN
    files = sorted({edit.file for edit in fault.edits})
    return Tried(fault.name, fault.area, files, verdict, failed, round(time.monotonic() - started, 1))


class Failed:
    """Notes which tests failed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)


def run(tests: Sequence[str], copy: Path, *, first: bool = True) -> tuple[int, list[str]]:
    """Run tests in a fork that works in the copy. first: stop at the first that fails."""
    told = copy / ".told.json"
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(copy)
            sys.path[:0] = [str(copy)]
            sys.dont_write_bytecode = True
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            noted = Failed()
            options = ["-q", "-p", "no:cacheprovider", *(["-x"] if first else [])]
            code = int(pytest.main([*options, *tests], plugins=[noted]))
            told.write_text(json.dumps(noted.names))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    names = json.loads(told.read_text()) if told.exists() else []
    return os.waitstatus_to_exitcode(status), names


def copied(folder: Path) -> Path:
    """The tracked files, and those that are new."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()  # noqa: S603
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Try them all; 1 where one was not seen."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="faults whose name or area holds these words")
    parser.add_argument("--list", type=Path, default=LIST, help="another list")
    parser.add_argument("--out", type=Path, help="a JSON file of the results")
    said = parser.parse_args(argv)
    chosen = [one for one in faults(said.list) if said.only in one.name or said.only in one.area]
    if wrong := [text for one in chosen for text in problems(one)]:
        raise SystemExit("\n".join(wrong))
    for library in LIBRARIES:
        importlib.import_module(library)
    results: list[Tried] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        code, failed = run(sorted({test for one in chosen for test in one.tests}), copy, first=False)
        if code:
            raise SystemExit(f"without a fault these fail already (pytest's code {code}): {', '.join(failed)}")
        for one in chosen:
            results.append(tried(one, copy))
            print(f"{results[-1].verdict:<10} {one.name}: {', '.join(results[-1].by)}", flush=True)
            if said.out:
                said.out.parent.mkdir(parents=True, exist_ok=True)
                plain = [one._asdict() for one in results]
                said.out.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    seen = sum(one.verdict == SEEN for one in results)
    print(f"{seen} of {len(results)} faults are seen")
    return int(seen < len(results))


if __name__ == "__main__":
    raise SystemExit(main())
