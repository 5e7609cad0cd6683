"""A recommendation in words, in place of the choice by validation loss."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.choice import Choice, own_scores, sentences
from evaluation.recommendation import SURE, Recommendation
from evaluation.records import Model
from evaluation.rows import ScoreRow
from evaluation.wording import Words, counted, number, signed


def with_recommendations(
    chosen: tuple[Choice, ...],
    recommended: Sequence[Recommendation],
    models: Sequence[Model],
    rows: Sequence[ScoreRow],
    reference: str,
    words: Words,
) -> tuple[Choice, ...]:
    """The choices, with the recommendation of each hospital that has one."""
    found, own = {one.site: one for one in recommended}, own_scores(rows)
    files = {(model.site, model.method): model.file for model in models}

    def replaced(choice: Choice) -> Choice:
        one = found.get(choice.site)
        if one is None:
            return choice
        score = own.at(one.site, own.measure).get(one.method)
        said = (*in_words(one), *sentences(one.method, own, one.site, score, reference, words))
        return Choice(one.site, one.method, files.get((one.site, one.method), ""), "recommended", score, said)

    return tuple(replaced(choice) for choice in chosen)


def in_words(one: Recommendation) -> tuple[str, ...]:
    """What is recommended, what is expected of it, and how sure that is."""
    between = f"95 % interval {signed(one.low)} to {signed(one.high)}"
    share = f"{100 * one.sure:.0f} %"
    lead = (
        f"Stay with your own model: {one.best}, the best of the others, is expected to change the AUC by "
        f"{signed(one.gain)} ({between}), a gain with a probability of {share}."
        if one.stays
        else f"Instead of your own {one.own}: an expected gain in AUC of {signed(one.gain)} ({between}), a gain with a "
        f"probability of {share}."
    )
    heard = f" and from gains that {counted(one.others, 'other hospital', 'other hospitals')} measured" * bool(
        one.others
    )
    how = f"From {counted(one.patients, 'validation patient', 'validation patients')}{heard}."
    costs = f"Its training cost a patient here ε = {one.epsilon}." if one.epsilon else ""
    return tuple(text for text in (lead, how, costs) if text)


def how_recommended(recommended: Sequence[Choice]) -> str:
    """How recommendations are made, for a note; empty without any."""
    if not recommended:
        return ""
    return (
        "Recommended by scores of validation patients, shrunk so that the luck of the best of several does not count "
        f"as a gain, and only where a gain over the own model has a probability of {number(SURE)} or more; test "
        "patients had no part in it."
    )
