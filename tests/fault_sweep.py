"""Commands on which every fault is tried, and what their end is held against: see `benchmarks/faults/faults.py`."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import math
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flare_jobs
import folder_archive
import harmonized_run
import yaml
from injected import CUT, LIE, PLACE, STUDIES, Points, injected
from limited import CRASHED, Ended, in_copy
from plainly import plain
from pydantic import TypeAdapter
from small_run import PRIVATE, SMALL, smallest

import pipelines.hospital.simulated
import pipelines.nights.night
import pipelines.phantom.files
from consilium.testing import testbed
from pipelines.__main__ import main
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.exits import Exit, report_uncaught_error
from privacy.dp.accounting import by_split, compute_cost
from privacy.release import ledger as ledgers

RUN = ("run", "tiny.yaml")
PATIENCE = 300
"""Seconds after which a command hangs."""
OF_MACHINE = ("EMFILE", "ENOSPC", "MemoryError")
"""Faults that say nothing of the file."""
MORE_CODES = {"job": (int(Exit.SITE),)}
"""With what they may also end: a hospital whose settings could not be read says that it is `unavailable`."""
IMPORTED_LATE = ("highdicom", "pipelines.night", "pipelines.deidentify", "pipelines.clean")
"""What other commands import when they begin or write: seconds of each copy."""
PLACES = ".places"
"""Ends the name of the file with the places of a command's operations."""
ATTEMPT = re.compile(r"(?<=#)-[0-9]+(?=\.)")
"""What the name of a training has more if it was made again."""
SOURCE = {"kind": "phantom", "scanner": "P", "patients": 8, "slices": 4, "format": "nifti"}


def on_files(said: Mapping[str, Any], kind: str = "nifti") -> dict[str, Any]:
    """The same settings, with phantoms' files in place of phantoms: nothing is made up while a fault is tried."""
    made = copy.deepcopy(dict(said))
    for name, site in made["sites"].items():
        site["source"] = {"kind": kind, "folder": f"{STUDIES}/{name}/images"}
        masks = f"{STUDIES}/{name}/masks"
        site |= {"labels": {"kind": "mask", "folder": f"{masks}/lesion"}, "gland": {"folder": f"{masks}/gland"}}
    return made


@dataclass(frozen=True)
class Case:
    """A command in a folder. begins: what was done there before. over: what lies between coordinator and hospitals: a
    `wire`, or FLARE's two sides, where faults meet the process of the operator (`operator`) or that of a `job`. exact:
    whether models and scores are equal in each run, which noise of the system's entropy prevents. kept: other files
    that must be as without a fault; neither more nor fewer. counted: folders that must have as many files. of:
    what hospitals' files are.
    """

    name: str
    settings: Mapping[str, Any]
    argv: tuple[str, ...] = RUN
    begins: tuple[tuple[str, ...], ...] = ()
    over: Literal["", "wire", "operator", "job"] = ""
    exact: bool = True
    kept: tuple[str, ...] = field(default=())
    counted: tuple[str, ...] = field(default=())
    of: Literal["nifti", "dicom"] = "nifti"


def harmonized() -> dict[str, Any]:
    """Harmonization of real patients' files: without what only phantoms can do."""
    made = harmonized_run.settings()
    for space in ("exported", "oracle"):
        del made["harmonize"]["translate"][space]
    del made["train"]["methods"]["oracle"], made["train"]["method_images"]["oracle"]
    return made


