"""Identifiers of the original that are left in a written file: a second check that shares no code with the cleaning.

It reads the file anew, checks every element at any depth, and the bytes as a whole. It names places, never values,
so its messages may be logged.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pydicom
from pydicom.datadict import keyword_for_tag
from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset
from pydicom.uid import UID_dictionary

from privacy.deidentify.actions import SAFE_PRIVATE, TABLE
from privacy.deidentify.identifiers import COMMON
from privacy.deidentify.quiet import silence_warnings

SMALL = 10000  # a smaller patient number may also be a b-value
LONG = 6  # characters; shorter secrets are searched as words of text, not in the bytes
SINGLE = str.maketrans({"ß": "ss", "ł": "l", "ø": "o", "đ": "d", "ı": "i", "þ": "th", "ð": "d", "æ": "ae", "œ": "oe"})
TEXT = {"AE", "AS", "CS", "DS", "IS", "LO", "LT", "PN", "SH", "ST", "UC", "UR", "UT", "UN", "OB", "TM"}
TELLING = re.compile(r"(Name|IDs?|Address|Telephone\w*|Phone\w*|AccessionNumber|SerialNumber|Residence|Location)$")
HARMLESS = {"SequenceName", "PulseSequenceName", "ManufacturerModelName", "CodeValue", "StackID", "ProtocolName"}


class Leaf(NamedTuple):
    """An element that is no sequence: its path of tags, VR and text."""

    path: tuple[int, ...]
    vr: str
    text: str


def find_leftovers(
    original: Dataset,
    written: bytes,
    *,
    private: frozenset[tuple[str, int, int]] = SAFE_PRIVATE,
    retains_attributes: bool = False,
) -> list[str]:
    """Sentences about what is left of `original` in the file `written`; empty = nothing was found.

    private: private attributes that are allowed. kept: options retain devices or characteristics, so the table's
    attributes are not compared one by one.
    """
    with silence_warnings():
        secrets = dict(_list_secrets(original))
        cleaned = pydicom.dcmread(io.BytesIO(written), force=True)
        places = [*_in_text(secrets, cleaned), *_find_private(cleaned, private), *_find_dates(original, cleaned)]
        if not retains_attributes:
            places += _find_unchanged(original, cleaned)
        places += _in_bytes(secrets, written)
        if any(written[:128]):
            places.append("the preamble is not empty")
    return list(dict.fromkeys(places))


def list_leaves(dataset: Dataset, path: tuple[int, ...] = ()) -> Iterator[Leaf]:
    """Every element at any depth, also unparsable ones; pixels are left out."""
    for tag in list(dataset.keys()):
        if tag == 0x7FE00010:
            continue
        try:
            element: DataElement | RawDataElement = dataset[tag]
        except Exception:
            element = dataset.get_item(tag)
        place = (*path, int(tag))
        if element.VR == "SQ" and not isinstance(element.value, bytes):
            for item in element.value or ():
                yield from list_leaves(item, place)
        else:
            yield Leaf(place, str(element.VR), _to_text(element.value))


def _to_text(value: object) -> str:
    """A value as text: bytes as latin-1, several values joined by backslashes."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list) or type(value).__name__ == "MultiValue":
        return "\\".join(str(part) for part in value)  # type: ignore[attr-defined]
    return str(value)


def _bare_text(text: str) -> str:
    """Text in lower case and without accents."""
    marks = unicodedata.normalize("NFKD", text.lower().translate(SINGLE))
    return unicodedata.normalize("NFC", "".join(mark for mark in marks if not unicodedata.combining(mark)))


def _list_secrets(original: Dataset) -> Iterator[tuple[str, str]]:
    """(secret in lower case, its place): words of names, numbers, places; UIDs."""
    for leaf in list_leaves(original):
        tag = leaf.path[-1]
        place, keyword = _format_place(leaf.path), keyword_for_tag(tag)
        if leaf.vr == "UI":
            yield from ((uid, place) for uid in leaf.text.split("\\") if len(uid) > 12 and uid not in UID_dictionary)
        elif leaf.vr == "PN":
            yield from ((word, place) for word in _list_name_words(leaf.text))
        elif tag in TABLE and TELLING.search(keyword) and leaf.vr in TEXT and keyword not in HARMLESS:
            text = _bare_text(leaf.text).strip()
            if len(text) >= 4 and text not in COMMON:
                yield text, place


def _list_name_words(value: str) -> Iterator[str]:
    """A name's words of three letters or more (two in another script), and the words of each group joined."""
    for group in re.split(r"[=\\]", value):
        words = [word for word in re.split(r"[^\w]+|_", _bare_text(group)) if word]
        yield from (word for word in words if len(word) >= (3 if word.isascii() else 2) and word not in COMMON)
        if len(words) > 1 and any(word not in COMMON for word in words):
            joined = ["".join(words), "".join(reversed(words))]
            yield from (word for word in joined if len(word) >= (LONG if word.isascii() else 2))


