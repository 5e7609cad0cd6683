"""Apply a model to unlabelled studies: tables of scores or masks, and of what is refused and why.

The command `python -m pipelines.predict` and the work of an external site (`pipelines.external.run`) share it.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from federation.task import Kind
from pipelines.batch.loop import NOTICE, Results, collect, finish, run_batch
from pipelines.batch.maps import MAPS, unmapped, write_map
from pipelines.batch.masks import MASKS, MaskWriter, forget_masks, lies_in, mask_maker, open_mask_writer, write_mask
from pipelines.batch.tables import read_table, refusals, table_bytes, write_whole
from pipelines.data.accounts import Account, accounted, accounts_csv
from pipelines.data.alike import source_of
from pipelines.data.examples import open_source
from pipelines.data.images import AnyImages, Features, Pictures, Slices
from pipelines.data.intake import Intake, ReadStudy, read_studies
from pipelines.data.pictures.reader import loose_pictures
from pipelines.data.sources import Files, GlandMask, PictureSource, TableSource
from pipelines.data.study import Array, Rejected, Unusable
from pipelines.data.tables.features import open_lines
from pipelines.models.file import Ready
from pipelines.models.likeness import Verdict, likeness_in_words
from pipelines.models.recommended import recommended_file
from privacy.message import Json

STUDY = ("patient", "study", "examples", "unlike_training", "distance", "p_value")
SCORED = (*STUDY, "score", "highest_at", "positive")
THRESHOLD = 0.5


class Predictor(NamedTuple):
    """Everything besides the study that a prediction needs. masks: of a segmentation model. maps: of a classifier whose
    maps are wanted.
    """

    ready: Ready
    threshold: float
    out: Path
    masks: MaskWriter | None = None
    maps: MaskWriter | None = None


class Prediction(NamedTuple):
    """A row of the table, and whether the study is positive: its score reaches the threshold, its mask is not empty, or
    its class is not the first. name: of the class, of more than two. unlike: whether it is unlike the training
    patients; None if unknown.
    """

    row: tuple[object, ...]
    positive: bool
    unlike: bool | None = None
    name: str = ""


def predict_folder(options: argparse.Namespace, read_model: Callable[[Path], Ready]) -> int:
    """The command `python -m pipelines.predict`; returns the exit code. read_model: opens the file of a model."""
    torch.set_num_threads(1)

    def work(console: Console) -> int:
        try:
            _check_options(options)
            model = Path(options.model)
            ready = read_model(recommended_file(model) if options.recommended else model)
            _check_fit(ready, options)
            source = _source(ready, options)
            opened = open_unlabelled(ready.images, source, options.gland)
            threshold = THRESHOLD if options.threshold is None else options.threshold
            predictor = open_predictor(ready, threshold, Path(options.out), source, options.gland, maps=options.maps)
        except OSError as error:
            raise ValueError(str(error)) from error
        results = Results[Prediction]([], [*opened.rejected])
        collect("predict", _predictions(predictor, opened, options.readers), len(opened.waiting), results, console)
        accounts = accounted(opened.items, results.refused)
        columns = columns_of(ready.task.kind, ready.images, ready.names)
        write_predictions(predictor.out, (*columns, *(["map"] if predictor.maps else [])), results, accounts)
        unlike = sum(bool(one.unlike) for one in results.done)
        facts = facts_of(results, options.out)
        facts["unlike_training"] = None if isinstance(ready.likeness, str) else unlike
        words = likeness_in_words(ready.likeness, unlike, len(results.done))
        words += f"\n{summary_of(ready.task.kind, threshold, results, options.out)}"
        return finish(
            console, results.code, as_json=options.json, facts=facts, words=words, accounts=accounts, of=opened.of
        )

    return run_batch(work)


def _check_options(options: argparse.Namespace) -> None:
    out = Path(options.out)
    threshold = THRESHOLD if options.threshold is None else options.threshold
    problems = [] if 0 <= threshold <= 1 else [f"--threshold must be in [0, 1], found {threshold}"]
    problems += [f"--out: {options.out!r} is a file; give a folder"] if out.exists() and not out.is_dir() else []
    if problems:
        raise ValueError("; ".join(problems))


def _check_fit(ready: Ready, options: argparse.Namespace) -> None:
    """Check the options against the model."""
    problems = unmapped(ready, Path(options.out), Path(options.folder)) if options.maps else []
    if ready.task.kind == "classification" and ready.names and options.threshold is not None:
        problems.append("--threshold is for two classes, and this model has more: remove it")
    volumes = not isinstance(ready.images, Pictures | Features)
    if volumes and ready.gland and not options.gland and not options.no_gland:
        problems.append(
            "this model learnt from images centred on the gland: give --gland FOLDER with the new patients' masks, or "
            "say --no-gland to centre on the image"
        )
    if ready.task.kind == "segmentation":
        if options.threshold is not None:
            problems.append("--threshold is for scores; a mask shows the most probable class of each pixel: remove it")
        if lies_in(Path(options.out), Path(options.folder)):
            problems.append(
                "--out must not lie in FOLDER, or masks would be read as studies the next time; give another"
            )
        if isinstance(ready.images, Features):
            problems.append("a model of features cannot segment; give a model of images")
    if problems:
        raise ValueError("; ".join(problems))


def _source(ready: Ready, options: argparse.Namespace) -> Files:
    if isinstance(ready.images, Pictures):
        return PictureSource(folder=options.folder, table=".")
    if isinstance(ready.images, Features) and isinstance(ready.source, TableSource):
        return replace(ready.source, file=options.folder)
    kind, select, unit = options.kind, options.select, options.unit
    return source_of(ready.source, options.folder, kind=kind, select=select, unit=unit, learnt="model")


def open_unlabelled(images: AnyImages, source: Files, gland: str | None) -> Intake:
    """Open a folder of unlabelled studies. gland: a folder of masks about which they are cropped, or None.

    Raises:
        ValueError: nothing fits, or a folder is missing.
    """
    if isinstance(images, Pictures) and isinstance(source, PictureSource):
        return loose_pictures(source.folder, images)
    if isinstance(images, Features) and isinstance(source, TableSource):
        return open_lines(source, images, labelled=False)
    if isinstance(images, Slices) and not gland:
        images = replace(images, slices="all")
    return open_source(source, None, images, GlandMask(folder=gland) if gland else None)


def open_predictor(
    ready: Ready, threshold: float, out: Path, source: Files, gland: str | None, *, maps: bool = False
) -> Predictor:
    """A predictor; where it writes masks or maps it also finds the studies.

    Raises:
        ValueError: the folder and the model do not go together, or nothing fits.
    """
    scores = ready.task.kind == "classification" and not maps
    if scores or isinstance(ready.images, Features) or isinstance(source, TableSource):
        return Predictor(ready, threshold, out)
    maker = mask_maker(str(ready.facts["label"]), ready.digest, datetime.now(UTC).replace(microsecond=0))
    masks = open_mask_writer(ready.images, ready.names, maker, out, source=source, gland=gland)
    return Predictor(ready, threshold, out, maps=masks) if maps else Predictor(ready, threshold, out, masks)


def _predictions(predictor: Predictor, opened: Intake, readers: int) -> Iterator[Prediction | Rejected]:
    ready = predictor.ready
    for study in read_studies(opened.waiting, readers=readers):
        if isinstance(study, Rejected):
            yield study
            continue
        try:
            x = ready.seen(torch.from_numpy(study.examples.images))
            found = prediction_of(predictor, study, ready.probabilities(x), ready.verdict(x))
            if predictor.maps is not None:
                place = write_map(study.study, ready.module, x, study.examples.position, predictor.maps)
                found = found._replace(row=(*found.row, place))
            yield found
        except Unusable as error:
            yield Rejected(study.study, error.reason, error.detail)


def prediction_of(
    predictor: Predictor, study: ReadStudy, probabilities: Tensor, verdict: Verdict | None = None
) -> Prediction:
    """The highest score of a study's examples; or, after writing its mask, the size of each class.

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
    if predictor.masks is not None:
        mask = write_mask(study.study, probabilities.numpy(), study.examples.position, predictor.masks)
        return Prediction((*known, *(f"{size:.6g}" for size in mask.sizes), mask.file), any(mask.sizes), unlike)
    if predictor.ready.names:
        return _of_classes(predictor.ready, known, probabilities, study.examples.position, unlike)
    scores = probabilities[:, 1]
    top = int(scores.argmax())
    value = float(scores[top])
    positive = value >= predictor.threshold
    return Prediction((*known, f"{value:.6f}", int(study.examples.position[top]), int(positive)), positive, unlike)


