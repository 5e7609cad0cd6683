"""Whom the coordinator asks in a round of training, what each site is sent, and how its replies are collected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch

from federation.algorithm import Algorithm, State
from federation.buffering import Merge, find_started
from federation.engine import Answers, Eager, Engine
from federation.outcome import Outcome
from federation.randomness import derive_seed
from federation.summing import KEYS
from privacy.message import Call, Json, Message


def choose_sites(
    merges: Sequence[Merge] | None, active: tuple[str, ...], number: int, count: int, seed: int
) -> dict[str, int]:
    """The sites whose replies a round merges -> the round in which each began. active: sites that have not retired.
    count: how many are asked, where no merges were planned.
    """
    if merges is not None:
        return {site: start for site, start in merges[number - 1].began.items() if site in active}
    return dict.fromkeys(sample_sites(active, count, derive_seed(seed, "participation", number)), number)


def write_questions(
    algorithm: Algorithm, run: str, last: Outcome, began: Mapping[str, int], keys: Mapping[str, str]
) -> dict[str, Message]:
    """What each site is sent that begins, or began, in a round. keys: see `wrap_message`."""
    states = {**last.earlier, last.round + 1: last.state}
    return {
        site: wrap_message(algorithm.send(states[start], site, Call(run, start, "train", last.merged)), last.best, keys)
        for site, start in began.items()
    }


def begin_work(
    engine: Eager,
    algorithm: Algorithm,
    run: str,
    last: Outcome,
    merges: Sequence[Merge],
    active: tuple[str, ...],
) -> None:
    """Have all sites begin whose work this round or a later one merges, before anybody waits for some of them."""
    started = {site: start for site, start in find_started(merges, last.round + 1).items() if site in active}
    messages = write_questions(algorithm, run, last, started, {})
    for start in sorted(set(started.values())):
        group = {site: message for site, message in messages.items() if started[site] == start}
        engine.begin(Call(run, start, "train", last.merged), group)


def ask_training(
    engine: Engine,
    run: str,
    merged: Mapping[str, int],
    began: Mapping[str, int],
    messages: Mapping[str, Message],
    deadline_s: float | None,
) -> Answers:
    """The replies of sites to the rounds in which each began."""
    replies, missing = dict[str, Message](), dict[str, str]()
    for start in sorted(set(began.values())):
        group = {site: message for site, message in messages.items() if began[site] == start}
        answers = engine.ask(Call(run, start, "train", merged), group, deadline_s=deadline_s)
        replies |= answers.replies
        missing |= answers.missing
    return Answers(replies, missing)


def keep_states(last: Outcome, merges: Sequence[Merge] | None, number: int) -> dict[int, State]:
    """Round -> the state with which sites began in it, of rounds whose replies later merges take."""
    starts = {start for merge in (merges or ())[number:] for start in merge.began.values()}
    return {start: state for start, state in {**last.earlier, number: last.state}.items() if start in starts}


def add_sent_bytes(received: Mapping[str, int], messages: Mapping[str, Message]) -> dict[str, int]:
    """Bytes sent to each site so far, including these messages: tensors by their size in memory, facts as JSON."""
    sizes = {
        site: sum(t.numel() * t.element_size() for t in m.tensors.values()) + len(json.dumps(dict(m.facts)))
        for site, m in messages.items()
    }
    return {**received, **{site: received.get(site, 0) + size for site, size in sizes.items()}}


def wrap_message(message: Message, best: int | None, keys: Mapping[str, str] | None = None) -> Message:
    """A method's message as sites get it in a run. keys: of the sites among whose replies this one's is hidden."""
    hiding: dict[str, Json] = {KEYS: dict(keys)} if keys else {}
    return Message(message.tensors, {"algorithm": dict(message.facts), "best": best, **hiding})


def sample_sites(sites: tuple[str, ...], count: int, seed: int) -> tuple[str, ...]:
    """So many random sites, sorted."""
    order = torch.randperm(len(sites), generator=torch.Generator().manual_seed(seed)).tolist()
    return tuple(sorted(sites[i] for i in order[:count]))
