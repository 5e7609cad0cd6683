"""How replies were merged, and what stands out in single hospitals' updates, for the coordinator's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluation.records import Outlier
from evaluation.wording import format_list
from federation.algorithm import is_averaging
from federation.merging import NormBounded
from federation.notices import FEWEST
from pipelines.coordinator.trained import TrainedMethod
from pipelines.coordinator.world import World


def list_outliers(world: World, trained: Sequence[TrainedMethod]) -> Iterator[Outlier]:
    """What stands out, by method and hospital."""
    for method in trained:
        rule = world.config.train.rule_of(method.label).name
        for outlier in method.outliers or ():
            yield Outlier(method.label, outlier.site, rule, outlier.rounds, outlier.times, outlier.opposed, outlier.n)


def describe_merging(world: World, trained: Sequence[TrainedMethod]) -> str:
    """By which rules, and whether a single update can be judged; empty where nothing is trained."""
    train, hospitals = world.config.train, len(world.engine.sites)
    if not trained:
        return ""
    if train.secure_sum:
        every_rule = [train.rule_of(label) for label in train.methods]
        bounds = sorted({f"{rule.bound:g}" for rule in every_rule if isinstance(rule, NormBounded)})
        unseen = "Only sums over hospitals were seen: a single update cannot be judged, and a false one is not noticed."
        bounded = (
            f" Each hospital shortens its own update to a norm of {format_list(bounds)}, which limits honest mistakes "
            "and binds no attacker."
        )
        return unseen + bounded * bool(bounds)
    rules = {label: train.rule_of(label).name for label, method in train.methods.items() if is_averaging(method)}
    by = {name: [label for label in rules if rules[label] == name] for name in dict.fromkeys(rules.values())}
    how = "; ".join(f"{name} ({format_list(labels)})" if len(by) > 1 else name for name, labels in by.items())
    judged = "No hospital's update stands out."
    if hospitals < FEWEST:
        judged = f"With fewer than {FEWEST} hospitals nobody can judge whose update is wrong."
    elif any(method.outliers for method in trained):
        judged = "What stands out is at the top of this page."
    return f"Replies are merged by {how} (train.merge). {judged}" if how else judged
