"""python -m pipelines.study STUDY: one run in several cases and with several seeds, and one page that compares them.

STUDY is looked up like a run's configuration. Every case and seed is a run of its own beside the study's folder, and
other commands treat it like any run. Finished runs are kept, so the same command continues after a stop. A failed run
is reported and the others continue. Where hospitals have a `home`, every run spends from their privacy budgets.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from rich.console import Console

from pipelines.loader.command_line import add_json_argument, announce, command_parser
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.document import ConfigError, render
from pipelines.loader.files import find_document
from pipelines.runs.exits import Exit, end_process, print_error

PROG = "python -m pipelines.study"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run a study, and return the exit code: that of the first run that failed, or 0."""
    options = parser(prog).parse_args(arguments)
    os.umask(0o077)  # only the owner may read the runs folder
    console = Console(stderr=True, emoji=False)
    try:
        meant_for(find_document(options.study), "study", options.study)
    except ConfigError as error:
        return print_error(render(error, options.study), Exit.CONFIG, console, as_json=options.json)
    announce(f"reading {options.study}")
    from pipelines.coordinator.study import study_command  # torch: seconds

    return study_command(options, console)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("study", help="a study's YAML file, or the name of one that comes with the package")
    made.add_argument("--only", metavar="CASE", action="append", help="run this case alone; may be given several times")
    made.add_argument("--check", action="store_true", help="look at settings, files and methods; compute nothing")
    made.add_argument("--table", action="store_true", help="run nothing; make the page and the table of what is there")
    add_json_argument(made)
    return made


if __name__ == "__main__":
    end_process(main)
