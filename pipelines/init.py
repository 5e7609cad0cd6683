"""python -m pipelines.init FOLDER [--out my.yaml]: inspect a folder of studies and write a configuration for it.

No name or identifier of a patient is printed or written. What cannot be determined is not guessed: a marked line takes
its place, and the exit code is 3.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pipelines.loader.command_line import announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.init"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Write the configuration; return 0, 3 if something must be filled in, or 2 for a wrong command line."""
    line = parser(prog)
    options = line.parse_args(arguments)
    os.umask(0o077)  # a configuration names folders, and later perhaps patients
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 160, emoji=False)
    if options.out is not None and Path(options.out).exists():
        line.error(f"--out: {options.out} exists already; give another name, or remove it")
    announce(f"looking at {options.folder}")
    from pipelines.coordinator.drafting import init_command  # torch: seconds

    return init_command(options, console)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("folder", help="studies of one hospital, or a folder with a folder for each hospital")
    made.add_argument("--labels", metavar="FOLDER", help="a further folder in which tables of labels or masks lie")
    made.add_argument("--out", metavar="FILE", help="write the configuration here (default: print it)")
    return made


if __name__ == "__main__":
    end_process(main)
