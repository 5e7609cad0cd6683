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

from privacy.dp.events import Event, parse_or_non_private
from privacy.durable import flush_folder
from privacy.formats import LaterVersion, check_format
from privacy.message import Json
from privacy.release.chain import (
    FORMAT,
    Chain,
    Damaged,
    Head,
    compare_with_heads,
    compare_with_witness,
    follow_chain,
    format_line,
    is_torn,
    parse_line,
    split_lines,
)

HEAD, NEW_HEAD, LOCK = ".head", ".head.new", ".lock"
PATIENCE_S, POLL_S = 60.0, 0.005
HEADS = 16  # lines of a head file, before it is replaced
SHOWN = 3  # complaints in an error; `verify_ledger` gives all

_KNOWN: dict[Path, Chain] = {}
"""Chains that this process has checked. Changed only with the ledger's lock held."""


@dataclass(frozen=True)
class OpenLedger:
    """A ledger that no other process writes to meanwhile: see `open_transaction`."""

    path: Path
    _lock: FileLock = field(repr=False)

    def lines(self) -> Iterator[Mapping[str, Json]]:
        """As `read_lines`, from memory."""
        return iter(tuple(_KNOWN[self.path].lines)) if self.path in _KNOWN else read_lines(self.path)

    def append(self, line: Mapping[str, Json]) -> None:
        """Add one line. It is on the disk when this returns; if this raises, it may be there or not.

        Raises:
            ValueError: the line has a `previous` of its own, or is not JSON; or the transaction is over.
            OSError: the disk.
        """
        if "previous" in line or not self._lock.is_locked:
            raise ValueError("a line of the ledger is written within a transaction, which adds `previous` by itself")
        _add_line(self.path, _check_chain(self.path), line)


@contextmanager
def open_transaction(ledger: Path) -> Iterator[OpenLedger]:
    """Read and append without other writers: `with open_transaction(path) as opened`, then `opened.lines()`,
    `opened.append`.

    A ledger is checked completely once per process, after that only lines that others added. Within a transaction, the
    function `append_line` would wait for the transaction's end, and give up.

    Raises:
        Damaged: the ledger was changed. Says where, what was found, and what to do.
        OSError: the disk; as filelock.Timeout, another process held the ledger for a minute.
    """
    path = ledger.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(LOCK), timeout=PATIENCE_S, poll_interval=POLL_S, thread_local=False)
    with lock:
        _check_chain(path)
        yield OpenLedger(path, lock)


def append_line(ledger: Path, line: Mapping[str, Json]) -> None:
    """Add one line; it is on the disk when this returns. A torn last line of an earlier crash is closed first, never
    overwritten. Raises: as `open_transaction` and `OpenLedger.append`.
    """
    with open_transaction(ledger) as opened:
        opened.append(line)


def read_lines(ledger: Path) -> Iterator[dict[str, Json]]:
    """Read the ledger without checking it: from memory, if nothing changed since this process checked it.
    A torn line (the write during which the machine crashed; its reply never left) is reported as {"torn": True, "line":
    its number, from 1}.
    """
    known = find_checked_chain(ledger)
    if known is not None:
        return iter(tuple(known.lines))
    return (parse_line(raw, number) for number, raw in enumerate(split_lines(_read_bytes(ledger)), start=1))


def find_checked_chain(ledger: Path) -> Chain | None:
    """The ledger as this process checked it, to be read only; None if it did not, or the file changed since."""
    known = _KNOWN.get(ledger.resolve())
    return known if known is not None and known.stamp == _file_stamp(ledger) else None


def read_head(ledger: Path) -> Head:
    """The head for a witness to keep and pass to `verify_ledger` later. For a ledger without a head yet: its future
    one.

    Raises:
        Damaged: the head cannot be read.
    """
    head_on_disk = _read_head(ledger.resolve())
    if head_on_disk is None:
        follow_chain(chain := Chain(), _read_bytes(ledger))
        return chain.end
    return head_on_disk


def verify_ledger(ledger: Path, witness: tuple[int, str] | None = None) -> list[str]:
    """Everything that is wrong with a ledger; empty if it is intact. Others may append meanwhile; nothing is written.

    A single line that was edited, removed, inserted or moved is found, and an end that was cut off. Not found, because
    a crash looks the same: one line added at the very end, which can only make more seem to have left.

    Args:
        witness: a head (`read_head`) that someone kept: its sha256 vouched for line n and all lines before it.
    """
    path, chain = ledger.resolve(), Chain()
    try:
        before = _read_head(path)
        complaints = follow_chain(chain, _read_bytes(path))
        complaints += compare_with_heads(chain, before, _read_head(path))
    except Damaged as error:
        complaints = [*follow_chain(chain := Chain(), _read_bytes(path)), str(error)]
    return complaints + ([] if witness is None else compare_with_witness(chain, witness))


def charged_lines(
    lines: Iterable[Mapping[str, Json]], left: set[tuple[str, ...]] | None = None
) -> Iterator[tuple[Mapping[str, Json], Event]]:
    """The lines that count as privacy cost, each with its event; an unreadable event counts as non-private.

    Not charged: a torn line, whose reply never left; and a reply sent again, which says `again` and whose (run, round,
    request, sha256) is in an earlier line. Equal bytes without `again` were computed anew from patients.
    A refused line is charged its event, because a refusal reveals something too.

    Args:
        lines: of a ledger, from its beginning, or those that follow lines that were read with the same `left`.
        left: replies that left in earlier lines; those of these lines are added.
    """
    left = set() if left is None else left
    for line in lines:
        reply = tuple(repr(line.get(name)) for name in ("run", "round", "request", "sha256"))
        if is_torn(line) or (line.get("again") is True and reply in left):
            continue
        if line.get("refused") is None:
            left.add(reply)
        yield line, parse_or_non_private(line.get("event"))


