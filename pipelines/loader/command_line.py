"""Common parts of all command lines. Only the standard library is imported here, so that `--help`, `--version` and a
wrong flag are answered at once.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PACKAGE = "consilium"


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """How results are printed."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def command_parser(prog: str, description: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser with --version. description: only its first line is shown, unless `options` set a formatter."""
    text = description or ""
    if "formatter_class" not in options:
        text = text.splitlines()[0] if text else ""
    made = argparse.ArgumentParser(prog=prog, description=text, **options)
    made.add_argument("--version", action=_Version, help="print the version of the package")
    return made


class _Version(argparse.Action):
    """Prints the version, which is looked up only on request."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{PACKAGE} {installed_version()}")  # noqa: T201 - the answer
        parser.exit()


def installed_version() -> str:
    """The package's version, or that it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "(not installed: pip install -e .)"


@contextmanager
def importing() -> Iterator[None]:
    """Import torch and what is built on it without looking for garbage: half a million objects that stay, and each look
    goes through all of them, then and later.

    Linear algebra of numpy and scipy gets one thread, unless the environment says otherwise: hospitals work side by
    side, and the threads of two libraries on the same processors wait for each other.
    """
    if "torch" in sys.modules:
        yield
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def announce(text: str) -> None:
    """Print on stderr what the command begins to do, before imports that take seconds."""
    text = text.encode("utf-8", "backslashreplace").decode()  # a folder's name may not be UTF-8
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the first line
