"""What patients would pay for the stages of a run that would be made again, and which of them are kept instead."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipelines.coordinator.paid_before import describe_lost
from pipelines.coordinator.stages import train
from pipelines.coordinator.world import World
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.released_counts import cost_of_counts
from pipelines.loader.document import ConfigError
from pipelines.runs.kept_versions import read_kept_versions
from pipelines.runs.plan import KEPT_OLDER, Stage, Step, explain_steps, explanation_facts
from pipelines.settings.config import Config
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.sites import Elsewhere
from privacy.dp.events import Event, assume_colluding
from privacy.message import Json, as_mapping
from privacy.settings_error import Problem

FREE = ("figures", "track", "report")
"""Stages that are made again whenever the program changed: hospitals repeat what they told, and nobody pays."""


def costs_privacy(config: Config) -> bool:
    """Whether patients pay for answers of this run."""
    harmonize, augment = config.harmonize, config.augment
    syntheses = [plan.synthesis for plan in (harmonize, augment) if plan is not None]
    noised = harmonize is not None and harmonize.score.release == "dp"
    noised |= config.route is not None and config.route.releases_noised
    promised = any(site.policy.promises for site in config.sites.values())
    return (
        isinstance(config.privacy, PatientLevel)
        or noised
        or promised
        or any(synthesis.private for synthesis in syntheses)
    )


def kept_stage_versions(
    config: Config, stages: Sequence[Stage[World]], root: Path, spend: Collection[str] = ()
) -> dict[str, int]:
    """The versions by which a run that pays knows its stages; empty for other runs, which follow the program. spend:
    names of the stages that a person wants paid again.
    """
    if not costs_privacy(config):
        return {}
    today = {stage.name: stage.version for stage in stages if stage.name not in FREE} | {"learning": train.LEARNING}
    return read_kept_versions(root, today, spend={*spend, *(["learning"] if "train" in spend else [])})


def compute_prices(world: World, steps: Sequence[Step[World]]) -> dict[str, dict[str, float]]:
    """Stage -> site -> ε of a patient, of the stages that would run, and of those that only --spend makes again."""
    if not costs_privacy(world.config):
        return {}
    from privacy.dp.accounting import compute_cost  # accountants: seconds

    stage_names = [step.stage.name for step in steps if step.state == "run" or step.reason.startswith(KEPT_OLDER)]
    prices: dict[str, dict[str, float]] = {}
    for site in world.config.sites:
        for stage, events in list_events(world, site).items():
            if stage in stage_names and events:
                counted = [assume_colluding(event, _colluding_of_run(world.config)) for event in events]
                prices.setdefault(stage, {})[site] = compute_cost(counted, _delta_of_site(world.config, site)).epsilon
    return {stage: prices[stage] for stage in stage_names if stage in prices}


def check_may_spend(config: Config, steps: Sequence[Step[World]]) -> None:
    """Check that the hospitals whose policies are known here may pay again, before any work.

    Raises:
        ConfigError: some may not, and something would be paid again.
    """
    again = any(step.state == "run" and step.stage.name not in FREE for step in steps)
    closed = [site for site, site_settings in config.sites.items() if not site_settings.policy.spend_again]
    if again and closed:
        text = "false: patients of this hospital pay for nothing twice; leave out --spend, or say true"
        raise ConfigError([Problem(("sites", site, "policy", "spend_again"), text) for site in closed])


def describe_prices(steps: Sequence[Step[World]], prices: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Sentences on what patients would pay, and on what they would pay only with --spend."""
    kept_stages = [step.stage.name for step in steps if step.reason.startswith(KEPT_OLDER)]
    words_by_stage = {stage: _describe_price(stage, prices[stage]) for stage in prices}
    runs = [words_by_stage[stage] for stage in words_by_stage if stage not in kept_stages]
    lines = [f"To be paid by a patient: {'; '.join(runs)}."] if runs else []
    if kept_stages:
        price = "; ".join(words_by_stage[stage] for stage in kept_stages if stage in words_by_stage) or "nothing"
        lines.append(
            f"Kept, though another version of this program made them: {', '.join(kept_stages)}. To make them again"
            f" would cost a patient {price} at most. --spend does."
        )
    return lines


