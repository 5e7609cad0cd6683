"""A recommendation in words, in place of the choice by validation loss."""

from __future__ import annotations

from evaluation.recommendation import SURE, Recommendation
from evaluation.wording import counted, number, signed


def in_words(one: Recommendation) -> tuple[str, ...]:
    """What is recommended, what is expected of it, and how sure that is."""
    between = f"95 % interval {signed(one.low)} to {signed(one.high)}"
    share = f"{100 * one.sure:.0f} %"
    whose = "the head on fixed features" if one.shared else "your own"
    lead = (
        f"Stay with {whose if one.shared else 'your own model'}: {one.best}, the best of the others, is expected to "
        f"change the AUC by {signed(one.gain)} ({between}), a gain with a probability of {share}."
        if one.stays
        else f"Instead of {whose} {one.own}: an expected gain in AUC of {signed(one.gain)} ({between}), a gain with a "
        f"probability of {share}."
    )
    heard = f" and from gains that {counted(one.others, 'other hospital', 'other hospitals')} measured" * bool(
        one.others
    )
    how = f"From {counted(one.patients, 'validation patient', 'validation patients')}{heard}."
    prior = f"A network must show here that it is better than {one.own}, a head on fixed features." * one.networks
    costs = f"Its training cost a patient here ε = {one.epsilon}." if one.epsilon else ""
    return tuple(text for text in (lead, how, prior, costs) if text)


HOW_RECOMMENDED = (
    "Recommended by scores of validation patients, shrunk so that the luck of the best of several does not count "
    "as a gain, and only where a gain over the model to stay with has a probability of "
    f"{number(SURE)} or more; test patients had no part in it, except that a model that does no better than guessing "
    "on them is withdrawn."
)
"""How recommendations are made, for a note."""
