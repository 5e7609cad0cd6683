"""Notices: everything in a run that a person should check before using its numbers or models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluation.attacks import (
    KEEP,
    InversionRow,
    MembershipRow,
    inversion_verdict,
    membership_verdict,
    pairs,
    strongest,
)
from evaluation.choice import direction, guess, own_scores
from evaluation.classes import TWO, compare_classes, strange_counting
from evaluation.harmony import Harmony
from evaluation.records import Missing, Model, RunPage, SitePage, SplitCount
from evaluation.rows import FLOORS, PRIVATE, ScoreRow
from evaluation.wording import READABLE, Words, counted, listed
from privacy.release.statement import Audit, Statement

SHOWN = 3
"""Notices of one kind on a page where there are more of it than can be read."""
NEARLY = 0.1
"""Share of a budget: if less is left, there is a notice."""


@dataclass(frozen=True)
class Notice:
    """what: a few words in bold. text: one or two sentences. link: the section with details; empty = none."""

    what: str
    text: str
    link: str = ""


def run_notices(page: RunPage) -> tuple[Notice, ...]:
    """Notices of the coordinator's page, the most urgent first."""
    held = [*page.sites, *page.external_sites]
    rejected = {site.site: sum(site.rejected.values()) for site in held}
    found = (
        *_missing(page.missing),
        *_cut_off(page.models),
        *_audits([*page.audits, *(s.audit for s in page.statements if s.audit is not None)]),
        *_membership(page.membership),
        *_inversion(page.inversion),
        *_budgets(page.statements),
        *_vetoes(page.harmony),
        *_scores(page.scores, page.reference, page.words, page.classes),
        *_unlike_classes(page),
        *_quarantine(rejected, page.words, "the table of patients gives the reasons", "whom"),
        *_withdrawn([(s.site, [k.run for k in s.withdrawn.knew]) for s in held]),
    )
    return tuple(_bounded(found))


def _bounded(found: Sequence[Notice]) -> Iterator[Notice]:
    """The notices; of more of one kind than can be read some, and how many others there are."""
    for what in dict.fromkeys(one.what for one in found):
        alike = [one for one in found if one.what == what]
        shown = alike if len(alike) <= READABLE else alike[:SHOWN]
        yield from shown
        if len(shown) < len(alike):
            yield Notice(what, f"So it is {len(alike) - SHOWN} more times.", alike[-1].link)


def site_notices(page: SitePage) -> tuple[Notice, ...]:
    """Notices of a hospital's own page."""
    rejected = {page.site: len(page.quarantine)}
    said = () if page.statement is None else (page.statement,)
    return (
        *(Notice("Warning", warning, "noted") for warning in page.warnings),
        *_cut_off(page.models),
        *_audits([s.audit for s in said if s.audit is not None]),
        *_membership(page.membership),
        *_budgets(said),
        *_vetoes(page.harmony),
        *_scores(page.scores, page.reference, page.words, page.classes),
        *_own_classes(page),
        *_quarantine(rejected, page.words, "see the section Quarantine for reasons and remedies", "quarantine"),
        *_withdrawn([(page.site, [k.run for k in page.withdrawn.knew])]),
    )


def _missing(missing: Sequence[Missing]) -> Iterator[Notice]:
    """One notice for hospitals of which the same did not come."""
    by_site: dict[str, list[Missing]] = {}
    for one in missing:
        by_site.setdefault(one.site, []).append(one)
    alike: dict[tuple[int, str], list[str]] = {}
    for site, lost in by_site.items():
        codes = ", ".join(dict.fromkeys(f"{one.request}: {one.code}" for one in lost))
        alike.setdefault((sum(one.times for one in lost), codes), []).append(site)
    for (number_of, codes), sites in alike.items():
        times = counted(number_of, "reply of", "replies of") + " each of" * (len(sites) > 1)
        yield Notice("Missing", f"{times} {listed(sites)} did not come ({codes}). Results are without them.", "left")


def _cut_off(models: Iterable[Model]) -> Iterator[Notice]:
    """One notice for each method whose training ended early: its scores are shown, and it is not ranked."""
    ended: dict[tuple[str, str], list[str]] = {}
    for one in models:
        if one.ended:
            ended.setdefault((one.method, one.ended), []).append(one.site)
    for (method, why), sites in ended.items():
        yield Notice(
            "Cut off", f"{method} at {listed(sites)}: {why}. Its scores are shown, and it is not ranked.", "scores"
        )


