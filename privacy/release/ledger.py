"""The ledger: one line of JSON for everything that left a site, on disk before it leaves.

    ledger.jsonl   the lines, each with the sha256 of the lines before it: `privacy/release/chain.py`
    ledger.head    the number of lines and the sha256 of the last, in its last line: so a missing end is noticed
    ledger.lock    held by the process that reads what was spent and writes the next line

A line is forced to the disk before the head counts it, and the head before the next line begins. So after a crash the
head is at most one line behind, which is repaired; any other mismatch is damage. A person who can write the files can
write a consistent new history: only a head that someone else kept, a witness, proves that this did not happen.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from privacy.dp.events import Event, known
from privacy.durable import flush_folder
from privacy.formats import LaterVersion, check_format
from privacy.message import Json
from privacy.release.chain import (
    FORMAT,
    Chain,
    Damaged,
    Head,
    against_heads,
    against_witness,
    follow,
    parsed,
    split,
    torn,
    written,
)

HEAD, NEW_HEAD, LOCK = ".head", ".head.new", ".lock"
PATIENCE_S, POLL_S = 60.0, 0.005
HEADS = 16  # lines of a head file, before it is replaced
SHOWN = 3  # complaints in an error; `verify` gives all

_KNOWN: dict[Path, Chain] = {}
"""Chains that this process has checked. Changed only with the ledger's lock held."""


@dataclass(frozen=True)
class OpenLedger:
    """A ledger that no other process writes to meanwhile: see `transaction`."""

    path: Path
    _lock: FileLock = field(repr=False)

    def lines(self) -> Iterator[Mapping[str, Json]]:
        """As `lines` of this module, from memory."""
        return iter(tuple(_KNOWN[self.path].said)) if self.path in _KNOWN else lines(self.path)

    def append(self, line: Mapping[str, Json]) -> None:
        """Add one line. It is on the disk when this returns; if this raises, it may be there or not.

        Raises:
            ValueError: the line has a `previous` of its own, or is not JSON; or the transaction is over.
            OSError: the disk.
        """
        if "previous" in line or not self._lock.is_locked:
            raise ValueError("a line of the ledger is written within a transaction, which adds `previous` by itself")
        _add(self.path, _checked(self.path), line)


@contextmanager
def transaction(ledger: Path) -> Iterator[OpenLedger]:
    """Read and append without other writers: `with transaction(path) as opened`, then `opened.lines()`,
    `opened.append`.

    A ledger is checked completely once per process, after that only lines that others added. Within a transaction, the
    function `append` would wait for the transaction's end, and give up.

    Raises:
        Damaged: the ledger was changed. Says where, what was found, and what to do.
        OSError: the disk; as filelock.Timeout, another process held the ledger for a minute.
    """
    path = ledger.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(LOCK), timeout=PATIENCE_S, poll_interval=POLL_S, thread_local=False)
    with lock:
        _checked(path)
        yield OpenLedger(path, lock)


def append(ledger: Path, line: Mapping[str, Json]) -> None:
    """Add one line; it is on the disk when this returns. A torn last line of an earlier crash is closed first, never
    overwritten. Raises: as `transaction` and `OpenLedger.append`.
    """
    with transaction(ledger) as opened:
        opened.append(line)


def lines(ledger: Path) -> Iterator[dict[str, Json]]:
    """Read the ledger without checking it: from memory, if nothing changed since this process checked it.
    A torn line (the write during which the machine crashed; its reply never left) is reported as {"torn": True, "line":
    its number, from 1}.
    """
    known = _KNOWN.get(ledger.resolve())
    if known is not None and known.stamp == _stamp(ledger):
        return iter(tuple(known.said))
    return (parsed(raw, number) for number, raw in enumerate(split(_bytes(ledger)), start=1))


def head(ledger: Path) -> Head:
    """The head for a witness to keep and pass to `verify` later. For a ledger without a head yet: its future one.

    Raises:
        Damaged: the head cannot be read.
    """
    kept = _head(ledger.resolve())
    if kept is None:
        follow(chain := Chain(), _bytes(ledger))
        return chain.end
    return kept


def verify(ledger: Path, witness: tuple[int, str] | None = None) -> list[str]:
    """Everything that is wrong with a ledger; empty if it is intact. Others may append meanwhile; nothing is written.

    A single line that was edited, removed, inserted or moved is found, and an end that was cut off. Not found, because
    a crash looks the same: one line added at the very end, which can only make more seem to have left.

    Args:
        witness: a `head` that someone kept: its sha256 vouched for line n and all lines before it.
    """
    path, chain = ledger.resolve(), Chain()
    try:
        before = _head(path)
        complaints = follow(chain, _bytes(path))
        complaints += against_heads(chain, before, _head(path))
    except Damaged as error:
        complaints = [*follow(chain := Chain(), _bytes(path)), str(error)]
    return complaints + ([] if witness is None else against_witness(chain, witness))


