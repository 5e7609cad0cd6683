"""python -m pipelines.run CONFIG: run every stage of a configuration, from the hospitals' files to the report.

CONFIG is looked up in the current folder, then among the configurations that come with the package. A file with the key
`models` is for an external site, outside any federation: see `pipelines.external.run`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from rich.console import Console

from pipelines.coordinator.arguments import PROG, parse_arguments, read_settings
from pipelines.coordinator.arguments import parser as parser  # as every command has one
from pipelines.loader.command_line import announce, importing
from pipelines.loader.document import ConfigError, Document, render
from pipelines.runs.exits import Exit, end_process, print_error
from privacy.settings_error import Problem


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run, and return the exit code (see docs/reference/exit-codes.md). Errors in the settings file are printed before
    anything slow is imported.
    """
    options = parse_arguments(arguments, prog)
    os.umask(0o077)  # only the owner may read the runs folder
    console = Console(stderr=True, emoji=False)
    try:
        document = read_settings(options)
    except ConfigError as error:
        return print_error(render(error, options.config), Exit.CONFIG, console, as_json=options.json)
    announce(f"reading {options.config}")
    with importing():
        from pipelines.coordinator.failures import report_failure
        from pipelines.coordinator.run import run_command  # torch: seconds

    if options.engine != "flare":
        return run_command(options, console, document=document)
    try:
        return _far(document, options, console)
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, document, options, console)


def _far(document: Document, options: argparse.Namespace, console: Console) -> int:
    """Run with hospitals on other machines. Raises: ConfigError: FLARE is not installed, or a setting is wrong."""
    try:
        from pipelines.remote.operate import operate_run  # slow to import, and needs an optional package
    except ModuleNotFoundError as error:
        text = f"--engine flare: {error.name} is not installed; pip install consilium[flare]"
        raise ConfigError([Problem((), text)]) from error
    return operate_run(document, options, console)


if __name__ == "__main__":
    end_process(main)
