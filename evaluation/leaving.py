"""What left the hospitals, by request, with its privacy loss; and the same in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from evaluation.rows import group_by
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
    spent_by_site = {statement.site: (describe_spent_loss(statement),) for statement in statements}
    return [
        Total(
            site,
            sum(e.messages for e in entries),
            sum(e.bytes for e in entries),
            spent_by_site.get(site) or tuple(dict.fromkeys(e.epsilon for e in entries)),
        )
        for site, entries in group_by(left, lambda entry: entry.site).items()
    ]


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
    recorded = (entry for entry in left if entry.messages and entry.records != "none")
    by_record = group_by(recorded, lambda entry: (entry.request, entry.of_patients, entry.records))
    return tuple(OfPatients(*what, tuple({e.site: None for e in entries})) for what, entries in by_record.items())


@dataclass(frozen=True)
class Departure:
    """What left a group of hospitals with equal sentences. epsilon: in a few words. said: the sentences."""

    sites: tuple[str, ...]
    epsilon: str
    said: tuple[str, ...]


def describe_departures(left: Sequence[Left], statements: Sequence[Statement], words: Words) -> tuple[Departure, ...]:
    """What left, for groups of hospitals with equal sentences, in order of appearance."""
    statement_by_site = {statement.site: statement for statement in statements}
    entries_by_site = group_by((entry for entry in left if entry.messages), lambda entry: entry.site)

    def describe_site(site: str) -> tuple[str, tuple[str, ...]]:
        statement, entries = statement_by_site.get(site), entries_by_site.get(site, [])
        epsilon = "nothing left" if not entries else UNBOUNDED if statement is None else describe_spent_loss(statement)
        return epsilon, (_describe_content(entries, words), *_describe_guarantee(statement))

    sites_by_text = group_by(dict.fromkeys(entry.site for entry in left), describe_site)
    return tuple(Departure(tuple(sites), *texts) for texts, sites in sites_by_text.items())


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
