"""python -m pipelines.predict MODEL FOLDER: a finished model on new patients, as a batch job of the night.

MODEL is a file of a site's own, runs/<name>/sites/<site>/ready/<method>.safetensors, or the routed.safetensors of a
hospital outside a federation; it says how images were made when it was trained, so new ones are made alike. FOLDER
holds DICOM, NIfTI or picture files, or is a CSV file for a model of features. Writes three tables for the hospital's
own use: predictions.csv, a line for each study, marked where it is unlike those that the model learnt from;
quarantine.csv, what could not be read and why, and patients of whom nothing was selected; accounted.csv, a line for
each file: used, quarantined, not selected or not imaging. They name patients as the files do. A model that segments
writes a mask of each study too, into the folder masks: DICOM Segmentation, NIfTI or PNG, as the study is; those of
DICOM have the patient's name and numbers, as the images have, so all of it stays in the hospital.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from evaluation.csv_text import csv_text, read_csv_text
from federation.task import Kind
from pipelines.data.accounts import Account, accounted, accounts_csv, as_facts, in_words, unserved
from pipelines.data.admission import Admitted, Opened, admitted
from pipelines.data.alike import UNITS, source_of
from pipelines.data.examples import open_source
from pipelines.data.images import AnyImages, Features, Pictures, Slices
from pipelines.data.pictures.reader import loose_pictures
from pipelines.data.sources import DicomSource, Files, GlandMask, NiftiSource, TableSource
from pipelines.data.study import Rejected, Unusable
from pipelines.data.tables.features import open_lines
from pipelines.data.writing.masks import Masking, forget_masks, lies_in, maker_of, open_masking, write_masked
from pipelines.external.adapted import read_adapted
from pipelines.external.models_file import ADAPTED, what_is
from pipelines.hospital.likeness import Verdict, likeness_in_words
from pipelines.hospital.model_file import Ready, read_ready
from pipelines.runs.exits import Exit, exit_code
from pipelines.runs.progress import shown
from pipelines.runs.store import DiskFolder

STUDY = ("patient", "study", "examples", "unlike_training", "distance", "p_value")
SCORED = (*STUDY, "score", "highest_at", "positive")
THRESHOLD = 0.5
NOTICE = "For research use only: not a medical device, not for diagnosis."


class Desk(NamedTuple):
    """What a prediction needs beside the study. masking: of a model that segments."""

    ready: Ready
    threshold: float
    out: Path
    masking: Masking | None = None


class Line(NamedTuple):
    """A line of the table, and whether the study is positive: its score is high enough, or its mask shows something.
    unlike: whether it is unlike the training patients; None where that cannot be told.
    """

    cells: tuple[object, ...]
    positive: bool
    unlike: bool | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict, and return the exit code (see docs/reference/exit-codes.md): 3 if nothing could be read."""
    options = parser().parse_args(arguments)
    os.umask(0o077)
    torch.set_num_threads(1)
    console = Console(stderr=True)
    try:
        _check_options(options)
        path = Path(options.model)
        ready = read_adapted(path) if what_is(path) == ADAPTED else read_ready(path)
        _check_fit(ready, options)
        opened = open_new(ready, options)
        desk = open_desk(ready, options)
    except (ValueError, OSError) as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return int(Exit.CONFIG)
    try:
        return _predicted(desk, opened, options, console)
    except (OSError, KeyboardInterrupt) as error:
        console.print(str(error) or type(error).__name__, markup=False, highlight=False, soft_wrap=True)
        return int(exit_code(error))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m pipelines.predict", description=__doc__.splitlines()[0])
    made.add_argument("model", help="runs/<name>/sites/<site>/ready/<method>.safetensors, or a routed.safetensors")
    made.add_argument("folder", help="the new patients' files: a folder, or a CSV file for a model of features")
    made.add_argument("--out", default=".", help="the folder of the tables and masks (default: here)")
    made.add_argument(
        "--kind", choices=["dicom", "nifti"], help="what the folder holds, if not what the model learnt from"
    )
    made.add_argument("--select", metavar="KEYWORD=TEXT", action="append", default=[], help="DICOM files to use")
    made.add_argument("--unit", choices=UNITS, help="unit of ADC maps whose files do not say that they are ADC")
    made.add_argument(
        "--gland", metavar="FOLDER", help="gland masks, <patient>.nii.gz, for a model that learnt with them"
    )
    made.add_argument("--no-gland", action="store_true", help="centre on the image instead; scores may suffer")
    made.add_argument("--threshold", type=float, help="score from which a study counts as positive (default: 0.5)")
    made.add_argument("--readers", type=int, default=0, help="studies read at a time (default: a processor each)")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return made


