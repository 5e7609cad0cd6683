"""python -m pipelines.site SITE.yaml: check a hospital's setup, list what it would release, and join the federation.

After joining, this process is FLARE's client. It opens one connection to the coordinator and listens on no port. It
does not restart itself; systemd should.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from pipelines.loader.command_line import announce, command_parser
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.document import ConfigError, render
from pipelines.loader.files import read_document
from pipelines.runs.exits import Exit, end_process, print_error
from privacy.settings_error import Problem

if TYPE_CHECKING:
    from pipelines.remote.site_config import Place

PROG = "python -m pipelines.site"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Check, print the result, and join. Returns only with --check, or if the site cannot join."""
    options = parser(prog).parse_args(arguments)
    os.umask(0o077)
    console = Console(stderr=True, emoji=False)
    try:
        meant_for(read_document(options.settings), "site", options.settings)
        announce(f"reading {options.settings}")
        from pipelines.remote.site_config import read_place  # torch: seconds

        place, path = read_place(options.settings), Path(options.settings).resolve()
        os.chdir(path.parent)
        try:
            from pipelines.remote.preflight import check_place  # slow to import, and needs an optional package
        except ModuleNotFoundError as error:
            text = f"{error.name} is not installed; pip install consilium[flare]"
            raise ConfigError([Problem((), text)]) from error
        findings = check_place(place)
    except ConfigError as error:
        return print_error(render(error, options.settings), Exit.CONFIG, console, as_json=False)
    show(place, findings, console)
    if not all(finding.good for finding in findings):
        console.print("This hospital cannot join yet: mend the lines with !.")
        return int(Exit.SITE)
    if options.check:
        _look_inside(place, console)
        console.print("This hospital can join.")
        return int(Exit.OK)
    from pipelines.remote.serve import become_client

    become_client(place, path)
    raise AssertionError("unreachable: the process is FLARE's now")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("settings", help="the hospital's own YAML file, which the coordinator never sees")
    made.add_argument("--check", action="store_true", help="look, and do not join")
    return made


def _look_inside(place: Place, console: Console) -> None:
    """Read all headers and a few studies' pixels as a run of slices or pictures would; not tables and tensors."""
    from pipelines.data.archive_sources import DicomNodeSource, DicomWebSource
    from pipelines.data.images import Pictures, Slices
    from pipelines.data.sources import PictureSource
    from pipelines.hospital.files import files_of
    from pipelines.hospital.overview import look_into_source
    from pipelines.remote.client import hospital_of

    if isinstance(place.site.source, DicomWebSource | DicomNodeSource):
        return  # its images are copied when a run begins
    files = files_of(hospital_of(place))
    if files.source.kind in ("table", "tensors"):
        return
    images = Pictures() if isinstance(files.source, PictureSource) else Slices(slices="all")
    try:
        line = look_into_source(files, images, place.site.readers)
    except ValueError as error:
        line = f"! {error}"
    console.print(f"inside, read as {images.kind} (a run may ask otherwise): {line}", markup=False, soft_wrap=True)


def show(place: Place, findings: Sequence[tuple[str, bool, str]], console: Console) -> None:
    """Print the findings, and what the site would release."""
    from pipelines.remote.preflight import list_promises, list_releases

    looked = Table(title=f"{place.name}: before joining", title_justify="left", show_header=False, box=None)
    for what, good, text in findings:
        looked.add_row(" " if good else "!", what, text)
    leaves = Table("asked for", "what an answer holds", title="What this hospital would release", title_justify="left")
    for request, text in list_releases(place.site.policy):
        leaves.add_row(request, text)
    for table in (looked, leaves):
        console.print(table)
    for text in list_promises(place.site.policy):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    end_process(main)
