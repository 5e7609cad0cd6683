"""What left the hospitals, by request, with its privacy loss; and the same in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from evaluation.wording import Words
from privacy.release.meaning import UNBOUNDED, format_loss
from privacy.release.statement import Statement

Records: TypeAlias = Literal["none", "left", "unknown"]
"""unknown: the hospital does not remember what it sent."""


@dataclass(frozen=True)
class Left:
    """What left a hospital in response to one request. content: what it is; brief: in a few words, empty for counts and
    digests. epsilon: a text, because ∞ is explained in words; without a statement there is no guarantee. records:
    whether patients' own images, labels or records left. of_patients: which of them these are, in words.
    """

    site: str
    request: str
    messages: int
    bytes: int
    epsilon: str = UNBOUNDED
    content: str = ""
    brief: str = ""
    records: Records = "none"
    of_patients: str = ""


@dataclass(frozen=True)
class Total:
    """What left one hospital over all requests. epsilons: the total of its statement; without one they are listed,
    because only the accountant can add them up.
    """

    site: str
    messages: int
    bytes: int
    epsilons: tuple[str, ...]


def describe_spent_loss(statement: Statement) -> str:
    """The privacy loss of one patient of a hospital, in one line."""
    if math.isinf(statement.epsilon):
        return UNBOUNDED
    return f"{format_loss(statement.epsilon)} at δ = {statement.delta:g}"


def compute_totals(left: Sequence[Left], statements: Sequence[Statement]) -> list[Total]:
    """The total of each hospital, in order of appearance."""
    spent_by_site, by_site = (
        {statement.site: (describe_spent_loss(statement),) for statement in statements},
        _group_by_site(left),
    )
    return [
        Total(
            site,
            sum(e.messages for e in entries),
            sum(e.bytes for e in entries),
            spent_by_site.get(site) or tuple(dict.fromkeys(e.epsilon for e in entries)),
        )
        for site, entries in by_site.items()
    ]


def _group_by_site(left: Iterable[Left]) -> dict[str, list[Left]]:
    """The entries of each hospital, in order of appearance."""
    entries_by_site = dict[str, list[Left]]()
    for entry in left:
        entries_by_site.setdefault(entry.site, []).append(entry)
    return entries_by_site


class OfPatients(NamedTuple):
    """Patients' own images, labels or records that left in answer to one request, or may have. what: in words."""

    request: str
    what: str
    records: Records
    sites: tuple[str, ...]


def list_patient_records(left: Iterable[Left]) -> tuple[OfPatients, ...]:
    """Patients' own data that left, by request. Read from the ledgers' entries, because the settings of this run would
    not show what an earlier run released.
    """
    sites_by_record = dict[tuple[str, str, Records], dict[str, None]]()
    for entry in left:
        if entry.messages and entry.records != "none":
            sites_by_record.setdefault((entry.request, entry.of_patients, entry.records), {})[entry.site] = None
    return tuple(OfPatients(*what, tuple(sites)) for what, sites in sites_by_record.items())


@dataclass(frozen=True)
class Departure:
    """What left a group of hospitals with equal sentences. epsilon: in a few words. said: the sentences."""

    sites: tuple[str, ...]
    epsilon: str
    said: tuple[str, ...]


def describe_departures(left: Sequence[Left], statements: Sequence[Statement], words: Words) -> tuple[Departure, ...]:
    """What left, for groups of hospitals with equal sentences, in order of appearance."""
    statement_by_site, sites_by_text = (
        {statement.site: statement for statement in statements},
        dict[tuple[str, tuple[str, ...]], list[str]](),
    )
    for site, entries in _group_by_site(left).items():
        sent_entries = [entry for entry in entries if entry.messages]
        what = _describe_content(sent_entries, words)
        key = (
            _describe_epsilon(statement_by_site.get(site), sent_entries),
            (what, *_describe_guarantee(statement_by_site.get(site))),
        )
        sites_by_text.setdefault(key, []).append(site)
    return tuple(Departure(tuple(sites), epsilon, sentences) for (epsilon, sentences), sites in sites_by_text.items())


def _describe_content(entries: Sequence[Left], words: Words) -> str:
    """What the entries contain, in a sentence."""
    patients = list_patient_records(entries)
    kinds = [record.what.replace("examples", words.examples) for record in patients if record.records == "left"]
    kinds += dict.fromkeys(entry.brief for entry in entries if entry.brief and entry.records != "left")
    if not entries:
        return "Nothing."
    listed = ", ".join([*kinds, "counts and digests"])
    end = "" if patients else "; no patient's image, label or record"
    return f"{listed[0].upper()}{listed[1:]}{end}."


def _describe_epsilon(statement: Statement | None, entries: Sequence[Left]) -> str:
    """The privacy loss of the entries in a few words."""
    if not entries:
        return "nothing left"
    return UNBOUNDED if statement is None else describe_spent_loss(statement)


def _describe_guarantee(statement: Statement | None) -> tuple[str, ...]:
    """The guarantee for one patient, and the replies that it covers."""
    if statement is None:
        return ("No privacy statement was made.",)
    if not math.isinf(statement.epsilon):
        return (f"{statement.meaning.split('. ')[0].rstrip('.')}.",) if statement.epsilon == 0 else ()
    bound = f"Nothing is proved about what all of this reveals about one {statement.unit}."
    if 0 < statement.noised < math.inf:
        part = f"Replies with noise alone have ε = {statement.noised:g} at δ = {statement.delta:g}."
        return (bound, part)
    return (bound,)