def run_name(run: str) -> str:
    """The name of the run to which a conversation belongs."""
    return run.partition("/")[0]


def spent_events(lines: Iterable[Mapping[str, Json]]) -> tuple[Event, ...]:
    """The charged events, in the ledger's order: see `charged_lines`."""
    return tuple(event for _, event in charged_lines(lines))


def _read_bytes(ledger: Path) -> bytes:
    """The ledger's bytes; none if there is no file."""
    try:
        return ledger.read_bytes()
    except FileNotFoundError:
        return b""


def _read_head(path: Path) -> Head | None:
    """The newest head on the disk; None if there is no file. Raises: Damaged: it cannot be read."""
    file = path.with_suffix(HEAD)
    try:
        complete, _, rest = file.read_bytes().rpartition(b"\n")  # a crash tears the last line
        content = json.loads((complete.strip().rpartition(b"\n")[2] or rest).decode())
        check_format(content.get("format"), FORMAT, str(file))
        newest = Head(content["lines"], content["sha256"])
        if type(newest.lines) is not int or newest.lines < 0 or not isinstance(newest.sha256, str):
            raise TypeError("lines must be a whole number, sha256 a text")
    except FileNotFoundError:
        return None
    except LaterVersion as error:
        raise Damaged(f"{error}; nothing leaves until then") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file} is no head of a ledger: restore it, with {path.name}, from the backup") from error
    return newest


def _check_chain(path: Path) -> Chain:
    """The checked chain of a ledger: from memory if nothing changed, else read and repaired."""
    known, now = _KNOWN.pop(path, None), _read_head(path)
    if known is None or (known.head, known.stamp) != (now, _file_stamp(path)):
        data = _read_bytes(path)
        grown = known is not None and hashlib.sha256(data[: known.size]).digest() == known.full_hash.digest()
        chain = known if known is not None and grown else Chain()
        if complaints := [*follow_chain(chain, data[chain.size :]), *compare_with_heads(chain, now, now)]:
            raise Damaged(_damage_message(path, complaints))
        chain.head = now
        _settle_writes(path, chain, data, everything=known is None)
        known = chain
    _KNOWN[path] = known
    return known


def _damage_message(path: Path, complaints: list[str]) -> str:
    """The text of the error: what does not fit, and what to do."""
    if newer := [complaint for complaint in complaints if "made by a later version" in complaint]:
        return f"the ledger {path}, {newer[0]}. It is not damaged; nothing leaves until then"
    more = f"; and {len(complaints) - SHOWN} more" if len(complaints) > SHOWN else ""
    return (
        f"the ledger {path} is damaged: {'; '.join(complaints[:SHOWN])}{more}. Nothing is added to it, so nothing "
        f"leaves. Keep a copy for whoever looks into it, restore {path.name} and {path.with_suffix(HEAD).name} from "
        f"the backup, and tell the data protection officer which lines the backup lacks"
    )


def _settle_writes(path: Path, chain: Chain, data: bytes, *, everything: bool) -> None:
    """Finish a write that a crash interrupted: close a torn line, let the head count it. Lines of a killed process are
    readable, but perhaps not on the disk yet. everything: also make sure that the parent folders exist.
    """
    if path.exists():
        closing = b"\n" if data and not data.endswith(b"\n") else b""
        _write_bytes(path, closing, os.O_APPEND)
        chain.full_hash.update(closing)
        chain.size += len(closing)
    flush_folder(path.parent)
    if everything:
        for folder in path.parent.parents:
            with suppress(OSError):  # no permission to open it, or no fsync on this file system
                flush_folder(folder)
    if chain.head is not None and chain.head != chain.end:
        _put_head(path, chain)
    elif chain.head is not None:
        _write_bytes(path.with_suffix(HEAD), b"", os.O_APPEND)  # it was read, but may not be on the disk yet
    chain.stamp = _file_stamp(path)


def _add_line(path: Path, chain: Chain, line: Mapping[str, Json]) -> None:
    """Append a line, let the head count it, and remember the chain."""
    data = format_line(line, chain.end.sha256)
    _KNOWN.pop(path, None)  # until all is done
    if chain.head is None:
        _put_head(path, chain)  # before a chain's first line: no crash leaves such a line without a head
    new = not path.exists()
    _write_bytes(path, data, os.O_APPEND)
    if new:
        flush_folder(path.parent)
    follow_chain(chain, data)
    chain.stamp = _file_stamp(path)
    _count_line(path, chain)
    _KNOWN[path] = chain


def _count_line(path: Path, chain: Chain) -> None:
    """Append one line to the head, which counts a new line: that forces one file to the disk, and no folder."""
    if chain.end.lines % HEADS == 0:
        _put_head(path, chain)
    else:  # a new line, also if the head was restored without its newline
        _write_bytes(path.with_suffix(HEAD), b"\n" + _head_line(chain.end), os.O_APPEND)
        chain.head = chain.end


def _put_head(path: Path, chain: Chain) -> None:
    """Replace the head by one that counts all lines."""
    part = path.with_suffix(NEW_HEAD)
    _write_bytes(part, _head_line(chain.end), os.O_TRUNC)
    os.replace(part, path.with_suffix(HEAD))
    flush_folder(path.parent)
    chain.head = chain.end


def _head_line(head: Head) -> bytes:
    """A head as a line of its file."""
    return json.dumps(head._asdict()).encode() + b"\n"


def _write_bytes(path: Path, data: bytes, how: int) -> None:
    """Write all of `data`, and force the file to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_stamp(path: Path) -> tuple[int, ...]:
    """Device, inode, size and times of a file, by which a change is noticed; empty if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
