"""python -m pipelines.run CONFIG: everything that the configuration says, from files to the report.

CONFIG is looked up in the current folder, then among the configurations that come with the package. One with the key
`models` is that of a hospital outside a federation: see `pipelines.external.run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from pipelines.coordinator.arguments import PROG, parse, settings_said
from pipelines.coordinator.arguments import parser as parser  # as every command has one
from pipelines.loader.command_line import announce
from pipelines.loader.document import ConfigError, Document, render
from pipelines.runs.exits import Exit, told
from privacy.settings_error import Problem


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run, and return the exit code (see docs/reference/exit-codes.md). What the settings file itself has wrong is told
    before anything slow is imported.
    """
    options = parse(arguments, prog)
    os.umask(0o077)  # everything below the runs folder is for its owner alone
    console = Console(stderr=True)
    try:
        said = settings_said(options)
    except ConfigError as error:
        return told(render(error, options.config), Exit.CONFIG, console, as_json=options.json)
    announce(f"reading {options.config}")
    from pipelines.coordinator.run import carried_out, ended  # torch: seconds

    if options.engine != "flare":
        return carried_out(options, console, said=said)
    try:
        return _far(said, options, console)
    except (Exception, KeyboardInterrupt) as error:
        return ended(error, said, options, console)


def _far(said: Document, options: argparse.Namespace, console: Console) -> int:
    """With hospitals on other machines. Raises: ConfigError: what that takes is not installed, or set wrongly."""
    try:
        from pipelines.remote.operate import operate  # takes seconds, and an extra that most do not need
    except ModuleNotFoundError as error:
        text = f"--engine flare: {error.name} is not installed; pip install consilium[flare]"
        raise ConfigError([Problem((), text)]) from error
    return operate(said, options, console)


if __name__ == "__main__":
    sys.exit(main())