def _check_options(options: argparse.Namespace) -> None:
    out = Path(options.out)
    threshold = THRESHOLD if options.threshold is None else options.threshold
    problems = [] if 0 <= threshold <= 1 else [f"--threshold must be in [0, 1], found {threshold}"]
    problems += [f"--out: {options.out!r} is a file; give a folder"] if out.exists() and not out.is_dir() else []
    if problems:
        raise ValueError("; ".join(problems))


def _check_fit(ready: Ready, options: argparse.Namespace) -> None:
    """What makes no sense for a model that segments."""
    if ready.task.kind == "classification":
        return
    problems = []
    if options.threshold is not None:
        problems.append("--threshold is for scores; a mask shows the most probable class of each pixel: remove it")
    if lies_in(Path(options.out), Path(options.folder)):
        problems.append("--out must not lie in FOLDER, or masks would be read as studies the next time; give another")
    if isinstance(ready.images, Features):
        problems.append("a model of features cannot segment; give a model of images")
    if problems:
        raise ValueError("; ".join(problems))


def open_desk(ready: Ready, options: argparse.Namespace) -> Desk:
    """What predictions need; of a model that segments also where the studies are.

    Raises:
        ValueError: the folder and the model do not go together, or nothing fits.
    """
    images, out = ready.images, Path(options.out)
    if ready.task.kind == "classification" or isinstance(images, Features):
        return Desk(ready, THRESHOLD if options.threshold is None else options.threshold, out)
    source = None if isinstance(images, Pictures) else _source(ready, options)
    maker = maker_of(str(ready.facts["label"]), ready.digest, datetime.now(UTC).replace(microsecond=0))
    folder, gland = Path(options.folder), options.gland
    masking = open_masking(images, ready.names, maker, out, folder=folder, source=source, gland=gland)
    return Desk(ready, THRESHOLD, out, masking)


def open_new(ready: Ready, options: argparse.Namespace) -> Opened:
    """What waits in the folder, found as the training images were.

    Raises:
        ValueError: the folder and the model do not go together, or nothing fits.
    """
    images, folder = ready.images, str(options.folder)
    if isinstance(images, Pictures):
        return loose_pictures(folder, images)
    if isinstance(images, Features) and isinstance(ready.source, TableSource):
        return open_lines(replace(ready.source, file=folder), images, labelled=False)
    if ready.gland and not options.gland and not options.no_gland:
        raise ValueError(
            "this model learnt from images centred on the gland: give --gland FOLDER with the new patients' masks, or "
            "say --no-gland to centre on the image"
        )
    return open_volumes(images, _source(ready, options), options.gland)


def open_volumes(images: AnyImages, source: Files, gland: str | None) -> Opened:
    """Studies that wait, whose labels nobody knows. gland: a folder of masks about which they are cut, or None.

    Raises:
        ValueError: nothing fits, or a folder is missing.
    """
    if isinstance(images, Slices) and not gland:
        images = replace(images, slices="all")
    return open_source(source, None, images, GlandMask(folder=gland) if gland else None)


def _source(ready: Ready, options: argparse.Namespace) -> DicomSource | NiftiSource:
    kind, select, unit = options.kind, options.select, options.unit
    return source_of(ready.source, options.folder, kind=kind, select=select, unit=unit, learnt="model")


def _predicted(desk: Desk, opened: Opened, options: argparse.Namespace, console: Console) -> int:
    ready = desk.ready
    lines: list[Line] = []
    refused: list[Rejected] = list(opened.rejected)
    with shown("predict", console=console) as step:
        for number, result in enumerate(admitted(opened.waiting, readers=options.readers)):
            step(number, len(opened.waiting))
            if isinstance(result, Rejected):
                refused.append(result)
                continue
            try:
                x = ready.seen(torch.from_numpy(result.examples.images))
                lines.append(line_of(desk, result, ready.probabilities(x), ready.verdict(x)))
            except Unusable as error:
                refused.append(Rejected(result.study, error.reason, error.detail))
    accounts = accounted(opened.items, refused)
    write_tables(desk.out, header(ready.task.kind, ready.images, ready.names), lines, refused, accounts)
    unlike = sum(bool(line.unlike) for line in lines)
    if options.json:
        positive = sum(line.positive for line in lines)
        told = {"studies": len(lines), "positive": positive, "quarantined": len(refused), "out": options.out}
        told |= {"unlike_training": None if isinstance(ready.likeness, str) else unlike}
        print(json.dumps(told | as_facts(accounts)))  # noqa: T201 - the machine's answer
    else:
        said = said_of(ready.task.kind, desk.threshold, lines, refused, options.out)
        said = f"{likeness_in_words(ready.likeness, unlike, len(lines))}\n{said}\n{in_words(accounts, opened.of)}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    return int(Exit.OK if lines or not refused else Exit.DATA)


