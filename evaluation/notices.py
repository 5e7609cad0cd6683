"""Notices: everything in a run that a person should check before using its numbers or models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluation.attacks import (
    KEEP,
    InversionRow,
    MembershipRow,
    describe_auc,
    find_strongest_attack,
    inversion_outcome,
    membership_outcome,
)
from evaluation.choice import describe_guessing, interval_sign, own_scores
from evaluation.classes import TWO, compare_classes, describe_strange_counting
from evaluation.harmony import Harmony
from evaluation.numbers import MAE
from evaluation.records import Missing, Model, Outlier, RunPage, SitePage, SplitCount
from evaluation.rows import FLOORS, PRIVATE, ScoreRow, group_by
from evaluation.wording import READABLE, Words, format_count, format_list, format_signed
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
    sites = [*page.sites, *page.external_sites]
    rejected = {site.site: sum(site.rejected.values()) for site in sites}
    notices = (
        *_missing_notices(page.missing),
        *_update_notices(page.outliers),
        *_cut_off_notices(page.models),
        *_audit_notices([*page.audits, *(s.audit for s in page.statements if s.audit is not None)]),
        *_membership_notices(page.membership),
        *_inversion_notices(page.inversion),
        *_budget_notices(page.statements),
        *_veto_notices(page.harmony),
        *_score_notices(page.scores, page.reference, page.words, page.classes, page.at_home.lines),
        *_run_class_notices(page),
        *_quarantine_notices(
            rejected,
            page.words,
            "the table of patients gives the reasons in a word, and each hospital's own page what to do",
            "whom",
        ),
        *_withdrawal_notices([(s.site, [k.run for k in s.withdrawn.knew]) for s in sites]),
    )
    return tuple(_limit_notices(notices))


def _limit_notices(notices: Sequence[Notice]) -> Iterator[Notice]:
    """The notices. Of a kind with too many to read, the first few and the number of further ones."""
    for what, same_kind in group_by(notices, lambda notice: notice.what).items():
        shown = same_kind if len(same_kind) <= READABLE else same_kind[:SHOWN]
        yield from shown
        if len(shown) < len(same_kind):
            yield Notice(what, f"So it is {len(same_kind) - SHOWN} more times.", same_kind[-1].link)


def site_notices(page: SitePage) -> tuple[Notice, ...]:
    """Notices of a hospital's own page."""
    rejected = {page.site: len(page.quarantine)}
    statements = () if page.statement is None else (page.statement,)
    return (
        *(Notice("Warning", warning, "noted") for warning in page.warnings),
        *_cut_off_notices(page.models),
        *_audit_notices([s.audit for s in statements if s.audit is not None]),
        *_membership_notices(page.membership),
        *_budget_notices(statements),
        *_veto_notices(page.harmony),
        *_score_notices(page.scores, page.reference, page.words, page.classes, page.at_home),
        *_site_class_notices(page),
        *_quarantine_notices(rejected, page.words, "see the section Quarantine for reasons and remedies", "quarantine"),
        *_withdrawal_notices([(page.site, [k.run for k in page.withdrawn.knew])]),
    )


def _missing_notices(missing: Sequence[Missing]) -> Iterator[Notice]:
    """One notice for hospitals with the same missing replies."""
    codes_by_site = {
        site: (sum(r.times for r in replies), ", ".join(dict.fromkeys(f"{r.request}: {r.code}" for r in replies)))
        for site, replies in group_by(missing, lambda reply: reply.site).items()
    }
    for (number, codes), sites in group_by(codes_by_site, codes_by_site.__getitem__).items():
        times = format_count(number, "reply of", "replies of") + " each of" * (len(sites) > 1)
        text = f"{times} {format_list(sites)} did not come ({codes}). Results are without them."
        yield Notice("Missing", text, "left")


