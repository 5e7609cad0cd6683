"""Command-line arguments that several commands share. Imports nothing slow, so that `--help` is quick."""

from __future__ import annotations

import argparse

from pipelines.loader.command_line import add_json_argument

UNITS = ("1e-6 mm2/s", "1e-5 mm2/s", "1e-3 mm2/s", "mm2/s")
"""Units of ADC that `pipelines.data.adc` can convert."""


def add_copy_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of a command that writes translated copies of a folder's studies."""
    parser.add_argument("folder", help="the studies; nothing in it is changed")
    parser.add_argument("--out", required=True, help="where to write; it must not lie in FOLDER, nor FOLDER in it")
    parser.add_argument("--key", metavar="FILE", help="the hospital's secret; made if there is none")
    parser.add_argument("--keep-names", action="store_true", help="NIfTI: names stay as they are, and no key is needed")
    parser.add_argument("--even-if-vetoed", action="store_true", help="translate though quality control vetoed it")
    add_study_arguments(parser)
    add_keep_arguments(parser)


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments on how studies are found and read, and how results are printed."""
    parser.add_argument("--kind", choices=["dicom", "nifti"], help="what FOLDER holds, if not what it was trained on")
    parser.add_argument("--select", metavar="KEYWORD=TEXT", action="append", default=[], help="DICOM files to use")
    parser.add_argument("--unit", choices=UNITS, help="unit of ADC maps whose files do not say that they are ADC")
    parser.add_argument("--gland", metavar="FOLDER", help="gland masks, <patient>.nii.gz, if it was trained with them")
    parser.add_argument("--no-gland", action="store_true", help="use the image's centre instead; results may suffer")
    parser.add_argument(
        "--readers", type=int, default=0, help="studies at a time (default: a processor each, at most 8)"
    )
    add_json_argument(parser)


def add_keep_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments on what de-identification keeps."""
    parser.add_argument("--keep-device", action="store_true", help="keep serial numbers and names of devices")
    parser.add_argument("--keep-characteristics", action="store_true", help="keep sex, age (at most 90), size, weight")
    parser.add_argument("--keep-times", action="store_true", help="keep times of day; dates are moved in any case")
