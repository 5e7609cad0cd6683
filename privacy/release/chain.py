"""The hash chain of a ledger's lines, and what does not fit it. Works on bytes; reads no disk.

`previous` of a line is the sha256 of the line before, without its newline. A line without it (torn by a crash, or
written before the chain existed) vouches for no earlier line: such lines are hashed together with the
last line that has one, or from the beginning of the file, with the newlines between them. The first line's is 64 zeros.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from privacy.formats import describe_later_version
from privacy.message import Json

ZEROS = "0" * 64
FORMAT = 1
"""Of a ledger: the newest lines and heads that are read here. Those that say none have 1."""


class Damaged(ValueError):
    """A ledger that was changed. Nothing is added to it, and so nothing leaves."""


class Head(NamedTuple):
    """The number of a ledger's lines, and the sha256 of the last line, which vouches for all."""

    lines: int
    sha256: str


@dataclass
class Chain:
    """The part of a ledger that was read so far.

    lines: as parsed. links: after each line, the `previous` that the next one must have. size: bytes. full_hash: of
    all bytes. since: hash of the last line that has `previous`, and of all after it. first: number of the first such
    line, 0 = there is none. head: as stored on disk. stamp: of the file at that time. totals: what
    `privacy.release.totals` keeps of these lines.
    """

    lines: list[dict[str, Json]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    size: int = 0
    full_hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    since: hashlib._Hash = field(default_factory=hashlib.sha256)
    first: int = 0
    head: Head | None = None
    stamp: tuple[int, ...] = ()
    totals: dict[int | None, Any] = field(default_factory=dict)

    @property
    def end(self) -> Head:
        """The head that counts all lines."""
        return Head(len(self.links), self.link(len(self.links)))

    def link(self, lines: int) -> str:
        """The hash that vouches for the first `lines` lines."""
        return self.links[lines - 1] if lines else ZEROS


def split_lines(data: bytes) -> list[bytes]:
    """Lines without their newlines. The last one may have none."""
    raws = data.split(b"\n")
    return raws[:-1] if raws[-1] == b"" else raws


def parse_line(raw: bytes, number: int) -> dict[str, Json]:
    """The line's object, or {"torn": True, "line": number}: the beginning of an object is never an object."""
    try:
        content = json.loads(raw.decode())
    except (ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else {"torn": True, "line": number}


def is_torn(line: Mapping[str, Json]) -> bool:
    """Whether `parse_line` found no object."""
    return line.get("torn") is True


def format_line(line: Mapping[str, Json], previous: str) -> bytes:
    """The line as stored in the file, newline included.

    Raises:
        ValueError: the line is not JSON, or has a number that is not finite.
    """
    try:
        return json.dumps({**line, "previous": previous}, sort_keys=True, allow_nan=False).encode() + b"\n"
    except TypeError as error:
        raise ValueError(f"a line of the ledger must be JSON: {error}") from error


def follow_chain(chain: Chain, data: bytes) -> list[str]:
    """Read on from the end of the chain; return what does not fit."""
    complaints = []
    for raw in split_lines(data):
        number, before = len(chain.links) + 1, chain.end.sha256
        content = parse_line(raw, number)
        if type(form := content.get("format")) is int and form > FORMAT:
            complaints.append(f"line {number}: made by {describe_later_version(form, FORMAT)}")
        if "previous" in content:
            chain.since, chain.first = hashlib.sha256(raw), chain.first or number
            if content["previous"] != before:
                complaints.append(
                    f"line {number}: says that what stands before it has sha256 {str(content['previous'])[:12]}…, found"
                    f" {before[:12]}…: something was changed, taken out or put in here or before it"
                )
        else:
            chain.since.update(b"\n" + raw if chain.links else raw)
            if chain.first and not is_torn(content):
                complaints.append(
                    f"line {number}: has no `previous`, which every line has from line {chain.first} on: it was "
                    "changed or put in"
                )
        chain.links.append(chain.since.hexdigest())
        chain.lines.append(content)
    chain.size += len(data)
    chain.full_hash.update(data)
    return complaints


def compare_with_heads(chain: Chain, before: Head | None, after: Head | None) -> list[str]:
    """What does not fit the head, as it was before the lines were read and after: another process may write
    meanwhile.
    """
    line_count = len(chain.links)
    if after is None:
        return [f"the head is missing, though line {chain.first} was written with one"] if chain.first else []
    complaints = []
    if before is not None and before.lines > line_count:
        complaints.append(
            f"the head counts {before.lines} lines, found {line_count}: the end was cut off, or all was deleted"
        )
    for head in dict.fromkeys((before, after)):
        if head is not None and head.lines <= line_count and head.sha256 != chain.link(head.lines):
            complaints.append(
                f"line {head.lines}: the head knows sha256 {head.sha256[:12]}…, found {chain.link(head.lines)[:12]}…: "
                "something was changed here or before it"
            )
    if line_count > after.lines + 1:
        complaints.append(
            f"the head counts {after.lines} lines, found {line_count}, and a crash leaves one too many at most: lines"
            " were put in, or an older head was put back"
        )
    return complaints


def compare_with_witness(chain: Chain, witness: tuple[int, str]) -> list[str]:
    """What does not fit a head that a witness kept."""
    lines, sha256 = witness
    if lines > len(chain.links):
        return [f"a witness saw {lines} lines, found {len(chain.links)}: the end was cut off"]
    if chain.link(lines) != sha256:
        seen, own_link = sha256[:12], chain.link(lines)[:12]
        return [
            f"line {lines}: a witness saw sha256 {seen}…, found {own_link}…: history was rewritten here or before it"
        ]
    return []
