"""What the hospital's ledger comes to: its privacy statement, and what each request cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluation.report import Left
from evaluation.statement_page import NO_GUARANTEE, MechanismAudit
from pipelines.cohort.phantom import PhantomSource
from pipelines.site.hospital import Hospital
from pipelines.site.learn import opened
from pipelines.site.words import CONTENTS
from privacy import ledger as book
from privacy.accounting import cost
from privacy.events import NON_PRIVATE, Declared, Event, composed
from privacy.gate import Refused
from privacy.meaning import loss
from privacy.message import Json, Malformed
from privacy.statement import Audit, Details, Statement
from privacy.stating import statement

Lines = Sequence[Mapping[str, Json]]


def own_statement(
    hospital: Hospital, lines: Lines, *, delta: float, unit: str, audit: MechanismAudit | None
) -> Statement:
    """The statement over the life of the hospital's ledger. delta: where there is no budget. unit: a patient's name."""
    budget = hospital.policy.budget
    settings = hospital.settings
    nobody = settings is not None and isinstance(settings.source, PhantomSource)
    return statement(
        lines,
        site=hospital.name,
        delta=delta if budget is None else budget.delta,
        budget=None if budget is None else (budget.epsilon, budget.delta),
        details={run: _details(hospital, run) for run in {str(line.get("run")) for line in lines}},
        contents=CONTENTS,
        audit=None if audit is None else Audit(**vars(audit)),
        unit=f"simulated {unit}" if nobody else unit,
    )


def _details(hospital: Hospital, run: str) -> Details:
    try:
        protection = opened(hospital, run).protection
    except (Refused, Malformed):
        return Details()  # no training, or another run's folder
    return Details() if protection is None else Details(clip=protection.clip, views=protection.views)


def left(hospital: Hospital, lines: Lines, *, delta: float) -> list[Left]:
    """The ledger, summed by request in the order in which requests first came, with what each cost."""
    charged: dict[str, list[Event]] = {}
    for line, event in book.charged(lines):
        charged.setdefault(str(line["request"]), []).append(event)
    sums: dict[str, Left] = {}
    for line in lines:
        request = str(line["request"])
        entry = sums.setdefault(request, Left(hospital.name, request, 0, 0, content=CONTENTS.get(request, "")))
        size = int(str(line["bytes"]))
        sums[request] = replace(entry, messages=entry.messages + (line["refused"] is None), bytes=entry.bytes + size)
    return [replace(entry, epsilon=_text(charged.get(request, []), delta)) for request, entry in sums.items()]


def _text(events: Sequence[Event], delta: float) -> str:
    whole = composed(events)
    if whole == NON_PRIVATE:
        return NO_GUARANTEE
    epsilon = cost([whole], delta).epsilon
    if epsilon == 0:
        return "declared public" if isinstance(whole, Declared) else "0: nothing new of patients"
    return NO_GUARANTEE if math.isinf(epsilon) else f"{loss(epsilon)} at δ = {delta:g}"