def _in_text(secrets: Mapping[str, str], cleaned: Dataset) -> Iterator[str]:
    """Sentences about secrets in the text of the written file's elements."""
    for leaf in list_leaves(cleaned):
        text = _bare_text(leaf.text)
        if leaf.vr in {"DS", "IS"} or leaf.vr not in TEXT | {"UI", "LO"}:
            for secret in secrets:
                if text.strip() == secret and not (secret.isdecimal() and int(secret) < SMALL):
                    yield f"{_format_place(leaf.path)} is the value of {secrets[secret]}"
            continue
        compact = re.sub(r"[\W_]+", "", text)
        for secret, place in secrets.items():
            if re.search(rf"(?<![a-z0-9]){re.escape(secret)}(?![a-z0-9])", text) or (
                (len(secret) >= LONG or not secret.isascii()) and (secret in text or secret in compact)
            ):
                yield f"{_format_place(leaf.path)} holds a part of {place}"


def _in_bytes(secrets: Mapping[str, str], written: bytes) -> Iterator[str]:
    """Sentences about secrets in the file's bytes, in any of four encodings."""
    low = written.lower()
    for secret, place in secrets.items():
        for encoding in ("utf-8", "latin-1", "utf-16-le", "utf-16-be"):
            try:
                encoded = secret.encode(encoding)
            except UnicodeEncodeError:
                continue
            enough = len(secret) >= LONG or (encoding == "utf-8" and not secret.isascii() and len(encoded) >= LONG)
            if enough and secret.isprintable() and encoded in low:
                yield f"the bytes of the file hold a part of {place} in {encoding}"


def _find_private(cleaned: Dataset, allowed: frozenset[tuple[str, int, int]], depth: int = 0) -> Iterator[str]:
    """Sentences about private elements that are not allowed, or that may hold text."""
    for tag in list(cleaned.keys()):
        element = cleaned[tag]
        if tag.is_private and tag.element > 0xFF:
            creator = str(cleaned.get((tag.group, tag.element >> 8), DataElement(tag, "LO", "")).value)
            if (creator, tag.group, tag.element & 0xFF) not in allowed:
                yield f"{_format_place((int(tag),))} is private and not allowed"
            elif element.VR in {"OB", "UN", "LT", "ST", "UT", "LO", "SH", "PN", "SQ"}:
                yield f"{_format_place((int(tag),))} is private and no number"
        elif tag.is_private and str(element.value) not in {creator for creator, _, _ in allowed}:
            yield f"{_format_place((int(tag),))} is an unknown private creator"
        if element.VR == "SQ":
            for item in element.value or ():
                yield from _find_private(item, allowed, depth + 1)


def _find_dates(original: Dataset, cleaned: Dataset) -> Iterator[str]:
    """Sentences about dates of the original in other text; date attributes are skipped: a shifted date may equal
    another.
    """
    days = {
        day
        for leaf in list_leaves(original)
        if leaf.vr in {"DA", "DT"}
        for day in re.findall(r"(?:^|\\)(\d{8})", leaf.text)
        if day > "1000"
    }
    for leaf in list_leaves(cleaned):
        if leaf.vr in TEXT and leaf.vr != "TM":
            digits = re.sub(r"[-./ ]", "", leaf.text)
            if any(day in digits for day in days):
                yield f"{_format_place(leaf.path)} holds a date of the original"


def _find_unchanged(original: Dataset, cleaned: Dataset) -> Iterator[str]:
    """Sentences about attributes of the table that kept their original value."""
    before: dict[int, set[str]] = {}
    for leaf in list_leaves(original):
        before.setdefault(leaf.path[-1], set()).add(leaf.text.strip())
    for leaf in list_leaves(cleaned):
        tag, text = leaf.path[-1], leaf.text.strip()
        known = leaf.vr == "UI" and text in UID_dictionary
        dummy = text in {"", "REMOVED", "000000", "0", "0.0", "000Y", "19000101", "http://removed.invalid", "\0\0"}
        if tag in TABLE and leaf.vr not in {"DA", "DT"} and not known and not dummy and text in before.get(tag, ()):
            yield f"{_format_place(leaf.path)} is as it was"
        if tag == 0x00100030 and text:
            yield "the birth date is there"
    first, last = (data.get("StudyDate") for data in (original, cleaned))
    if first and first == last:
        yield "the study date is as it was"


def _format_place(path: tuple[int, ...]) -> str:
    """The tags from the outermost sequence to the element, as (GGGG,EEEE) > (GGGG,EEEE)."""
    return " > ".join(f"({tag >> 16:04X},{tag & 0xFFFF:04X})" for tag in path)
