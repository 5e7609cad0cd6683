"""Hospitals that leave or join a finished run of a method that keeps the replies of each site separate.

A method with a function `without(state, sites)` keeps the reply of every site in its state, and its merge does not
depend on their order. So a site that leaves is forgotten exactly, and only a site that joins has to train. The other
sites train nothing and send nothing that depends on their training patients; they get the new merged state, and compute
their models from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, TypeGuard

from federation.algorithm import Algorithm, State
from federation.engine import Engine
from federation.outcome import Outcome, load_outcome, save_outcome
from federation.questions import add_sent_bytes, wrap_message
from federation.rehearsal import Forms
from federation.rounds import QuorumLost, ask_all, finish_training
from federation.verdict import find_introduction_problem, find_reply_problem
from privacy.folder import Folder
from privacy.message import Call, Message, as_mapping
from privacy.release.gate import BUDGET

DUE = "due"  # a file that exists until all sites have received the new merged state


class Separable(Algorithm, Protocol):
    """A method whose state contains the reply of each site."""

    def without(self, state: State, sites: frozenset[str]) -> State:
        """The state as if these sites had never sent anything."""
        ...


def is_separable(algorithm: Algorithm) -> TypeGuard[Separable]:
    """Whether sites may leave and join a finished run of this method."""
    return hasattr(algorithm, "without")


def regroup_sites(
    engine: Engine,
    algorithm: Separable,
    *,
    run: str,
    opening: Mapping[str, Message],
    forms: Forms,
    folder: Folder,
    scored: bool,
) -> None:
    """Forget sites that have left, ask sites that are new, and send the new merged state to all.

    If it is stopped, a second call completes it: a new site answers a repeated request with the same bytes.

    Args:
        opening, forms: as in `federation.rounds.conduct_training`. scored: as in `federation.rounds.finish_training`.

    Raises:
        QuorumLost: a site did not answer.
    """
    last = load_outcome(folder, run)
    if last is None:
        return
    gone = frozenset(last.merged) - frozenset(engine.sites)
    new = sorted(frozenset(engine.sites) - frozenset(last.merged) - last.retired_sites)
    if not (gone or folder.has(DUE) or (new and last.merged)):
        return
    folder.write(DUE, b"")
    outcome = replace(
        last,
        state=algorithm.without(last.state, gone),
        merged={site: number for site, number in last.merged.items() if site not in gone},
        missing=tuple(lost_reply for lost_reply in last.missing if lost_reply[1] in engine.sites),
        losses={},
        totals={},
        updates={},
        best=None,
    )
    outcome = _add_new_sites(engine, algorithm, run, outcome, opening, forms, new) if new else outcome
    # A new number for each attempt, so that no site repeats the answer of an earlier one.
    outcome = replace(outcome, round=outcome.round + 1)
    save_outcome(folder, run, outcome, rewrite_all=True)  # records of earlier rounds name the sites that left
    save_outcome(folder, run, finish_training(engine, algorithm, run, outcome, scored=scored))
    folder.remove(DUE)


def _add_new_sites(
    engine: Engine,
    algorithm: Separable,
    run: str,
    last: Outcome,
    opening: Mapping[str, Message],
    forms: Forms,
    new: list[str],
) -> Outcome:
    """The outcome with the replies of the new sites; a site whose privacy budget is spent is left out, and retired."""
    number = last.round + 1
    first, openings = Call(run, 0, "introduce", {}), {site: opening[site] for site in new}
    _, missing = ask_all(engine, first, openings, lambda reply: find_introduction_problem(reply, forms.introduction))
    if missing:
        raise QuorumLost(run, 0, missing)
    call = Call(run, number, "train", last.merged)
    messages = {site: wrap_message(algorithm.send(last.state, site, call), None) for site in new}
    answers = engine.ask(call, messages)
    wrong = {
        site: why
        for site, reply in answers.replies.items()
        if (why := find_reply_problem(reply, forms.reply)) is not None
    }
    lost = {**answers.missing, **wrong}
    if any(why != BUDGET for why in lost.values()):
        raise QuorumLost(run, number, lost)
    good = {site: reply for site, reply in sorted(answers.replies.items()) if site not in lost}
    parts = {site: Message(reply.tensors, as_mapping(reply.facts["algorithm"])) for site, reply in good.items()}
    return replace(
        last,
        state=algorithm.merge(last.state, parts),
        merged={**last.merged, **dict.fromkeys(good, number)},
        missing=last.missing + tuple((number, site, code) for site, code in sorted(lost.items())),
        round=number,
        received=add_sent_bytes(last.received, messages),
    )
