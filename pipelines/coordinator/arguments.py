"""The command line of a run. Imports neither torch nor pydantic, so `--help` and errors in flags or YAML are quick."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.loader.command_line import add_json_argument, command_parser
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.document import Document
from pipelines.loader.files import find_document
from pipelines.loader.set_values import apply_set_values

PROG = "python -m pipelines.run"
DESCRIPTION = f"{PROG} CONFIG: everything that the configuration says, from files to the report."
STAGE_NAMES = tuple(sorted(path.stem for path in (Path(__file__).parent / "stages").glob("[a-z]*.py")))
"""Names of all stages, taken from their file names, because importing the stages takes seconds."""


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, DESCRIPTION)
    made.add_argument("config", help="a YAML file, or the name of one that comes with the package")
    made.add_argument("--only", metavar="STAGE", help=f"run this stage alone: {', '.join(STAGE_NAMES)}")
    made.add_argument("--from", dest="first", metavar="STAGE", help="begin at this stage (with --fresh: run it again)")
    made.add_argument("--until", metavar="STAGE", help="stop after this stage")
    made.add_argument("--fresh", action="store_true", help="run again what is chosen, whatever is there")
    made.add_argument(
        "--spend",
        action="store_true",
        help="of a private run: make again, and pay again, what an older version of this program made, "
        "or a training of which something is lost",
    )
    made.add_argument(
        "--set",
        dest="values",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="as if CONFIG said so, e.g. train.schedule.rounds=3; may be given several times",
    )
    made.add_argument("--check", action="store_true", help="look at settings, files and methods; compute nothing")
    made.add_argument("--headers", action="store_true", help="as --check, and look inside the files: a line a site")
    made.add_argument("--fingerprint", action="store_true", help="ask hospitals what their studies are; run nothing")
    made.add_argument("--explain", action="store_true", help="say what would run and why; run nothing")
    add_transport_arguments(made)
    add_json_argument(made)
    return made


def add_transport_arguments(made: argparse.ArgumentParser) -> None:
    """How questions reach the hospitals."""
    made.add_argument("--engine", choices=("in_process", "flare"), default="in_process", help="who carries questions")
    made.add_argument("--kit", metavar="FOLDER", help="with --engine flare: the startup kit of who submits the run")
    for flag, unit, text in (
        ("--patience", "MIN", "with --engine flare: how long to wait for hospitals"),
        ("--silence", "S", "with --engine flare: after which a hospital counts as gone"),
    ):
        made.add_argument(flag, type=_parse_duration, default=60.0, metavar=unit, help=text)


def parse_with_transport(line: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command whose questions go to hospitals; argparse ends the process with code 2 if they are
    wrong.
    """
    options = line.parse_args(arguments)
    if options.kit is not None and options.engine != "flare":
        line.error(f"--kit: {options.kit}, and hospitals are simulated here; say --engine flare, or remove it")
    return options


def _parse_duration(text: str) -> float:
    """A finite number above 0. Raises: argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, as in 60, found {text!r}")
    return number


def parse_arguments(arguments: Sequence[str] | None, prog: str = PROG) -> argparse.Namespace:
    """The options of a run; argparse ends the process with code 2 if they are wrong."""
    line = parser(prog)
    options = parse_with_transport(line, arguments)
    if options.only and (options.first or options.until):
        line.error("--only goes alone; --from and --until go together")
    return options


def read_settings(options: argparse.Namespace) -> Document:
    """The settings file with the values of `--set` in it.

    Raises:
        ConfigError: the file does not exist, is not YAML or is for another command, or a `--set` cannot be parsed.
    """
    return apply_set_values(
        meant_for(find_document(options.config), "run", shlex.quote(options.config)), options.values
    )


def command_of(options: argparse.Namespace) -> str:
    """The command that continues this run."""
    return f"{PROG} {shlex.join([options.config, *_list_set_options(options)])}"


def transport_free_arguments(options: argparse.Namespace) -> Iterator[str]:
    """The command line without the options of the transport, as FLARE's job gets it."""
    yield options.config
    yield from _list_set_options(options)
    for flag, value in (("--only", options.only), ("--from", options.first), ("--until", options.until)):
        if value is not None:
            yield from (flag, value)
    flags = {"--fresh": options.fresh, "--spend": options.spend, "--json": options.json}
    for flag, is_set in {**flags, "--fingerprint": options.fingerprint}.items():
        if is_set:
            yield flag


def _list_set_options(options: argparse.Namespace) -> Iterator[str]:
    """The options `--set` as they were given."""
    for text in options.values:
        yield from ("--set", text)
