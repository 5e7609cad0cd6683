"""The gate: the function that every reply of a site passes before it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from privacy.dp.events import (
    DECLARATIONS,
    NON_PRIVATE,
    NOTHING,
    Declared,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    SharedGaussian,
    assume_colluding,
    compose_events,
    describe_event,
    list_leaves,
    parse_or_non_private,
)
from privacy.message import Buffer, Call, Json, Message, from_bytes
from privacy.release import ledger as ledgers
from privacy.release.form import RECORDS, compare_with_forms
from privacy.release.policy import Policy, list_declarations

BUDGET = "budget"
"""The refusal code if the policy's privacy budget does not allow the reply."""
PRIVACY = "policy_privacy"
"""The refusal code if the policy requires privacy and the reply has no finite ε."""
UNDECLARED = "undeclared_reply"
"""The refusal code if a reply holds what its request does not declare."""


class Refused(Exception):
    """A refusal. Only its code leaves the site, because a sentence could contain patient data."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def release_reply(
    reply: Buffer,
    event: Json,
    *,
    forms: Sequence[type] | None,
    call: Call,
    policy: Policy,
    ledger: Path,
    recipient: str,
    now: str,
    replay: bool,
    commit: str = "",
) -> Message:
    """Release a serialized reply, or refuse it. The ledger line is on disk before this returns the reply.

    Reading what was spent and writing the line happen under one lock, so two runs of a hospital cannot spend the same
    remaining budget.

    Args:
        event: the privacy event of this reply, as `events.describe` writes it. An unreadable event counts as
        non-private.
        forms: of which the reply must be one (`privacy.release.form`); None: it is no message, but a file that a person
        hands out, and nothing is returned but an empty message.
        recipient: who gets it. now: ISO time. replay: the reply was stored before, so it may have left before.
        commit: the random name under which the reply was stored; a reply is free if this name was charged before.

    Raises:
        Refused: the policy does not allow it, or its request does not declare what it holds; the refusal is in the
            ledger too.
        Damaged: the ledger was modified or is corrupt; nothing leaves until it is restored.
        OSError: writing failed.
    """
    digest = hashlib.sha256(reply).hexdigest()
    message, code, why = Message(), _refuse_by_policy(policy, call, len(reply), recipient), ""
    if code is None and forms is not None:
        message = from_bytes(reply)
        code, why = _refuse_undeclared(policy, forms, message) or (None, "")
    with ledgers.open_transaction(ledger) as opened:
        again = replay and (
            is_paid_reply(tuple(opened.lines()), commit) if commit else _left_before(opened.lines(), call, digest)
        )
        if code is None and not again:
            code, why = find_unaffordable(policy, ledger, [parse_or_non_private(event)], call.run) or (None, "")
        opened.append(
            {
                **_call_facts(call, recipient, now),
                "event": event if code is None else describe_event(NOTHING),
                "sha256": digest,
                "bytes": 0 if code else len(reply),
                "again": again and code is None,
                "refused": code,
                **({"commit": commit} if commit else {}),
                **({} if code is None else {"withheld": event}),
            }
        )
    if code is not None:
        raise Refused(code) from (ValueError(why) if why else None)
    return message


def _refuse_undeclared(policy: Policy, forms: Sequence[type], reply: Message) -> Refusal | None:
    """Why a reply may not leave as what it is; None: its request declares it, and the policy lets such things leave."""
    fitted = compare_with_forms(forms, reply)
    if fitted.flaws:
        problems = "; ".join(map(str, fitted.flaws[:10]))
        return Refusal(UNDECLARED, f"the reply is not what its request declares: {problems}")
    if fitted.kinds & RECORDS and not policy.pooling:
        return Refusal(
            "policy_pooling", "patients' images or labels would leave as they are; the policy says no pooling"
        )
    return None


def _refuse_by_policy(policy: Policy, call: Call, size: int, recipient: str) -> str | None:
    """The refusal code of a policy that does not allow this request, recipient or size; otherwise None."""
    if not policy.allows(call.request):
        return "policy_request"
    if recipient not in policy.recipients:
        return "policy_recipient"
    return "policy_bytes" if size > policy.max_bytes else None


def is_paid_reply(before: Sequence[Mapping[str, Json]], commit: Json) -> bool:
    """Whether the stored reply of this name left, and so was charged. The newest lines are looked at first."""
    return bool(commit) and any(
        line.get("commit") == commit and line.get("refused") is None for line in reversed(before)
    )


class Refusal(NamedTuple):
    """A code, and for the hospital's own log why."""

    code: str
    why: str


