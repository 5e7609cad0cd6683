"""Buffered merging: the coordinator merges as soon as K hospitals have answered, and waits for nobody else.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation
(FedBuff), AISTATS 2022, algorithm 1. A hospital that has not answered goes on with the model it has. Its update,
what it sends minus what it was sent, is later added to the model of that time, shortened by 1 / sqrt(1 + tau), where
tau is the number of merges since it began:

    w <- w + sum_k n_k / sqrt(1 + tau_k) (w_k - start_k) / sum_k n_k.

What differs from the paper. Its clients are phones of which there are always others, so that one who answered is
replaced; here a hospital that has answered waits for the merge and begins anew with the merged model. Replies that
arrive at the same moment are merged together, so that a merge has K replies or more. Weights n_k are the method's.

Who is in which merge follows from declared durations, before anything runs: how often each hospital trains, and so
what its patients pay, is known beforehand, a run that was stopped goes on with the same merges, and hospitals on other
machines give the same model, bit for bit, as simulated ones. A merge waits for the hospitals that were announced for
it: where a hospital takes longer than was declared, its merge comes later, with the same hospitals.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from federation.algorithm import Algorithm, is_averaging, is_summable
from federation.merging import Replies, reference_of
from privacy.message import Message

USUAL = 1.0
"""The duration of a round of work at a hospital for which none is declared."""


class Merge(NamedTuple):
    """One merge of a buffered run. clock: when, in the unit of the durations. began: hospital -> the round with whose
    model it began; rounds count from 1, and a hospital that begins in the round of the merge is fresh.
    """

    clock: float
    began: Mapping[str, int]


def plan_merges(sites: Sequence[str], durations: Mapping[str, float], buffer: int, rounds: int) -> tuple[Merge, ...]:
    """The merges of a run, by a simulated clock on which sending takes no time.

    Args:
        sites: hospitals that train. durations: of one round of work at each; `USUAL` where none is given. buffer: K,
            the fewest replies of a merge; all, where there are fewer hospitals. rounds: how many merges.
    """
    exact = {site: Fraction(repr(float(durations.get(site, USUAL)))) for site in sites}  # three times 0.1 is 0.3
    working = [(exact[site], site, 1) for site in sorted(sites)]
    heapq.heapify(working)
    merges = list[Merge]()
    for number in range(1, rounds + 1):
        began, clock = dict[str, int](), Fraction(0)
        while working and (len(began) < min(buffer, len(sites)) or working[0][0] == clock):
            clock, site, start = heapq.heappop(working)
            began[site] = start
        merges.append(Merge(float(clock), dict(sorted(began.items()))))
        for site in began:
            heapq.heappush(working, (clock + exact[site], site, number + 1))
    return tuple(merges)


def count_updates(merges: Sequence[Merge]) -> Counter[str]:
    """Hospital -> how many updates it computes; it begins no work that no merge would take."""
    return Counter(site for merge in merges for site in merge.began)


def find_started(merges: Sequence[Merge], number: int) -> dict[str, int]:
    """Hospital -> the round in which the work began that it does in round `number`, or has finished in it; without
    hospitals whose work no merge takes.
    """
    started = dict[str, int]()
    for merge in merges[number - 1 :]:
        for site, start in merge.began.items():
            if start <= number:
                started.setdefault(site, start)
    return started


def find_oldest(merges: Sequence[Merge] | None, number: int) -> int | None:
    """The oldest round after which a hospital got the model that it scored in the reply to round `number`; None: all
    got that of the round before.
    """
    return min((start - 1 for start in merges[number - 1].began.values()), default=None) if merges else None


def weigh_staleness(staleness: int) -> float:
    """The share of an update that is merged, after so many merges since its hospital began (Nguyen 2022)."""
    return 1.0 / math.sqrt(1.0 + staleness)


def rebase_update(reply: Message, sent: Message, now: Message, share: float) -> Message:
    """This share of the update in a reply, added to what would be sent now. sent: what the hospital began with.

    Whole numbers, such as counters of a batch norm, are those of the reply.
    """
    tensors = {
        name: (reference_of(name, value, now) + share * (value.double() - reference_of(name, value, sent))).to(
            value.dtype
        )
        if value.is_floating_point()
        else value
        for name, value in reply.tensors.items()
    }
    return Message(tensors, reply.facts)


def rebase_stale(parts: Replies, began: Mapping[str, int], sent: Replies, now: Replies, number: int) -> Replies:
    """The replies of round `number`, each as if its hospital had begun in it; those that did stay as they are."""
    return {
        site: part
        if began[site] == number
        else rebase_update(part, sent[site], now[site], weigh_staleness(number - began[site]))
        for site, part in parts.items()
    }


def can_merge_late(algorithm: Algorithm) -> bool:
    """Whether a method's updates can be merged late: one weighted mean of them is all that its coordinator takes."""
    return is_averaging(algorithm) and is_summable(algorithm) and getattr(algorithm, "rounds", None) is None


def find_buffer_problem(algorithm: Algorithm, form: Message) -> str | None:
    """Why a method's updates cannot be merged late, or None. form: of a reply; without tensors nothing is merged, and
    in a single round nothing comes late.
    """
    if can_merge_late(algorithm) or not form.tensors or getattr(algorithm, "rounds", None) == 1:
        return None
    return (
        f"{algorithm.name} merges more than a weighted mean of updates, and an update that comes late would not fit "
        "what the coordinator and the other hospitals then have; take fedavg, or another method that averages, or "
        "leave schedule.buffer out"
    )
