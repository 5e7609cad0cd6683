"""What the coordinator measures of single hospitals' updates, and what it points out to people.

A notice is no verdict. An honest hospital with other patients may send another update, and an attacker who knows the
limits stays within them: poisoned labels and patient backdoors are within. The limits are far above what honest
federations of every method show (docs/results/poisoned.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from federation.merging import DIFFERENCES, Replies, find_reference
from federation.parameters import split_numbers
from privacy.message import Json, Message, as_mapping

Counts = Mapping[str, Mapping[str, int]]
"""Site -> split -> the number of examples that it released."""
FEWEST = 4
"""With fewer hospitals nothing is pointed out: of three, two who agree may be the two who are wrong."""
LARGEST = 5.0
"""How many times the median an update may be before it is pointed out."""
LARGEST_DIFFERENCE = 100.0
"""The same of control variates and gradients, which differ tenfold and more between honest hospitals."""
MOST_RELATIVE = 10.0
"""An update is divided by no larger relative number of patients: that number is the hospital's own word."""
HUGE = 1e300
"""Numbers are recorded up to it: squares of large ones in float64 are infinite, and no JSON."""
STATISTICS = ("running_mean", "running_var")
"""How names of a norm's running statistics end. They are of scanners, and are judged apart."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """One hospital's update in one round, beside those of the others.

    size: its Euclidean norm over the median of all. A hospital with more patients takes more steps in an epoch, so that
    of one with r > 1 times the median number of released examples is divided by r. statistics: the same of running
    statistics of norms. cosine: with the median of all updates, taken for each number. n: of examples, as the reply
    says, if the hospital released another number; None: it does not. differences: as size, of tensors that are
    differences already, which no number of steps scales; None: there are none.
    """

    size: float
    statistics: float
    cosine: float
    n: int | None = None
    differences: float | None = None


def use_released_counts(parts: Replies, counts: Counts) -> dict[str, Message]:
    """What methods say, with the released number of training examples in place of theirs (fact `n`)."""
    return {
        site: Message(part.tensors, {**part.facts, "n": counts[site]["train"]})
        if "n" in part.facts and "train" in counts.get(site, {})
        else part
        for site, part in parts.items()
    }


def measure_updates(replies: Replies, sent: Replies, counts: Counts) -> dict[str, Update]:
    """Site -> its update in a round. replies: as they came, of one form; sent: what their sites got before.

    Control variates and gradients are judged apart: where classes differ, those of honest hospitals differ tenfold.
    """
    form = next(iter(replies.values())).tensors
    names = [n for n, like in form.items() if like.is_floating_point() and not n.startswith(DIFFERENCES)]
    if not names:
        return {}
    differences = [n for n, like in form.items() if like.is_floating_point() and n.startswith(DIFFERENCES)]
    away = torch.zeros(len(replies), dtype=torch.float64)
    for name in differences:
        for updates in _stack_updates(name, replies, sent):
            away += updates.square().sum(dim=1)
    distances = _relate_to_median(away.clamp(max=HUGE).sqrt().tolist(), [1.0] * len(replies))
    square = {part: torch.zeros(len(replies), dtype=torch.float64) for part in (False, True)}
    dot, center_square = torch.zeros(len(replies), dtype=torch.float64), 0.0
    pieces = ((name, updates) for name in names for updates in _stack_updates(name, replies, sent))
    for name, updates in pieces:
        is_statistic = name.endswith(STATISTICS)
        square[is_statistic] += updates.square().sum(dim=1)
        if not is_statistic:
            center = _lower_median(updates)
            dot += updates @ center
            center_square += float(center.square().sum())
    per_patient = _relate_counts(replies, counts)
    size, statistics = (
        _relate_to_median(values.clamp(max=HUGE).sqrt().tolist(), per_patient) for values in square.values()
    )
    length = (square[False] * center_square).sqrt()
    cosine = torch.where(length > 0, dot / length.clamp(min=math.ulp(0.0)), 0.0).nan_to_num(0.0).clamp(-1, 1).tolist()
    return {
        site: Update(
            size=size[k],
            statistics=statistics[k],
            cosine=cosine[k],
            n=_find_false_count(reply, site, counts),
            differences=distances[k] if differences else None,
        )
        for k, (site, reply) in enumerate(replies.items())
    }


def _stack_updates(name: str, replies: Replies, sent: Replies) -> Iterator[Tensor]:
    """(K, numbers) float64: one tensor of each reply minus what it began as, in pieces of its numbers."""
    pairs = []
    for site, reply in replies.items():
        tensor = reply.tensors[name]
        before = find_reference(name, tensor, sent[site])
        pieces = split_numbers(tensor)
        befores = [torch.zeros(1)] * len(pieces) if before is None else split_numbers(before)
        pairs.append(zip(pieces, befores, strict=True))
    for piece_by_site in zip(*pairs, strict=True):
        yield torch.stack([piece.double() - before.double() for piece, before in piece_by_site])


def _lower_median(values: Tensor) -> Tensor:
    """(K, numbers) finite -> (numbers,): as `values.median(dim=0)`, in a quarter of the time."""
    middle = (len(values) - 1) // 2
    return torch.from_numpy(np.partition(values.numpy(), middle, axis=0)[middle])


def _relate_counts(replies: Replies, counts: Counts) -> list[float]:
    """Each hospital's released number of training examples over their median, in [1, 10]; 1 where it is not known."""
    numbers = [counts.get(site, {}).get("train", 0) for site in replies]
    middle = median([n for n in numbers if n] or [1])
    return [min(max(1.0, n / middle), MOST_RELATIVE) for n in numbers]


