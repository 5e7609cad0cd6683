"""The first screen of a page: which model to use and how sure that is, what left the hospitals, and what a person
should check.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.at_home import Contribution, HomeComparison
from evaluation.choice import Choice, describe_decisions, interval_sign, primary_measure
from evaluation.harmony import describe_harmonization
from evaluation.leaving import Departure, describe_departures
from evaluation.notices import Notice, run_notices, site_notices
from evaluation.page import Block, Fact, Facts, Fold, Items, Paragraph, Section, SideBySide, Span, Text, compose_text
from evaluation.recommended_words import HOW_RECOMMENDED
from evaluation.records import RunPage, SitePage
from evaluation.rows import LOWER_IS_BETTER, ScoreRow, best_word
from evaluation.wording import READABLE, format_count, format_list, format_number, format_signed
from privacy.release.statement import Statement


@dataclass(frozen=True)
class Answers:
    """use: a model for each hospital. sure: how it was chosen, and how that biases its score, in sentences.
    left: what left. unit: the unit of the guarantee, empty without a statement. look: what a person should check;
    empty = nothing was found. harmonized: what harmonization is worth and what was refused, at_home: what stays at
    home and what a federation gains over it, in sentences.
    """

    use: tuple[Choice, ...]
    sure: tuple[str, ...]
    left: tuple[Departure, ...]
    unit: str
    look: tuple[Notice, ...]
    harmonized: tuple[str, ...] = ()
    at_home: tuple[str, ...] = ()


def run_answers(page: RunPage) -> Answers:
    """The answers of a run, for the coordinator."""
    validated = {site.site: s.patients for site in page.sites for s in site.splits if s.split == "validation"}
    worth = describe_harmonization(page.harmony, page.shares, page.spaces, page.outside, page.untreated)
    stays = describe_gain_over_home(page.at_home)
    return _answer(page, validated, page.statements, run_notices(page), worth, stays)


def site_answers(page: SitePage) -> Answers:
    """The answers of a run, for one hospital."""
    validated = {page.site: sum(s.patients for s in page.splits if s.split == "validation")}
    statements = () if page.statement is None else (page.statement,)
    worth = describe_harmonization(page.harmony, page.shares, page.spaces)
    stays = (describe_kept(page.home_floors, "this hospital"),) if page.home_floors else ()
    return _answer(page, validated, statements, site_notices(page), worth, stays)


def _answer(
    page: RunPage | SitePage,
    validated: Mapping[str, int],
    statements: tuple[Statement, ...],
    notices: tuple[Notice, ...],
    worth: tuple[str, ...],
    stays: tuple[str, ...],
) -> Answers:
    """The answers, with what differs between both pages. validated: validation patients by hospital."""
    use = list_choices(page)
    lines = len({row.method for row in page.scores} & {model.method for model in page.models})
    sure = _describe_selection(use, validated, page.optimism, lines, primary_measure(page.scores))
    left = describe_departures(page.left, statements, page.words)
    return Answers(use, sure, left, _describe_guarantee_unit(statements), notices, worth, stays)


def list_choices(page: RunPage | SitePage) -> tuple[Choice, ...]:
    """The decisions of a page in words."""
    return describe_decisions(page.decisions, page.models, page.scores, page.reference, page.words, page.rivals)


def _describe_selection(
    site_choices: tuple[Choice, ...],
    validated: Mapping[str, int],
    optimism: Mapping[str, float],
    lines: int,
    measure: str,
) -> tuple[str, ...]:
    """How the models were chosen, in sentences. validated: validation patients by hospital. lines: number of methods to
    choose from.
    """
    sentences = [HOW_RECOMMENDED] if any(choice.by == "recommended" for choice in site_choices) else []
    by_validation = [choice for choice in site_choices if choice.by == "validation"]
    if by_validation:
        whose = "each" if len(site_choices) > 1 else "this"
        labelled = [(f"{choice.site} " if len(site_choices) > 1 else "", choice) for choice in by_validation]
        patients = format_list(
            [f"{name}{validated[choice.site]}" for name, choice in labelled if choice.site in validated]
        )
        counts_text = f" ({patients})" if patients else ""
        sites = {choice.site for choice in by_validation if choice.withdrew}
        where = f" at {format_list(sorted(sites))}" if 0 < len(sites) < len(site_choices) else ""
        part = (
            f"; test patients withdrew a model{where}, and had no other part in it. "
            if sites
            else ", without using the test patients, so the choice does not flatter these scores. "
        )
        sentences.append(
            f"Chosen by the lowest loss on {whose} hospital's validation patients{counts_text}{part}"
            "With so few patients a small difference in loss means little."
        )
        if tops := [
            f"{name}{choice.top.method} ({format_number(choice.top.value)})"
            for name, choice in labelled
            if choice.top is not None
        ]:
            most = max((optimism.get(choice.site, math.nan) for choice in by_validation), default=math.nan)
            by = f", by about {format_number(most)} (bootstrap)" if math.isfinite(most) else ""
            sentences.append(
                f"The {best_word(measure)} {measure} on the test patients: {format_list(tops)}. Picking the best of "
                f"{lines} on the same patients overstates its score{by}."
            )
    if by_test := [choice for choice in site_choices if choice.by == "test"]:
        flattered = {choice.site: optimism.get(choice.site, math.nan) for choice in by_test}
        names = {site: f"{site} " if len(site_choices) > 1 else "" for site in flattered}
        amounts = format_list(
            [f"{names[site]}{format_number(by)}" for site, by in flattered.items() if math.isfinite(by)]
        )
        flattery = f": by about {amounts} (bootstrap)" if amounts else ""
        sentences.append(
            f"Chosen by the {best_word(measure)} {measure} on the test patients, because there is no validation loss "
            f"to choose by. The best of {lines} on the same patients looks better than it is{flattery}; test it on new "
            "patients before use."
        )
    return tuple(sentences)


def _describe_guarantee_unit(statements: tuple[Statement, ...]) -> str:
    """The unit, the adjacency and delta of each statement's guarantee, in sentences; each different one once."""
    sentences = (f"A guarantee is about one {s.unit}; it compares {s.adjacency}; δ = {s.delta:g}." for s in statements)
    return " ".join(dict.fromkeys(sentences))