def _audits(audits: Iterable[Audit]) -> Iterator[Notice]:
    for one in dict.fromkeys(audits):
        if one.refuted:
            text = (
                f"The audit refutes the claimed ε = {one.claimed:g}: it found at least {one.bound:.3g}. "
                "Do not rely on any ε of this run."
            )
            yield Notice("Privacy claim refuted", text, "privacy")


def _membership(rows: Sequence[MembershipRow]) -> Iterator[Notice]:
    best = strongest(rows)
    if best is None:
        return
    works = [row for row in rows if membership_verdict(row).word == "succeeds"]
    judged = [row for row in rows if membership_verdict(row).word != "says nothing"]
    text = (
        f"An attack can detect who took part in training, for {len(works)} of {len(judged)} models that were attacked. "
        f"{best.method} at {best.site}: {pairs(best)}. {KEEP}"
    )
    yield Notice("Attack succeeds", text, "privacy")


def _inversion(rows: Sequence[InversionRow]) -> Iterator[Notice]:
    works = [row for row in rows if inversion_verdict(row).word == "succeeds"]
    if works:
        best = max(works, key=lambda row: row.better / row.images)
        text = (
            f"{len(works)} of {sum(bool(r.images) for r in rows)} attacks can reconstruct training images in part. "
            f"{best.method} at {best.site}, from its {best.attack}: {inversion_verdict(best).said} {KEEP}"
        )
        yield Notice("Attack succeeds", text, "privacy")


def _budgets(statements: Iterable[Statement]) -> Iterator[Notice]:
    alike: dict[str, list[str]] = {}
    for one in statements:
        if one.budget is not None and one.budget.remaining < NEARLY * one.budget.epsilon:
            left = f"ε = {one.budget.remaining:g} left of its budget of {one.budget.epsilon:g}"
            alike.setdefault(left, []).append(one.site)
    for left, sites in alike.items():
        who = f"Each of {listed(sites)}" if len(sites) > 1 else sites[0]
        yield Notice("Budget nearly spent", f"{who} has {left}.", "privacy")


def _vetoes(harmony: Harmony | None) -> Iterator[Notice]:
    for row in harmony.rows if harmony is not None else ():
        if row.vetoed:
            text = (
                f"The translation {row.space} is not used at {row.site} ({', '.join(row.reasons)}): methods learn "
                "from images as they were read there."
            )
            yield Notice("Veto", text, "spaces")


def _scores(rows: Sequence[ScoreRow], reference: str, words: Words, classes: Sequence[str]) -> Iterator[Notice]:
    """Methods that do no better than guessing, hospitals that lose, and scores that cannot be judged."""
    held = own_scores(rows)
    noise = ", or too much noise," if any(row.noise for row in rows) else ""
    poor: list[str] = []
    for site in sorted({row.sites[0] for row in rows if row.protocol == PRIVATE}):
        own = held.at(site, held.measure)
        weak = [method for method, row in own.items() if not row.assessable]
        if weak and len(weak) == len(own):
            row = own[weak[0]]
            rare = "of the rarest class" if classes else "positive"
            poor.append(f"{site} ({counted(row.patients, 'patient', 'patients')}, {row.positive_patients} {rare})")
            continue
        if collapsed := [f"{m} ({why})" for m, row in own.items() if (why := guess(row, held))]:
            yield Notice("No better than guessing", f"At {site}: {', '.join(collapsed)}.", "scores")
        worse = [f"{m}{_gain(r)}" for m, r in own.items() if direction(r.gain_low, r.gain_high) < 0]
        if worse and reference:
            text = (
                f"Federated models are worse than {reference} at {site}: {', '.join(worse)}. Its patients or "
                f"its {words.examples} may differ from the others'; let it keep its own model."
            )
            yield Notice("A hospital loses", text, "scores")
    for why in dict.fromkeys(held.alike.values()):
        at = listed([site for site, text in held.alike.items() if text == why])
        text = f"{at}: {why}, so nothing can be assessed there, and no model is recommended on such scores."
        yield Notice("Not assessable", text, "scores")
    if poor:
        text = f"Scores rest on too few test patients{noise} to be judged: {listed(poor)}."
        yield Notice("Not assessable", text, "scores")