DEFENCES = {
    "mean": "It was merged with its full weight.",
    "median": "By the median it counted once, like every other.",
    "trimmed_mean": "The trimmed mean leaves out each number that is largest or smallest.",
    "krum": "Krum keeps the replies that are nearest to others.",
    "norm_bounded": "It was shortened before it was merged.",
}
"""What a rule of merging did with an update that stands out."""


def _update_notices(updates: Sequence[Outlier]) -> Iterator[Notice]:
    """One notice for each hospital and method."""
    for update in updates:
        facts = []
        if update.times:
            away = " and pointed away from the others'" if update.opposed else ""
            facts.append(f"its update was up to {update.times:.3g} times the median of all{away}")
        if update.n:
            facts.append(f"it said that it has {update.n:,} examples, and had released another number, which was used")
        remedy = " train.merge: {name: median} limits what one hospital can do." if update.rule == "mean" else ""
        text = (
            f"{update.site} in {update.method}, {_format_rounds(update.rounds)}: {'; '.join(facts)}. "
            f"{DEFENCES[update.rule] if update.times else ''} "
            "A damaged export or other patients can cause this, and so can an attack: ask the hospital before you use "
            f"the model.{remedy}"
        )
        yield Notice("Update stands out", " ".join(text.split()), "cost")


def _format_rounds(rounds: Sequence[int]) -> str:
    """Rounds in words: `round 3`, `rounds 3 to 9`, `4 rounds from 2 to 17`."""
    first, last = rounds[0], rounds[-1]
    if len(rounds) == 1:
        return f"round {first}"
    if len(rounds) == last - first + 1:
        return f"rounds {first} to {last}"
    return f"{len(rounds)} rounds from {first} to {last}"


def _cut_off_notices(models: Iterable[Model]) -> Iterator[Notice]:
    """One notice for each method whose training ended early: its scores are shown, and it is not ranked."""
    ended = group_by((model for model in models if model.ended), lambda model: (model.method, model.ended))
    for (method, why), cut_off in ended.items():
        at = format_list([model.site for model in cut_off])
        yield Notice("Cut off", f"{method} at {at}: {why}. Its scores are shown, and it is not ranked.", "scores")


def _audit_notices(audits: Iterable[Audit]) -> Iterator[Notice]:
    """One notice for each audit that refutes a claimed epsilon."""
    for audit in dict.fromkeys(audits):
        if audit.is_refuted:
            text = (
                f"The audit refutes the claimed ε = {audit.claimed:g}: it found at least {audit.bound:.3g}. "
                "Do not rely on any ε of this run."
            )
            yield Notice("Privacy claim refuted", text, "privacy")


def _membership_notices(rows: Sequence[MembershipRow]) -> Iterator[Notice]:
    """One notice if a membership attack succeeds, with the strongest attack."""
    best = find_strongest_attack(rows)
    if best is None:
        return
    works = [row for row in rows if membership_outcome(row).word == "succeeds"]
    judged = [row for row in rows if membership_outcome(row).word != "says nothing"]
    text = (
        f"An attack can detect who took part in training, for {len(works)} of {len(judged)} models that were attacked. "
        f"{best.method} at {best.site}: {describe_auc(best)}. {KEEP}"
    )
    yield Notice("Attack succeeds", text, "privacy")


def _inversion_notices(rows: Sequence[InversionRow]) -> Iterator[Notice]:
    """One notice if an inversion attack succeeds, with the attack that does best."""
    works = [row for row in rows if inversion_outcome(row).word == "succeeds"]
    if works:
        best = max(works, key=lambda row: row.better / row.images)
        text = (
            f"{len(works)} of {sum(bool(r.images) for r in rows)} attacks can reconstruct training images in part. "
            f"{best.method} at {best.site}, from its {best.attack}: {inversion_outcome(best).sentence} {KEEP}"
        )
        yield Notice("Attack succeeds", text, "privacy")