def describe_gain_over_home(at_home: HomeComparison) -> tuple[str, ...]:
    """Whether a federated line gains over the best that hospitals keep to themselves, how both were chosen, and what
    else each hospital keeps; none without such lines.
    """
    gained, better = {row.method: row for row in at_home.gains}, _list_better(at_home)
    sentences = []
    if at_home.reference and at_home.federated in gained:
        sentences = [
            _describe_gain(gained[at_home.federated], at_home),
            _describe_choice(at_home),
            *([f"Above {at_home.reference} by intervals of their own: {format_list(better)}."] if better else []),
        ]
    sentences += [_describe_contributions(at_home.contributions)] if at_home.contributions else []
    return (*sentences, *([describe_kept(at_home.home_floors, "each hospital")] if at_home.home_floors else []))


def _describe_contributions(contributions: Sequence[Contribution]) -> str:
    """What other hospitals add to each method, with what its interval says."""
    measure = contributions[0].gain.measure
    better = ", positive where it is lower" if measure in LOWER_IS_BETTER else ""
    parts = [f"{each.gain.method} {_describe_contribution(each)}" for each in contributions]
    return (
        f"What other hospitals add, as a gain in {measure}{better} over the same method at each hospital alone, with "
        f"its 95 % interval: {'; '.join(parts)}."
    )


def _describe_contribution(contribution: Contribution) -> str:
    """The gain over the line at home, and whether it is told from 0."""
    low, high = contribution.gain.widest_gain
    if not math.isfinite(contribution.gain.gain) or not math.isfinite(low):
        return f"not known, because it could not be compared with {contribution.line_at_home}"
    conclusion = {1: "a gain", 0: "not told from 0", -1: "a loss"}[interval_sign(low, high)]
    interval = f"{format_signed(low)} to {format_signed(high)}"
    return f"{format_signed(contribution.gain.gain)} ({interval}) over {contribution.line_at_home}, {conclusion}"


def describe_kept(lines: Sequence[str], where: str) -> str:
    """What is learnt without noise and never told. where: at which hospital."""
    return (
        f"What stays at home: {' and '.join(lines)}, learnt without noise by {where} alone on the features of the run, "
        "for its own page. No model, score or file of them leaves, so they cost no ε."
    )


def _describe_gain(row: ScoreRow, at_home: HomeComparison) -> str:
    """The gain of the federated line, with what its interval says."""
    low, high = row.widest_gain
    reference = at_home.reference
    further = [line for line in at_home.lines if line != reference]
    among = f", the best at home of {format_list([reference, *further])}" if further and at_home.hospitals else ""
    if not math.isfinite(row.gain) or not math.isfinite(low):
        return (
            f"Whether a federated line is better than what each hospital keeps to itself is not known: "
            f"{row.method} could not be compared with {reference}{among}."
        )
    by = format_signed(row.gain)
    change = f"changes the {row.measure} by {by}"
    if row.measure in LOWER_IS_BETTER:
        change = f"has a gain of {by} in {row.measure}, positive where it is lower"
    gain = (
        f"{row.method} {change} (95 % interval {format_signed(low)} to {format_signed(high)}) over {reference}{among}"
    )
    sign = interval_sign(low, high)
    if sign > 0:
        return f"A federated line beats what each hospital keeps to itself: {gain}."
    if _list_better(at_home):
        beats = "is not shown to beat" if sign == 0 else "does not beat"
        return f"The federated line in front {beats} what each hospital keeps to itself: {gain}."
    return (
        f"No federated line {'is shown to beat' if sign == 0 else 'beats'} what each hospital keeps to itself: {gain}."
    )


