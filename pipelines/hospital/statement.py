"""The privacy statement of a hospital from its ledger, and the cost of each request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from evaluation.leaving import Left, Records
from federation.conversation import load_memory, load_newest_memory
from federation.origins import PACKAGES
from pipelines.hospital.beginnings import describe_beginnings, list_uncovered_patients
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import REAL_SENT
from pipelines.hospital.opening import read_opening
from pipelines.phantom.patients import PhantomSource
from pipelines.requests import REQUESTS
from pipelines.requests.export import EXPORT
from pipelines.requests.leaving import TO, left_in
from pipelines.requests.sample import SAMPLE
from pipelines.requests.track import TRACK
from pipelines.requests.train import HIDDEN_SAYS, INTRODUCE, SILENT, SILENT_SAYS, TRAIN
from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    NON_PRIVATE,
    Declared,
    Event,
    assume_colluding,
    compose_events,
    parse_or_non_private,
)
from privacy.message import Json, Malformed, as_list, as_mapping, number_of, whole_of
from privacy.release import ledger as ledgers
from privacy.release.build_statement import build_statement
from privacy.release.gate import Refused
from privacy.release.meaning import UNBOUNDED, format_loss
from privacy.release.policy import OUTSIDE as BEYOND
from privacy.release.policy import SITES, TRACKING
from privacy.release.statement import Details, Statement

Lines = Sequence[Mapping[str, Json]]
AS_THEY_ARE = "training images of patients as they are, with their labels (synthesis real), for every hospital"
OUTSIDE = (
    "synthetic images, outside any guarantee: their synthesis had no noise, or they were selected by looking at "
    "patients' images (the rule raw), which is an extra defence and no guarantee"
)
SAYS = {name: request.says for name, request in REQUESTS.items()}
TO_OUTSIDE = "its model, handed to external sites"
TOO_OUTSIDE = "; handed to external sites too"
TO_TRACKING = "that figures which it released may be copied to a tracking server (recipient tracking); nothing new"
FORGOTTEN = (
    "images, outside any guarantee: synthetic ones, or those of patients as they are; which cannot be told any more, "
    "because what this hospital remembered of them is gone"
)


def delta_of(hospital: Hospital) -> float:
    """The δ at which the hospital takes every ε: its budget's, or its policy's."""
    policy = hospital.policy
    return policy.delta if policy.budget is None else policy.budget.delta


def build_own_statement(hospital: Hospital, lines: Lines) -> Statement:
    """The statement over the life of the hospital's ledger; nothing in it comes from a coordinator.

    Audits of the mechanism are on the coordinator's page.
    """
    budget, caps, unit = hospital.policy.budget, hospital.policy.caps, hospital.policy.unit
    settings = hospital.settings
    known_of = _read_memories(hospital, lines)
    shaping = {name for name, request in REQUESTS.items() if request.shapes}
    shaping_runs = dict.fromkeys(str(line.get("run")) for line in lines if line.get("request") in shaping)
    memories = {run: known_of[run] for run in shaping_runs}
    runs = {str(line.get("run")) for line in lines}
    nobody = settings is not None and isinstance(settings.source, PhantomSource)
    openings = _read_openings(hospital, lines)
    return build_statement(
        lines,
        site=hospital.name,
        delta=delta_of(hospital),
        budget=None if budget is None else (budget.epsilon, budget.delta),
        caps=None if budget is None else (caps["release"].epsilon, caps["run"].epsilon),
        details={run: _build_details(hospital, run, memories.get(run, {})) for run in runs},
        contents=describe_contents(hospital, lines, known_of),
        pretraining=describe_beginnings({**memories, **openings}) or "none",
        not_covered=list_uncovered_patients(openings.values()),
        unit=f"simulated {unit}" if nobody else unit,
        packages=_describe_packages(known_of),
        colluding=hospital.policy.colluding,
        signed_keys=bool(hospital.policy.secure_sum and hospital.policy.secure_sum.signers),
    )


def _describe_packages(remembered: Mapping[str, Mapping[str, Json]]) -> str:
    """Code that is not ours and took part in what left, in words; empty if there was none."""
    used = [as_list(package) for facts in remembered.values() for package in as_list(facts.get(PACKAGES, []))]
    named = dict.fromkeys(f"{what}: {source} (SHA-256 {digest or 'not known'})" for what, source, digest in used)
    if not named:
        return ""
    condition = "what is said here holds if that code keeps to what it is given, as this hospital's policy supposes"
    return f"{'; '.join(named)}; {condition}"


def describe_contents(
    hospital: Hospital, lines: Lines, known_of: Mapping[str, Mapping[str, Json]] | None = None
) -> Mapping[str, str]:
    """What replies contain, and whether others than the coordinator get them; for shared images, whether they are
    patients' own and what no guarantee covers. Runs are named where they differ. known_of: the memories of these lines'
    runs; None: read them.
    """
    sent = [line for line in lines if line.get("request") == SAMPLE.name and not line.get("refused")]
    remembered = _read_memories(hospital, sent) if known_of is None else known_of
    runs = dict[str, list[str]]()
    for line in sent:
        run = str(line.get("run"))
        of = runs.setdefault(_describe_shared_images(line, remembered[run]), [])
        of += [] if run in of else [run]
    named = [text if len(runs) == 1 else f"{text} ({', '.join(of)})" for text, of in runs.items()]
    return {
        **SAYS,
        INTRODUCE.name: _describe_training_replies(INTRODUCE.name, lines, {}),
        TRAIN.name: _describe_training_replies(TRAIN.name, lines, _read_openings(hospital, lines)),
        EXPORT.name: _describe_exports(lines),
        TRACK.name: _describe_tracking(lines),
        SAMPLE.name: "; ".join(named) or SAMPLE.says,
    }


def _describe_training_replies(request: str, lines: Lines, openings: Mapping[str, Mapping[str, Json]]) -> str:
    """What replies to a training request contain, which of them the coordinator forwards, and which it sees only in
    sums. openings: of runs whose settings say what replies contain.
    """
    hidden = {run for run, opening in openings.items() if opening.get("secure_sum") is True}
    silent = {run for run, opening in openings.items() if as_mapping(opening.get("algorithm")).get("name") in SILENT}
    left = [line for line in lines if line.get("request") == request and not line.get("refused")]
    all_runs = {str(line.get("run")) for line in left}
    runs = dict.fromkeys(str(line.get("run")) for line in left if line.get("recipient") == SITES)
    says = HIDDEN_SAYS if all_runs and all_runs <= hidden else SAYS[request]
    says = SILENT_SAYS if all_runs and all_runs <= silent else says
    if all_runs & hidden and not all_runs <= hidden:
        says = f"{says}; hidden in sums over hospitals: {', '.join(sorted(all_runs & hidden))}"
    if not runs:
        return says
    names = "" if len(runs) == len(all_runs) else f" ({', '.join(runs)})"
    return f"{says}; handed on to all other sites{names}"


def _describe_exports(lines: Lines) -> str:
    """What replies to `export` contain, by recipient."""
    sent = [line for line in lines if line.get("request") == EXPORT.name and not line.get("refused")]
    sentences = {TO_OUTSIDE if line.get("recipient") == BEYOND else EXPORT.says: None for line in sent}
    return "; ".join(sentences) or EXPORT.says


def _describe_tracking(lines: Lines) -> str:
    """What a reply to `track` lets the coordinator do, by recipient."""
    sent = [line for line in lines if line.get("request") == TRACK.name and not line.get("refused")]
    server = any(line.get("recipient") == TRACKING for line in sent)
    return TO_TRACKING if server else TRACK.says


def _describe_shared_images(line: Mapping[str, Json], remembered: Mapping[str, Json]) -> str:
    """What a reply with shared images contained, and whether external sites get them too."""
    outside = TOO_OUTSIDE if line.get("recipient") == BEYOND else ""
    if parse_or_non_private(line["event"]) != NON_PRIVATE:
        return f"{SAMPLE.says}{outside}"
    how = as_mapping(remembered.get("how")).get("train")
    return f"{FORGOTTEN if how is None else AS_THEY_ARE if how == REAL_SENT else OUTSIDE}{outside}"


def _read_memories(hospital: Hospital, lines: Lines) -> Mapping[str, Mapping[str, Json]]:
    """The hospital's memories of these lines' runs, each read once, without missing or damaged ones."""
    memories: dict[str, Mapping[str, Json]] = {}
    for run in dict.fromkeys(str(line.get("run")) for line in lines):
        try:
            memories[run] = load_newest_memory(hospital.conversation(run)).facts
        except (Refused, Malformed):
            memories[run] = {}
    return memories


def _read_openings(hospital: Hospital, lines: Lines) -> Mapping[str, Mapping[str, Json]]:
    """Settings of the training runs that this hospital accepted, by run."""
    openings = {}
    for run in dict.fromkeys(str(line.get("run")) for line in lines if line.get("request") == INTRODUCE.name):
        with suppress(Refused, Malformed):
            openings[run] = as_mapping(load_memory(hospital.conversation(run), 0).facts.get("opening"))
    return openings


def _build_details(hospital: Hospital, run: str, memory: Mapping[str, Json]) -> Details:
    """learnt: what a synthesis remembers; empty for other runs."""
    synthesis = memory.get("protection")
    if isinstance(synthesis, dict) and synthesis.get("votes_noise") is None:
        return Details(clip=number_of(synthesis, "clip"), views=whole_of(synthesis, "views"))
    try:
        protection = read_opening(hospital, run).protection
    except (Refused, Malformed):
        return Details()  # no training, or another run's folder
    return Details() if protection is None else Details(clip=protection.clip, views=protection.views)


def list_left(hospital: Hospital, lines: Lines, *, delta: float) -> list[Left]:
    """The ledger, summed by request in order of first use, with costs. Replies to external sites have an entry of their
    own.
    """
    about, charged = dict(describe_contents(hospital, lines)), dict[str, list[Event]]()
    about |= {EXPORT.name: EXPORT.says, f"{EXPORT.name}{TO}": TO_OUTSIDE}
    for line, event in ledgers.charged_lines(lines):
        charged.setdefault(_request_name(line), []).append(assume_colluding(event, hospital.policy.colluding))
    sums: dict[str, Left] = {}
    for line in lines:
        request = _request_name(line)
        if request not in sums:
            sums[request] = left_in(hospital.name, request, about.get(request, ""), find_records(about, request))
        entry = sums[request]
        messages, size = entry.messages + (line["refused"] is None), entry.bytes + whole_of(line, "bytes")
        sums[request] = replace(entry, messages=messages, bytes=size)
    return [replace(entry, epsilon=_epsilon_text(charged.get(request, []), delta)) for request, entry in sums.items()]


def find_records(about: Mapping[str, str], request: str) -> Records:
    """Whether patients' own images or labels left in answer to a request. about: what its replies contain."""
    declared = REQUESTS.get(request.removesuffix(TO))
    if declared is None or (declared.records and not declared.always_records and FORGOTTEN in about.get(request, "")):
        return "unknown"
    has_records = declared.always_records or (declared.records and AS_THEY_ARE in about.get(request, ""))
    return "left" if has_records else "none"


def _request_name(line: Mapping[str, Json]) -> str:
    """The request's name, marked if the reply went to external sites."""
    return f"{line['request']}{TO if line.get('recipient') == BEYOND else ''}"


def _epsilon_text(events: Sequence[Event], delta: float) -> str:
    event = compose_events(events)
    if event == NON_PRIVATE:
        return UNBOUNDED
    epsilon = compute_cost([event], delta).epsilon
    if epsilon == 0:
        return "declared public" if isinstance(event, Declared) else "0: nothing new of patients"
    return UNBOUNDED if math.isinf(epsilon) else f"{format_loss(epsilon)} at δ = {delta:g}"