def _budget_notices(statements: Iterable[Statement]) -> Iterator[Notice]:
    """One notice for hospitals that have equally little left of equal budgets."""
    budgets = [
        (f"ε = {s.budget.remaining:g} left of its budget of {s.budget.epsilon:g}", s.site)
        for s in statements
        if s.budget is not None and s.budget.remaining < NEARLY * s.budget.epsilon
    ]
    for left, pairs in group_by(budgets, lambda pair: pair[0]).items():
        sites = [site for _, site in pairs]
        who = f"Each of {format_list(sites)}" if len(sites) > 1 else sites[0]
        yield Notice("Budget nearly spent", f"{who} has {left}.", "privacy")


def _veto_notices(harmony: Harmony | None) -> Iterator[Notice]:
    """One notice for each vetoed translation."""
    for row in harmony.rows if harmony is not None else ():
        if row.vetoed:
            where = f"The translation {row.space} is not used at {row.site} ({', '.join(row.reasons)})"
            yield Notice("Veto", f"{where}: its images stay as they were read.", "spaces")


def _score_notices(
    rows: Sequence[ScoreRow], reference: str, words: Words, classes: Sequence[str], at_home: Collection[str] = ()
) -> Iterator[Notice]:
    """Methods that do no better than guessing, hospitals that lose, and scores that cannot be judged. at_home: lines
    that are no federation's.
    """
    site_scores = own_scores(rows)
    noise = ", or too much noise," if any(row.noise for row in rows) else ""
    poor: list[str] = []
    for site in sorted({row.sites[0] for row in rows if row.protocol == PRIVATE}):
        method_rows = site_scores.at(site, site_scores.measure)
        weak = [method for method, row in method_rows.items() if not row.assessable]
        if weak and len(weak) == len(method_rows):
            row = method_rows[weak[0]]
            rare = f", {row.positive_patients} {'of the rarest class' if classes else 'positive'}"
            rare = "" if row.measure == MAE else rare
            poor.append(f"{site} ({format_count(row.patients, 'patient', 'patients')}{rare})")
            continue
        if collapsed := [
            f"{m} ({why})" for m, row in method_rows.items() if (why := describe_guessing(row, site_scores))
        ]:
            yield Notice("No better than guessing", f"At {site}: {', '.join(collapsed)}.", "scores")
        worse = [
            f"{method} ({format_signed(row.gain)})"
            for method, row in method_rows.items()
            if method not in at_home and interval_sign(*row.widest_gain) < 0
        ]
        if worse and reference:
            text = (
                f"Federated models are worse than {reference} at {site}: {', '.join(worse)}. Its patients or "
                f"its {words.examples} may differ from the others'; let it keep its own model."
            )
            yield Notice("A hospital loses", text, "scores")
    for why in dict.fromkeys(site_scores.alike.values()):
        at = format_list([site for site, text in site_scores.alike.items() if text == why])
        text = f"{at}: {why}, so nothing can be assessed there, and no model is recommended on such scores."
        yield Notice("Not assessable", text, "scores")
    if poor:
        text = f"Scores rest on too few test patients{noise} to be judged: {format_list(poor)}."
        yield Notice("Not assessable", text, "scores")


def _run_class_notices(page: RunPage) -> Iterator[Notice]:
    """Notices of odd classes, only where hospitals count images exactly: a noised count does not show whether it is
    0.
    """
    if page.structures or page.number is not None or page.findings.names:
        return
    counted = {site.site: _count_classes(site.splits, page.classes) for site in page.sites if not site.released}
    counts_by_site = {site: counts for site, counts in counted.items() if counts}
    strange = {site.site: site.rejected.get("bad_label", 0) for site in page.sites}
    yield from _counting_notices(counts_by_site, page.classes, strange)
    if len(counts_by_site) == len(page.sites) and (problem := compare_classes(counts_by_site, page.classes)):
        yield Notice("Classes", f"{problem[:1].upper()}{problem[1:]}.")