def _describe_choice(at_home: HomeComparison) -> str:
    """How the two lines were chosen."""
    measure = at_home.gains[0].measure if at_home.gains else ""
    best = "lowest mean absolute error" if measure in LOWER_IS_BETTER else "highest mean AUC"
    if at_home.hospitals:
        whose = format_count(at_home.hospitals, "hospital", "hospitals")
        return (
            f"Both have the {best} of their kind on validation patients of {whose}; test patients had no part in the "
            "choice."
        )
    why = "a private run tells none" if at_home.private else "there are none"
    return (
        f"Without scores of validation patients ({why}), {at_home.reference} is the first such line of the settings, "
        f"and {at_home.federated} the federated line with the largest gain on the test patients, which flatters it."
    )


def _list_better(at_home: HomeComparison) -> list[str]:
    """Further federated lines whose interval lies above 0."""
    return [
        row.method for row in at_home.gains if row.method != at_home.federated and interval_sign(*row.widest_gain) > 0
    ]


NOTHING_TO_LOOK_AT = (
    "Nothing was found: every reply came, nothing was vetoed or quarantined, and no attack that was run succeeded."
)


def build_answers(answers: Answers, whose: str, *, is_run: bool) -> SideBySide:
    """The three answers. whose: "each hospital" or "this hospital". is_run: whether they are of several hospitals."""
    left: list[Block] = [] if answers.left else [Paragraph("Nothing left.")]
    for departure in answers.left:
        who: Text = (Span(format_list(departure.sites), "strong"), ": ") if is_run else ""
        loss = Span(f"ε = {departure.epsilon}", "lead")
        left.append(Paragraph((who, loss, ". ", " ".join(departure.said))))
    if answers.unit:
        unit = compose_text("{unit} [Privacy statement](#privacy).", unit=answers.unit)
        left.append(Paragraph(unit, "note"))
    use = _list_choices(answers.use, whose, is_run=is_run)
    if answers.sure:
        use.append(Fold("How it was chosen", [Paragraph(text, "note") for text in answers.sure], is_part=False))
    return SideBySide(
        [
            Section(f"1. Which model should {whose} use?", use, "use", "In short", "wide"),
            Section("2. What left, and at what privacy loss ε?", left, "went", width="half"),
            Section("3. What needs a person's eye?", _list_notices(answers.look), "look", width="half"),
        ],
        "answers",
    )


def build_banners(answers: Answers) -> list[Block]:
    """What stands above the answers, if anything is known of it."""
    named = (("At home and together.", answers.at_home), ("Harmonization.", answers.harmonized))
    return [Paragraph((Span(name, "strong"), " ", " ".join(texts)), "banner") for name, texts in named if texts]


def _list_choices(choices: Sequence[Choice], whose: str, *, is_run: bool) -> list[Block]:
    """The choices, or how many hospitals have each where there are many."""
    facts = [_state_choice(choice, is_run=is_run) for choice in choices]
    listed = Facts(facts or [Fact(f"No model was made for {whose} in this run.")], "What it rests on")
    if len(choices) <= READABLE:
        return [listed]
    counts = sorted(Counter(choice.named for choice in choices).items())
    summary = "; ".join(f"{named}: {format_count(times, 'hospital', 'hospitals')}" for named, times in counts)
    return [Paragraph(f"{summary}.", "lead"), Fold("Each hospital", [listed], is_part=False)]


def _state_choice(choice: Choice, *, is_run: bool) -> Fact:
    """A choice, with what it rests on."""
    site: Text = (Span(choice.site, "b"), " ") if is_run else ""
    lead = choice.said[0] if choice.said else ""
    standing = [text for text in choice.standing if text != lead]
    rest: Text = " ".join(text for text in choice.said[1:] if text not in standing)
    if choice.file:
        rest = (rest, " ", Span(choice.file, "code"))
    return Fact((site, Span(choice.named, "strong")), lead, rest, " ".join(standing))


def _list_notices(notices: Sequence[Notice]) -> list[Block]:
    """What a person should check."""
    if not notices:
        return [Paragraph(NOTHING_TO_LOOK_AT)]
    first, rest = ([_state_notice(n) for n in part] for part in (notices[:READABLE], notices[READABLE:]))
    blocks: list[Block] = [Items(first, "plain look")]
    if rest:
        title = format_count(len(rest), "further point", "further points")
        blocks.append(Fold(title, [Items(rest, "plain look")], is_part=False))
    return blocks


def _state_notice(notice: Notice) -> Text:
    """A notice, with where there is more."""
    more: Text = (" ", Span("More", href=f"#{notice.link}")) if notice.link else ""
    return (Span(f"{notice.what}.", "b"), f" {notice.text}", more)