FLARE = (*RUN, "--engine", "flare", "--kit", "kit")
READY = "runs/tiny/sites/a/ready/fedavg.safetensors"
IMAGES = f"{STUDIES}/a/images"
KEY = "hospital.key"
DICOM = f"{STUDIES}/dicom"
DEIDENTIFY = ("deidentify", DICOM, "out", "--key", KEY)
NIGHT = {
    "archive": {"kind": "dicomweb", "url": "http://127.0.0.1:1"},
    "ask": {"modality": "MR", "days": 36_500},
    "read": {"no_gland": True},
    "model": READY,
    "state": "state",
}
HARMONIZED = harmonized()
FAR = smallest(pooling="refused")
CASES: tuple[Case, ...] = (
    Case("run", SMALL),
    Case("run over a wire", SMALL, over="wire"),
    Case("private run", PRIVATE, exact=False),
    Case("private run over a wire", PRIVATE, over="wire", exact=False),
    Case("harmonized run", HARMONIZED, exact=False),
    Case("run over FLARE, operator", FAR, FLARE, over="operator"),
    Case("run over FLARE, job", FAR, FLARE, over="job"),
    Case("run that is finished", SMALL, begins=(RUN,)),
    Case("report again", PRIVATE, ("run", "tiny.yaml", "--from", "report", "--fresh"), begins=(RUN,), exact=False),
    Case("predict", SMALL, ("predict", READY, IMAGES, "--no-gland", "--out", "out"), begins=(RUN,), kept=("out",)),
    Case("clean", SMALL, ("clean", "runs", "--older-than", "0h", "--yes"), begins=(RUN,), kept=("runs/tiny/*/*",)),
    Case("deidentify", SMALL, DEIDENTIFY, kept=("out", f"{KEY}.accounted.csv")),
    Case("deidentify with a new key", SMALL, (*DEIDENTIFY[:-1], "new.key"), exact=False, counted=("out",)),
    Case("night", SMALL, ("night", "night.yaml"), begins=(RUN,), exact=False, counted=("archive/taken/*",), of="dicom"),
    Case("ledger verify", PRIVATE, ("ledger", "verify", "runs/tiny/sites/a"), begins=(RUN,), exact=False),
    Case("ledger sum", PRIVATE, ("ledger", "sum", "runs/tiny/sites/a"), begins=(RUN,), exact=False),
)


def warmed(folder: Path, *, harmonized: bool = False) -> None:
    """Import in this process what commands import when they work, so that its copies need not."""
    for module in IMPORTED_LATE:
        importlib.import_module(module)
    standard = importlib.import_module("highdicom._standard_utils")
    for tables in (standard.get_module_attribute_map, standard.get_iod_module_map):  # a second each, then kept
        tables()
    prepared(Case("warm", SMALL), folder)
    runs = {"private": PRIVATE} | ({"harmonized": HARMONIZED} if harmonized else {})
    for name, settings in runs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(on_files({**settings, "name": name})))
        shutil.copytree(folder / "runs/tiny", folder / "runs" / name)  # the keys
    commands = [RUN, *(("run", f"{name}.yaml") for name in runs)]
    here = Path.cwd()
    os.chdir(folder)
    try:
        with plain():
            for argv in (*commands, ("predict", READY, IMAGES, "--no-gland", "--out", "out")):
                if answered(list(argv)):
                    raise RuntimeError(f"{argv} fails without any fault")
    finally:
        os.chdir(here)


class Outcome(NamedTuple):
    """at: which operation of its kind failed. first: the exit code with the fault. then: that of the same command
    again. what: `right`, `named`, `again`, or what was wrong. place: `Points.place`; empty if the operation was not
    reached.
    """

    case: str
    kind: str
    fault: str
    at: int
    first: int
    then: int
    what: str
    place: str = ""


class Result(NamedTuple):
    """What must be the same: contents of files by name; and each hospital's ε."""

    files: Mapping[str, bytes]
    spent: Mapping[str, float]


def prepared(case: Case, folder: Path) -> Path:
    """A folder in which the command of a case can begin."""
    folder.mkdir(parents=True)
    for site in "ab":
        source = TypeAdapter(PhantomSource).validate_python(SOURCE | {"seed": "_ab".index(site), "format": case.of})
        pipelines.phantom.files.write(source, folder / STUDIES / site)
        key = folder / "runs/tiny/sites" / site / "pseudonym.key"  # the same splits in each run
        key.parent.mkdir(parents=True)
        key.write_bytes(hashlib.sha256(site.encode()).digest())
        key.chmod(0o600)
    said = on_files(case.settings, case.of)
    if case.over in ("operator", "job"):
        flare_jobs.written(folder, said["sites"])
        said["sites"] = {name: {"source": {"kind": "elsewhere"}} for name in said["sites"]}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(said))
    if case.argv[0] in ("deidentify", "night"):
        source = TypeAdapter(PhantomSource).validate_python({**SOURCE, "seed": 2, "patients": 3, "format": "dicom"})
        pipelines.phantom.files.write(source, folder / DICOM)
        folder_archive.filled(folder / "archive", sorted((folder / DICOM / "images").rglob("*.dcm")))
        (folder / "night.yaml").write_text(yaml.safe_dump(NIGHT))
        (folder / KEY).write_bytes(hashlib.sha256(b"hospital").digest())
        (folder / KEY).chmod(0o600)
    for argv in case.begins:
        ended = called(case, folder, argv)
        if ended.code:
            raise RuntimeError(f"{case.name}: {argv} ended with {ended}")
    return folder


