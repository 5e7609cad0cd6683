"""python -m pipelines.translate TRANSLATOR FOLDER --out OUT --key FILE: a hospital's studies, translated, as new files.

TRANSLATOR is a file of a site's own, runs/<name>/sites/<site>/translators/<label>.safetensors; it says how images were
made when it was trained. FOLDER holds DICOM or NIfTI files and is not changed. OUT gets de-identified files of the same
geometry, OUT/<pseudonym>/<study>/<series>/ for DICOM, OUT/<pseudonym>/ for NIfTI. The same key gives the same names,
and what is there already is left alone, so a run that was stopped goes on with the same command. Three tables beside
OUT name the input's studies and stay in the hospital: OUT.translated.csv, OUT.quarantine.csv and OUT.accounted.csv, a
line for each file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from evaluation.csv_text import csv_text, read_csv_text
from pipelines.batch.confirmations import confirmed_images
from pipelines.batch.refusals import keep_refusals
from pipelines.batch.translation import Done, translate
from pipelines.batch.waiting import Opened, open_waiting
from pipelines.data.accounts import Account, accounted, accounts_csv, as_facts, in_words, unserved
from pipelines.data.alike import UNITS, source_of
from pipelines.data.grids.translated_grid import looks_at_study
from pipelines.data.images import Slices
from pipelines.data.index import folder_problems
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.study import Rejected
from pipelines.data.translator_file import TranslatorFile, read_translator
from pipelines.data.writing.dicom_header import Maker
from pipelines.deidentify import read_key
from pipelines.runs.exits import Exit, exit_code
from pipelines.runs.progress import shown
from pipelines.runs.stopping import RunLock, Stop, safe_stop
from pipelines.runs.store import clean
from privacy.deidentify.dicom_image import Profile

MEASURES = ("mean_change", "largest_change", "limited", "order", "gland_order")
HEADER = ("study", "place", "slices", *MEASURES)
NOTICE = "For research use only: not a medical device, not for diagnosis."


def main(arguments: Sequence[str] | None = None) -> int:
    """Translate, and return the exit code (see docs/reference/exit-codes.md): 3 if nothing could be translated."""
    options = parser().parse_args(arguments)
    os.umask(0o077)
    torch.set_num_threads(1)
    console = Console(stderr=True)
    try:
        file, source = _checked(options)
        with RunLock(Path(options.out)), safe_stop() as stop:
            clean(Path(options.out))
            maker = _maker(file, source, options, console)
            opened = open_waiting(file, source, gland=options.gland, maker=maker, out=Path(options.out))
            return _translated(opened, options, console, stop)
    except ValueError as error:
        _say(console, str(error))
        return int(Exit.CONFIG)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if code is Exit.FAILED:
            raise
        _say(console, str(error) or type(error).__name__)
        return int(code)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m pipelines.translate", description=__doc__.splitlines()[0])
    made.add_argument("translator", help="a translator of a site: runs/<name>/sites/<site>/translators/...safetensors")
    made.add_argument("folder", help="the studies; nothing in it is changed")
    made.add_argument("--out", required=True, help="where to write; it must not lie in FOLDER, nor FOLDER in it")
    made.add_argument("--key", metavar="FILE", help="the hospital's secret; made if there is none")
    made.add_argument("--keep-names", action="store_true", help="NIfTI: names stay as they are, and no key is needed")
    made.add_argument("--kind", choices=["dicom", "nifti"], help="what FOLDER holds, if not what it was trained on")
    made.add_argument("--select", metavar="KEYWORD=TEXT", action="append", default=[], help="DICOM files to use")
    made.add_argument("--unit", choices=UNITS, help="unit of ADC maps whose files do not say that they are ADC")
    made.add_argument("--gland", metavar="FOLDER", help="gland masks, <patient>.nii.gz, if it was trained with them")
    made.add_argument("--no-gland", action="store_true", help="measure a study about the image's centre instead")
    made.add_argument("--even-if-vetoed", action="store_true", help="use a translator that quality control vetoed")
    made.add_argument("--keep-device", action="store_true", help="keep serial numbers and names of devices")
    made.add_argument("--keep-characteristics", action="store_true", help="keep sex, age (at most 90), size, weight")
    made.add_argument("--keep-times", action="store_true", help="keep times of day; dates are moved in any case")
    made.add_argument("--readers", type=int, default=0, help="studies at a time (default: a processor each, at most 8)")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return made


def _checked(options: argparse.Namespace) -> tuple[TranslatorFile, DicomSource | NiftiSource]:
    """The translator, and how to find the studies.

    Raises:
        ValueError: with all that is wrong.
    """
    problems = [*folder_problems("FOLDER", options.folder), *_places(options)]
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
    found = source_of(file.source, options.folder, **chosen, learnt="translator")
    if isinstance(found, NiftiSource) or found.derive == "none":
        return found
    if not options.select:
        raise ValueError(
            "this translator learnt from ADC that was fitted to diffusion-weighted images; a fit makes no series that "
            "could be written back. Give the scanner's own ADC series, as in --select ImageType=ADC"
        )
    return replace(found, derive="none")


def _places(options: argparse.Namespace) -> list[str]:
    folder, out = Path(options.folder).resolve(), Path(options.out).resolve()
    wrong = []
    if out.is_relative_to(folder) or folder.is_relative_to(out):
        wrong.append("--out must not lie in FOLDER, nor FOLDER in it; give another one")
    if out.exists() and not out.is_dir():
        wrong.append(f"--out: {options.out!r} is a file; give a folder")
    if options.key and Path(options.key).resolve().is_relative_to(out):
        wrong.append("--key must not lie in --out: it stays in the hospital; give another place")
    return wrong


def _misfits(file: TranslatorFile, options: argparse.Namespace) -> list[str]:
    """What speaks against this translator."""
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
    if not options.key or options.keep_names:
        return None
    key = read_key(Path(options.key), console)
    blank = source.blank if isinstance(source, DicomSource) else ()
    profile = Profile(
        blank=blank,
        confirmed=confirmed_images(Path(options.key)) if blank else frozenset(),
        keep_device=options.keep_device,
        keep_characteristics=options.keep_characteristics,
        keep_times=options.keep_times,
    )
    return Maker(key, profile, file.site, file.label, file.digest, file.vetoed, blank)


def _translated(opened: Opened, options: argparse.Namespace, console: Console, stop: Stop) -> int:
    done: list[Done] = []
    refused: list[Rejected] = list(opened.rejected)
    try:
        with shown("translate", console=console) as step:
            for number, result in enumerate(_results(opened, options.readers, stop)):
                step(number, len(opened.waiting))
                if isinstance(result, Rejected):
                    refused.append(result)
                else:
                    done.append(result)
    finally:
        accounts = _accounts(opened, done, refused)
        _tables(Path(options.out), done, refused, accounts)
    stop.check()
    written = sum(not one.there for one in done)
    told = {
        "translated": written,
        "there": len(done) - written,
        "quarantined": len(refused),
        "unselected": opened.unselected,
        **as_facts(accounts),
        "out": options.out,
    }
    code = Exit.OK if done or not refused else Exit.DATA
    if options.json:
        print(json.dumps({**told, "exit": int(code)}))  # noqa: T201 - the machine's answer
    else:
        out = Path(options.out)
        _say(
            console,
            f"{written} studies translated, {len(done) - written} were there; {len(refused)} quarantined; "
            f"{opened.unselected} series not asked for.\n{out}\n{_table(out, 'translated')}\n"
            f"{_table(out, 'quarantine')}\n{_table(out, 'accounted')}\n{NOTICE}\n{in_words(accounts)}",
        )
    return int(code)


def _accounts(opened: Opened, done: Sequence[Done], refused: Sequence[Rejected]) -> tuple[Account, ...]:
    """What became of each file; where the run was stopped, some studies had no turn."""
    turned = {one.waiting.candidate.study for one in done} | {one.study for one in refused}
    studies = (one.candidate.study for one in opened.waiting)
    stopped = {one: ("stopped", "The run was stopped before its turn.") for one in studies if one not in turned}
    return accounted(opened.items, refused, stopped)


def _results(opened: Opened, readers: int, stop: Stop) -> Iterator[Done | Rejected]:
    """One after another, in order; nothing new is begun once a stop was asked for."""
    readers = readers or min(8, os.cpu_count() or 1)
    # Filters of warnings belong to the process: set once here, or readers would restore each other's.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(readers) as pool:
        futures = [pool.submit(translate, one, opened.desk) for one in opened.waiting]
        try:
            for place, future in enumerate(futures):
                if stop.requested:
                    for later in futures[place:]:
                        later.cancel()
                if not future.cancelled():
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _tables(out: Path, done: Sequence[Done], refused: Sequence[Rejected], accounts: Sequence[Account]) -> None:
    """Write the three tables. What earlier runs measured of studies that are still there is kept."""
    table = _table(out, "translated")
    lines: dict[str, tuple[object, ...]] = {}
    if table.is_file():
        known = read_csv_text(table.read_bytes().decode("utf-8", "surrogateescape"))
        lines = {line["place"]: tuple(line[key] for key in HEADER) for line in known}
        lines = {place: line for place, line in lines.items() if (out / place).exists()}
    for one in done:
        place, numbers = one.waiting.place, (one.mean, one.largest, one.limited, one.order, one.gland_order)
        told = ("" if math.isnan(number) else f"{number:.6g}" for number in numbers)
        if not (one.there and place in lines):
            lines[place] = (one.waiting.candidate.study, place, one.waiting.slices, *told)
    # What was left out first: a folder of translations without it would look complete.
    left_out = [(one.study, one.reason, one.detail) for one in (*refused, *unserved(accounts))]
    keep_refusals(_table(out, "quarantine"), "study", left_out)
    _put(_table(out, "accounted"), accounts_csv(accounts))
    _write(table, HEADER, list(lines.values()))


def _table(out: Path, name: str) -> Path:
    return out.parent / f"{out.name or 'out'}.{name}.csv"


def _write(path: Path, header: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    _put(path, csv_text(header, sorted(lines, key=str)).encode("utf-8", "surrogateescape"))


def _put(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
