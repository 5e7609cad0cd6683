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

from pipelines.batch.key import profile_of, read_key
from pipelines.batch.loop import NOTICE, Results, collect_results, finish_batch, problems_of_places, run_batch
from pipelines.batch.tables import keep_refusals, list_refusals, read_table, table_bytes
from pipelines.batch.translated_study import Done, Job, Waiting, translate
from pipelines.batch.translated_values import looks_at_study
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
    """The opened folder. items: each of its files. unselected: series that the selection leaves out."""

    waiting: tuple[Waiting, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int
    job: Job


def translate_folder(options: argparse.Namespace) -> int:
    """The command `python -m pipelines.translate`; returns the exit code."""
    torch.set_num_threads(1)

    def work(console: Console) -> int:
        file, source = _check_options(options)
        with RunLock(Path(options.out)), safe_stop() as stop:
            remove_unfinished(Path(options.out))
            opened = _open(file, source, _maker(file, source, options, console), options)
            return _translate_studies(opened, options, console, stop)

    return run_batch(work)


def _open(
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
    waiting = tuple(
        Waiting(candidate_study, job.place(candidate_study), candidate_study.shape[-1])
        for candidate_study in index.candidates
    )
    return Opened(waiting, index.rejected, index.items, index.unselected, job)


def _check_options(options: argparse.Namespace) -> tuple[TranslatorFile, DicomSource | NiftiSource]:
    """The translator, and the source settings of the studies.

    Raises:
        ValueError: with all that is wrong.
    """
    problems = folder_problems("FOLDER", options.folder)
    problems += problems_of_places(options.folder, options.out, "--out", {"--key": options.key})
    if options.readers < 0:
        problems.append(f"--readers must be >= 0, found {options.readers}")
    file, source = None, None
    try:
        file = read_translator(Path(options.translator))
        problems += _misfits(file, options)
        source = _source(file, options)
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


def _source(file: TranslatorFile, options: argparse.Namespace) -> DicomSource | NiftiSource:
    """As the training images were found; but a series must be there, into which the result can be written."""
    chosen: dict[str, Any] = {"kind": options.kind, "select": options.select, "unit": options.unit}
    source = adapt_source(file.source, options.folder, **chosen, trained_name="translator")
    if isinstance(source, NiftiSource) or source.derive == "none":
        return source
    if not options.select:
        raise ValueError(
            "this translator learnt from ADC that was fitted to diffusion-weighted images; a fit makes no series that "
            "could be written back. Give the scanner's own ADC series, as in --select kind=adc"
        )
    return replace(source, derive="none")


def _misfits(file: TranslatorFile, options: argparse.Namespace) -> list[str]:
    """Problems of using this translator with these options."""
    wrong = []
    if file.vetoed and not options.even_if_vetoed:
        wrong.append(
            f"quality control vetoed this translator ({', '.join(file.vetoed)}): it may harm what matters in the "
            "images. Use another one, or say --even-if-vetoed"
        )
    if not isinstance(file.images, Slices):
        wrong.append(f"this translator works on {file.images.kind}; those of slices write DICOM and NIfTI")
    elif file.gland and looks_at_study(file) and not (options.gland or options.no_gland):
        wrong.append(
            "this translator measures a study about the gland: give --gland FOLDER with the masks, or say --no-gland "
            "to measure it about the image's centre"
        )
    if options.gland and options.no_gland:
        wrong.append("--gland and --no-gland contradict each other; give one of them")
    return wrong


def _maker(
    file: TranslatorFile, source: DicomSource | NiftiSource, options: argparse.Namespace, console: Console
) -> Maker | None:
    """What de-identifies the translated files; None where they keep their names."""
    if not options.key or options.keep_names:
        return None
    key = read_key(Path(options.key), console)
    blank = source.blank if isinstance(source, DicomSource) else ()
    return Maker(key, profile_of(options, blank), file.site, file.label, file.digest, file.vetoed, blank)


def _translate_studies(opened: Opened, options: argparse.Namespace, console: Console, stop: Stop) -> int:
    """Translate every study, write the tables and return the exit code."""
    out, results = Path(options.out), Results[Done]([], [*opened.rejected])
    translated = run_in_order(
        opened.waiting,
        lambda one: translate(one, opened.job),
        readers=options.readers,
        stopped=lambda: stop.requested,
    )
    try:
        collect_results("translate", translated, len(opened.waiting), results, console)
    finally:
        accounts = _accounts(opened, results)
        _write_tables(out, results, accounts)
    stop.check()
    written = sum(not result.there for result in results.done)
    existing, refused = len(results.done) - written, len(results.refused)
    facts: dict[str, Json] = {"translated": written, "there": existing, "quarantined": refused}
    facts |= {"unselected": opened.unselected, "out": options.out}
    words = (
        f"{written} studies translated, {existing} were there; {refused} quarantined; {opened.unselected} series not "
        f"asked for.\n{out}\n{_table(out, 'translated')}\n{_table(out, 'quarantine')}\n{_table(out, 'accounted')}\n"
        f"{NOTICE}"
    )
    return finish_batch(console, results.code, as_json=options.json, facts=facts, words=words, accounts=accounts)


def _accounts(opened: Opened, results: Results[Done]) -> tuple[Account, ...]:
    """What became of each file; after a stop, some studies were not processed."""
    turned = {result.waiting.candidate.study for result in results.done} | {result.study for result in results.refused}
    studies = (waiting_study.candidate.study for waiting_study in opened.waiting)
    stopped = {study: ("stopped", "The run was stopped before its turn.") for study in studies if study not in turned}
    return list_accounts(opened.items, results.refused, stopped)


def _write_tables(out: Path, results: Results[Done], accounts: Sequence[Account]) -> None:
    """Write the three tables; figures of earlier runs on studies that still exist are kept."""
    table = _table(out, "translated")
    rows: dict[str, tuple[object, ...]] = {}
    if table.is_file():
        rows = {row["place"]: tuple(row[key] for key in HEADER) for row in read_table(table)}
        rows = {place: row for place, row in rows.items() if (out / place).exists()}
    for result in results.done:
        place, numbers = (
            result.waiting.place,
            (result.mean, result.largest, result.limited, result.order, result.gland_order),
        )
        cells = ("" if math.isnan(number) else f"{number:.6g}" for number in numbers)
        if not (result.there and place in rows):
            rows[place] = (result.waiting.candidate.study, place, result.waiting.slices, *cells)
    # Write the quarantine first: a folder of translations without it would look complete.
    keep_refusals(_table(out, "quarantine"), "study", list_refusals(results.refused, accounts))
    write_whole(_table(out, "accounted"), format_accounts_csv(accounts))
    write_whole(table, table_bytes(HEADER, list(rows.values())))


def _table(out: Path, name: str) -> Path:
    """The path of a table next to the output folder."""
    return out.parent / f"{out.name or 'out'}.{name}.csv"