def _gain(row: ScoreRow) -> str:
    return f" ({row.gain:+.3f})".replace("-", "−")


def _unlike_classes(page: RunPage) -> Iterator[Notice]:
    """Only where hospitals count images exactly: of a noised count nobody knows whether it is 0."""
    if page.structures:
        return
    told = {site.site: own for site in page.sites if not site.released and (own := _held(site.splits, page.classes))}
    yield from _strange(told, page.classes, {site.site: site.rejected.get("bad_label", 0) for site in page.sites})
    if len(told) == len(page.sites) and (said := compare_classes(told, page.classes)):
        yield Notice("Classes", f"{said[:1].upper()}{said[1:]}.")


def _own_classes(page: SitePage) -> Iterator[Notice]:
    own = _held(page.splits, page.classes)
    if own and not page.structures:
        strange = {page.site: sum(one.reason == "bad_label" for one in page.quarantine)}
        yield from _strange({page.site: own}, page.classes, strange)


def _strange(held: Mapping[str, Sequence[int]], names: Sequence[str], strange: Mapping[str, int]) -> Iterator[Notice]:
    if said := strange_counting(held, names or TWO.names, strange):
        yield Notice("Classes", f"{said}.")


def _held(splits: Sequence[SplitCount], names: Sequence[str]) -> list[int]:
    """Images of each class in all splits; of two classes those without and with a finding; empty if not counted."""
    if names:
        counted_all = all(len(one.classes) == len(names) for one in splits)
        return [sum(own) for own in zip(*(one.classes for one in splits), strict=True)] if counted_all else []
    positives = sum(one.positives for one in splits)
    return [sum(one.images for one in splits) - positives, positives]


def _quarantine(rejected: Mapping[str, int], words: Words, where: str, link: str) -> Iterator[Notice]:
    held = {site: times for site, times in rejected.items() if times}
    if held:
        total = counted(sum(held.values()), f"{words.study} was", f"{words.studies} were")
        by_site = f" ({listed([f'{site} {times}' for site, times in held.items()])})" if len(rejected) > 1 else ""
        yield Notice("Quarantine", f"{total} not used{by_site}; {where}.", link)


def _withdrawn(knew: Iterable[tuple[str, Sequence[str]]]) -> Iterator[Notice]:
    for site, runs in knew:
        if runs:
            text = (
                f"Models of {counted(len(runs), 'earlier run', 'earlier runs')} used patients of {site} who are "
                "excluded now. A model does not forget: stop using these models."
            )
            yield Notice("Withdrawn", text, "withdrawn")


def row_notes(
    rows: Sequence[ScoreRow], harmony: Harmony | None, spaces: Mapping[str, str], site: str = ""
) -> dict[str, str]:
    """Notes in a method's row: a vetoed translation, scores equal to another method's.

    site: the hospital whose page it is; empty = the coordinator's.
    """
    notes: dict[str, str] = {}
    same = same_as(rows)
    for method in dict.fromkeys(row.method for row in rows):
        vetoed = [r.site for r in (harmony.rows if harmony else ()) if r.vetoed and r.space == spaces.get(method)]
        why = f"translation vetoed {'here' if site else 'at ' + listed(vetoed)}" if vetoed else ""
        if method in same:
            notes[method] = f"same scores as {same[method]}{': ' + why if why else ''}"
        elif why:
            notes[method] = why
    return notes


def same_as(rows: Sequence[ScoreRow]) -> dict[str, str]:
    """Method -> an earlier one whose scores and intervals are all equal, digit for digit. Baselines are left out."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for row in rows:
        if row.method not in FLOORS:
            key = (row.measure, row.protocol, row.sites, f"{row.value} {row.low} {row.high}")
            found.setdefault(row.method, set()).add(key)
    methods, same = list(found), dict[str, str]()
    for place, method in enumerate(methods):
        first = next((other for other in methods[:place] if found[other] == found[method]), None)
        if first is not None:
            same[method] = first
    return same
