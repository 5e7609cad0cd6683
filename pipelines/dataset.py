"""python -m pipelines.dataset CONFIG --out nnUNet_raw/Dataset101_NAME: a hospital's cohort as a raw dataset of nnU-Net.

CONFIG is the configuration of a run, with --site, or a hospital's own site.yaml. Written are the patients whom the run
read, each study on its own grid, with training, validation and test as the run divided them; so nnU-Net itself can be
trained on exactly these. The folder holds patients' images: it stays at the hospital.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.loader.command_line import add_json_argument, announce, command_parser, importing
from pipelines.loader.command_of_file import sort_of
from pipelines.loader.document import ConfigError
from pipelines.loader.files import read_document
from pipelines.runs.exits import end_process
from privacy.settings_error import Problem

if TYPE_CHECKING:
    from pipelines.hospital.hospital import Hospital

PROG = "python -m pipelines.dataset"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Write the folder, and return the exit code (see docs/reference/exit-codes.md): 3 if other studies are there than
    the run read.
    """
    options = parser(prog).parse_args(arguments)
    announce(f"reading {options.config}")
    with importing():
        from pipelines.exports.dataset import write_dataset  # torch: seconds
    return write_dataset(options, lambda: open_hospital(options))


def open_hospital(options: argparse.Namespace) -> Hospital:
    """The hospital whose cohort is written. Raises: ConfigError: settings are wrong, or it is not said which."""
    document = read_document(options.config)
    sort = sort_of(document.data)
    if sort is not None and sort.command == "site":
        if options.site is not None:
            raise ConfigError([Problem((), "--site chooses among the hospitals of a run, and this is one; remove it")])
        from pipelines.remote.client import hospital_of
        from pipelines.remote.site_config import read_place

        return hospital_of(read_place(options.config))
    from pipelines.exports.dataset import open_simulated

    return open_simulated(document, options.site)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("config", help="a run's YAML file, or a hospital's own site.yaml")
    made.add_argument("--out", required=True, metavar="FOLDER", help="the new folder, as nnUNet_raw/Dataset101_NAME")
    made.add_argument("--site", metavar="NAME", help="which hospital of the run (default: its only one)")
    made.add_argument("--cohort", metavar="NAME", help="which of its cohorts (default: the newest)")
    made.add_argument("--channel", metavar="NAME", help="what nnU-Net calls the images, as CT: it scales by it")
    made.add_argument("--pseudonyms", action="store_true", help="name cases by pseudonyms, not by your own files")
    add_json_argument(made)
    return made


if __name__ == "__main__":
    end_process(main)
