"""Replacements computed with the hospital's key: a patient's pseudonym, a UID's new UID, a patient's shift in days.

All are HMAC-SHA256 (RFC 2104); UIDs and days have keys of their own, derived from the hospital's, so that no pseudonym
of any text reveals one of them. The same key gives the same replacement in every run and on every machine, so files
that are de-identified one by one still fit together; without the key a guess cannot be tested.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import unicodedata
import uuid

SHORTEST_KEY = 16  # bytes
PSEUDONYM_BYTES = 10  # 80 bits: a collision among a million patients has probability 4e-13


def checked_key(key: bytes) -> bytes:
    """The key itself.

    Raises:
        ValueError: it is shorter than 16 bytes.
    """
    if len(key) < SHORTEST_KEY:
        raise ValueError(
            f"key: at least {SHORTEST_KEY} bytes are needed, found {len(key)}; make one with secrets.token_bytes(32)"
        )
    return key


def normalize_identifier(patient: str) -> str:
    """An identifier without surrounding blanks, in Unicode's composed form (NFC): two spellings are one patient."""
    return unicodedata.normalize("NFC", patient).strip()


def make_pseudonym(key: bytes, patient: str) -> str:
    """A stable name for a patient: 16 characters of base32 in lower case, the first 80 bits of HMAC-SHA256.

    key: the hospital's secret. patient: the identifier in the files; surrounding blanks do not matter. Cohorts and
    de-identified files of one key have the same names.

    Raises:
        ValueError: the key is shorter than 16 bytes, or the identifier is empty.
    """
    name = normalize_identifier(patient)
    if not name:
        raise ValueError("a pseudonym needs an identifier that is not empty; reject what has none")
    digest = hmac.new(checked_key(key), name.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
    return base64.b32encode(digest[:PSEUDONYM_BYTES]).decode().lower()


def new_uid(key: bytes, uid: str) -> str:
    """The UID that replaces `uid`: 2.25 and a UUID as a number (PS3.5 B.2). Registered UIDs stay as they are.

    A UID is registered if it is in PS3.6 annex A: SOP classes, transfer syntaxes, coding schemes, well-known frames.
    """
    from pydicom.uid import UID_dictionary  # slow to import, and pseudonyms are keyed for pictures and tables too

    plain = uid.strip().rstrip("\0").strip()
    if not plain or plain in UID_dictionary:
        return plain
    digest = hmac.new(_derive_key(key, b"uids"), plain.encode(), hashlib.sha256).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=4).int}"


def days_of_shift(key: bytes, patient: str, least: int, most: int) -> int:
    """Number of days by which all dates of a patient are shifted: from `least` to `most`, both included."""
    digest = hmac.new(_derive_key(key, b"dates"), normalize_identifier(patient).encode(), hashlib.sha256).digest()
    return least + int.from_bytes(digest[:8], "big") % (most - least + 1)


def keyed_digest(key: bytes, purpose: str, text: str) -> str:
    """64 hexadecimal digits that cannot be computed, or tested against a guess, without the key."""
    return hmac.new(
        _derive_key(key, purpose.encode()), text.encode("utf-8", "surrogateescape"), hashlib.sha256
    ).hexdigest()


def _derive_key(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, derived from the hospital's key."""
    return hmac.new(key, purpose, hashlib.sha256).digest()