def called(case: Case, folder: Path, argv: Sequence[str] | None = None, points: Points | None = None) -> Ended:
    """The command of a case in a copy of this process, with a fault if there is one. It is ended if it hangs."""

    def work() -> int:
        signal.alarm(PATIENCE)
        return commanded(case, folder, argv, points)

    return in_copy(work)


def commanded(case: Case, folder: Path, argv: Sequence[str] | None = None, points: Points | None = None) -> int:
    """The command of a case in this process, which is a copy; its code. points: operations to count or to let fail."""
    os.chdir(folder)
    if case.over == "wire":
        pipelines.hospital.simulated.InProcess = testbed.SerializingEngine  # type: ignore[misc, assignment]
    archive = folder_archive.FolderArchive(folder / "archive")
    pipelines.nights.night.open_archive = lambda settings: nullcontext(archive)  # type: ignore[assignment]
    line = list(case.argv if argv is None else argv)
    with plain():
        if case.over in ("operator", "job"):
            return over_flare(line, points, in_job=case.over == "job")
        with met_by(points):
            return answered(line)


def met_by(points: Points | None) -> AbstractContextManager[object]:
    """What meets the operations."""
    return injected(points, allocations=points.kind == "allocation") if points else nullcontext()


def over_flare(line: list[str], points: Points | None, *, in_job: bool) -> int:
    """The exit code of a command whose hospitals are on other machines. in_job: operations are those of its first job,
    not those of the operator.
    """
    if points is None:
        with flare_jobs.here():
            return answered(line)
    job = partial(met_once if in_job else spared, points)
    with flare_jobs.here(job), nullcontext() if in_job else met_by(points):
        return answered(line)


@contextmanager
def met_once(points: Points) -> Iterator[None]:
    """What meets the operations of a job, if no earlier job met it. The places that a job counts are put into a file,
    because it is another process.
    """
    told = Path(f"{points.root}{PLACES}")
    if Path(f"{points.root}{PLACE}").exists() or told.exists():
        points.at = None
    with met_by(points):
        yield
    if points.places is not None:
        told.write_text(json.dumps(points.places))


@contextmanager
def spared(points: Points) -> Iterator[None]:
    """A job meets no fault."""
    points.at = None
    yield


def answered(argv: list[str]) -> int:
    """The exit code of a command, also where argparse or a failing word on stderr ended it."""
    try:
        return main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)
    except (OSError, MemoryError) as error:
        return report_uncaught_error(error)


def counted(case: Case, start: Path, work: Path, *, allocations: bool = False) -> dict[str, list[str]]:
    """Where the command of a case makes its operations, without any fault: `Points.place` of each, by kind."""
    shutil.copytree(start, work)
    told = Path(f"{work}{PLACES}")

    def look() -> int:
        points = Points(work, kind="allocation" if allocations else "", places={})
        code = commanded(case, work, points=points)
        if not told.exists():
            told.write_text(json.dumps(points.places))
        return code

    ended = in_copy(look)
    if ended.code:
        raise RuntimeError(f"{case.name} ended with {ended}")
    places: dict[str, list[str]] = json.loads(told.read_text())
    told.unlink()
    return places


def unforced(case: Case, work: Path) -> list[str]:
    """Sorts of files that a loss of power would damage just after the command of a case has ended well in a folder."""
    told = Path(f"{work}{PLACES}")

    def look() -> int:
        points = Points(work)
        code = commanded(case, work, points=points)
        left = {
            path
            for (_, inode), (path, length) in points.dirty.items()
            if os.path.isfile(path) and os.stat(path).st_ino == inode and os.stat(path).st_size > length
        }
        told.write_text(json.dumps(sorted({points.sort(path) for path in left})))
        return code

    ended = in_copy(look)
    if ended.code:
        raise RuntimeError(f"{case.name} ended with {ended}")
    found: list[str] = json.loads(told.read_text())
    told.unlink()
    return found


