"""A machine may die at any byte of any write: nothing that left is missing from the ledger, and the ledger goes on."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from privacy import durable
from privacy.dp.events import Gaussian, describe_event
from privacy.message import Call
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused, book_refusal, release_reply
from privacy.release.policy import Policy

FORKED = multiprocessing.get_context("fork")
KILLS = 1000  # a quarter of them unless asked to be thorough
LIVES = (12, 40)  # most operations of a short and of a long life; a release makes about ten
POLICY = Policy(max_bytes=60)


class Killed(BaseException):
    """The process is no more; nothing in it may catch this and go on."""


@dataclass(eq=False)
class File:
    """What programs read, and how much of it is surely on the disk."""

    seen: bytes = b""
    synced: bytes = b""


@dataclass
class Disk:
    """Stands for the module `os` in the ledger: short writes, a death at any operation, and nothing kept for sure that
    was not synced. The files that programs read are real. lazy: what an fsync forgets, for the test of this test.
    """

    folder: Path
    rng: random.Random
    lazy: str = ""
    names: dict[str, File] = field(default_factory=dict)
    kept: dict[str, File] = field(default_factory=dict)
    handles: dict[int, File | None] = field(default_factory=dict)
    left: int = 0
    died_at: str = ""
    deaths: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def dies(self, where: str) -> bool:
        if self.died_at:
            raise Killed
        self.left -= 1
        if self.left > 0:
            return False
        self.died_at = where
        self.deaths[where] += 1
        return True

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        creates = bool(flags & os.O_CREAT) and path.name not in self.names
        if self.died_at or (creates and self.dies(f"create {path.suffix}") and self.rng.random() < 0.5):
            raise Killed
        handle = os.open(path, flags, mode)
        self.handles[handle] = self.names.setdefault(path.name, File()) if flags & os.O_CREAT else None
        if flags & os.O_TRUNC:
            self.names[path.name].seen = b""
        if self.died_at:
            self.close(handle)
            raise Killed
        return handle

    def close(self, handle: int) -> None:
        del self.handles[handle]
        os.close(handle)

    def write(self, handle: int, data: bytes) -> int:
        file, dies = self.handles[handle], self.dies("write")
        assert file is not None
        count = self.rng.randint(0 if dies else 1, len(data)) if dies or self.rng.random() < 0.3 else len(data)
        os.write(handle, data[:count])
        file.seen += data[:count]
        if dies:
            raise Killed
        return count

    def fsync(self, handle: int) -> None:
        file = self.handles[handle]
        if file is None and not os.path.samestat(os.fstat(handle), os.stat(self.folder)):
            return  # a folder above, which was there before
        dies = self.dies("fsync of a folder" if file is None else "fsync of a file")
        if not dies or self.rng.random() < 0.5:
            if file is not None and self.lazy != "file":
                file.synced = file.seen
            if file is None and self.lazy != "folder":
                self.kept = dict(self.names)
        if dies:
            raise Killed

    def replace(self, old: Path, new: Path) -> None:
        dies = self.dies("replace")
        if not dies or self.rng.random() < 0.5:
            os.replace(old, new)
            self.names[new.name] = self.names.pop(old.name)
        if dies:
            raise Killed

    def loses_power(self) -> None:
        """Keep what was synced, any beginning of what was written after it, and any of the names that changed."""
        after: dict[str, File] = {}
        contents: dict[File, bytes] = {}
        for name in sorted({*self.names, *self.kept}):
            file = self.rng.choice((self.names.get(name), self.kept.get(name)))
            if file is not None and file not in contents:
                contents[file] = self.some(file)
            if file is not None:
                after[name] = File(contents[file], contents[file])
        for name in self.names:
            (self.folder / name).unlink()
        for name, file in after.items():
            (self.folder / name).write_bytes(file.seen)
        self.names, self.kept = after, dict(after)

    def some(self, file: File) -> bytes:
        more = file.seen.startswith(file.synced)
        whole = self.rng.randint(len(file.synced), len(file.seen)) if more else self.rng.randint(0, len(file.seen))
        return file.seen[:whole] if more or self.rng.random() < 0.5 else file.synced

    def surely(self, name: str) -> bytes:
        """What a loss of power would leave at least."""
        return self.kept[name].synced if name in self.kept else b""


@pytest.fixture
def memory(tmp_path):
    """A folder in memory, where there is one: the disk is a model anyway, and a real one is slow at renaming."""
    shared = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        yield Path(folder).resolve()


def test_a_disk_that_loses_power_keeps_what_was_synced(memory):
    """The model itself: a name lasts from the folder's fsync on, bytes from the file's."""
    ends = set()
    for seed in range(60):
        folder = memory / str(seed)
        folder.mkdir()
        disk = Disk(folder, random.Random(seed), left=10**6)
        handle = disk.open(folder / "a", os.O_WRONLY | os.O_CREAT)
        for text in (b"one", b"two"):
            rest = text
            while rest:
                rest = rest[disk.write(handle, rest) :]
            if text == b"one":
                disk.fsync(handle)
        if seed % 2:
            disk.fsync(disk.open(folder, os.O_RDONLY))
        disk.loses_power()
        ends.add((seed % 2, (folder / "a").read_bytes() if (folder / "a").exists() else None))
    whole = {b"one", b"onet", b"onetw", b"onetwo"}
    assert {end for synced, end in ends if synced} == whole and {end for synced, end in ends if not synced} == whole | {
        None
    }


@dataclass
class World:
    """A hospital's life: what it is asked, what it has answered, and what others saw of its ledger."""

    disk: Disk
    asked: list[tuple[Call, bytes]]
    answered: list[dict[str, object]] = field(default_factory=list)
    witnesses: list[ledgers.Head] = field(default_factory=list)
    tried: set[int] = field(default_factory=set)

    @property
    def ledger(self) -> Path:
        return self.disk.folder / "ledger.jsonl"

    def live(self) -> None:
        """Answer one question after the other, until the end or death. A question is asked until it is answered."""
        while len(self.answered) < len(self.asked):
            number = len(self.answered)
            call, reply = self.asked[number]
            place: Any = {"call": call, "ledger": self.ledger, "recipient": "coordinator", "now": f"second {number}"}
            event = describe_event(Gaussian(1.0 + number))
            again, code = number in self.tried, None
            self.tried.add(number)
            try:
                if call.request == "finish":
                    book_refusal(code := "failed", event, **place)
                else:
                    release_reply(reply, event, forms=None, policy=POLICY, replay=again, **place)
            except Refused as refused:
                code = refused.code
            # Here the reply, or the code, is on its way: from now on it must stand in the ledger, whatever happens.
            digest = None if call.request == "finish" else hashlib.sha256(reply).hexdigest()
            said = {"time": place["now"], "round": call.round, "sha256": digest, "refused": code, "run": call.run}
            self.answered.append({**said, "bytes": 0 if code else len(reply)})
            self.recorded(whole(self.disk.surely("ledger.jsonl")))
            self.witnesses.append(ledgers.read_head(self.ledger))

    def recorded(self, lines: list[Any]) -> None:
        """All that was answered stands there, in the order in which it was."""
        rest = iter(lines)
        for said in self.answered:
            assert any(said.items() <= line.items() for line in rest), f"{said} left and is not in the ledger"

    def after_a_crash(self) -> None:
        """What must be so before anybody writes again."""
        assert ledgers.verify_ledger(self.ledger) == []
        assert all(ledgers.verify_ledger(self.ledger, witness=head) == [] for head in self.witnesses[-2:])
        lines = list(ledgers.read_lines(self.ledger))
        self.recorded(lines)
        charged = [event for _, event in ledgers.charged_lines(lines)]
        for number, said in enumerate(self.answered):
            assert said["refused"] or Gaussian(1.0 + number) in charged, f"{said} left and is not charged"


