"""python -m pipelines.predict MODEL FOLDER: a finished model on new patients, as a batch job of the night.

MODEL is a file of a site's own, runs/<name>/sites/<site>/ready/<method>.safetensors; it says how images were made when
it was trained, so new ones are made alike. FOLDER holds DICOM, NIfTI or picture files, or is a CSV file for a model of
features. Writes two tables for the hospital's own use: predictions.csv, a line for each study, and quarantine.csv, what
could not be read and why. Both name patients as the files do.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from pipelines.cohort.admission import Admitted, Opened, admitted
from pipelines.cohort.axes import projected
from pipelines.cohort.dicom import DicomSource
from pipelines.cohort.examples import open_source
from pipelines.cohort.features import Features, TableSource, normalized_by, open_lines
from pipelines.cohort.labels import GlandMask
from pipelines.cohort.nifti import NiftiSource
from pipelines.cohort.picture import Pictures, loose_pictures
from pipelines.cohort.prepare import Slices
from pipelines.cohort.study import Rejected
from pipelines.exits import Exit, exit_code
from pipelines.progress import shown
from pipelines.site.ready import Ready, read_ready
from pipelines.store import DiskFolder

HEADER = ("patient", "study", "examples", "score", "highest_at", "positive")
NOTICE = "For research use only: not a medical device, not for diagnosis."


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict, and return the exit code (see docs/exit-codes.md): 3 if nothing could be read."""
    options = parser().parse_args(arguments)
    os.umask(0o077)
    torch.set_num_threads(1)
    console = Console(stderr=True)
    try:
        _check_options(options)
        ready = read_ready(Path(options.model))
        opened = open_new(ready, options)
    except (ValueError, OSError) as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return int(Exit.CONFIG)
    try:
        return _predicted(ready, opened, options, console)
    except (OSError, KeyboardInterrupt) as error:
        console.print(str(error) or type(error).__name__, markup=False, highlight=False, soft_wrap=True)
        return int(exit_code(error))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m pipelines.predict", description=__doc__.splitlines()[0])
    made.add_argument("model", help="a model of a site: runs/<name>/sites/<site>/ready/<method>.safetensors")
    made.add_argument("folder", help="the new patients' files: a folder, or a CSV file for a model of features")
    made.add_argument("--out", default=".", help="the folder of the two tables (default: here)")
    made.add_argument(
        "--kind", choices=["dicom", "nifti"], help="what the folder holds, if not what the model learnt from"
    )
    made.add_argument("--select", metavar="KEYWORD=TEXT", action="append", default=[], help="DICOM files to use")
    made.add_argument(
        "--gland", metavar="FOLDER", help="gland masks, <patient>.nii.gz, for a model that learnt with them"
    )
    made.add_argument("--no-gland", action="store_true", help="centre on the image instead; scores may suffer")
    made.add_argument("--threshold", type=float, default=0.5, help="score from which a study counts as positive")
    made.add_argument("--readers", type=int, default=0, help="studies read at a time (default: a processor each)")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return made


def _check_options(options: argparse.Namespace) -> None:
    out = Path(options.out)
    problems = [] if 0 <= options.threshold <= 1 else [f"--threshold must be in [0, 1], found {options.threshold}"]
    problems += [f"--out: {options.out!r} is a file; give a folder"] if out.exists() and not out.is_dir() else []
    if problems:
        raise ValueError("; ".join(problems))


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
    if isinstance(images, Slices) and not options.gland:
        images = replace(images, slices="all")
    source = _source(ready, options)
    return open_source(source, None, images, GlandMask(folder=options.gland) if options.gland else None)


def _source(ready: Ready, options: argparse.Namespace) -> DicomSource | NiftiSource:
    wrong = [text for text in options.select if "=" not in text]
    if wrong:
        raise ValueError(f"--select: {wrong[0]!r} is not KEYWORD=TEXT, as in --select ImageType=ADC")
    chosen = dict(text.split("=", 1) for text in options.select)
    kind = options.kind or ready.source.kind
    if kind == "dicom" and not chosen and not isinstance(ready.source, DicomSource):
        raise ValueError(
            "this model did not learn from DICOM, so it does not say which series are its kind; give --select, as in "
            "--select ImageType=ADC"
        )
    if kind == "dicom":
        known = ready.source if isinstance(ready.source, DicomSource) else DicomSource(folder=".")
        return replace(known, folder=options.folder, select=chosen or known.select)
    known_nifti = ready.source if isinstance(ready.source, NiftiSource) else NiftiSource(folder=".")
    return replace(known_nifti, folder=options.folder)


def _predicted(ready: Ready, opened: Opened, options: argparse.Namespace, console: Console) -> int:
    lines: list[tuple[object, ...]] = []
    refused: list[Rejected] = list(opened.rejected)
    with shown("predict", console=console) as step:
        for number, result in enumerate(admitted(opened.waiting, readers=options.readers)):
            step(number, len(opened.waiting))
            if isinstance(result, Rejected):
                refused.append(result)
            else:
                lines.append(_line(ready, result, options.threshold))
    out = DiskFolder(Path(options.out))
    # What was left out first: predictions without it would look complete.
    out.write("quarantine.csv", _csv(("study", "reason", "detail"), [(r.study, r.reason, r.detail) for r in refused]))
    out.write("predictions.csv", _csv(HEADER, lines))
    positive = sum(bool(line[-1]) for line in lines)
    if options.json:
        told = {"studies": len(lines), "positive": positive, "quarantined": len(refused), "out": options.out}
        print(json.dumps(told))  # noqa: T201 - the machine's answer
    else:
        console.print(
            f"{len(lines)} studies scored, {positive} at or above {options.threshold:g}; {len(refused)} quarantined.\n"
            f"{Path(options.out, 'predictions.csv')}\n{Path(options.out, 'quarantine.csv')}\n{NOTICE}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return int(Exit.OK if lines or not refused else Exit.DATA)


def _line(ready: Ready, study: Admitted, threshold: float) -> tuple[object, ...]:
    """A study's score is that of its highest example."""
    x = torch.from_numpy(study.examples.images)
    if ready.scale is not None:
        x = normalized_by(x, ready.scale)
    if ready.axes is not None:
        x = projected(x, ready.axes)
    scores = ready.task.probabilities(ready.module, ready.translate(x))[:, 1]
    top = int(scores.argmax())
    value = float(scores[top])
    place = int(study.examples.position[top])
    return study.patient, study.study, len(scores), f"{value:.6f}", place, int(value >= threshold)


def _csv(header: Sequence[str], lines: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(sorted(lines, key=str))
    return text.getvalue().encode("utf-8", "surrogateescape")  # names of files may be in any encoding


if __name__ == "__main__":
    sys.exit(main())
