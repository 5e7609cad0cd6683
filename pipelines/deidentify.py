"""python -m pipelines.deidentify FOLDER OUT --key FILE: every DICOM image below FOLDER without what identifies.

Writes OUT/<pseudonym>/<study>/<series>/<number>-<8 letters>.dcm, where study and series are the new UIDs, the number is
the instance number, and the letters follow from the new SOP instance UID. The same key gives the same files again: a
second run writes nothing new. Files that must not leave are listed, with reasons, in a table beside the key, and what
became of each file in another, KEY.accounted.csv. Like the key, both stay in the hospital: they name the input's files.
What is printed names no file, no patient, no value.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pydicom
from rich.console import Console

from pipelines.batch.blanking import Desk, confirm_sheet, make_sheet, read_original, told_of
from pipelines.batch.confirmations import confirmed_images
from pipelines.batch.layouts_file import read_layouts
from pipelines.batch.refusals import keep_refusals
from pipelines.data.accounts import Account, accounted, accounts_csv, in_words
from pipelines.data.folder import below, walked
from pipelines.data.index import folder_problems
from pipelines.data.study import Item
from pipelines.runs.exits import Exit
from pipelines.runs.progress import shown
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, as_bytes, deidentify
from privacy.deidentify.layouts import Layout
from privacy.deidentify.leftovers import leftovers

KEY_BYTES = 32
KEY_VALUES = 16  # different bytes; 32 drawn by chance have fewer once in 10**16 times
LONGEST_NUMBER = 99999


@dataclass(frozen=True)
class Outcome:
    """What became of a file. kind: `written`, `there` (the same bytes were there), `other` (no DICOM), or a reason.
    item: of `other`, why it is left out.
    """

    kind: str
    detail: str = ""
    item: Item | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 0 all images are there, 2 command line, 3 some were refused, 7 disk."""
    line = parser()
    options = line.parse_args(arguments)
    os.umask(0o077)
    console = Console(stderr=True)
    try:
        layouts = read_layouts(options.blank) if options.blank else ()
        problems = [*folder_problems("FOLDER", options.folder), *_places(options)]
        if problems:
            raise ValueError("; ".join(problems))
        key = read_key(Path(options.key), console)
        confirmed_images(Path(options.key))
    except ValueError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return int(Exit.CONFIG)
    except OSError as error:
        console.print(f"the key cannot be read or made ({_said(error)})", markup=False, highlight=False)
        return int(Exit.DISK)
    return _run(options, key, layouts, console)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m pipelines.deidentify", description=__doc__.splitlines()[0])
    made.add_argument("folder", help="where the hospital's files are; nothing in it is changed")
    made.add_argument("out", help="where to write; it must not lie in FOLDER, nor FOLDER in it")
    made.add_argument("--key", required=True, metavar="FILE", help="the hospital's secret; made if there is none")
    made.add_argument("--quarantine", metavar="FILE", help="the table of refused files (default: KEY.quarantine.csv)")
    made.add_argument("--blank", metavar="FILE", help="where text stands in images; if there is none, a draft")
    made.add_argument("--confirm", metavar="DIGEST", help="of a contact sheet: no text is left in the images on it")
    made.add_argument("--keep-device", action="store_true", help="keep serial numbers and names of devices")
    made.add_argument("--keep-characteristics", action="store_true", help="keep sex, age (at most 90), size, weight")
    made.add_argument("--keep-times", action="store_true", help="keep times of day; dates are moved in any case")
    return made