def whole(data: bytes) -> list[Any]:
    """The lines that a crash left whole, read without the ledger's own reader."""
    found = []
    for raw in data.split(b"\n"):
        with suppress(ValueError):
            found.append(json.loads(raw))
    return found


def new_world(folder: Path, seed: int, lazy: str = "") -> World:
    """Now and then a ledger of an earlier version lies there, its last line torn or not."""
    rng = random.Random(seed)
    folder.mkdir()
    disk = Disk(folder, rng, lazy)
    if rng.random() < 0.3:
        data = b"".join(b'{"round": %d, "refused": null}\n' % old for old in range(3))[: -rng.choice((0, 1, 9)) or None]
        (folder / "ledger.jsonl").write_bytes(data)
        disk.names["ledger.jsonl"] = disk.kept["ledger.jsonl"] = File(data, data)
    requests = [rng.choice(("train", "train", "evaluate", "pool", "finish")) for _ in range(4)]
    asked = [(Call("run", k, name, {}), rng.randbytes(rng.randint(1, 70))) for k, name in enumerate(requests)]
    return World(disk, asked)


def lived(world: World, most: int) -> int:
    """Live until all is answered, dying at most so often; returns the deaths. Each life begins with an empty memory."""
    disk, deaths = world.disk, 0
    while True:
        ledgers._KNOWN.clear()
        disk.died_at, disk.left = "", disk.rng.randint(1, disk.rng.choice(LIVES)) if deaths < most else 10**9
        try:
            world.live()
        except Killed:
            deaths += 1
            assert not disk.handles
            if disk.rng.random() < 0.6:
                disk.loses_power()
            world.after_a_crash()
        else:
            disk.loses_power()
            world.after_a_crash()
            return deaths


