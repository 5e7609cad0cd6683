"""Nights over a real archive: Orthanc with TLS and a password, a trained model, and everything that goes wrong.

    CONSILIUM_DATA=... PYTHONPATH=tests python -m benchmarks.faults.night [--studies 200] [--kills 30] [--only NAME ...]

Needs Debian's orthanc, orthanc-dicomweb and dicom3tools. Studies: phantoms (DICOM, ADC), ProstateX's and the zoo's real
files. Parts, each with an archive and a state folder of its own:

    nights    the whole archive, a second night, 20 new studies; seconds, memory, what was accounted for, dciodvfy
    kills     kill -9 at random times until the night is through, and what the archive has then
    away      the archive stops for a minute in the middle, and is killed and started again
    slow      the archive answers a tenth of the time only
    changed   studies deleted, and images added, between asking and fetching
    full      the state folder on a disk that is too small (needs to be root)

Results go into benchmarks/measured/night.json, part by part, and the table into docs/results/data/night.json by
`python -m benchmarks.tables.derived --write night`.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import read_measured, write_measured
from orthanc import USER, Orthanc, running_orthanc
from pipelines.nights import lookup, worklist
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main as run

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("CONSILIUM_DATA", ROOT.parent / "shared" / "data"))
PLAIN = {"kind": "phantom", "patients": 16, "slices": 6}


def model_of(folder: Path) -> Path:
    """A classifier of ADC slices, of two phantom hospitals."""
    found = folder / "runs" / "model" / "sites" / "a" / "ready" / "fedavg.safetensors"
    if not found.exists():
        settings = {
            "name": "model",
            "privacy": "none",
            "runs": str(folder / "runs"),
            "threads": 1,
            "sites": {
                "a": {"source": {"kind": "phantom", "scanner": "A", "patients": 24, "seed": 5}},
                "b": {"source": {"kind": "phantom", "scanner": "P", "patients": 24, "seed": 6}},
            },
            "images": {"kind": "slices", "spacing_mm": 2.25, "size": 32},
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
            "model": {"name": "cnn"},
            "train": {
                "schedule": {"rounds": 3},
                "work": {"lr": 1e-3, "batch": 16, "epochs": 1},
                "methods": {"fedavg": {"name": "fedavg"}},
            },
            "evaluate": {"copies": 20, "public": False},
            "audit": {"membership": False},
        }
        (folder / "model.yaml").write_text(yaml.safe_dump(settings))
        if code := run([str(folder / "model.yaml"), "--until", "evaluate"]):
            sys.exit(code)
    return found


def phantoms(folder: Path, count: int, seed: int) -> list[Path]:
    """Files of so many studies."""
    made = folder / f"phantoms-{seed}-{count}"
    if not made.exists():
        source = PhantomSource(scanner="A", patients=count, seed=seed, format="dicom")
        write(source, made)
    return sorted(path for path in (made / "images").rglob("*") if path.is_file())


def real() -> list[Path]:
    """ProstateX and the zoo, as far as they are here."""
    return sorted(path for name in ("prostatex", "dicom_zoo") for path in (DATA / name).rglob("*.dcm"))


def settings_of(one: Orthanc, folder: Path, **more: object) -> Path:
    """night.yaml for an archive."""
    web = one.web
    told = {
        "archive": {
            "kind": "dicomweb",
            "url": web.url,
            "user": USER,
            "password": {"file": str(one.password)},
            "ca": str(one.ca),
            "limits": {"timeout_s": 10, "retries": 2},
        },
        "ask": {"modality": "", "days": 36500},
        "model": str(model_of(folder.parent)),
        "state": "state",
        "read": {"no_gland": True},
        **more,
    }
    path = folder / "night.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def started(settings: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipelines.night", str(settings), "--json"]
    return subprocess.Popen(  # noqa: S603 - our own command
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def night(settings: Path) -> dict[str, Any]:
    """A whole night in a process of its own: what it says, its seconds and its largest memory."""
    begun = time.monotonic()
    process = started(settings)
    out = process.stdout.read() if process.stdout else ""
    _, status, used = os.wait4(process.pid, 0)
    told = json.loads(out) if out.strip() else {}
    code = os.waitstatus_to_exitcode(status)
    return {**told, "code": code, "wall": round(time.monotonic() - begun, 1), "MiB": used.ru_maxrss // 1024}


def reports(one: Orthanc) -> list[str]:
    """Structured reports in the archive, by Orthanc's own interface."""
    found: list[str] = one.ask("POST", "/tools/find", b'{"Level": "Instance", "Query": {"Modality": "SR"}}')
    return found


