"""python -m pipelines.predict MODEL FOLDER: apply a finished model to new patients, as a batch job.

MODEL is a site's own file, runs/<name>/sites/<site>/ready/<method>.safetensors, or the routed.safetensors of an
external site; it stores how its training images were prepared, so new images are prepared alike. FOLDER holds DICOM,
NIfTI or picture files, or is a CSV file for a model of features. Writes three tables for the hospital's own use:
predictions.csv, a line for each study, marked if it is unlike the training studies; quarantine.csv, what could not be
read and why, and patients of whom nothing was selected; accounted.csv, a line for each file: used, quarantined, not
selected or not imaging. They name patients as the files do. A segmentation model also writes a mask of each study into
the folder masks, as DICOM Segmentation, NIfTI or PNG, like the study. DICOM masks, reports and captures carry the
patient's name and identifiers, as the images do, unless --key says otherwise, so all output must stay in the hospital.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipelines.batch.arguments import add_study_arguments
from pipelines.loader.command_line import announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.predict"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Predict, and return the exit code (see docs/reference/exit-codes.md): 3 if nothing could be read."""
    options = parser(prog).parse_args(arguments)
    announce(f"reading {options.model}")
    from pipelines.batch.prediction import predict_folder  # slow to import, and not needed for --help
    from pipelines.external.adapted import read_model

    return predict_folder(options, read_model)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("model", help="runs/<name>/sites/<site>/ready/<method>.safetensors, or a routed.safetensors")
    made.add_argument(
        "--recommended",
        action="store_true",
        help="MODEL is a hospital's folder, runs/<name>/sites/<site>: take the model that its page recommends",
    )
    made.add_argument("folder", help="the new patients' files: a folder, or a CSV file for a model of features")
    made.add_argument("--out", default=".", help="the folder of the tables and masks (default: here)")
    made.add_argument(
        "--maps",
        action="store_true",
        help="also write, into the folder maps, where each score is sensitive to its study: NIfTI on the study's grid",
    )
    made.add_argument(
        "--reports",
        action="store_true",
        help="also write each score of a DICOM series as a structured report for the PACS, into the folder reports",
    )
    made.add_argument(
        "--captures",
        action="store_true",
        help="also draw, for the PACS, a DICOM series' most sensitive slice with its map, into the folder captures",
    )
    made.add_argument(
        "--key",
        metavar="FILE",
        help="write DICOM masks, reports and captures without the patient's identity, by this secret of `deidentify`; "
        "tables name patients all the same (a missing file is made)",
    )
    made.add_argument("--threshold", type=float, help="score from which a study counts as positive (default: 0.5)")
    add_study_arguments(made)
    return made


if __name__ == "__main__":
    end_process(main)
