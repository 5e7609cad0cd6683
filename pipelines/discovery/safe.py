"""Filter the texts of headers and file names that may be shown: known radiology words, nothing that may name a patient.

Descriptions are free text, in which scanner operators do write names. So only known words of a description are shown,
and no other text that shares a word with a patient's name or identifier.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

HIDDEN = "…"
LINES = (
    "adc dwi dti diff diffusion trace tracew map maps exp eadc calc epi ep2d ep3d ep se tse fse gre tfe ffe ir",
    "t1 t2 t1w t2w pd flair swi dce perf perfusion vibe lava thrive tra ax axial sag sagittal cor coronal obl oblique",
    "3d 2d fs fatsat fat sat spair stir mix dyndist dynamic resolve zoom zoomit ivim kurtosis tensor b0 prostate",
    "pelvis abdomen brain head neck breast liver mask masks lesion lesions label labels seg segmentation roi gland",
    "glands organ prostata tumour tumor cancer image images data dicom nifti dcm study studies series train test orig",
    "original primary derived norm nd dis2d dis3d none other mosaic mr ct us pt nm ot",
)
WORDS = frozenset(word for line in LINES for word in line.split())
NUMBERS = re.compile(r"b\d{1,4}|\d{1,2}mm|\d{1,3}")
SHORTEST = 3
COMMON = 0.9


def split_words(text: str) -> list[str]:
    """Words in lower case: runs of letters and digits."""
    return [word for word in re.split(r"[\W_]+", text.lower()) if word]


def known_words(text: str) -> str:
    """A description with only the known words: `ep2d diff tra …`."""
    shown = [word if word in WORDS or NUMBERS.fullmatch(word) else HIDDEN for word in split_words(text)]
    return " ".join(
        word for place, word in enumerate(shown) if word != HIDDEN or place == 0 or shown[place - 1] != word
    )


@dataclass(frozen=True)
class Secrets:
    """Words of patients' names and identifiers, in lower case."""

    words: frozenset[str]

    def tells(self, text: str) -> bool:
        """Whether a text contains a word, or the letters, of a patient's name or identifier."""
        low = text.lower()
        if any(word in self.words for word in (*split_words(text), low)):
            return True
        return any(len(word) > SHORTEST and word in low for word in self.words)

    def shown(self, text: str) -> str:
        """The text, or a mark if it names a patient."""
        return HIDDEN if self.tells(text) else text


def secrets_of(identifiers: Iterable[str], names: Iterable[str] = ()) -> Secrets:
    """The secrets of identifiers and names. Known words are no secrets, nor are words that identifiers share.

    A shared word is in nine of ten identifiers, and in at least two, such as STUDY in `STUDY-0001`.
    """
    known = [text.lower().strip() for text in sorted(set(identifiers))]
    counts = Counter(word for text in known for word in set(split_words(text)))
    common = {word for word, count in counts.items() if count >= max(2, COMMON * len(known))}
    called = {text.lower().strip() for text in names} - set(known)
    secret_words = {*known, *called, *(word for text in called for word in split_words(text)), *(set(counts) - common)}
    return Secrets(frozenset(word for word in secret_words if len(word) >= SHORTEST and word not in WORDS))
