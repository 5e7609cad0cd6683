"""python -m pipelines.night NIGHT.yaml: ask a picture archive for new series, apply a model, and hand results back.

Only what is new or changed is fetched and done, once for each series and model; a night that was cut off goes on where
it was. Results are structured reports and segmentations in the patients' studies; tables, a log and numbers for a
monitor stay in the state folder, which is for this hospital alone. For research use only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date, timedelta

from pipelines.loader.command_line import add_json_argument, announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.night"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Do one night's work, and return the exit code (see docs/reference/exit-codes.md)."""
    options = parser(prog).parse_args(arguments)
    announce(f"reading {options.settings}")
    from pipelines.nights.night import one_night  # slow to import, and not needed for --help

    return one_night(options)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("settings", help="night.yaml: the archive, what is asked for, the model, and what goes back")
    made.add_argument("--check", action="store_true", help="open the model, ask the archive, and count; change nothing")
    made.add_argument("--dry-run", action="store_true", help="also list what would be done")
    made.add_argument(
        "--since", type=day, metavar="DAY", help="studies of this day and later: YYYY-MM-DD, or as in 30d"
    )
    made.add_argument(
        "--redo", metavar="SERIES", action="append", default=[], help="do this series again, by its UID; or `all`"
    )
    add_json_argument(made)
    return made


def day(text: str) -> date:
    """A day as YYYY-MM-DD, or as a number of days before today, as in 30d.

    Raises:
        argparse.ArgumentTypeError: neither.
    """
    try:
        return date.today() - timedelta(days=int(text[:-1])) if text.endswith("d") else date.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        problem = f"{text!r} is no day; give YYYY-MM-DD, or a number of days before today as in 30d"
        raise argparse.ArgumentTypeError(problem) from error


if __name__ == "__main__":
    end_process(main)
