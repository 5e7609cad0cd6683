"""What patients would pay for the stages of a run that would be made again, and which of them are kept instead."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipelines.coordinator.stages import train
from pipelines.coordinator.world import World
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.released_counts import cost_of_counts
from pipelines.loader.document import ConfigError
from pipelines.runs.kept_versions import kept_versions
from pipelines.runs.plan import KEPT_OLDER, Stage, Step, explain, explained
from pipelines.settings.config import Config
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.sites import Elsewhere
from privacy.dp.events import Event
from privacy.message import Json, as_mapping
from privacy.settings_error import Problem

FREE = ("track", "report")
"""Stages that are made again whenever the program changed: hospitals repeat what they told, and nobody pays."""


def pays(config: Config) -> bool:
    """Whether patients pay for answers of this run."""
    harmonize, augment = config.harmonize, config.augment
    made = [one.synthesis for one in (harmonize, augment) if one is not None]
    noised = harmonize is not None and harmonize.score.release == "dp"
    promised = any(site.policy.promises for site in config.sites.values())
    return isinstance(config.privacy, PatientLevel) or noised or promised or any(one.private for one in made)


def versions_of(
    config: Config, stages: Sequence[Stage[World]], root: Path, spend: Collection[str] = ()
) -> dict[str, int]:
    """The versions by which a run that pays knows its stages; empty for other runs, which follow the program. spend:
    names of the stages that a person wants paid again.
    """
    if not pays(config):
        return {}
    today = {stage.name: stage.version for stage in stages if stage.name not in FREE} | {"learning": train.LEARNING}
    return kept_versions(root, today, spend={*spend, *(["learning"] if "train" in spend else [])})


def priced(world: World, steps: Sequence[Step[World]]) -> dict[str, dict[str, float]]:
    """Stage -> site -> ε of a patient, of the stages that would run, and of those that only --spend makes again."""
    if not pays(world.config):
        return {}
    from privacy.dp.accounting import cost  # accountants: seconds

    asked = [step.stage.name for step in steps if step.state == "run" or step.reason.startswith(KEPT_OLDER)]
    found: dict[str, dict[str, float]] = {}
    for site in world.config.sites:
        for stage, events in events_of(world, site).items():
            if stage in asked and events:
                found.setdefault(stage, {})[site] = cost(events, _delta(world.config, site)).epsilon
    return {stage: found[stage] for stage in asked if stage in found}


def check_may_spend(config: Config, steps: Sequence[Step[World]]) -> None:
    """Check that the hospitals whose policies are known here may pay again, before any work.

    Raises:
        ConfigError: some may not, and something would be paid again.
    """
    again = any(step.state == "run" and step.stage.name not in FREE for step in steps)
    closed = [site for site, said in config.sites.items() if not said.policy.spend_again]
    if again and closed:
        text = "false: patients of this hospital pay for nothing twice; leave out --spend, or say true"
        raise ConfigError([Problem(("sites", site, "policy", "spend_again"), text) for site in closed])


def price_lines(steps: Sequence[Step[World]], prices: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Sentences on what patients would pay, and on what they would pay only with --spend."""
    kept = [step.stage.name for step in steps if step.reason.startswith(KEPT_OLDER)]
    told = {stage: _in_words(stage, prices[stage]) for stage in prices}
    runs = [told[stage] for stage in told if stage not in kept]
    lines = [f"To be paid by a patient: {'; '.join(runs)}."] if runs else []
    if kept:
        price = "; ".join(told[stage] for stage in kept if stage in told) or "nothing"
        lines.append(
            f"Kept, though another version of this program made them: {', '.join(kept)}. To make them again would "
            f"cost a patient {price} at most. --spend does."
        )
    return lines


def events_of(world: World, site: str) -> dict[str, Sequence[Event]]:
    """The privacy events of a site by stage, as if all were made anew."""
    from pipelines.coordinator.spending import augmenting, imitating, planned, scoring

    config, settings = world.config, world.config.sites[site]
    found: dict[str, Sequence[Event]] = {
        "score": scoring(config),
        "synthesize": imitating(config, site),
        "augment": augmenting(config),
    }
    if world.simulation and not isinstance(settings.source, Elsewhere):
        found["ingest"] = cost_of_counts(Hospital(site, world.root / "sites" / site, settings, world.now))
    if isinstance(config.privacy, PatientLevel):
        plans = [planned(config, label, site) for label in config.train.methods]
        found["train"] = [event for plan in plans for event in plan.events[:-1]]
        found["evaluate"] = [plan.events[-1] for plan in plans]
    return found


def as_facts(prices: Mapping[str, Mapping[str, float]], stage: str) -> dict[str, Json]:
    """The price of a stage by site, as the fact `epsilon`; none if nobody pays."""
    return {"epsilon": dict(prices[stage])} if stage in prices else {}


def _delta(config: Config, site: str) -> float:
    budget = config.sites[site].policy.budget
    own = config.sites[site].policy.delta if budget is None else budget.delta
    return config.privacy.delta if isinstance(config.privacy, PatientLevel) else own


def _in_words(stage: str, price: Mapping[str, float]) -> str:
    told = {site: f"{epsilon:.3g}" for site, epsilon in price.items()}
    if len({*told.values()}) == 1:
        return f"{stage} ε = {next(iter(told.values()))}"
    return f"{stage} ε = {', '.join(f'{epsilon} at {site}' for site, epsilon in told.items())}"


def show_plan(steps: Sequence[Step[World]], world: World, *, as_json: bool) -> None:
    """Print what would run, why, and what patients would pay."""
    prices = priced(world, steps)
    if as_json:
        said = [{**one, **as_facts(prices, str(one["stage"]))} for one in map(as_mapping, explained(steps))]
        print(json.dumps(said))  # noqa: T201 - the machine's answer
        return
    print("\n".join([explain(steps), *price_lines(steps, prices)]))  # noqa: T201 - the answer
