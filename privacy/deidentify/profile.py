"""A hospital's decisions about de-identification, and the error of a refused file."""

from __future__ import annotations

from dataclasses import dataclass

from privacy.deidentify.actions import SAFE_PRIVATE
from privacy.deidentify.layouts import Layout, layout_problems
from privacy.pickled import reduce_error
from privacy.settings_error import Problem, refuse


class NotDeidentifiable(Exception):
    """A file that must not leave. reason: one word. detail: a sentence without any value from the file."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    __reduce__ = reduce_error


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The Basic Profile of PS3.15 with the option to retain modified dates, and the hospital's own decisions.

    keep_private: private attributes that stay, as (creator, group, element without its block); only numbers and coded
    words of them are ever kept. shift_days: the least and the most days by which a patient's dates are shifted; 0 must
    not lie between them. keep_times: times of day stay as they are; otherwise they are removed as the table says.
    blank: rectangles in images that may show text; those of another layout are refused. confirmed: digests of images
    whose blanked result a person checked (`burned.Blanked.digest`); the others are refused. keep_device: serial numbers
    and names of devices stay. keep_characteristics: sex, age (at most 90), size, weight and smoking stay.

    Raises:
        ValueError: a field is out of its range; one message names all of them.
    """

    keep_private: frozenset[tuple[str, int, int]] = SAFE_PRIVATE
    shift_days: tuple[int, int] = (-3650, -365)
    keep_times: bool = False
    blank: tuple[Layout, ...] = ()
    confirmed: frozenset[str] = frozenset()
    keep_device: bool = False
    keep_characteristics: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        least, most = self.shift_days
        problems = layout_problems(self.blank, "blank")
        if least > most or least <= 0 <= most or max(-least, most) > 36500:
            text = "must be two numbers of days, the smaller first, without 0 between them and at most 36500, found"
            problems.append(Problem(("shift_days",), f"{text} {self.shift_days}"))
        problems += [
            Problem(("keep_private",), f"must hold (creator, odd group, element 0..255), found {entry}")
            for entry in sorted(self.keep_private)
            if not entry[0].strip() or entry[1] % 2 == 0 or not 0 <= entry[2] <= 0xFF
        ]
        refuse(problems)