def write_tables(
    out: Path,
    columns: Sequence[str],
    lines: Sequence[Line],
    refused: Sequence[Rejected],
    accounts: Sequence[Account],
) -> None:
    """Write predictions.csv, quarantine.csv and accounted.csv; masks that only an earlier predictions.csv here names
    go. Patients of whom nothing was selected are in the quarantine, too.

    Raises:
        OSError: the disk.
    """
    folder = DiskFolder(out)
    forget_masks(out, set(_masks_named(out)) - {str(line.cells[-1]) for line in lines})
    # What was left out first: predictions without it would look complete.
    left_out = [(one.study, one.reason, one.detail) for one in (*refused, *unserved(accounts))]
    folder.write("quarantine.csv", _csv(("study", "reason", "detail"), left_out))
    folder.write("accounted.csv", accounts_csv(accounts))
    folder.write("predictions.csv", _csv(columns, [line.cells for line in lines]))


def _masks_named(out: Path) -> list[str]:
    """Masks in the table that lies there, if one does."""
    with suppress(OSError, csv.Error, UnicodeError):
        text = (out / "predictions.csv").read_bytes().decode("utf-8", "surrogateescape")
        return [row["mask"] for row in read_csv_text(text) if row.get("mask")]
    return []


def said_of(kind: Kind, threshold: float, lines: Sequence[Line], refused: Sequence[Rejected], out: str) -> str:
    """What came out, in words, and where it lies."""
    masks = kind == "segmentation"
    positive = sum(line.positive for line in lines)
    found = "with something inside" if masks else f"at or above {threshold:g}"
    return (
        f"{len(lines)} studies {'segmented' if masks else 'scored'}, {positive} {found}; {len(refused)} quarantined.\n"
        f"{Path(out, 'predictions.csv')}\n{Path(out, 'quarantine.csv')}\n{Path(out, 'accounted.csv')}\n{NOTICE}"
    )


def header(kind: Kind, images: AnyImages, names: Sequence[str]) -> tuple[str, ...]:
    """Columns of predictions.csv. names: of the classes that are segmented."""
    if kind == "classification":
        return SCORED
    unit = "share" if isinstance(images, Pictures) else "ml"
    return (*STUDY, *(f"{name}_{unit}" for name in names), "mask")


def line_of(desk: Desk, study: Admitted, probabilities: Tensor, verdict: Verdict | None = None) -> Line:
    """A study's score is that of its highest example; or its mask, written, and the size of each class.

    probabilities: (n, classes, *spatial) of its examples. verdict: whether it is unlike the training patients.

    Raises:
        Unusable: the network gives no numbers, or its mask cannot be made.
        OSError: the disk.
    """
    if not probabilities.isfinite().all():
        raise Unusable("not_finite", "the network gives no number here. Check the study's values.")
    unlike, far = None, ("", "", "")
    if verdict is not None:
        unlike, far = verdict.unlike, (f"{verdict.unlike:d}", f"{verdict.distance:.3g}", f"{verdict.p_value:.2g}")
    known = (study.patient, study.study, len(probabilities), *far)
    if desk.masking is not None:
        masked = write_masked(study.study, probabilities.numpy(), study.examples.position, desk.masking)
        return Line((*known, *(f"{size:.6g}" for size in masked.sizes), masked.file), any(masked.sizes), unlike)
    scores = probabilities[:, 1]
    top = int(scores.argmax())
    value = float(scores[top])
    positive = value >= desk.threshold
    return Line((*known, f"{value:.6f}", int(study.examples.position[top]), int(positive)), positive, unlike)


def _csv(header: Sequence[str], lines: Sequence[Sequence[object]]) -> bytes:
    # Names of files may be in any encoding.
    return csv_text(header, sorted(lines, key=str)).encode("utf-8", "surrogateescape")


if __name__ == "__main__":
    sys.exit(main())