def _relate_to_median(norms: Sequence[float], per_patient: Sequence[float]) -> list[float]:
    """Norms over their median and over the hospital's relative number of patients; 0 where the median is 0."""
    middle = median(norms)
    return [min(norm / middle / r, HUGE) if middle > 0 else 0.0 for norm, r in zip(norms, per_patient, strict=True)]


def _find_false_count(reply: Message, site: str, counts: Counts) -> int | None:
    """A number of examples in a reply that is not the released one; None: there is none."""
    released = counts.get(site, {})
    pairs = [
        (as_mapping(reply.facts["algorithm"]).get("n"), released.get("train")),
        (reply.facts.get("n") or None, released.get("validation")),
    ]
    return next((n for n, exact in pairs if isinstance(n, int) and exact is not None and n != exact), None)


def add_updates(
    known: Mapping[str, Mapping[str, Json]], updates: Mapping[str, Update], round_: int
) -> dict[str, Mapping[str, Json]]:
    """Records of updates by site and round, with those of one more round. Of numbers that agree nothing is recorded.

    Six digits are kept: the last bits of a sum depend on how many threads add, and the coordinator's state must not.
    """
    records: dict[str, Json] = {
        site: {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in asdict(update).items()
            if value is not None
        }
        for site, update in updates.items()
    }
    return {**known, **{site: {**known.get(site, {}), str(round_): record} for site, record in records.items()}}


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """One hospital whose updates stand out, and in which rounds.

    times: the largest size of these rounds; 0 = none is too large. n: the largest false number of examples; 0 = none.
    opposed: whether most of the large updates point away from the others'.
    """

    site: str
    rounds: tuple[int, ...]
    times: float
    n: int = 0
    opposed: bool = False


def find_outliers(records: Mapping[str, Mapping[str, Json]]) -> tuple[Outlier, ...]:
    """The hospitals whose updates of a training stand out. records: as `add_updates` gives them."""
    return tuple(_find_site_outliers(records))


def _find_site_outliers(records: Mapping[str, Mapping[str, Json]]) -> Iterator[Outlier]:
    """One result for each hospital whose updates stand out, in the order of their names."""
    updates = {
        site: {int(number): _read_update(record) for number, record in series.items()}
        for site, series in sorted(records.items())
    }
    taking_part = Counter(number for series in updates.values() for number in series)
    for site, series in updates.items():
        judged = {number: update for number, update in series.items() if taking_part[number] >= FEWEST}
        sizes = {number: max(u.size, u.statistics) for number, u in judged.items()}
        large = {number: size for number, size in sizes.items() if size > LARGEST}
        for number, update in judged.items():
            if (update.differences or 0.0) > LARGEST_DIFFERENCE:
                large[number] = max(sizes[number], update.differences or 0.0)
        false = {number: update.n for number, update in series.items() if update.n is not None}
        if large or false:
            yield Outlier(
                site=site,
                rounds=tuple(sorted({*large, *false})),
                times=max(large.values(), default=0.0),
                n=max(false.values(), default=0),
                opposed=bool(large) and median(judged[number].cosine for number in large) < 0,
            )


def _read_update(record: Json) -> Update:
    """An update from its record."""
    facts = as_mapping(record)
    size, statistics, cosine = (float(str(facts[name])) for name in ("size", "statistics", "cosine"))
    return Update(
        size=size,
        statistics=statistics,
        cosine=cosine,
        n=int(str(facts["n"])) if "n" in facts else None,
        differences=float(str(facts["differences"])) if "differences" in facts else None,
    )
