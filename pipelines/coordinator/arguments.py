"""The command line of a run. Imports neither torch nor pydantic, so `--help` and errors in flags or YAML are quick."""

from __future__ import annotations

import argparse
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
    made.add_argument("--engine", choices=("in_process", "flare"), default="in_process", help="who carries questions")
    made.add_argument("--kit", metavar="FOLDER", help="with --engine flare: the startup kit of who submits the run")
    made.add_argument("--patience", type=float, default=60.0, metavar="MIN", help="how long to wait for hospitals")
    made.add_argument("--silence", type=float, default=60.0, metavar="S", help="after which a hospital counts as gone")
    add_json_argument(made)
    return made


def parse_arguments(arguments: Sequence[str] | None, prog: str = PROG) -> argparse.Namespace:
    """The options of a run; argparse ends the process with code 2 if they are wrong."""
    line = parser(prog)
    options = line.parse_args(arguments)
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
