"""Labels that are numbers: their unit, their declared range, and the step of the range that a text in a table is.

The range is declared, never computed: a minimum of patients' values would tell of a patient. It bounds what one patient
can change of a score, and by it a number becomes a whole step (`federation.task.STEPS`), whatever its unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

from federation.task import STEPS
from pipelines.data.label_findings import FindingNames
from pipelines.data.study import Unusable
from privacy.message import Json
from privacy.settings_error import Problem, refuse, unmet

BANDS = 4
"""Parts of the range, equally wide, by which patients are counted and splits are balanced."""
LARGEST = 1e12  # of the ends of a range
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
UNIT = re.compile(r"[!-~]{1,32}")
WHAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,()/-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class LabelRange:
    """What is predicted, and between which ends.

    what: in words, as "gland volume". unit: a code of UCUM, as mL, mm2, a (years), d (days), 1 (none). low, high: the
    declared range. clip: whether a label outside of it becomes its nearer end; otherwise its study is not used.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    what: str
    unit: str
    low: float
    high: float
    clip: bool = False

    def __post_init__(self) -> None:
        ends = self.low, self.high
        finite = all(math.isfinite(end) and abs(end) <= LARGEST for end in ends)
        problems = unmet(
            self,
            what=(
                WHAT.fullmatch(self.what) is not None,
                "plain words of at most 64 characters, as in gland volume",
            ),
            unit=(UNIT.fullmatch(self.unit) is not None, "a code of UCUM, as mL, mm2, a, d, or 1 for none"),
        )
        if not (finite and self.low < self.high):
            text = f"two numbers are needed, the lower first, each at most {LARGEST:g}; found {list(ends)}"
            problems.append(Problem(("range",), text))
        refuse(problems)

    @property
    def shown_unit(self) -> str:
        """The unit as pages have it: nothing for a number without one."""
        return "" if self.unit == "1" else self.unit

    @property
    def width(self) -> float:
        """high - low, in the unit."""
        return self.high - self.low

    def value_at(self, place: float) -> float:
        """The number at a place of the range: 0 = low, 1 = high."""
        return self.low + place * self.width

    def find_step(self, text: str, what: str, *, mend: str) -> int:
        """The step 0 .. STEPS nearest to the number that a text is.

        Args:
            text: as the table has it, with a point and not a comma. what: the column or line that has it. mend: what to
                do about a wrong text; both for messages.

        Raises:
            Unusable: `no_label`: there is no text; `bad_label`: it is no finite number; `outside_range`: it lies
                outside the range, and the settings do not say that it may be clipped.
        """
        if not text.strip():
            raise Unusable("no_label", f"{what} has no label; it must be a number. {mend}")
        value = float(text) if NUMBER.fullmatch(text.strip()) else math.nan
        if not math.isfinite(value):
            comma = ", with a point and not a comma" if "," in text else ""
            raise Unusable("bad_label", f"{what} has {text!r}; it must be a finite number{comma}. {mend}")
        if not self.low <= value <= self.high and not self.clip:
            between = f"{self.low:g} to {self.high:g} {self.shown_unit}".strip()
            text = f"{what} has {text!r}, and the declared range is {between}. {mend} Or say outside: clip."
            raise Unusable("outside_range", text)
        place = (min(max(value, self.low), self.high) - self.low) / self.width
        return round(place * STEPS)

    @property
    def band_names(self) -> tuple[str, ...]:
        """The bands of the range, in words, the lowest first."""
        ends = [f"{self.value_at(band / BANDS):g}" for band in range(BANDS + 1)]
        return tuple(f"{low} to {high} {self.shown_unit}".strip() for low, high in pairwise(ends))

    def to_json(self) -> dict[str, Json]:
        """As a cohort and a ready model keep it."""
        return {"what": self.what, "unit": self.unit, "low": self.low, "high": self.high, "clip": self.clip}


Meaning: TypeAlias = tuple[str, ...] | LabelRange | FindingNames
"""What the labels of a table mean: the names of classes, () = 0 and 1; or numbers in a range; or several findings."""


def find_band(step: int) -> int:
    """The band of a step, 0 = the lowest."""
    return min(step * BANDS // STEPS, BANDS - 1)


def read_range(recipe: Mapping[str, Json]) -> LabelRange | None:
    """The range of the labels of a cohort or a ready model; None where labels are classes.

    Raises:
        ValueError: it is damaged.
    """
    number = recipe.get("number")
    if number is None:
        return None
    if not isinstance(number, dict) or set(number) != {"what", "unit", "low", "high", "clip"}:
        raise ValueError(f"number holds {number!r}; a range of labels is needed")
    low, high = (float(str(number[end])) for end in ("low", "high"))
    return LabelRange(
        what=str(number["what"]), unit=str(number["unit"]), low=low, high=high, clip=number["clip"] is True
    )
