"""Hospitals that leave a finished run, or join it, where what each sent is kept apart.

A method with a function `without(state, sites)` keeps every site's reply in its state, and merges in no order. Then a
site that leaves is forgotten exactly, and one that joins is asked alone: the others train nothing and send nothing
that depends on their training patients; they get what is now merged, and make their models of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, TypeGuard

from federation.algorithm import Algorithm, State
from federation.engine import Engine
from federation.outcome import Outcome, restored, save
from federation.rehearsal import Forms
from federation.rounds import QuorumLost, ask_all, envelope, finish, more
from federation.verdict import check_introduction, verdict
from privacy.folder import Folder
from privacy.message import Call, Message, as_mapping
from privacy.release.gate import BUDGET

DUE = "due"  # the file that says that sites have not got yet what is now merged


class Separable(Algorithm, Protocol):
    """A method whose state holds what each site sent."""

    def without(self, state: State, sites: frozenset[str]) -> State:
        """The state as if these sites had never sent anything."""
        ...


def separable(algorithm: Algorithm) -> TypeGuard[Separable]:
    """Whether sites may leave and join a finished run of this method."""
    return hasattr(algorithm, "without")


def regroup(
    engine: Engine,
    algorithm: Separable,
    *,
    run: str,
    opening: Mapping[str, Message],
    forms: Forms,
    folder: Folder,
    scored: bool,
) -> None:
    """Forget the sites of a run that are not here any more, ask those that are new, and send what is now merged.

    Stopped in between, it goes on: a new site answers a repeated request with the same bytes.

    Args:
        opening, forms: as in `federation.rounds.conduct`. scored: as in `federation.rounds.finish`.

    Raises:
        QuorumLost: a site did not answer.
    """
    last = restored(folder, run)
    if last is None:
        return
    gone = frozenset(last.merged) - frozenset(engine.sites)
    new = sorted(frozenset(engine.sites) - frozenset(last.merged) - last.retired)
    if not (gone or folder.has(DUE) or (new and last.merged)):
        return
    folder.write(DUE, b"")
    here = replace(
        last,
        state=algorithm.without(last.state, gone),
        merged={site: number for site, number in last.merged.items() if site not in gone},
        missing=tuple(one for one in last.missing if one[1] in engine.sites),
        losses={},
        totals={},
        best=None,
    )
    here = _joined(engine, algorithm, run, here, opening, forms, new) if new else here
    here = replace(
        here, round=here.round + 1
    )  # a number of its own for each attempt: nobody answers from an earlier one
    save(folder, run, here, anew=True)  # records of earlier rounds name who left
    save(folder, run, finish(engine, algorithm, run, here, scored=scored))
    folder.remove(DUE)


def _joined(
    engine: Engine,
    algorithm: Separable,
    run: str,
    last: Outcome,
    opening: Mapping[str, Message],
    forms: Forms,
    new: list[str],
) -> Outcome:
    """The outcome with the replies of the new sites; one whose budget is spent stays out, and is retired."""
    number = last.round + 1
    first, asked = Call(run, 0, "introduce", {}), {site: opening[site] for site in new}
    _, missing = ask_all(engine, first, asked, lambda reply: check_introduction(reply, forms.introduction))
    if missing:
        raise QuorumLost(run, 0, missing)
    call = Call(run, number, "train", last.merged)
    messages = {site: envelope(algorithm.send(last.state, site, call), None) for site in new}
    answers = engine.ask(call, messages)
    wrong = {site: why for site, one in answers.replies.items() if (why := verdict(one, forms.reply)) is not None}
    lost = {**answers.missing, **wrong}
    if any(why != BUDGET for why in lost.values()):
        raise QuorumLost(run, number, lost)
    good = {site: reply for site, reply in sorted(answers.replies.items()) if site not in lost}
    parts = {site: Message(one.tensors, as_mapping(one.facts["algorithm"])) for site, one in good.items()}
    return replace(
        last,
        state=algorithm.merge(last.state, parts),
        merged={**last.merged, **dict.fromkeys(good, number)},
        missing=last.missing + tuple((number, site, code) for site, code in sorted(lost.items())),
        round=number,
        received=more(last.received, messages),
    )
