"""python -m pipelines.translate TRANSLATOR FOLDER --out OUT --key FILE: write translated copies of a site's studies.

TRANSLATOR is a site's own file, runs/<name>/sites/<site>/translators/<label>.safetensors; it stores how its training
images were prepared. FOLDER holds DICOM or NIfTI files and is not changed. OUT gets de-identified files of the same
geometry, OUT/<pseudonym>/<study>/<series>/ for DICOM, OUT/<pseudonym>/ for NIfTI. The same key gives the same names,
and existing files are not written again, so the same command continues a run that was stopped. Three tables beside OUT
name the input's studies and must stay in the hospital: OUT.translated.csv, OUT.quarantine.csv and OUT.accounted.csv, a
line for each file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipelines.batch.arguments import add_copy_arguments
from pipelines.loader.command_line import announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.translate"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Translate, and return the exit code (see docs/reference/exit-codes.md): 3 if nothing could be translated."""
    options = parser(prog).parse_args(arguments)
    announce(f"reading {options.translator}")
    from pipelines.batch.translation import translate_folder  # slow to import, and not needed for --help

    return translate_folder(options)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("translator", help="a translator of a site: runs/<name>/sites/<site>/translators/...safetensors")
    add_copy_arguments(made)
    return made


if __name__ == "__main__":
    end_process(main)