def states(settings: Path) -> dict[str, int]:
    with closing(worklist.open_worklist(settings.parent / "state" / "worklist.sqlite")) as db:
        return dict(Counter(task.state for task in lookup.all_tasks(db)))


def results(settings: Path) -> int:
    """Reports that the worklist says are handed over."""
    with closing(worklist.open_worklist(settings.parent / "state" / "worklist.sqlite")) as db:
        (found,) = db.execute("SELECT count(*) FROM result WHERE stored != '' AND kind = 'report'").fetchone()
    return int(found)


@contextmanager
def place(name: str, work: Path) -> Iterator[tuple[Orthanc, Path]]:
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with running_orthanc(folder, tls=False) as one:
        yield one, folder


def whole(work: Path, studies: int, kills: int) -> dict[str, Any]:
    """Three nights."""
    with place("nights", work) as (one, folder):
        one.load(phantoms(work, studies - 12, 1))
        odd = loaded(one, real())
        there = one.ask("GET", "/statistics")
        settings = settings_of(one, folder)
        first = night(settings)
        out = Path(first["out"]) if Path(first["out"]).is_absolute() else folder / first["out"]
        lines = list(csv.DictReader((out / "series.csv").open()))
        received = sum(int(line["received"] or 0) for line in lines)
        parts = sum(
            int(line[name] or 0) for line in lines for name in ("used", "quarantined", "not_selected", "not_imaging")
        )
        made = reports(one)
        bad = [line for instance in made[:50] for line in errors_of(one, instance, folder)]
        second = night(settings)
        one.load(phantoms(work, 20, 2))
        third = night(settings)
        names = [text for text in ("Phantom", "^", "1.2.", "PROSTATEx") if text in (out / "log.jsonl").read_text()]
        return {
            "not taken by the archive": odd, "studies": there["CountStudies"], "series": there["CountSeries"],
            "instances": there["CountInstances"],
            "first": first, "second": second, "third": third, "received": received, "accounted": parts,
            "reports": len(made), "reports after": len(reports(one)), "dciodvfy errors": sorted(set(bad)),
            "reasons": dict(Counter(line["reason"] for line in lines if line["reason"])), "in the log": names,
        }  # fmt: skip


def loaded(one: Orthanc, files: Sequence[Path]) -> int:
    """Store files that may be too odd for the archive; returns how many it did not take."""
    refused = 0
    for path in files:
        try:
            one.load([path])
        except HTTPError:
            refused += 1
    return refused


def errors_of(one: Orthanc, instance: str, folder: Path) -> list[str]:
    """What dciodvfy calls errors in an instance."""
    path = folder / "checked.dcm"
    login = base64.b64encode(f"{USER}:{one.password.read_text().strip()}".encode()).decode()
    asked = Request(
        f"http://127.0.0.1:{one.http}/instances/{instance}/file", headers={"Authorization": f"Basic {login}"}
    )
    with urlopen(asked, timeout=30) as answer:  # noqa: S310 - our own archive
        path.write_bytes(answer.read())
    told = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True, check=False).stderr  # noqa: S603, S607
    return [line for line in told.splitlines() if line.startswith("Error")]


def logged(folder: Path, before: Collection[Path]) -> list[str]:
    """Events of the newest night, in order; none if it is one of `before`."""
    newest = max((folder / "state").glob("nights/*"), default=None)
    if newest is None or newest in before or not (newest / "log.jsonl").exists():
        return []
    return [str(json.loads(line)["event"]) for line in (newest / "log.jsonl").read_text().splitlines()]


def kills(work: Path, studies: int, kills: int) -> dict[str, Any]:
    """kill -9 some events and moments after a night begins its work; then a night to the end."""
    chance = random.Random(1)  # noqa: S311 - when to kill is no secret
    with place("kills", work) as (one, folder):
        one.load(phantoms(work, 40, 3))
        settings, killed, reached = settings_of(one, folder), 0, []
        while killed < kills:
            before = set((folder / "state").glob("nights/*"))
            process, events = started(settings), chance.randint(2, 8)
            while process.poll() is None and len(logged(folder, before)) < events:
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.2))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
                reached.append(logged(folder, before)[-1:])
            process.wait()
            if states(settings).get("stored", 0) >= 30:  # kills have to hit work
                one.load(phantoms(work, 20, 10 + killed))
        last = night(settings)
        count = one.ask("GET", "/statistics")
        after = dict(Counter(one for events in reached for one in events))
        return {"kills": killed, "killed after": after, "last": last, "states": states(settings),
                "reports": len(reports(one)), "handed over": results(settings),
                "instances": count["CountInstances"]}  # fmt: skip