def find_unaffordable(policy: Policy, ledger: Path, events: Sequence[Event], run: str) -> Refusal | None:
    """Why a hospital refuses events in addition to those in its ledger, or None if it allows them.

    `policy_public`: they release facts without noise that the hospital does not declare public. `budget`: a patient
    would be charged more than the policy allows for one reply, one run or in total. `policy_privacy`: the policy
    requires privacy, and an event has no finite ε.

    What the ledger's lines cost is kept in memory (`privacy.release.totals`). Where Renyi divergences show that all
    together cost well below a cap, as they do until most of it is spent, no finer accountant is asked.

    Args:
        events: all of one reply. run: the run that asks, as in a `Call`.
    """
    declared = set().union(*(list_declarations(event) for event in events))
    if secret := [what for what in declared if not policy.declares(what)]:
        return Refusal("policy_public", f"{', '.join(sorted(secret))} would leave without noise, and are not public")
    if policy.require is not None and any(lacks_noise(event) for event in events):
        return Refusal(PRIVACY, "it would leave without noise, and the policy requires privacy")
    if policy.budget is None or not _costs_privacy(events):
        return None
    if any(compose_events([event]) == NON_PRIVATE for event in events):
        return Refusal(BUDGET, "it would leave without noise, and the policy has a budget")
    # seconds that a hospital without a budget saves
    from privacy.dp.accounting import compute_tally_cost, is_well_below, tally_events
    from privacy.release.totals import add_up_ledger

    delta, before = policy.budget.delta, add_up_ledger(ledger, policy.colluding)
    past = {"release": None, "run": before.runs.get(ledgers.run_name(run)), "total": before.total}
    added = [assume_colluding(event, policy.colluding) for event in events]
    for what, cap in policy.caps.items():
        spent = tally_events(added, past[what])
        if is_well_below(spent, cap.epsilon, delta):
            continue
        epsilon = compute_tally_cost(spent, delta).epsilon
        if epsilon > cap.epsilon:
            text = f"the {what} would cost epsilon = {epsilon:.4g}, and the policy allows {cap.epsilon:g}: {cap.line}"
            return Refusal(BUDGET, text)
    return None


def lacks_noise(event: Event) -> bool:
    """Whether the event, or one of its parts, has no noise."""
    return any(
        isinstance(part, NonPrivate)
        or (isinstance(part, Gaussian | SharedGaussian | Laplace) and part.noise_multiplier == 0)
        for part in list_leaves(event)
    )


def _costs_privacy(events: Sequence[Event]) -> bool:
    """Whether events are more than nothing or one kind of declared facts."""
    free = (NOTHING, *(Declared(what) for what in DECLARATIONS))
    return compose_events(events) not in free


def book_refusal(code: str, event: Json, *, call: Call, ledger: Path, recipient: str, now: str) -> None:
    """Record in the ledger a code that leaves instead of a reply: whether a request fails can depend on patients."""
    line: dict[str, Json] = {"event": event, "sha256": None, "bytes": 0, "again": False, "refused": code}
    with ledgers.open_transaction(ledger) as opened:
        opened.append({**_call_facts(call, recipient, now), **line})


def _call_facts(call: Call, recipient: str, now: str) -> dict[str, Json]:
    """The fields of a ledger line that identify the call."""
    return {"time": now, "run": call.run, "round": call.round, "request": call.request, "recipient": recipient}


def _left_before(before: Iterable[Mapping[str, Json]], call: Call, digest: str) -> bool:
    """Whether these bytes left in answer to this call already, by the ledger."""
    sought = (call.run, call.round, call.request, digest, None)
    keys = ("run", "round", "request", "sha256", "refused")
    return any(tuple(line.get(key) for key in keys) == sought for line in before)
