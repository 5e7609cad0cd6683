"""What the hospital's ledger comes to: its privacy statement, and what each request cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluation.report import Left
from evaluation.statement_page import NO_GUARANTEE, MechanismAudit
from federation.conversation import newest
from pipelines.cohort.phantom import PhantomSource
from pipelines.site.hospital import Hospital
from pipelines.site.learn import opened
from pipelines.site.words import CONTENTS
from privacy import ledger as book
from privacy.accounting import cost
from privacy.events import NON_PRIVATE, Declared, Event, composed, known
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
    runs = {str(line.get("run")) for line in lines}
    nobody = settings is not None and isinstance(settings.source, PhantomSource)
    return statement(
        lines,
        site=hospital.name,
        delta=delta if budget is None else budget.delta,
        budget=None if budget is None else (budget.epsilon, budget.delta),
        details={run: _details(hospital, run) for run in runs},
        contents=contents(hospital, lines),
        pretraining="; ".join(sorted(filter(None, (_pretraining(hospital, run) for run in runs)))) or "none",
        audit=None if audit is None else Audit(**vars(audit)),
        unit=f"simulated {unit}" if nobody else unit,
    )


def contents(hospital: Hospital, lines: Lines) -> Mapping[str, str]:
    """What replies hold; of shared images also what no guarantee covers."""
    runs = {str(line.get("run")) for line in lines}
    if any(_name(_synthesis(hospital, run).get("synthesis")) == "real" for run in runs):
        return {**CONTENTS, "sample": "training images of patients as they are (synthesis real), for every hospital"}
    sent = [line for line in lines if line["request"] == "sample" and not line.get("refused")]
    if all(known(line["event"]) != NON_PRIVATE for line in sent):
        return CONTENTS
    why = "their synthesis had no noise, or they were selected by looking at patients' images (the rule raw), which is "
    return {**CONTENTS, "sample": f"made-up images, outside any guarantee: {why}an extra defence and no guarantee"}


def _synthesis(hospital: Hospital, run: str) -> Mapping[str, Json]:
    """What a hospital remembers of having learnt to imitate its images; empty for other runs."""
    try:
        return newest(hospital.conversation(run)).facts
    except (Refused, Malformed):
        return {}


def _name(settings: Json) -> str:
    return str(settings.get("name")) if isinstance(settings, dict) else ""


def _pretraining(hospital: Hospital, run: str) -> str:
    """What the networks of a synthesis learnt from before they met patients."""
    said = _synthesis(hospital, run).get("synthesis")
    prior = said.get("prior") if isinstance(said, dict) else None
    if not prior:
        return ""
    return f"synthesis began with pictures of the procedural prior {prior}, which is code of this program: nobody's"


def _details(hospital: Hospital, run: str) -> Details:
    made_up = _synthesis(hospital, run).get("protection")
    if isinstance(made_up, dict) and made_up.get("votes_noise") is None:
        return Details(clip=float(str(made_up["clip"])), views=int(str(made_up["views"])))
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
