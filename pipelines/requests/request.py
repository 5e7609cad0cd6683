"""What a request is: its question, what its reply may hold, and how often a hospital works on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from privacy.message import Params
from privacy.release.form import RECORDS, kinds_of, takes_tensors
from privacy.release.policy import RequestName

Q = TypeVar("Q")
R = TypeVar("R")


class Repeat(Enum):
    """What a hospital does with a question that it has answered."""

    ANEW = auto()
    """It answers anew, from what is on the disk today. Nothing is committed."""
    ONCE = auto()
    """It sends the committed reply. Damaged, it is lost: training cannot be repeated."""
    AGAIN = auto()
    """It sends the committed reply; a damaged one is computed again, with the same result. Where noise has a part the
    result is another one, and patients are charged again."""
    RESTORED = auto()
    """As `AGAIN`. Files of the work that are gone here are made again while the committed reply stays: nothing new
    leaves, so that nobody is charged again."""


@dataclass(frozen=True, kw_only=True)
class Request(Generic[Q, R]):
    """One request of a coordinator to a hospital.

    question, replies: forms (`privacy.release.form`); a reply has one of these. says: what the reply holds, for the
    hospital's page and its statement. brief: the same in a few words; empty for counts and digests. records: in words,
    which of patients' own images and labels a reply holds, if it holds any; `examples` stands for what they are.
    repeat: see `Repeat`. writes: whether the work leaves files at the hospital beside what is committed, on which
    results rest. cohort: whether the reply names a cohort that the work wrote. shapes: whether the work may learn from
    patients, so that the statement says how. rounds: whether it belongs to the rounds of a training. problem: why the
    tensors of a question cannot be; None = they can.
    """

    name: RequestName
    question: type[Q]
    replies: tuple[type[R], ...]
    says: str
    brief: str = ""
    records: str = ""
    repeat: Repeat = Repeat.AGAIN
    writes: bool = False
    cohort: bool = False
    shapes: bool = False
    rounds: bool = False
    problem: Callable[[Params], str | None] = lambda tensors: None

    @property
    def takes_tensors(self) -> bool:
        """Whether a question may hold tensors."""
        return takes_tensors(self.question)

    @property
    def always_records(self) -> bool:
        """Whether every reply holds patients' own images or labels."""
        return all(kinds_of(form) & RECORDS for form in self.replies)

    def __post_init__(self) -> None:
        if bool(self.records) != any(kinds_of(form) & RECORDS for form in self.replies):
            raise ValueError(f"{self.name}: say in `records` which of patients' own images and labels a reply holds")
