"""python -m pipelines.study STUDY: one run in several cases and with several seeds, and one page on all of them.

STUDY is looked up as a run's configuration is. Every case and seed is a run of its own beside the study's folder, which
other commands find as any other. What is done is kept, so that the same command goes on after a stop. A run that fails
is told, and the others go on. Where hospitals have a `home`, every run spends of their budgets.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from pipelines.loader.command_line import announce, command_parser
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.document import ConfigError, render
from pipelines.loader.files import document
from pipelines.runs.exits import Exit, told

PROG = "python -m pipelines.study"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run a study, and return the exit code: that of the first run that failed, or 0."""
    options = parser(prog).parse_args(arguments)
    os.umask(0o077)  # everything below the runs folder is for its owner alone
    console = Console(stderr=True)
    try:
        meant_for(document(options.study), "study", options.study)
    except ConfigError as error:
        return told(render(error, options.study), Exit.CONFIG, console, as_json=options.json)
    announce(f"reading {options.study}")
    from pipelines.coordinator.study import carried_out  # torch: seconds

    return carried_out(options, console)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("study", help="a study's YAML file, or the name of one that comes with the package")
    made.add_argument("--only", metavar="CASE", action="append", help="run this case alone; may be given several times")
    made.add_argument("--check", action="store_true", help="look at settings, files and methods; compute nothing")
    made.add_argument("--table", action="store_true", help="run nothing; make the page and the table of what is there")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return made


if __name__ == "__main__":
    sys.exit(main())
