"""The work on a page grows with its rows, and not with rows times hospitals. Counted, not timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import pytest

from evaluation.choice import describe_decisions, make_decisions, own_scores
from evaluation.leaving import Left, compute_totals, describe_departures
from evaluation.notices import _score_notices
from evaluation.recommendation import Recommendation
from evaluation.records import Model
from evaluation.rows import PRIVATE, ScoreRow
from evaluation.wording import Words

MEASURES = ("AUC", "sensitivity", "specificity", "Brier score")
METHODS = ("local", "fedavg")
WORDS = Words()


class Looked(Sequence[Any]):
    """A sequence that counts how many of its elements were looked at."""

    def __init__(self, held: Sequence[Any]) -> None:
        self.held, self.looks = held, 0

    def __len__(self) -> int:
        return len(self.held)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        self.looks += 1
        return self.held[place]

    def __iter__(self) -> Iterator[Any]:
        for one in self.held:
            self.looks += 1
            yield one


def rows(hospitals: int) -> Looked:
    return Looked([
        ScoreRow(method, PRIVATE, (f"h{number}",), measure, 0.7, 0.4, 0.8, 20, 0, 30, 60, 30, 30, 15, True, False)
        for number in range(hospitals) for method in METHODS for measure in MEASURES
    ])  # fmt: skip


def models(hospitals: int) -> Looked:
    return Looked([Model(f"h{number}", method, 0.5, "f") for number in range(hospitals) for method in METHODS])


def left(hospitals: int) -> Looked:
    return Looked([Left(f"h{n}", request, 1, 10) for n in range(hospitals) for request in ("train", "evaluate")])


def chosen(hospitals: int) -> list[Looked]:
    held, scored = models(hospitals), rows(hospitals)
    heard = [Recommendation(f"h{n}", "fedavg", "local", "fedavg", 0.1, 0.0, 0.2, 0.9) for n in range(hospitals)]
    said = describe_decisions(make_decisions(held, scored, heard), held, scored, "local", WORDS)
    assert len(said) == hospitals and own_scores(scored).measure == "AUC"
    return [held, scored]


def noticed(hospitals: int) -> list[Looked]:
    scored = rows(hospitals)
    assert len([*_score_notices(scored, "local", WORDS, ())]) == hospitals
    return [scored]


def gone(hospitals: int) -> list[Looked]:
    entries = left(hospitals)
    assert len(compute_totals(entries, ())) == hospitals and len(describe_departures(entries, (), WORDS)) == 1
    return [entries]


@pytest.mark.parametrize("work", [chosen, noticed, gone])
def test_rows_are_looked_at_as_often_however_many_hospitals_there_are(work: Callable[[int], list[Looked]]) -> None:
    few, many = (max(one.looks / len(one) for one in work(hospitals)) for hospitals in (4, 40))
    assert 1 <= many <= few + 1 and math.isfinite(few), "looks at each row"
