"""python -m pipelines.plan CONFIG [-o FILE]: ask hospitals what their studies are, and plan a segmentation by that.

Written is CONFIG with planned images, network and training, each line with its reason, and the hospitals' figures above
it. What leaves a hospital is its reply to the request `fingerprint`; nothing is trained.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pipelines.coordinator.arguments import add_transport_arguments, parse_with_transport
from pipelines.loader.command_line import announce, command_parser, importing
from pipelines.loader.document import ConfigError, Document
from pipelines.runs.exits import end_process
from privacy.settings_error import Problem

PROG = "python -m pipelines.plan"
MEMORY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?(GiB|MiB|GB|MB|)", re.IGNORECASE)
GIB = {"gib": 1.0, "mib": 2**-10, "gb": 1e9 / 2**30, "mb": 1e6 / 2**30, "": 1.0}


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Plan, and return the exit code (see docs/reference/exit-codes.md)."""
    line = parser(prog)
    options = parse_with_transport(line, arguments)
    os.umask(0o077)  # a configuration names folders, and later perhaps patients
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 160, emoji=False)
    if options.out is not None and Path(options.out).exists():
        line.error(f"--out: {options.out} exists already; give another name, or remove it")
    if options.out is not None and not Path(options.out).parent.is_dir():  # before hospitals are asked, who may pay
        line.error(f"--out: there is no folder {Path(options.out).parent}; make it, or give another name")
    options.command = f"{prog} {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
    announce(f"reading {options.config}")
    with importing():
        from pipelines.coordinator.planning import plan_command  # torch: seconds
    return plan_command(options, console, ask_far if options.engine == "flare" else None)


def ask_far(document: Document, options: argparse.Namespace, console: Console) -> str:
    """What hospitals on other machines say, as the coordinator's process printed it.

    Raises:
        ConfigError: FLARE is not installed, or settings or kit are wrong. Stopped: on request.
        FarFailed: the coordinator's process ended with another code than 0.
    """
    try:
        from pipelines.remote.operate import execute_remotely  # slow to import, and needs an optional package
    except ModuleNotFoundError as error:
        text = f"--engine flare: {error.name} is not installed; pip install consilium[flare]"
        raise ConfigError([Problem((), text)]) from error
    from pipelines.coordinator.planning import FarFailed

    ended = execute_remotely(document, options, console)
    if ended.code:
        raise FarFailed(ended.code)
    return ended.output


def parse_memory(text: str) -> float:
    """A memory in GiB. Raises: argparse.ArgumentTypeError: it is none."""
    parsed = MEMORY.fullmatch(text.strip())
    if parsed is None or not float(parsed[1]) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, as in 8GiB or 500MiB, found {text!r}")
    return float(parsed[1]) * GIB[parsed[2].lower()]


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("config", help="a YAML file of a segmentation, or the name of one that comes with the package")
    made.add_argument("-o", "--out", metavar="FILE", help="write the planned configuration here (default: print it)")
    made.add_argument("--memory", type=parse_memory, metavar="SIZE", help="of the machine that trains (default 8GiB)")
    made.add_argument("--rounds", type=int, metavar="N", help="rounds of training (default 1000)")
    made.add_argument("--steps", type=int, metavar="N", help="steps of each hospital in a round (default 250)")
    made.add_argument(
        "--small", action="store_true", help="for a processor alone: 1 GiB, narrow, 40 rounds of 25 steps"
    )
    made.add_argument("--each", action="store_true", help="also a plan for each hospital, by its own studies alone")
    made.add_argument("--ct", action="store_true", help="images are CT (DICOM headers say so, NIfTI files do not)")
    add_transport_arguments(made)
    return made


if __name__ == "__main__":
    end_process(main)
