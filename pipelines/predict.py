"""python -m pipelines.predict MODEL FOLDER: a finished model on new patients, as a batch job of the night.

MODEL is a file of a site's own, runs/<name>/sites/<site>/ready/<method>.safetensors, or the routed.safetensors of an
external site; it says how images were made when it was trained, so new ones are made alike. FOLDER holds DICOM, NIfTI
or picture files, or is a CSV file for a model of features. Writes three tables for the hospital's own use:
predictions.csv, a line for each study, marked where it is unlike those that the model learnt from; quarantine.csv, what
could not be read and why, and patients of whom nothing was selected; accounted.csv, a line for each file: used,
quarantined, not selected or not imaging. They name patients as the files do. A model that segments writes a mask of
each study too, into the folder masks: DICOM Segmentation, NIfTI or PNG, as the study is; those of DICOM have the
patient's name and numbers, as the images have, so all of it stays in the hospital.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipelines.batch.arguments import add_study_arguments
from pipelines.loader.command_line import announce, command_parser

PROG = "python -m pipelines.predict"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Predict, and return the exit code (see docs/reference/exit-codes.md): 3 if nothing could be read."""
    options = parser(prog).parse_args(arguments)
    announce(f"reading {options.model}")
    from pipelines.batch.prediction import predict_folder  # after --help, which answers at once
    from pipelines.external.adapted import read_model

    return predict_folder(options, read_model)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("model", help="runs/<name>/sites/<site>/ready/<method>.safetensors, or a routed.safetensors")
    made.add_argument("folder", help="the new patients' files: a folder, or a CSV file for a model of features")
    made.add_argument("--out", default=".", help="the folder of the tables and masks (default: here)")
    made.add_argument("--threshold", type=float, help="score from which a study counts as positive (default: 0.5)")
    add_study_arguments(made)
    return made


if __name__ == "__main__":
    sys.exit(main())
