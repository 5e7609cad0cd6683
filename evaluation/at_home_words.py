"""What stays at home, in the first sentences of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evaluation.at_home import AtHome
from evaluation.choice import interval_sign
from evaluation.rows import LOWER_IS_BETTER, ScoreRow
from evaluation.wording import format_count, format_list, format_signed


def describe_gain_over_home(at_home: AtHome) -> tuple[str, ...]:
    """Whether a federated line gains over the best that hospitals keep to themselves, how both were chosen, and what
    else each hospital keeps; none without such lines.
    """
    gained = {row.method: row for row in at_home.gains}
    sentences = []
    if at_home.reference and at_home.federated in gained:
        sentences = [
            _describe_gain(gained[at_home.federated], at_home),
            _describe_choice(at_home),
            *_describe_others(at_home),
        ]
    return (*sentences, *([describe_kept(at_home.home_floors, "each hospital")] if at_home.home_floors else []))


def describe_kept(lines: Sequence[str], where: str) -> str:
    """What is learnt without noise and never told. where: at which hospital."""
    return (
        f"What stays at home: {' and '.join(lines)}, learnt without noise by {where} alone on the features of the run, "
        "for its own page. No model, score or file of them leaves, so they cost no ε."
    )


def _describe_gain(row: ScoreRow, at_home: AtHome) -> str:
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


def _describe_choice(at_home: AtHome) -> str:
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


def _describe_others(at_home: AtHome) -> Iterator[str]:
    """A sentence on other federated lines above the reference."""
    if better := _list_better(at_home):
        yield f"Above {at_home.reference} by intervals of their own: {format_list(better)}."


def _list_better(at_home: AtHome) -> list[str]:
    """Further federated lines whose interval lies above 0."""
    return [
        row.method for row in at_home.gains if row.method != at_home.federated and interval_sign(*row.widest_gain) > 0
    ]