def charged(lines: Iterable[Mapping[str, Json]]) -> Iterator[tuple[Mapping[str, Json], Event]]:
    """The lines that count as privacy cost, each with its event; an unreadable event counts as non-private.

    Not charged: a torn line, whose reply never left; and a reply sent again, which says `again` and whose (run, round,
    request, sha256) is in an earlier line. Equal bytes without `again` were computed anew from patients.
    A refused line is charged its event, because a refusal reveals something too.
    """
    left: set[tuple[str, ...]] = set()
    for line in lines:
        reply = tuple(repr(line.get(name)) for name in ("run", "round", "request", "sha256"))
        if torn(line) or (line.get("again") is True and reply in left):
            continue
        if line.get("refused") is None:
            left.add(reply)
        yield line, known(line.get("event"))


def spent(lines: Iterable[Mapping[str, Json]]) -> tuple[Event, ...]:
    """The charged events, in the ledger's order: see `charged`."""
    return tuple(event for _, event in charged(lines))


def _bytes(ledger: Path) -> bytes:
    try:
        return ledger.read_bytes()
    except FileNotFoundError:
        return b""


def _head(path: Path) -> Head | None:
    file = path.with_suffix(HEAD)
    try:
        whole, _, rest = file.read_bytes().rpartition(b"\n")  # a crash tears the last line
        said = json.loads((whole.strip().rpartition(b"\n")[2] or rest).decode())
        check_format(said.get("format"), FORMAT, str(file))
        found = Head(said["lines"], said["sha256"])
        if type(found.lines) is not int or found.lines < 0 or not isinstance(found.sha256, str):
            raise TypeError("lines must be a whole number, sha256 a text")
    except FileNotFoundError:
        return None
    except LaterVersion as error:
        raise Damaged(f"{error}; nothing leaves until then") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file} is no head of a ledger: restore it, with {path.name}, from the backup") from error
    return found


def _checked(path: Path) -> Chain:
    """The checked chain of a ledger: from memory if nothing changed, else read and repaired."""
    known, now = _KNOWN.pop(path, None), _head(path)
    if known is None or (known.head, known.stamp) != (now, _stamp(path)):
        data = _bytes(path)
        grown = known is not None and hashlib.sha256(data[: known.size]).digest() == known.whole.digest()
        chain = known if known is not None and grown else Chain()
        if complaints := [*follow(chain, data[chain.size :]), *against_heads(chain, now, now)]:
            raise Damaged(_damage_message(path, complaints))
        chain.head = now
        _settle(path, chain, data, everything=known is None)
        known = chain
    _KNOWN[path] = known
    return known


def _damage_message(path: Path, complaints: list[str]) -> str:
    if newer := [one for one in complaints if "made by a later version" in one]:
        return f"the ledger {path}, {newer[0]}. It is not damaged; nothing leaves until then"
    more = f"; and {len(complaints) - SHOWN} more" if len(complaints) > SHOWN else ""
    return (
        f"the ledger {path} is damaged: {'; '.join(complaints[:SHOWN])}{more}. Nothing is added to it, so nothing "
        f"leaves. Keep a copy for whoever looks into it, restore {path.name} and {path.with_suffix(HEAD).name} from "
        f"the backup, and tell the data protection officer which lines the backup lacks"
    )


def _settle(path: Path, chain: Chain, data: bytes, *, everything: bool) -> None:
    """Finish a write that a crash interrupted: close a torn line, let the head count it. Lines of a killed process are
    readable, but perhaps not on the disk yet. everything: also make sure that the parent folders exist.
    """
    if path.exists():
        closing = b"\n" if data and not data.endswith(b"\n") else b""
        _write(path, closing, os.O_APPEND)
        chain.whole.update(closing)
        chain.size += len(closing)
    flush_folder(path.parent)
    if everything:
        for folder in path.parent.parents:
            with suppress(OSError):  # no permission to open it, or no fsync on this file system
                flush_folder(folder)
    if chain.head is not None and chain.head != chain.end:
        _put_head(path, chain)
    elif chain.head is not None:
        _write(path.with_suffix(HEAD), b"", os.O_APPEND)  # it was read, but may not be on the disk yet
    chain.stamp = _stamp(path)


def _add(path: Path, chain: Chain, line: Mapping[str, Json]) -> None:
    data = written(line, chain.end.sha256)
    _KNOWN.pop(path, None)  # until all is done
    if chain.head is None:
        _put_head(path, chain)  # before a chain's first line: no crash leaves such a line without a head
    new = not path.exists()
    _write(path, data, os.O_APPEND)
    if new:
        flush_folder(path.parent)
    follow(chain, data)
    chain.stamp = _stamp(path)
    _count(path, chain)
    _KNOWN[path] = chain


def _count(path: Path, chain: Chain) -> None:
    """Append one line to the head, which counts a new line: that forces one file to the disk, and no folder."""
    if chain.end.lines % HEADS == 0:
        _put_head(path, chain)
    else:  # a new line, also if the head was restored without its newline
        _write(path.with_suffix(HEAD), b"\n" + _head_line(chain.end), os.O_APPEND)
        chain.head = chain.end


def _put_head(path: Path, chain: Chain) -> None:
    """Replace the head by one that counts all lines."""
    part = path.with_suffix(NEW_HEAD)
    _write(part, _head_line(chain.end), os.O_TRUNC)
    os.replace(part, path.with_suffix(HEAD))
    flush_folder(path.parent)
    chain.head = chain.end


def _head_line(head: Head) -> bytes:
    return json.dumps(head._asdict()).encode() + b"\n"


def _write(path: Path, data: bytes, how: int) -> None:
    """Write all of `data`, and force the file to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