def test_at_1000_kill_points_no_release_is_unrecorded(memory, monkeypatch, thorough):
    wanted = KILLS if thorough else KILLS // 4
    kills, places, seed, torn = 0, Counter[str](), 0, 0
    while kills < wanted:
        world = new_world(memory / str(seed), seed)
        with monkeypatch.context() as patched:
            patched.setattr(ledgers, "os", world.disk)
            patched.setattr(durable, "os", world.disk)
            kills += lived(world, wanted - kills)
        lines = list(ledgers.read_lines(world.ledger))
        torn += sum(line.get("torn") is True for line in lines)
        assert len(world.answered) == len(world.asked) and ledgers.read_head(world.ledger).lines == len(lines)
        places += world.disk.deaths
        seed += 1
    assert kills == places.total() == wanted
    files, folders = ("create .jsonl", "create .new", "write", "fsync of a file", "replace"), ("fsync of a folder",)
    assert set(places) == {*files, *folders} and min(places.values()) >= (4 if thorough else 1), places
    assert torn >= wanted // 50, "the simulation tore hardly a line"


@pytest.mark.parametrize("lazy", ["file", "folder"])
def test_the_simulation_notices_a_ledger_that_does_not_wait_for_the_disk(memory, monkeypatch, lazy):
    world = new_world(memory / "world", 0, lazy)
    monkeypatch.setattr(ledgers, "os", world.disk)
    monkeypatch.setattr(durable, "os", world.disk)
    with pytest.raises(AssertionError, match="left and is not in the ledger"):
        lived(world, 0)


def _write_on(ledger: Path, from_number: int, told: int) -> None:
    number = from_number
    while True:
        number += 1
        ledgers.append_line(ledger, {"number": number})
        os.write(told, b"%d\n" % number)


@pytest.mark.slow
def test_a_process_that_is_killed_50_times_has_written_down_all_that_it_told(tmp_path):
    ledger, rng, last, torn = tmp_path / "ledger.jsonl", random.Random(0), 0, 0
    for _ in range(50):
        hears, tells = os.pipe()
        process = FORKED.Process(target=_write_on, args=(ledger, last, tells))
        process.start()
        os.close(tells)
        time.sleep(rng.uniform(0.02, 0.15))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with os.fdopen(hears) as heard:
            told = [int(text) for text in heard.read().split()]
        found = [line["number"] for line in ledgers.read_lines(ledger) if not line.get("torn")]
        assert ledgers.verify_ledger(ledger) == [] and found == sorted(set(found))
        assert set(told) <= set(found) and len(found) <= (told or [last])[-1] + 1
        last = max(found, default=0)
        torn += bool(told)
    assert torn > 25 and last > 100
    ledgers.append_line(ledger, {"number": last + 1})
    assert ledgers.verify_ledger(ledger) == []