def _of_classes(
    ready: Ready, known: tuple[object, ...], probabilities: Tensor, position: Array, unlike: bool | None
) -> Prediction:
    """Of grades, the highest predicted for any example; otherwise the class of the mean over examples."""
    if ready.ordered:
        grade = probabilities.argmax(dim=1)
        worst = grade == grade.max()
        top = int(probabilities[:, int(grade.max())].masked_fill(~worst, -1).argmax())
        told = probabilities[top]
    else:
        told = probabilities.mean(dim=0)
        top = int(probabilities[:, int(told.argmax())].argmax())
    found = int(told.argmax())
    row = (ready.names[found], int(position[top]), *(f"{one:.6f}" for one in told.tolist()))
    return Prediction((*known, *row), found > 0, unlike, ready.names[found])


def write_predictions(
    out: Path, columns: Sequence[str], results: Results[Prediction], accounts: Sequence[Account]
) -> None:
    """Write predictions.csv, quarantine.csv and accounted.csv; remove masks and maps that only an earlier one names.
    The quarantine also lists patients of whom nothing was selected.

    Raises:
        OSError: the disk.
    """
    rows = [one.row for one in results.done]
    for column, folder in (("mask", MASKS), ("map", MAPS)):
        forget_masks(out, set(_named(out, column)) - {str(row[-1]) for row in rows}, folder)
    # Write the quarantine first: predictions without it would look complete.
    left_out = refusals(results.refused, accounts)
    write_whole(out / "quarantine.csv", table_bytes(("study", "reason", "detail"), left_out))
    write_whole(out / "accounted.csv", accounts_csv(accounts))
    write_whole(out / "predictions.csv", table_bytes(columns, rows))