def read_key(path: Path, console: Console) -> bytes:
    """The secret in a file; if there is no file, a new secret, readable for its owner alone.

    Raises:
        ValueError: it is not 32 bytes of chance, or others may read it.
        OSError: it cannot be read or made.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if path.stat().st_mode & 0o077:
            raise ValueError("--key: others may read the file; run chmod 600 on it first") from None
        if len(key) != KEY_BYTES or len(set(key)) < KEY_VALUES:
            raise ValueError(
                f"--key: must be {KEY_BYTES} bytes of chance, with at least {KEY_VALUES} different values, found "
                f"{len(key)} with {len(set(key))}; give the right file, or a new name, and one is made"
            ) from None
        return key
    key = secrets.token_bytes(KEY_BYTES)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(key)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:  # a full disk: half a key would be taken for a wrong one next time
        path.unlink(missing_ok=True)
        raise
    console.print(
        "A new key was made. Back it up where only the hospital can read it: without it new files cannot be joined to "
        "these, and with it every pseudonym can be traced.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return key


def _profile(options: argparse.Namespace, layouts: tuple[Layout, ...]) -> Profile:
    return Profile(
        blank=layouts,
        confirmed=confirmed_images(Path(options.key)),
        keep_device=options.keep_device,
        keep_characteristics=options.keep_characteristics,
        keep_times=options.keep_times,
    )


def _places(options: argparse.Namespace) -> list[str]:
    folder, out = Path(options.folder).resolve(), Path(options.out).resolve()
    wrong = []
    if out.is_relative_to(folder) or folder.is_relative_to(out):
        wrong.append("OUT must not lie in FOLDER, nor FOLDER in OUT; give another OUT")
    if out.exists() and not out.is_dir():
        wrong.append("OUT is a file; give a folder")
    if options.confirm is not None and not (options.blank and Path(options.blank).is_file()):
        wrong.append("--confirm needs the --blank FILE with which the contact sheet was made; add it")
    for name, place in (("--key", options.key), ("--quarantine", _table(options)), ("--blank", options.blank)):
        if place and Path(place).resolve().is_relative_to(out):
            wrong.append(f"{name} must not lie in OUT: it stays in the hospital; give another place")
    return wrong


def _table(options: argparse.Namespace) -> Path:
    return Path(options.quarantine or f"{options.key}.quarantine.csv")


def _run(options: argparse.Namespace, key: bytes, layouts: tuple[Layout, ...], console: Console) -> int:
    root = Path(options.folder).resolve()
    sheet, said = None, ""
    try:
        found = walked(root)
        paths = found.files
        if options.confirm is not None:
            said = confirm_sheet(paths, Desk(root, options, key, _profile(options, layouts)))
        profile = _profile(options, layouts)
        outcomes = _outcomes(paths, Path(options.out), key, profile, console)
        done = list(zip(paths, outcomes, strict=True))
        accounts = [*accounted(found.left, found.rejected)]
        accounts += [_account(below(root, path), outcome) for path, outcome in done]
        refused = [(each.file, each.reason, each.detail) for each in accounts if each.what == "quarantined"]
        keep_refusals(_table(options), "file", refused)
        _put(Path(f"{options.key}.accounted.csv"), accounts_csv(accounts))
        if options.blank:
            waiting, unknown = (
                [path for path, outcome in done if outcome.kind == kind] for kind in ("unconfirmed", "burned_in")
            )
            sheet = make_sheet(waiting, unknown, Desk(root, options, key, profile))
    except OSError as error:
        console.print(f"cannot go on ({_said(error)}); the same command goes on from here", markup=False)
        return int(Exit.DISK)
    counts = Counter(outcome.kind for outcome in outcomes)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    lines = [f"{len(paths)} files: {told or 'nothing'}", in_words(accounts), *([said] if said else [])]
    if refused:
        lines.append(
            f"{len(refused)} files were refused; the table of them is beside the key or where you named it. It names "
            "the input's files and stays in the hospital."
        )
    lines += told_of(sheet, options) if sheet else []
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return int(Exit.DATA if refused or said or not counts["written"] + counts["there"] else Exit.OK)


def _outcomes(paths: Sequence[Path], out: Path, key: bytes, profile: Profile, console: Console) -> list[Outcome]:
    outcomes = []
    with shown("de-identify", console=console) as step:
        for done, path in enumerate(paths):
            step(done, len(paths))
            outcomes.append(one(path, out, key, profile))
        step(len(paths), len(paths))
    return outcomes


def _account(name: str, outcome: Outcome) -> Account:
    if outcome.item is not None:
        return Account(name, *accounted([outcome.item], [])[0][1:])
    used = outcome.kind in ("written", "there")
    return Account(name, "used" if used else "quarantined", "", "", "", "" if used else outcome.kind, outcome.detail)


def one(path: Path, out: Path, key: bytes, profile: Profile) -> Outcome:
    """De-identify one file and write it, if nothing of its identity is left.

    Raises:
        OSError: the result cannot be written.
    """
    try:
        original = read_original(path)
        if isinstance(original, Item):
            return Outcome("other", item=original)
        cleaned = deidentify(original, key=key, profile=profile)
        data = as_bytes(cleaned)
        kept = profile.keep_device or profile.keep_characteristics or profile.keep_times
        left = leftovers(original, data, private=profile.keep_private, kept=kept)
        if left:
            raise NotDeidentifiable("leftover", "; ".join(left[:5]))
    except NotDeidentifiable as error:
        return Outcome(error.reason, error.detail)
    target = out / str(cleaned.PatientID) / str(cleaned.StudyInstanceUID) / str(cleaned.SeriesInstanceUID)
    return _written(target / _name(cleaned), data)


def _name(cleaned: pydicom.Dataset) -> str:
    number = str(cleaned.get("InstanceNumber") or 0)
    plain = min(int(number), LONGEST_NUMBER) if number.isdecimal() else 0
    return f"{plain:05d}-{hashlib.sha256(str(cleaned.SOPInstanceUID).encode()).hexdigest()[:8]}.dcm"


def _written(path: Path, data: bytes) -> Outcome:
    """Write the file whole or not at all, and never over another one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if path.read_bytes() == data:
            return Outcome("there")
        return Outcome("duplicate", f"{path.name} is there with other content: the same SOP instance UID, or settings.")
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)
    return Outcome("written")


def _put(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)


def _said(error: OSError) -> str:
    return error.strerror or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
