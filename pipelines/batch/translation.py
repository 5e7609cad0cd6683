"""Translate a folder: each study is written as new files, or refused with a reason."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from pipelines.batch.key import build_profile, read_key
from pipelines.batch.loop import NOTICE, Results, collect_results, find_place_problems, finish_batch, run_batch
from pipelines.batch.tables import add_refusals, list_refusals, read_table, table_bytes
from pipelines.batch.translated_study import Job, TranslatedStudy, Waiting, translate_study
from pipelines.batch.translated_values import depends_on_study
from pipelines.data.accounts import Account, format_accounts_csv, list_accounts
from pipelines.data.alike import adapt_source
from pipelines.data.images import Slices
from pipelines.data.index import folder_problems
from pipelines.data.intake import run_in_order, try_collecting
from pipelines.data.labels import open_masks
from pipelines.data.sources import DicomSource, GlandMask, NiftiSource
from pipelines.data.studies import index_volumes
from pipelines.data.study import Item, Rejected
from pipelines.data.writing.dicom_header import Maker
from pipelines.models.translator_file import TranslatorFile, read_translator
from pipelines.runs.stopping import RunLock, Stop, safe_stop
from pipelines.runs.store import remove_unfinished
from privacy.durable import write_whole
from privacy.message import Json

MEASURES = ("mean_change", "largest_change", "limited", "order", "gland_order")
HEADER = ("study", "place", "slices", *MEASURES)


class Opened(NamedTuple):
    """The opened folder. items: each of its files. unselected: number of series that the selection leaves out."""

    waiting: tuple[Waiting, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int
    job: Job


def translate_folder(options: argparse.Namespace) -> int:
    """The command `python -m pipelines.translate`; returns the exit code."""
    torch.set_num_threads(1)
    return run_batch(lambda console: translate_waiting(options, console))


def translate_waiting(options: argparse.Namespace, console: Console) -> int:
    """Translate what is not translated yet, and return the exit code.

    Raises:
        ValueError: lists all problems of the command line.
    """
    file, source = _read_inputs(options)
    with RunLock(Path(options.out)), safe_stop() as stop:
        remove_unfinished(Path(options.out))
        opened = _open_folder(file, source, _build_maker(file, source, options, console), options)
        return _translate_studies(opened, options, console, stop)


def _open_folder(
    file: TranslatorFile, source: DicomSource | NiftiSource, maker: Maker | None, options: argparse.Namespace
) -> Opened:
    """Find the studies in the same way as the translator's training images, reading headers only.

    Raises:
        ValueError: a folder is missing, or nothing fits; all problems at once.
    """
    problems: list[str] = []
    job = Job(source, file, None, Counter(), maker, Path(options.out))
    index = try_collecting(problems, lambda: index_volumes(source, adc=job.adc))
    gland = GlandMask(folder=options.gland) if options.gland else None
    masks = None if gland is None else try_collecting(problems, lambda: open_masks(gland, "--gland"))
    if index is None or problems:
        raise ValueError("; ".join(problems))
    sessions = {(candidate.patient, candidate.session) for candidate in index.candidates}
    job = replace(job, gland=masks, visits=Counter(patient for patient, _ in sessions))
    waiting = tuple(Waiting(candidate, job.place(candidate), candidate.shape[-1]) for candidate in index.candidates)
    return Opened(waiting, index.rejected, index.items, index.unselected, job)


def _read_inputs(options: argparse.Namespace) -> tuple[TranslatorFile, DicomSource | NiftiSource]:
    """The translator, and the source settings of the studies.

    Raises:
        ValueError: lists all problems.
    """
    problems = folder_problems("FOLDER", options.folder)
    problems += find_place_problems(options.folder, options.out, "--out", {"--key": options.key})
    if options.readers < 0:
        problems.append(f"--readers must be >= 0, found {options.readers}")
    file, source = None, None
    try:
        file = read_translator(Path(options.translator))
        problems += _find_misfits(file, options)
        source = _build_source(file, options)
    except OSError as error:
        problems.append(f"TRANSLATOR: {options.translator!r} cannot be read ({error.strerror or type(error).__name__})")
    except ValueError as error:
        problems.append(str(error))
    dicom = isinstance(source, DicomSource)
    if dicom and options.keep_names:
        problems.append("--keep-names is for NIfTI files; those of DICOM are named by their new UIDs: remove it")
    if source is not None and not options.key and (dicom or not options.keep_names):
        problems.append(f"--key is needed for pseudonyms{'' if dicom else ', or say --keep-names'}; give --key FILE")
    if problems or file is None or source is None:
        raise ValueError("\n".join(problems))
    return file, source


def _build_source(file: TranslatorFile, options: argparse.Namespace) -> DicomSource | NiftiSource:
    """The source settings as of the training images. The result must be written into a series, so ADC is not fitted."""
    options_of_source: dict[str, Any] = {"kind": options.kind, "select": options.select, "unit": options.unit}
    source = adapt_source(file.source, options.folder, **options_of_source, trained_name="translator")
    if isinstance(source, NiftiSource) or source.derive == "none":
        return source
    if not options.select:
        raise ValueError(
            "this translator learnt from ADC that was fitted to diffusion-weighted images; a fit makes no series that "
            "could be written back. Give the scanner's own ADC series, as in --select kind=adc"
        )
    return replace(source, derive="none")


def _find_misfits(file: TranslatorFile, options: argparse.Namespace) -> list[str]:
    """Problems of using this translator with these options."""
    misfits = []
    if file.vetoed and not options.even_if_vetoed:
        misfits.append(
            f"quality control vetoed this translator ({', '.join(file.vetoed)}): it may harm what matters in the "
            "images. Use another one, or say --even-if-vetoed"
        )
    if not isinstance(file.images, Slices):
        misfits.append(f"this translator works on {file.images.kind}; those of slices write DICOM and NIfTI")
    elif file.gland and depends_on_study(file) and not (options.gland or options.no_gland):
        misfits.append(
            "this translator measures a study about the gland: give --gland FOLDER with the masks, or say --no-gland "
            "to measure it about the image's centre"
        )
    if options.gland and options.no_gland:
        misfits.append("--gland and --no-gland contradict each other; give one of them")
    return misfits


def _build_maker(
    file: TranslatorFile, source: DicomSource | NiftiSource, options: argparse.Namespace, console: Console
) -> Maker | None:
    """The maker of de-identified files; None if files keep their names."""
    if not options.key or options.keep_names:
        return None
    key = read_key(Path(options.key), console)
    blank = source.blank if isinstance(source, DicomSource) else ()
    return Maker(key, build_profile(options, blank), file.site, file.label, file.digest, file.vetoed, blank)


def _translate_studies(opened: Opened, options: argparse.Namespace, console: Console, stop: Stop) -> int:
    """Translate all studies, write the tables, print the summary, and return the exit code."""
    out, results = Path(options.out), Results[TranslatedStudy]([], [*opened.rejected])
    translated = run_in_order(
        opened.waiting,
        lambda study: translate_study(study, opened.job),
        readers=options.readers,
        stopped=lambda: stop.is_requested,
    )
    try:
        collect_results("translate", translated, len(opened.waiting), results, console)
    finally:
        accounts = _account_files(opened, results)
        _write_tables(out, results, accounts)
    stop.check()
    written_count = sum(not study.existed for study in results.done)
    earlier_count, refused_count = len(results.done) - written_count, len(results.refused)
    facts: dict[str, Json] = {"translated": written_count, "there": earlier_count, "quarantined": refused_count}
    facts |= {"unselected": opened.unselected, "out": options.out}
    words = (
        f"{written_count} studies translated, {earlier_count} were there; {refused_count} quarantined; "
        f"{opened.unselected} series not asked for.\n{out}\n{_table_path(out, 'translated')}\n"
        f"{_table_path(out, 'quarantine')}\n{_table_path(out, 'accounted')}\n{NOTICE}"
    )
    return finish_batch(console, results.code, as_json=options.json, facts=facts, words=words, accounts=accounts)


def _account_files(opened: Opened, results: Results[TranslatedStudy]) -> tuple[Account, ...]:
    """The account of each file; after a stop, some studies were not processed."""
    processed_studies = {study.waiting.candidate.study for study in results.done} | {
        study.study for study in results.refused
    }
    studies = (study.candidate.study for study in opened.waiting)
    stopped_studies = {
        study: ("stopped", "The run was stopped before its turn.")
        for study in studies
        if study not in processed_studies
    }
    return list_accounts(opened.items, results.refused, stopped_studies)


def _write_tables(out: Path, results: Results[TranslatedStudy], accounts: Sequence[Account]) -> None:
    """Write the three tables; figures of earlier runs on studies that still exist are kept."""
    table = _table_path(out, "translated")
    rows: dict[str, tuple[object, ...]] = {}
    if table.is_file():
        rows = {row["place"]: tuple(row[key] for key in HEADER) for row in read_table(table)}
        rows = {place: row for place, row in rows.items() if (out / place).exists()}
    for study in results.done:
        place, numbers = study.waiting.place, (study.mean, study.largest, study.limited, study.order, study.gland_order)
        cells = ("" if math.isnan(number) else f"{number:.6g}" for number in numbers)
        if not (study.existed and place in rows):
            rows[place] = (study.waiting.candidate.study, place, study.waiting.slices, *cells)
    # Write the quarantine first: a folder of translations without it would look complete.
    add_refusals(_table_path(out, "quarantine"), "study", list_refusals(results.refused, accounts))
    write_whole(_table_path(out, "accounted"), format_accounts_csv(accounts))
    write_whole(table, table_bytes(HEADER, list(rows.values())))


def _table_path(out: Path, name: str) -> Path:
    """Path of one of the tables, next to the folder of results."""
    return out.parent / f"{out.name or 'out'}.{name}.csv"
