"""The first screen of a page: which model to use and how sure that is, what left the hospitals, and what a person
should check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evaluation.at_home_words import describe_gain_over_home, describe_kept
from evaluation.choice import Choice, describe_decisions, primary_measure
from evaluation.harmonized import describe_harmonization
from evaluation.leaving import Departure, describe_departures
from evaluation.notices import Notice, run_notices, site_notices
from evaluation.recommended_words import HOW_RECOMMENDED
from evaluation.records import RunPage, SitePage
from evaluation.rows import best_word
from evaluation.wording import format_list, format_number
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
    use = list_choices(page)
    validated = {site.site: s.patients for site in page.sites for s in site.splits if s.split == "validation"}
    lines = len({row.method for row in page.scores} & {model.method for model in page.models})
    sure = _describe_selection(use, validated, page.optimism, lines, primary_measure(page.scores))
    left = describe_departures(page.left, page.statements, page.words)
    worth = describe_harmonization(page.harmony, page.shares, page.spaces, page.outside, page.untreated)
    return Answers(
        use,
        sure,
        left,
        _describe_guarantee_unit(page.statements),
        run_notices(page),
        worth,
        describe_gain_over_home(page.at_home),
    )


def site_answers(page: SitePage) -> Answers:
    """The answers of a run, for one hospital."""
    use = list_choices(page)
    validated = dict.fromkeys([page.site], sum(s.patients for s in page.splits if s.split == "validation"))
    lines = len({row.method for row in page.scores} & {model.method for model in page.models})
    sure = _describe_selection(use, validated, page.optimism, lines, primary_measure(page.scores))
    statements = () if page.statement is None else (page.statement,)
    worth = describe_harmonization(page.harmony, page.shares, page.spaces)
    return Answers(
        use,
        sure,
        describe_departures(page.left, statements, page.words),
        _describe_guarantee_unit(statements),
        site_notices(page),
        worth,
        (describe_kept(page.home_floors, "this hospital"),) if page.home_floors else (),
    )


def list_choices(page: RunPage | SitePage) -> tuple[Choice, ...]:
    """The decisions of a page in words."""
    return describe_decisions(page.decisions, page.models, page.scores, page.reference, page.words)


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
        sentences.append(
            f"Chosen by the lowest loss on {whose} hospital's validation patients{counts_text}, without using the test "
            "patients, so the choice does not flatter these scores. With so few patients a small difference in loss "
            "means little."
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
