"""A recommendation in words, in place of the choice by validation loss."""

from __future__ import annotations

from evaluation.recommendation import SURE, Recommendation
from evaluation.wording import format_count, format_number, format_signed


def describe_recommendation(recommendation: Recommendation) -> tuple[str, ...]:
    """What is recommended, what is expected of it, and how sure that is."""
    between = f"95 % interval {format_signed(recommendation.low)} to {format_signed(recommendation.high)}"
    share = f"{100 * recommendation.sure:.0f} %"
    whose = "the head on fixed features" if recommendation.shared else "your own"
    lead = (
        f"Stay with {whose if recommendation.shared else 'your own model'}: {recommendation.best}, the best of the "
        f"others, is expected to change the AUC by {format_signed(recommendation.gain)} ({between}), a gain with a "
        f"probability of {share}."
        if recommendation.stays
        else f"Instead of {whose} {recommendation.own}: an expected gain in AUC of "
        f"{format_signed(recommendation.gain)} ({between}), a gain with a probability of {share}."
    )
    source_text = (
        f" and from gains that {format_count(recommendation.others, 'other hospital', 'other hospitals')} measured"
        * bool(recommendation.others)
    )
    how = f"From {format_count(recommendation.patients, 'validation patient', 'validation patients')}{source_text}."
    prior = (
        f"A network must show here that it is better than {recommendation.own}, a head on fixed features."
        * recommendation.networks
    )
    costs = f"Its training cost a patient here ε = {recommendation.epsilon}." if recommendation.epsilon else ""
    return tuple(text for text in (lead, how, prior, costs) if text)


HOW_RECOMMENDED = (
    "Recommended by scores of validation patients, shrunk so that the luck of the best of several does not count "
    "as a gain, and only where a gain over the model to stay with has a probability of "
    f"{format_number(SURE)} or more; test patients had no part in it, except that a model that does no better than "
    "guessing on them is withdrawn."
)
"""How recommendations are made, for a note."""
