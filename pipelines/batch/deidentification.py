"""De-identification of a folder: each file is written without identifying data, or refused with a reason."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pipelines.batch.blanking import Review, confirm_sheet, make_sheet, next_steps, read_original
from pipelines.batch.confirmations import read_confirmed_images
from pipelines.batch.key import build_profile, read_key
from pipelines.batch.layouts_file import read_layouts
from pipelines.batch.loop import Results, collect_results, find_place_problems, print_text, run_batch
from pipelines.batch.tables import add_refusals
from pipelines.data.accounts import Account, describe_outcomes, format_accounts_csv, list_accounts
from pipelines.data.folder import relative_name, walk_folder
from pipelines.data.index import folder_problems
from pipelines.data.study import Item
from pipelines.data.writing.dicom_header import checked_bytes, file_name, put_evidence
from pipelines.runs.exits import Exit
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, deidentify_image
from privacy.deidentify.layouts import Layout
from privacy.durable import flush_folder, write_whole


@dataclass(frozen=True)
class Outcome:
    """The outcome for a file. kind: `written`, `there` (already written), `other` (not DICOM), or a reason. item: why
    an `other` file is left out. folder: of the copy, if there is one.
    """

    path: Path
    kind: str
    detail: str = ""
    item: Item | None = None
    folder: Path | None = None


def deidentify_folder(options: argparse.Namespace) -> int:
    """The command `python -m pipelines.deidentify`; returns the exit code."""

    def run_work(console: Console) -> int:
        layouts = read_layouts(options.blank) if options.blank else ()
        if problems := [*folder_problems("FOLDER", options.folder), *_find_problems(options)]:
            raise ValueError("; ".join(problems))
        try:
            key = read_key(Path(options.key), console)
            read_confirmed_images(Path(options.key))
        except OSError as error:
            raise OSError(f"the key cannot be read or made ({error.strerror or type(error).__name__})") from error
        try:
            return _deidentify_files(options, key, layouts, console)
        except OSError as error:  # the file name in its message may identify a patient
            why = error.strerror or type(error).__name__
            raise OSError(f"cannot go on ({why}); the same command goes on from here") from error

    return run_batch(run_work)


def deidentify_file(path: Path, out: Path, key: bytes, profile: Profile) -> Outcome:
    """De-identify one file, and write it if no identifying data is left.

    Raises:
        OSError: the result cannot be written.
    """
    try:
        original = read_original(path)
        if isinstance(original, Item):
            return Outcome(path, "other", item=original)
        cleaned = deidentify_image(original, key=key, profile=profile)
        put_evidence(cleaned, original)
        data = checked_bytes(original, cleaned, profile)
    except NotDeidentifiable as error:
        return Outcome(path, error.reason, error.detail)
    folder = out / str(cleaned.PatientID) / str(cleaned.StudyInstanceUID) / str(cleaned.SeriesInstanceUID)
    kind, detail = _write_new_file(folder / file_name(cleaned), data)
    return Outcome(path, kind, detail, folder=folder)


def _write_new_file(path: Path, data: bytes) -> tuple[str, str]:
    """Write the file, never over another one; return kind and detail of the outcome."""
    if not path.exists():
        write_whole(path, data, flush_name=False)
        return "written", ""
    if path.read_bytes() == data:
        return "there", ""
    return "duplicate", f"{path.name} is there with other content: the same SOP instance UID, or settings."


def _find_problems(options: argparse.Namespace) -> list[str]:
    """Problems of the places and of --confirm in a command line."""
    protected_files = {"--key": options.key, "--quarantine": str(_table_path(options)), "--blank": options.blank}
    problems = find_place_problems(options.folder, options.out, "OUT", protected_files)
    if options.confirm is not None and not (options.blank and Path(options.blank).is_file()):
        problems.append("--confirm needs the --blank FILE with which the contact sheet was made; add it")
    return problems


def _table_path(options: argparse.Namespace) -> Path:
    """Path of the table of refused files."""
    return Path(options.quarantine or f"{options.key}.quarantine.csv")


def _deidentify_files(options: argparse.Namespace, key: bytes, layouts: tuple[Layout, ...], console: Console) -> int:
    """De-identify all files of the folder, write the tables, and return the exit code."""
    root, mistake = Path(options.folder).resolve(), ""
    listing = walk_folder(root)
    if options.confirm is not None:
        mistake = confirm_sheet(listing.files, Review(root, options, key, build_profile(options, layouts)))
    profile = build_profile(options, layouts)
    results = Results[Outcome]([], [*listing.rejected])
    outcomes = _list_outcomes(listing.files, Path(options.out), key, profile)
    collect_results("de-identify", outcomes, len(listing.files), results, console)
    for folder in sorted({outcome.folder for outcome in results.done if outcome.folder is not None}):
        flush_folder(folder)
    accounts = [
        *list_accounts(listing.left, listing.rejected),
        *(_build_account(root, outcome) for outcome in results.done),
    ]
    refused = [(account.file, account.reason, account.detail) for account in accounts if account.what == "quarantined"]
    add_refusals(_table_path(options), "file", refused)
    write_whole(Path(f"{options.key}.accounted.csv"), format_accounts_csv(accounts))
    steps: list[str] = []
    if options.blank:
        waiting, unknown = (
            [outcome.path for outcome in results.done if outcome.kind == kind] for kind in ("unconfirmed", "burned_in")
        )
        sheet = make_sheet(waiting, unknown, Review(root, options, key, profile))
        steps = next_steps(sheet, options) if sheet else []
    counts = Counter(outcome.kind for outcome in results.done)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    lines = [
        f"{len(listing.files)} files: {kinds or 'nothing'}",
        describe_outcomes(accounts),
        *([mistake] if mistake else []),
    ]
    if refused:
        lines.append(
            f"{len(refused)} files were refused; the table of them is beside the key or where you named it. It names "
            "the input's files and stays in the hospital."
        )
    print_text(console, "\n".join([*lines, *steps]))
    return int(Exit.DATA if refused or mistake or not counts["written"] + counts["there"] else Exit.OK)


def _list_outcomes(paths: Sequence[Path], out: Path, key: bytes, profile: Profile) -> Iterator[Outcome]:
    """The outcome of each file, one after another."""
    for path in paths:
        yield deidentify_file(path, out, key, profile)


def _build_account(root: Path, outcome: Outcome) -> Account:
    """The account of a file from its outcome."""
    name = relative_name(root, outcome.path)
    if outcome.item is not None:
        return Account(name, *list_accounts([outcome.item], [])[0][1:])
    if outcome.kind in ("written", "there"):
        return Account(name, "used", "", "", "", "", outcome.detail)
    return Account(name, "quarantined", "", "", "", outcome.kind, outcome.detail)
