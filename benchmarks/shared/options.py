"""Options of scripts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.places import MEASURED


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose `--help` shows the script's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def ask_splits(
    description: str | None, name: str, *, splits: int, groups: Sequence[str] | None = None
) -> argparse.Namespace:
    """The options of a script that measures split after split; another `--out` leaves what is committed as it is.

    groups: names from which `--groups` chooses, where a script has several; None = all.
    """
    parser = make_parser(description)
    if groups is not None:
        parser.add_argument("--groups", nargs="+", choices=groups)
    parser.add_argument("--splits", type=int, default=splits)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, default=MEASURED / f"{name}.json")
    return parser.parse_args()
