"""How replies were merged, and what stands out in single hospitals' updates, for the coordinator's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluation.records import Outlier
from evaluation.wording import format_count, format_list
from federation.algorithm import is_averaging
from federation.buffering import USUAL, can_merge_late
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
    packed = "Of replies the difference crosses, in eight bits a number (train.upload). " * (train.upload is not None)
    late = f"{describe_buffer(world)}{packed}"
    return f"Replies are merged by {how} (train.merge). {late}{judged}" if how else f"{packed}{judged}"


def describe_buffer(world: World) -> str:
    """Who is waited for in buffered merging, and how often each hospital trains, with a blank behind; empty where each
    round waits for all.
    """
    late = [label for label, method in world.config.train.methods.items() if can_merge_late(method)]
    schedule, sites = world.config.train.schedule, world.engine.sites
    merges = schedule.plan(sites)
    if not merges or not late:
        return ""
    updates = schedule.count_updates(sites)
    counts = sorted(set(updates.values()))
    who = f"every hospital trains {counts[0]} times"
    if len(counts) > 1:
        fewest = [site for site in sites if updates[site] == counts[0]]
        who = f"hospitals train {counts[0]} ({format_list(fewest)}) to {counts[-1]} times"
    slowest = schedule.rounds * max(schedule.durations.get(site, USUAL) for site in sites)
    return (
        f"A merge waits for {format_count(schedule.buffer or 0, 'hospital', 'hospitals')} and no other "
        f"(schedule.buffer, of {format_list(late)}): "
        f"{who}, and by the declared durations {schedule.rounds} merges end at {merges[-1].clock:g}, where "
        f"{schedule.rounds} rounds of everybody would end at {slowest:g}. "
    )