def _site_class_notices(page: SitePage) -> Iterator[Notice]:
    """A notice if this hospital probably counts its classes from another number."""
    counts = _count_classes(page.splits, page.classes)
    if counts and not page.structures and page.number is None and not page.findings.names:
        strange = {page.site: sum(study.reason == "bad_label" for study in page.quarantine)}
        yield from _counting_notices({page.site: counts}, page.classes, strange)


def _counting_notices(
    counts_by_site: Mapping[str, Sequence[int]], names: Sequence[str], strange: Mapping[str, int]
) -> Iterator[Notice]:
    """A notice if hospitals probably count their classes from another number."""
    if problem := describe_strange_counting(counts_by_site, names or TWO.names, strange):
        yield Notice("Classes", f"{problem}.")


def _count_classes(splits: Sequence[SplitCount], names: Sequence[str]) -> list[int]:
    """Images of each class in all splits; of two classes those without and with a finding; empty if not counted."""
    if names:
        is_counted = all(len(split.classes) == len(names) for split in splits)
        return [sum(counts) for counts in zip(*(split.classes for split in splits), strict=True)] if is_counted else []
    positives = sum(split.positives for split in splits)
    return [sum(split.images for split in splits) - positives, positives]


def _quarantine_notices(rejected: Mapping[str, int], words: Words, where: str, link: str) -> Iterator[Notice]:
    """One notice with the number of rejected studies."""
    counts_by_site = {site: times for site, times in rejected.items() if times}
    if counts_by_site:
        total = format_count(sum(counts_by_site.values()), f"{words.study} was", f"{words.studies} were")
        by_site = f" ({format_list([f'{site} {times}' for site, times in counts_by_site.items()])})"
        yield Notice("Quarantine", f"{total} not used{by_site if len(rejected) > 1 else ''}; {where}.", link)


def _withdrawal_notices(knew: Iterable[tuple[str, Sequence[str]]]) -> Iterator[Notice]:
    """One notice for each hospital whose withdrawn patients were used by earlier runs."""
    for site, runs in knew:
        if runs:
            text = (
                f"Models of {format_count(len(runs), 'earlier run', 'earlier runs')} used patients of {site} who are "
                "excluded now. A model does not forget: stop using these models."
            )
            yield Notice("Withdrawn", text, "withdrawn")


def row_notes(
    rows: Sequence[ScoreRow], harmony: Harmony | None, spaces: Mapping[str, str], site: str = ""
) -> dict[str, str]:
    """Notes in a method's row: a refused translation and why, scores equal to another method's.

    site: the hospital whose page it is; empty = the coordinator's.
    """
    notes: dict[str, str] = {}
    same = find_equal_methods(rows)
    for method in dict.fromkeys(row.method for row in rows):
        refused = [r for r in (harmony.rows if harmony else ()) if r.vetoed and r.space == spaces.get(method)]
        why = "; ".join(f"{'here' if site else 'at ' + r.site} ({', '.join(r.reasons)})" for r in refused)
        if method in same:
            notes[method] = f"= {same[method]}: translation refused {why}" if why else f"same scores as {same[method]}"
        elif why:
            notes[method] = f"translation refused {why}"
    return notes


def find_equal_methods(rows: Sequence[ScoreRow]) -> dict[str, str]:
    """Method -> an earlier one whose scores and intervals are all equal, digit for digit. Baselines are left out."""
    scores_by_method: dict[str, set[tuple[object, ...]]] = {}
    for row in rows:
        if row.method not in FLOORS:
            key = (row.measure, row.protocol, row.sites, f"{row.value} {row.low} {row.high}")
            scores_by_method.setdefault(row.method, set()).add(key)
    methods, same = list(scores_by_method), dict[str, str]()
    for place, method in enumerate(methods):
        first = next((other for other in methods[:place] if scores_by_method[other] == scores_by_method[method]), None)
        if first is not None:
            same[method] = first
    return same