def result(case: Case, folder: Path) -> Result:
    """What the command left: of runs that repeat exactly models, states and scores; and what hospitals spent."""
    root = folder / "runs" / "tiny"
    files: dict[str, bytes] = {}
    if case.exact:
        for pattern in ("evaluate/*/*", "train/*/*.json", "sites/*/ready/*", "sites/*/scores/*", *case.kept):
            for path in sorted(folder.glob(pattern) if pattern in case.kept else root.glob(pattern)):
                inside = sorted(path.rglob("*")) if path.is_dir() else [path]
                for one in inside:
                    if one.is_file() and one.name not in ("manifest.json", "asked"):
                        name = re.sub("[0-9a-f]{12}", "#", one.relative_to(folder).as_posix())
                        files[name] = (
                            re.sub(rb"[0-9a-f]{12}", b"#", one.read_bytes())
                            if one.suffix == ".json"
                            else one.read_bytes()
                        )
    else:
        files = {
            path.relative_to(folder).as_posix(): b"" for path in sorted(root.glob("sites/*/ready/fedavg.safetensors"))
        }
    for one in (one for pattern in case.counted for one in sorted(folder.glob(pattern))):
        number = sum(path.is_file() for path in one.rglob("*"))
        files[f"files in {one.relative_to(folder)}"] = str(number).encode()
    for path in sorted(root.glob("ingest/*/sites.json"), key=lambda path: path.stat().st_mtime_ns)[-1:]:
        used = {
            site: [said.get("images"), said.get("rejected")] for site, said in json.loads(path.read_bytes()).items()
        }
        files["images used, and studies that were not"] = json.dumps(used, sort_keys=True).encode()
    return Result(files, {site: epsilon(root / "sites" / site / "ledger.jsonl") for site in "ab"})


def epsilon(ledger: Path) -> float:
    """What all splits of a hospital's patients were charged, added up, so that no split hides another."""
    events = ledgers.spent_events(ledgers.read_lines(ledger))
    whole = compute_cost(events, 1e-5).epsilon
    return whole if math.isinf(whole) else sum(one.epsilon for one in by_split(events, 1e-5).values())


def tried(case: Case, start: Path, wanted: Result, work: Path, kind: str, fault: str, at: int) -> Outcome:
    """Let one operation fail, give the same command again without a fault, and judge where that ends."""
    shutil.copytree(start, work)
    met = work.with_name(work.name + PLACE)
    try:
        first = called(case, work, points=Points(work, kind, fault, at))
        then = called(case, work)
        what = verdict(case, work, wanted, first, then, fault)
        where = met.read_text() if met.exists() else ""
        return Outcome(case.name, kind, fault, at, first.code, then.code, what, where)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        met.unlink(missing_ok=True)


def verdict(case: Case, folder: Path, wanted: Result, first: Ended, then: Ended, fault: str = "") -> str:
    """`right`; `named` if the second command ends with a code of ours that says what is wrong; else what is wrong.

    fault: one `OF_MACHINE` must not be taken for one of settings or of a patient's file. After a `LIE` the disk said
    that it had what it had not. What it lost may be a training: then `again` is right, too, which
    is the same files, of a training under another name, for which patients are charged again.
    """
    codes, lied = {int(code) for code in Exit}, fault == LIE
    if fault in OF_MACHINE and first.code not in (
        0,
        CUT,
        CRASHED,
        Exit.DISK,
        Exit.MEMORY,
        *MORE_CODES.get(case.over, ()),
    ):
        return f"{fault} ended with {first.code}: {first.said[-600:]}"
    if first.code == CRASHED or (first.code not in codes and first.code != CUT):
        return f"the command with the fault ended with {first.code}: {first.said[-600:]}"
    if first.code == Exit.FAILED and "memory" not in first.said and "stage" not in first.said:
        return f"the command with the fault said it was a bug: {first.said[-600:]}"
    if then.code not in codes:
        return f"the command after it ended with {then.code}: {then.said[-600:]}"
    found = result(case, folder) if then.code == Exit.OK else wanted
    more = any(found.spent[site] > wanted.spent[site] * 1.0001 for site in wanted.spent)
    same = {ATTEMPT.sub("", name) for name in found.files} == {*wanted.files}
    if lied and same and (more or {*found.files} != {*wanted.files}):
        return f"again: {found.spent}, and {wanted.spent} without a fault"
    if more:
        return f"spent twice: {found.spent}, and {wanted.spent} without a fault"
    if found.files != wanted.files:
        lost = sorted({*wanted.files} ^ {*found.files}) or [
            n for n in wanted.files if wanted.files[n] != found.files[n]
        ]
        return f"other files: {lost[:5]}"
    return "right" if then.code == Exit.OK else f"named {then.code}: {then.said[-300:]}"


__all__ = ["CASES", "CUT", "Case", "Outcome", "counted", "prepared", "result", "tried", "warmed"]