def away(work: Path, studies: int, kills: int) -> dict[str, Any]:
    """The archive is gone for a minute, twice: stopped so that it does not answer, and killed."""
    told = {}
    for name, how in (("frozen", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        with place(f"away-{name}", work) as (one, folder):
            one.load(phantoms(work, 40, 3))
            settings = settings_of(one, folder)
            process = started(settings)
            while len(logged(folder, ())) < 20:
                time.sleep(0.05)
            archive = one.process or sys.exit("no archive")
            archive.send_signal(how)
            if how == signal.SIGKILL:
                archive.wait()
            code, begun = None, time.monotonic()
            while time.monotonic() - begun < 60 and code is None:
                time.sleep(1)
                code = process.poll()
            if how == signal.SIGKILL:
                one.begin()
            else:
                archive.send_signal(signal.SIGCONT)
            process.wait()
            before = states(settings)
            last = night(settings)
            told[name] = {"code": process.returncode, "before": before, "last": last, "states": states(settings),
                          "reports": len(reports(one)), "handed over": results(settings)}  # fmt: skip
    return told


def slow(work: Path, studies: int, kills: int) -> dict[str, Any]:
    """The archive sleeps nine tenths of the time."""
    with place("slow", work) as (one, folder):
        one.load(phantoms(work, 20, 4))
        settings, over = settings_of(one, folder), threading.Event()
        archive = one.process or sys.exit("no archive")

        def nod() -> None:
            while not over.is_set():
                archive.send_signal(signal.SIGSTOP)
                time.sleep(0.45)
                archive.send_signal(signal.SIGCONT)
                time.sleep(0.05)

        thread = threading.Thread(target=nod)
        thread.start()
        try:
            told = night(settings)
        finally:
            over.set()
            thread.join()
        return {"night": told, "states": states(settings), "reports": len(reports(one))}


def changed(work: Path, studies: int, kills: int) -> dict[str, Any]:
    """Series that go away, and series that grow, while the night is at work."""
    with place("changed", work) as (one, folder):
        files = phantoms(work, 40, 5)
        late = [path for path in files if path.stem.endswith(("3", "5"))][:30]
        one.load([path for path in files if path not in late])
        settings = settings_of(one, folder)
        process = started(settings)
        while len(logged(folder, ())) < 20:
            time.sleep(0.05)
        gone = one.ask("GET", "/studies")[:5]
        for study in gone:
            one.ask("DELETE", f"/studies/{study}")
        one.load(late)
        process.wait()
        nights = [night(settings) for _ in range(6)]
        return {"deleted": len(gone), "added": len(late), "code": process.returncode, "nights": nights,
                "states": states(settings), "reports": len(reports(one)), "handed over": results(settings)}  # fmt: skip


def full(work: Path, studies: int, kills: int) -> dict[str, Any]:
    """A disk of 700 kB for the state folder, then a larger one."""
    with place("full", work) as (one, folder):
        one.load(phantoms(work, 20, 4))
        settings = settings_of(one, folder, keep={"images": 3})
        (folder / "state").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder / "state")]
        if subprocess.run(mount, check=False).returncode:  # noqa: S603
            return {"skipped": "may not mount here"}
        try:
            first = night(settings)
            larger = ["mount", "-o", "remount,size=200m", str(folder / "state")]
            subprocess.run(larger, check=True)  # noqa: S603
            last = night(settings)
            return {"first": first, "last": last, "states": states(settings), "reports": len(reports(one)),
                    "handed over": results(settings)}  # fmt: skip
        finally:
            subprocess.run(["umount", "-l", str(folder / "state")], check=False)  # noqa: S603, S607


PARTS: dict[str, Callable[[Path, int, int], dict[str, Any]]] = {
    "nights": whole, "kills": kills, "away": away, "slow": slow, "changed": changed, "full": full,
}  # fmt: skip


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--studies", type=int, default=200)
    line.add_argument("--kills", type=int, default=30)
    line.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    asked = line.parse_args()
    work = Path(tempfile.gettempdir()) / "consilium-nights"
    work.mkdir(exist_ok=True)
    for name in asked.only:
        found = PARTS[name](work, asked.studies, asked.kills)
        write_measured("night", {**read_measured("night"), name: found}, sort=True)
        print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