def _named(out: Path, column: str) -> list[str]:
    """Masks or maps named in an existing table of predictions."""
    with suppress(OSError, csv.Error, UnicodeError):
        return [row[column] for row in read_table(out / "predictions.csv") if row.get(column)]
    return []


def columns_of(kind: Kind, images: AnyImages, names: Sequence[str]) -> tuple[str, ...]:
    """Columns of predictions.csv. names: as in `Ready`."""
    if kind == "classification":
        return (*STUDY, "class", "highest_at", *(f"p_{name}" for name in names)) if names else SCORED
    unit = "share" if isinstance(images, Pictures) else "ml"
    return (*STUDY, *(f"{name}_{unit}" for name in names), "mask")


def facts_of(results: Results[Prediction], out: str) -> dict[str, Json]:
    """The results as JSON facts."""
    positive: dict[str, Json] = {"positive": sum(one.positive for one in results.done)}
    if any(one.name for one in results.done):
        positive = {"classes": dict(_classes(results))}
    return {"studies": len(results.done), **positive, "quarantined": len(results.refused), "out": out}


def _classes(results: Results[Prediction]) -> dict[str, int]:
    return dict(sorted(Counter(one.name for one in results.done).items()))


def summary_of(kind: Kind, threshold: float, results: Results[Prediction], out: str) -> str:
    """The results in words, and their paths."""
    masks = kind == "segmentation"
    found = f"{sum(one.positive for one in results.done)} "
    found += "with something inside" if masks else f"at or above {threshold:g}"
    if any(one.name for one in results.done):
        found = ", ".join(f"{number} {name}" for name, number in _classes(results).items())
    return (
        f"{len(results.done)} studies {'segmented' if masks else 'scored'}, {found}; "
        f"{len(results.refused)} quarantined.\n"
        f"{Path(out, 'predictions.csv')}\n{Path(out, 'quarantine.csv')}\n{Path(out, 'accounted.csv')}\n{NOTICE}"
    )
