"""Checks of rules of merging: whether each can take the place of a method's mean, and has enough hospitals."""

from __future__ import annotations

from collections.abc import Iterator

from federation.algorithm import Algorithm, is_averaging
from federation.merging import MEAN, NormBounded, Rule
from federation.rounds import method_schedule
from pipelines.settings.home_lines import CENTRAL
from pipelines.settings.run_settings import RunSettings, rehearse_method
from privacy.settings_error import Problem


def problems(run: RunSettings) -> list[Problem]:
    """Rules that a method, its number of hospitals, or secure sums do not allow."""
    return [
        problem
        for label, method in run.train.methods.items()
        if method.name != CENTRAL and (rule := run.train.rule_of(label)).name != MEAN.name
        for problem in _rule_problems(run, label, method, rule)
    ]


def _rule_problems(run: RunSettings, label: str, method: Algorithm, rule: Rule) -> Iterator[Problem]:
    """Problems of one method's rule; none of a method that sends nothing."""
    if (forms := rehearse_method(run, label, method)) is not None and not forms.reply.tensors:
        return
    where = ("train", "method_merge", label) if label in run.train.method_merge else ("train", "merge")
    needs = (("train", "methods", label),)
    if run.train.secure_sum and not (isinstance(rule, NormBounded) and rule.bound is not None):
        text = (
            f"{rule.name} reads each hospital's reply, and with secure_sum only their sum is seen; take mean, or "
            "norm_bounded with a bound, which each hospital applies itself"
        )
        yield Problem(where, text, needs=(("train", "secure_sum"),))
    if not is_averaging(method):
        text = (
            f"{rule.name} takes the place of a mean over hospitals, and {method.name} needs more of each reply; "
            f"say train: {{method_merge: {{{label}: {{name: mean}}}}}}"
        )
        yield Problem(where, text, needs=needs)
    schedule, count = method_schedule(method, run.train.schedule), sum(name not in run.outside for name in run.sites)
    sites_asked = schedule.count_asked(count) if schedule.buffer is None else min(schedule.buffer, count)
    sure = schedule.count_needed(sites_asked)
    if sure < rule.fewest:
        text = (
            f"{rule.name} needs {rule.fewest} replies a round, found {sure}: {count} hospitals, of which "
            f"{'participation asks' if schedule.buffer is None else 'a merge has'} {sites_asked} and quorum waits for "
            f"{sure}"
        )
        yield Problem(where, text, needs=(("sites",), ("outside",), ("train", "schedule")))
