"""Apply a model to unlabelled studies: tables of scores or masks, and of refused studies with reasons.

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

import torch
from rich.console import Console

from federation.task import Kind
from pipelines.batch.captures import CAPTURES, CaptureWriter
from pipelines.batch.key import read_key
from pipelines.batch.loop import NOTICE, Results, collect_results, finish_batch, run_batch
from pipelines.batch.maps import MAPS, find_map_problems
from pipelines.batch.masks import (
    MASKS,
    REGIONS,
    build_result_maker,
    is_mixed_with_studies,
    open_mask_writer,
    remove_named_files,
)
from pipelines.batch.reports import REPORTS, ReportWriter
from pipelines.batch.scoring import Prediction, Predictor, list_columns, predict_study
from pipelines.batch.tables import list_refusals, read_table, remove_part_files, table_bytes
from pipelines.data.accounts import Account, format_accounts_csv, list_accounts
from pipelines.data.alike import adapt_source
from pipelines.data.examples import open_source
from pipelines.data.images import AnyImages, Features, Pictures, Slices, Tensors
from pipelines.data.intake import Intake, read_studies
from pipelines.data.label_numbers import LabelRange
from pipelines.data.pictures.reader import open_loose_pictures
from pipelines.data.sources import DicomSource, Files, GlandMask, PictureSource, TableSource, TensorSource
from pipelines.data.study import Rejected, Unusable
from pipelines.data.tables.features import open_lines
from pipelines.data.writing.dicom_source import Pseudonymous
from pipelines.models.file import Ready
from pipelines.models.likeness import likeness_in_words
from pipelines.models.recommended import recommended_file
from privacy.deidentify.profile import Profile
from privacy.durable import write_whole
from privacy.message import Json

THRESHOLD = 0.5
IN_PYTHON = "apply it in Python, as docs/how-to/python.md shows"


def predict_folder(options: argparse.Namespace, read_model: Callable[[Path], Ready]) -> int:
    """The command `python -m pipelines.predict`; returns the exit code. read_model: opens the file of a model."""
    torch.set_num_threads(1)

    def run_work(console: Console) -> int:
        try:
            _check_options(options)
            model = Path(options.model)
            ready = read_model(recommended_file(model) if options.recommended else model)
            _check_fit(ready, options)
            source = build_study_source(ready, options)
            opened = open_unlabelled(ready.images, source, options.gland)
            threshold = THRESHOLD if options.threshold is None else options.threshold
            extras = {"maps": options.maps, "reports": options.reports, "captures": options.captures}
            pseudonymous = Pseudonymous(read_key(Path(options.key), console), Profile()) if options.key else None
            places = (Path(options.out), source, options.gland)
            predictor = open_predictor(ready, threshold, *places, **extras, pseudonymous=pseudonymous)
        except OSError as error:
            raise ValueError(str(error)) from error
        results = Results[Prediction]([], [*opened.rejected])
        collect_results(
            "predict", _predict_studies(predictor, opened, options.readers), len(opened.waiting), results, console
        )
        accounts = list_accounts(opened.items, results.refused)
        regions = () if isinstance(source, DicomSource) else [*ready.regions]
        columns = list_columns(ready.task.kind, ready.images, names_of(ready), regions=regions, **extras)
        write_predictions(predictor.out, columns, results, accounts)
        unlike = sum(bool(prediction.unlike) for prediction in results.done)
        facts = prediction_facts(results, options.out, ready.number)
        facts["unlike_training"] = None if isinstance(ready.likeness, str) else unlike
        facts["cut_off"] = ready.origin.cut_off or None
        words = f"! This model was {facts['cut_off']}.\n" if facts["cut_off"] else ""
        words += likeness_in_words(ready.likeness, unlike, len(results.done))
        words += f"\n{describe_predictions(ready.task.kind, threshold, results, options.out, ready.number)}"
        return finish_batch(
            console, results.code, as_json=options.json, facts=facts, words=words, accounts=accounts, of=opened.of
        )

    return run_batch(run_work)


def _check_options(options: argparse.Namespace) -> None:
    """Raise ValueError with the problems of --threshold and --out."""
    out = Path(options.out)
    threshold = THRESHOLD if options.threshold is None else options.threshold
    problems = [] if 0 <= threshold <= 1 else [f"--threshold must be in [0, 1], found {threshold}"]
    problems += [f"--out: {options.out!r} is a file; give a folder"] if out.exists() and not out.is_dir() else []
    if problems:
        raise ValueError("; ".join(problems))


def _check_fit(ready: Ready, options: argparse.Namespace) -> None:
    """Check the options against the model."""
    extra = [name for name in ("maps", "captures", "reports") if getattr(options, name)]
    if isinstance(ready.images, Tensors):
        raise ValueError(f"this model takes tensors {list(ready.images.inputs)}, which no FOLDER holds: {IN_PYTHON}")
    problems = [problem for name in extra if name != "reports" for problem in find_map_problems(ready, f"--{name}")]
    problems += [
        problem for name in extra if name != "maps" for problem in _find_result_problems(ready, options, f"--{name}")
    ]
    if options.key and not {"captures", "reports"} & {*extra} and ready.task.kind != "segmentation":
        problems.append("--key is for DICOM files that are written: add --reports or --captures, or remove it")
    if extra and ready.task.kind != "segmentation" and is_mixed_with_studies(Path(options.out), Path(options.folder)):
        problems.append(
            f"--out must not lie in FOLDER, or {extra[0]} would be read as studies the next time; give another"
        )
    if ready.task.kind == "classification" and ready.names and options.threshold is not None:
        problems.append("--threshold is for two classes, and this model has more: remove it")
    volumes = not isinstance(ready.images, Pictures | Features)
    if volumes and ready.gland and not options.gland and not options.no_gland:
        problems.append(
            "this model learnt from images centred on the gland: give --gland FOLDER with the new patients' masks, or "
            "say --no-gland to centre on the image"
        )
    if ready.task.kind == "regression" and options.threshold is not None:
        problems.append("--threshold is for scores, and this model predicts a number: remove it")
    if ready.task.kind == "segmentation":
        if options.threshold is not None:
            problems.append("--threshold is for scores; a mask shows the most probable class of each pixel: remove it")
        if is_mixed_with_studies(Path(options.out), Path(options.folder)):
            problems.append(
                "--out must not lie in FOLDER, or masks would be read as studies the next time; give another"
            )
        if isinstance(ready.images, Features):
            problems.append("a model of features cannot segment; give a model of images")
    if problems:
        raise ValueError("; ".join(problems))


def _find_result_problems(ready: Ready, options: argparse.Namespace, option: str) -> list[str]:
    """Why a model and a folder give no results for a PACS; empty = they do."""
    if ready.task.kind == "segmentation":
        return [f"{option} is for scores, and this model draws masks, which are DICOM objects anyway: remove it"]
    if isinstance(ready.images, Pictures | Features) or (options.kind or ready.source.kind) != "dicom":
        return [f"{option} is for DICOM series, and FOLDER holds other files: remove it, or say --kind dicom"]
    return []


def build_study_source(ready: Ready, options: argparse.Namespace) -> Files:
    """The source settings of the studies in `options.folder`: as in training, with the changes in the options."""
    if isinstance(ready.images, Pictures):
        return PictureSource(folder=options.folder, table=".")
    if isinstance(ready.images, Features) and isinstance(ready.source, TableSource):
        return replace(ready.source, file=options.folder)
    kind, select, unit = options.kind, options.select, options.unit
    return adapt_source(ready.source, options.folder, kind=kind, select=select, unit=unit, trained_name="model")


def open_unlabelled(images: AnyImages, source: Files, gland: str | None) -> Intake:
    """Open a folder of unlabelled studies. gland: a folder of masks about which they are cropped, or None.

    Raises:
        ValueError: nothing fits, or a folder is missing.
    """
    if isinstance(images, Pictures) and isinstance(source, PictureSource):
        return open_loose_pictures(source.folder, images)
    if isinstance(images, Features) and isinstance(source, TableSource):
        return open_lines(source, images, labelled=False)
    if isinstance(images, Slices) and not gland:
        images = replace(images, slices="all")
    return open_source(source, None, images, GlandMask(folder=gland) if gland else None)


def open_predictor(
    ready: Ready,
    threshold: float,
    out: Path,
    source: Files,
    gland: str | None,
    *,
    maps: bool = False,
    reports: bool = False,
    captures: bool = False,
    when: datetime | None = None,
    pseudonymous: Pseudonymous | None = None,
) -> Predictor:
    """A predictor; if it writes masks, maps or captures, it also finds the studies.

    maps, reports, captures: whether a classifier's are written. when: the time in the results; None = now.
    pseudonymous: None = patients have the images' names in DICOM results.

    Raises:
        ValueError: the folder and the model do not go together, or nothing fits.
    """
    time = datetime.now(UTC).replace(microsecond=0) if when is None else when
    maker = build_result_maker(ready.origin.label, ready.digest, time)
    predictor = Predictor(
        *(ready, threshold, out, maker),
        write_maps=maps,
        captures=CaptureWriter(maker, out, pseudonymous) if captures else None,
        reports=ReportWriter(maker, out, pseudonymous) if reports else None,
    )
    scores = ready.task.kind != "segmentation" and not (maps or captures)
    if scores or isinstance(ready.images, Features | Tensors) or isinstance(source, TableSource | TensorSource):
        return predictor
    opened = open_mask_writer(ready.images, ready.names, maker, out, source=source, gland=gland)
    opened = replace(opened, pseudonymous=pseudonymous, regions=ready.regions, largest=ready.kept_structures)
    return predictor._replace(maps=opened) if maps or captures else predictor._replace(masks=opened)


def _predict_studies(predictor: Predictor, opened: Intake, readers: int) -> Iterator[Prediction | Rejected]:
    """The prediction of each study, or why it is rejected."""
    for study in read_studies(opened.waiting, readers=readers):
        if isinstance(study, Rejected):
            yield study
            continue
        try:
            yield predict_study(predictor, study)
        except Unusable as error:
            yield Rejected(study.study, error.reason, error.detail)


def write_predictions(
    out: Path, columns: Sequence[str], results: Results[Prediction], accounts: Sequence[Account]
) -> None:
    """Write predictions.csv, quarantine.csv and accounted.csv; remove files that only an earlier table names, and
    unfinished files of a killed call. The quarantine also lists patients without any selected image.

    Raises:
        OSError: the disk.
    """
    written_files = {
        place
        for prediction in results.done
        for place in (
            *(prediction.mask, *prediction.regions, *prediction.maps),
            *(prediction.report, prediction.capture),
        )
    }
    folders = {"mask": MASKS, "region": REGIONS, "map": MAPS, "report": REPORTS, "capture": CAPTURES}
    for column, folder in folders.items():
        remove_named_files(out, set(_read_named_files(out, column)) - written_files, folder)
        for place in (out / folder, *(out / folder).glob("*/")):
            remove_part_files(place)
    remove_part_files(out)
    # Write the quarantine first: predictions without it would look complete.
    left_out = list_refusals(results.refused, accounts)
    write_whole(out / "quarantine.csv", table_bytes(("study", "reason", "detail"), left_out))
    write_whole(out / "accounted.csv", format_accounts_csv(accounts))
    write_whole(out / "predictions.csv", table_bytes(columns, [prediction.cells for prediction in results.done]))


def _read_named_files(out: Path, column: str) -> list[str]:
    """Masks, maps or reports named in an existing table of predictions; of several findings, `map_<finding>` each, and
    of regions `region_<region>`.
    """
    with suppress(OSError, csv.Error, UnicodeError):
        return [
            place
            for row in read_table(out / "predictions.csv")
            for name, place in row.items()
            if place and (name == column or name.startswith(f"{column}_"))
        ]
    return []


def names_of(ready: Ready) -> tuple[str, ...]:
    """The names by which the table of predictions calls what a model gives: of masks those of their structures."""
    return tuple(ready.structures) if ready.task.kind == "segmentation" else ready.names


def prediction_facts(results: Results[Prediction], out: str, number: LabelRange | None = None) -> dict[str, Json]:
    """The results as JSON facts. number: what was predicted, if that is a number."""
    positive: dict[str, Json] = {"positive": sum(prediction.positive for prediction in results.done)}
    if any(prediction.name for prediction in results.done):
        positive = {"classes": dict(_count_classes(results))}
    if number is not None:
        positive = {"predicted": number.what, "unit": number.unit}
    return {"studies": len(results.done), **positive, "quarantined": len(results.refused), "out": out}


def _count_classes(results: Results[Prediction]) -> dict[str, int]:
    """The number of studies by predicted class."""
    return dict(sorted(Counter(prediction.name for prediction in results.done).items()))


def describe_predictions(
    kind: Kind, threshold: float, results: Results[Prediction], out: str, number: LabelRange | None = None
) -> str:
    """The results in words, and their paths."""
    masks = kind == "segmentation"
    finding = f"{sum(prediction.positive for prediction in results.done)} "
    finding += "with something inside" if masks else f"at or above {threshold:g}"
    if any(prediction.name for prediction in results.done):
        finding = ", ".join(f"{times} {name}" for name, times in _count_classes(results).items())
    if number is not None:
        finding = f"{number.what}{f' in {number.shown_unit}' if number.shown_unit else ''}"
    return (
        f"{len(results.done)} studies {'segmented' if masks else 'scored'}, {finding}; "
        f"{len(results.refused)} quarantined.\n"
        f"{Path(out, 'predictions.csv')}\n{Path(out, 'quarantine.csv')}\n{Path(out, 'accounted.csv')}\n{NOTICE}"
    )
