"""python -m pipelines.sign MODEL --key KEY: sign a finished model, so that other hospitals may evaluate it.

    python -m pipelines.sign --new KEY          makes a key, which only its owner can read, and prints the public one
    python -m pipelines.sign MODEL --key KEY    writes MODEL.sig, the detached signature

MODEL is a finished model, runs/<name>/sites/<site>/ready/<method>.safetensors. A hospital evaluates it if its policy
names the public key (`trusted_models`). Signing hands the model on: it is the owner's decision that it may leave.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from pipelines.loader.command_line import add_json_argument, announce, command_parser
from pipelines.runs.exits import Exit, end_process, print_error

PROG = "python -m pipelines.sign"
DAYS = 365
LONGEST = 200  # characters of a title


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Make a key or sign, and return the exit code (see docs/reference/exit-codes.md)."""
    line = parser(prog)
    options = line.parse_args(arguments)
    if (options.new is None) == (options.model is None):
        line.error("give MODEL and --key KEY, or --new KEY")
    os.umask(0o077)
    console = Console(stderr=True, emoji=False)
    try:
        return _new_key(options) if options.new is not None else _sign(options)
    except FileExistsError:
        text = f"--new: {options.new} exists, and a key is never overwritten; give another name"
        return print_error(text, Exit.CONFIG, console, as_json=options.json)
    except ValueError as error:
        return print_error(str(error), Exit.CONFIG, console, as_json=options.json)
    except OSError as error:
        text = f"{error.filename or options.model}: {error.strerror or type(error).__name__}"
        return print_error(text, Exit.CONFIG, console, as_json=options.json)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("model", nargs="?", help="the file of a finished model")
    made.add_argument("--key", metavar="KEY", help="the signer's private key, a file that only they can read")
    made.add_argument("--new", metavar="KEY", help="make a private key in this file, and print its public one")
    made.add_argument("--title", default="", help="what the model is, for the hospitals that evaluate it")
    made.add_argument("--days", type=int, default=DAYS, help=f"for how long the signature holds (default: {DAYS})")
    add_json_argument(made)
    return made


def _new_key(options: argparse.Namespace) -> int:
    from privacy.release.signature import make_key

    key = make_key(Path(options.new))
    text = f"public key: {key}\nHospitals that trust it say in their policy: trusted_models: {{NAME: {key}}}"
    print(json.dumps({"exit": 0, "key": key}) if options.json else text)  # noqa: T201 - the answer
    return int(Exit.OK)


def _sign(options: argparse.Namespace) -> int:
    """Raises: ValueError: everything that is wrong with the options; or the model, or the key."""
    problems = [] if options.key else ["--key: missing; give the private key that `--new KEY` makes"]
    if not 1 <= options.days <= 3650:
        problems.append(f"--days must be in [1, 3650], found {options.days}")
    if len(options.title) > LONGEST or not options.title.isprintable():
        problems.append(f"--title must be at most {LONGEST} printable characters")
    if problems:
        raise ValueError("; ".join(problems))
    announce(f"reading {options.model}")
    from pipelines.loader.validation import to_plain
    from pipelines.models.file import parse_ready  # slow to import
    from pipelines.models.signed import refuse_number, settings_of
    from pipelines.runs.store import DiskFolder
    from privacy.release.signature import ENDING, sign_statement, statement_of

    path = Path(options.model)
    data = path.read_bytes()
    try:
        ready = refuse_number(parse_ready(data))
    except ValueError as error:
        raise ValueError(f"{path} is no finished model ({error}); give one of a site's folder ready/") from error
    title = options.title or ready.origin.label
    today = datetime.now(UTC).date()
    statement = statement_of(data, title=title, settings=settings_of(ready), today=today, days=options.days)
    made = sign_statement(statement, Path(options.key))
    name = f"{path.name}{ENDING}"
    DiskFolder(path.parent).write(name, json.dumps(to_plain(made), indent=1).encode())
    facts = {"exit": 0, "signature": str(path.with_name(name)), "sha256": statement.sha256, "key": made.key}
    text = f"{facts['signature']}: sha256 {statement.sha256}, signed by {made.key} until {statement.expires}"
    print(json.dumps(facts) if options.json else text)  # noqa: T201 - the answer
    return int(Exit.OK)


if __name__ == "__main__":
    end_process(main)
