"""python -m pipelines.harmonize FOLDER --to TARGET --out OUT --key FILE: give studies the look of other studies.

TARGET is a folder of studies with the wanted look, or the file of a translator. No label, model or second hospital is
needed. From up to 40 studies of each folder the command fits a translator, judges it, and shows both on a page,
OUT.harmonized.html. A translator that does harm writes nothing (code 2). Then all studies are translated as by
`python -m pipelines.translate`, with the same tables, and the same command goes on where it was stopped. The translator
lies in OUT.translator/. Page, tables and translator stay in the hospital.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipelines.batch.arguments import add_copy_arguments
from pipelines.loader.command_line import announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.harmonize"
METHODS = ("nyul", "zscore", "percentile", "histogram", "reinhard", "randomized")


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Harmonize, and return the exit code: as of translate (docs/reference/exit-codes.md)."""
    options = parser(prog).parse_args(arguments)
    announce("reading the studies")
    from pipelines.batch.harmonizing import harmonize_folder  # slow to import, and not needed for --help

    return harmonize_folder(options)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("--to", metavar="TARGET", help="a folder of studies with the wanted look, or a translator's file")
    made.add_argument(
        "--by", choices=METHODS, default="nyul", help="how (default: nyul); randomized learns from drawn pictures alone"
    )
    made.add_argument("--values", choices=["adc", "standardized"], default="adc", help="what the images measure")
    made.add_argument("--spacing", type=float, default=1.5, metavar="MM", help="of the pixels that are measured")
    made.add_argument("--size", type=int, default=96, metavar="PIXELS", help="of the slices that are measured")
    made.add_argument("--target-kind", choices=["dicom", "nifti"], help="what TARGET holds, if not what FOLDER holds")
    made.add_argument("--target-select", metavar="KEYWORD=TEXT", action="append", default=[], help="its DICOM files")
    made.add_argument("--target-gland", metavar="FOLDER", help="gland masks of TARGET's patients")
    add_copy_arguments(made)
    return made


if __name__ == "__main__":
    end_process(main)