def list_events(world: World, site: str) -> dict[str, Sequence[Event]]:
    """The privacy events of a site by stage, as if all were made anew."""
    from pipelines.coordinator.spending import (
        augmentation_events,
        matching_events,
        plan_method,
        score_events,
        synthesis_events,
    )

    config, settings = world.config, world.config.sites[site]
    events: dict[str, Sequence[Event]] = {
        "score": score_events(config),
        "synthesize": synthesis_events(config, site),
        "augment": augmentation_events(config),
        "route": matching_events(config) if site not in config.outside else (),
    }
    if world.simulation and not isinstance(settings.source, Elsewhere):
        events["ingest"] = cost_of_counts(Hospital(site, world.root / "sites" / site, settings, world.now))
    if isinstance(config.privacy, PatientLevel):
        plans = [plan_method(config, label, site) for label in config.train.methods]
        events["train"] = [event for plan in plans for event in plan.events[:-1]]
        events["evaluate"] = [plan.events[-1] for plan in plans]
    return events


def as_facts(prices: Mapping[str, Mapping[str, float]], stage: str) -> dict[str, Json]:
    """The price of a stage by site, as the fact `epsilon`; none if nobody pays."""
    return {"epsilon": dict(prices[stage])} if stage in prices else {}


def _colluding_of_run(config: Config) -> int | None:
    """How many hospitals may work together with the coordinator, by the run's own epsilon."""
    return config.privacy.colluding if isinstance(config.privacy, PatientLevel) else None


def _delta_of_site(config: Config, site: str) -> float:
    """The delta at which a site's costs are computed."""
    budget = config.sites[site].policy.budget
    delta_of_policy = config.sites[site].policy.delta if budget is None else budget.delta
    return config.privacy.delta if isinstance(config.privacy, PatientLevel) else delta_of_policy


def _describe_price(stage: str, price: Mapping[str, float]) -> str:
    """ε of a stage, at each site where they differ."""
    words_by_site = {site: f"{epsilon:.3g}" for site, epsilon in price.items()}
    if len({*words_by_site.values()}) == 1:
        return f"{stage} ε = {next(iter(words_by_site.values()))}"
    return f"{stage} ε = {', '.join(f'{epsilon} at {site}' for site, epsilon in words_by_site.items())}"


def show_plan(steps: Sequence[Step[World]], world: World, *, as_json: bool) -> None:
    """Print what would run, why, and what patients would pay."""
    prices, lost = compute_prices(world, steps), describe_lost_trainings(world, steps)
    if as_json:
        rows = [{**row, **as_facts(prices, str(row["stage"]))} for row in map(as_mapping, explanation_facts(steps))]
        rows = [{**row, "lost": lost} if lost and row["stage"] == train.STAGE.name else row for row in rows]
        print(json.dumps(rows))  # noqa: T201 - the machine's answer
        return
    refusal = [f"It would stop at {train.STAGE.name}: {lost}."] if lost else []
    print("\n".join([explain_steps(steps), *describe_prices(steps, prices), *refusal]))  # noqa: T201 - the answer


def describe_lost_trainings(world: World, steps: Sequence[Step[World]]) -> str:
    """Why training would be refused: something that patients paid for is lost. Empty: it would not, or this cannot be
    known before stages that come first have run.
    """
    by_name = {step.stage.name: step for step in steps}
    step = by_name[train.STAGE.name]
    needs = {name: by_name[name] for name in step.stage.needs}
    if world.config.privacy == "none" or step.state != "run" or any(need.state == "run" for need in needs.values()):
        return ""
    inputs = {name: need.folder(world.root) for name, need in needs.items()}
    return describe_lost(world, train.find_lost_trainings(world, inputs))
