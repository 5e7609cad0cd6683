"""python -m pipelines.deidentify FOLDER OUT --key FILE: write de-identified copies of every DICOM image below FOLDER.

Writes OUT/<pseudonym>/<study>/<series>/<number>-<8 letters>.dcm, where study and series are the new UIDs, the number is
the instance number, and the letters follow from the new SOP instance UID. The same key gives the same files again: a
second run writes nothing new. Refused files are listed with reasons in a table beside the key; another table,
KEY.accounted.csv, says what became of each file. Both name the input's files and, like the key, must stay in the
hospital. The printed text names no file, no patient and no value.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipelines.batch.arguments import add_keep_arguments
from pipelines.loader.command_line import announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.deidentify"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run, and return the exit code: 0 all images were written, 2 command line, 3 some were refused, 7 disk."""
    options = parser(prog).parse_args(arguments)
    announce("reading the folder")
    from pipelines.batch.deidentification import deidentify_folder  # slow to import, and not needed for --help

    return deidentify_folder(options)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("folder", help="where the hospital's files are; nothing in it is changed")
    made.add_argument("out", help="where to write; it must not lie in FOLDER, nor FOLDER in it")
    made.add_argument("--key", required=True, metavar="FILE", help="the hospital's secret; made if there is none")
    made.add_argument("--quarantine", metavar="FILE", help="the table of refused files (default: KEY.quarantine.csv)")
    made.add_argument("--blank", metavar="FILE", help="where text stands in images; if there is none, a draft")
    made.add_argument("--confirm", metavar="DIGEST", help="of a contact sheet: no text is left in the images on it")
    add_keep_arguments(made)
    return made


if __name__ == "__main__":
    end_process(main)
