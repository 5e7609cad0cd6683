"""Words of a sentence as tokens of CLIP: byte pairs, merged in the order that a vocabulary's file gives.

Sennrich, Haddow, Birch: Neural machine translation of rare words with subword units, ACL 2016, on bytes. Files are
those that come with CLIP's weights: `vocab.json` (token -> number) and `merges.txt` (a pair a line, the first merges
first, `#` begins a remark). Text is converted to lower case and single spaces, and not changed otherwise.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

BEGIN, END, LAST = "<|startoftext|>", "<|endoftext|>", "</w>"
PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+")


@dataclass(frozen=True)
class Words:
    """A vocabulary. numbers: token -> number. ranks: pair -> rank; the pair of the smallest rank is merged first."""

    numbers: dict[str, int]
    ranks: dict[tuple[str, str], int]

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, without those of its beginning and end."""
        tidy = " ".join(unicodedata.normalize("NFC", text).lower().split())
        token_numbers: list[int] = []
        for piece in PIECES.findall(tidy):
            letters = [_letter_by_byte()[byte] for byte in piece.encode()]
            token_numbers += [self.numbers[token] for token in self._merge_pairs([*letters[:-1], letters[-1] + LAST])]
        return tuple(token_numbers)

    def sentence(self, text: str) -> tuple[int, ...]:
        """The tokens of a text with those of its beginning and end."""
        return (self.numbers[BEGIN], *self.tokens(text), self.numbers[END])

    def _merge_pairs(self, parts: list[str]) -> list[str]:
        """The parts of a word after all merges that the vocabulary knows."""
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            made: list[str] = []
            for part in parts:
                if made and (made[-1], part) == best:
                    made[-1] += part
                else:
                    made.append(part)
            parts = made
        return parts


def parse_vocabulary(vocabulary: str, merges: str) -> Words:
    """A vocabulary from the texts of its two files.

    Raises:
        ValueError: the texts are not such files, or tokens of letters, beginning or end are missing.
    """
    try:
        numbers = json.loads(vocabulary)
    except ValueError as error:
        raise ValueError(f"vocab.json is no JSON ({error})") from error
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise ValueError("vocab.json must hold one mapping from tokens to numbers")
    lines = (line.split() for line in merges.splitlines() if not line.startswith("#") and line.strip())
    pairs = [tuple(line) for line in lines]
    needed = [BEGIN, END, *_letter_by_byte().values(), *(letter + LAST for letter in _letter_by_byte().values())]
    needed += ["".join(pair) for pair in pairs]
    if any(len(pair) != 2 for pair in pairs) or (missing := [token for token in needed if token not in numbers]):
        what = "merges.txt must hold two tokens a line" if any(len(pair) != 2 for pair in pairs) else ""
        raise ValueError(what or f"vocab.json lacks {len(missing)} tokens, as {missing[0]!r}")
    return Words(numbers, {(pair[0], pair[1]): rank for rank, pair in enumerate(pairs)})


@lru_cache(maxsize=1)
def _letter_by_byte() -> dict[int, str]:
    """Byte -> the printable letter that stands for it in vocabularies: itself, or one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + k) for k, byte in enumerate(unprintable)}


def list_byte_tokens() -> list[str]:
    """The tokens of single bytes, inside a word and at its end, with which every vocabulary begins."""
    return [*_letter_by_byte().values(), *(letter + LAST for letter in _letter_by_byte().values())]
