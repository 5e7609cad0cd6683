"""The report's requests to hospitals: each writes its own page and returns its facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from evaluation.choice import make_decisions
from evaluation.decision import Decision, from_facts
from evaluation.recommendation import sum_other_gains
from evaluation.records import Model
from evaluation.rows import ScoreRow
from pipelines.coordinator.artifacts import read_counts, target_of
from pipelines.coordinator.report.external_sites import CommonPart, build_outside_questions, list_oracle_comparisons
from pipelines.coordinator.spaces import Cohorts, read_cohorts_of_method, window_of
from pipelines.coordinator.trained import TrainedMethod
from pipelines.coordinator.world import World
from pipelines.hospital.recommending import read_gains, read_scores
from pipelines.requests.compare import COMPARE, Compare
from pipelines.requests.ingest import Counted
from pipelines.requests.methods import Method, Variant
from pipelines.requests.report import REPORT, Oracle, Others, Report, Reported
from pipelines.requests.writing import to_facts
from pipelines.runs.store import digest_json, short_digest
from pipelines.settings.config import Config
from pipelines.settings.home_lines import asks_comparisons
from pipelines.settings.task import Segmentation
from privacy.message import Json, Malformed
from privacy.release.form import ABSENT, Absent

PICTURED = 32
"""Simulated hospitals whose pages all have pictures; of more only those that the coordinator's figures show."""


def build_lines(world: World, inputs: Mapping[str, Path], trained: Sequence[TrainedMethod]) -> dict[str, Compare]:
    """Each hospital's models that its page compares."""
    spaces = {method.label: read_cohorts_of_method(world.config, inputs, method.label) for method in trained}
    return {site: _build_site_lines(world.config, trained, spaces, site) for site in world.engine.sites}


def ask_sites(
    world: World,
    inputs: Mapping[str, Path],
    lines: Mapping[str, Compare],
    compared: ComparisonReplies,
    reference: str | None,
    version: int,
    pictured: Collection[str] = (),
) -> dict[str, Reported]:
    """Have every hospital write its own page; return the replies by site. lines: as of `build_lines`. pictured: sites
    in the coordinator's figures.
    """
    config, counts = world.config, read_counts(inputs["ingest"])
    with_pictures = not world.simulation or len(lines) <= PICTURED or config.pages == "all"
    oracles: list[Oracle] = [
        {"untranslated": comparison.untranslated, "oracle": comparison.oracle, "others": list(comparison.others)}
        for comparison in list_oracle_comparisons(config)
    ]
    target = target_of(inputs["score"]) if "score" in inputs else None
    questions = {
        site: Report(
            reference=reference,
            spaces=list(config.harmonize.translate) if config.harmonize else [],
            imitated=target,
            scanner=_find_scanner(config, target),
            compared=oracles or ABSENT,
            methods=lines[site].methods,
            variants=lines[site].variants,
            others=compared.others.get(site, ABSENT),
            cohort=each.cohort,
            excluded=each.excluded if isinstance(each, Counted) else ABSENT,
            unmatched_exclusions=each.unmatched_exclusions if isinstance(each, Counted) else ABSENT,
            pictures=ABSENT if with_pictures else site in pictured,
            **_build_common_part(world),
        )
        for site, each in ((site, counts[site]) for site in world.engine.sites)
    }
    # What hospitals hear of each other, and who is excluded, are no part of the conversation's name.
    renamed: dict[str, Json] = {
        site: to_facts(replace(q, others=ABSENT, excluded=ABSENT, unmatched_exclusions=ABSENT))
        for site, q in sorted(questions.items())
    }
    named_by: Json = {"sites": renamed, "version": version}
    return {**world.ask_all(REPORT, world.run(f"report-{short_digest(digest_json(named_by))}"), questions)}


def ask_outside(world: World, inputs: Mapping[str, Path], version: int) -> dict[str, Reported]:
    """The same for external sites, with the routing lines of each."""
    if "route" not in inputs:
        return {}
    by_site: dict[str, Report] = {**build_outside_questions(world, inputs["route"], _build_common_part(world))}
    named_by: Json = {"sites": {site: to_facts(question) for site, question in by_site.items()}, "version": version}
    replies = world.outside_world().ask_all(REPORT, world.run(f"report-{short_digest(digest_json(named_by))}"), by_site)
    return dict(sorted(replies.items()))


def _build_site_lines(
    config: Config, trained: Sequence[TrainedMethod], spaces: Mapping[str, Cohorts], site: str
) -> Compare:
    """A site's models: of the methods, and of the variants, with another checkpoint perhaps, and a calibration."""
    methods: dict[str, Method] = {
        result.label: {
            "label": result.label,
            "train_run": result.train_run,
            "checkpoint": config.evaluate.checkpoint,
            "best": result.best,
            "rounds": result.rounds,
            "cohort": spaces[result.label][site].cohort,
            "space": result.space,
        }
        for result in trained
    }
    variants: list[Variant] = [
        {
            **methods[variant.of],
            "label": label,
            "checkpoint": variant.checkpoint or config.evaluate.checkpoint,
            "calibration": variant,
        }
        for label, variant in config.evaluate.variants.items()
    ]
    return Compare(methods=[*methods.values()], variants=variants)


def _build_common_part(world: World) -> CommonPart:
    """What every hospital's page needs. Of masks, the structures; of labels, whether the classes are ordered."""
    config, task = world.config, world.config.task
    of_masks, window = task.target is not None, window_of(world)
    return {
        "title": " ".join((config.title or config.name).split()),
        "copies": config.evaluate.copies,
        "ordered": True if task.ordered and not of_masks else ABSENT,
        "target": ABSENT if task.target is None else task.target,
        "structures": list(task.structures) if isinstance(task, Segmentation) else ABSENT,
        "window": ABSENT if not of_masks else None if window is None else [*window],
    }


def _find_scanner(config: Config, target: str | None) -> str | Absent:
    """The scanner of the target of harmonization, if that is a phantom."""
    scanner = None if target is None else getattr(config.sites[target].source, "scanner", None)
    return ABSENT if scanner is None else str(scanner)


class ComparisonReplies(NamedTuple):
    """What comparisons told. others: by site, sums of the gains that the others measured over their own models. scores:
    by site, the AUC of each line on validation patients.
    """

    others: Mapping[str, Others] = MappingProxyType({})
    scores: Mapping[str, Mapping[str, float]] = MappingProxyType({})


def ask_comparisons(world: World, lines: Mapping[str, Compare], version: int) -> ComparisonReplies:
    """What hospitals tell of their models on validation patients; a site that does not answer is left out."""
    if not asks_comparisons(world.config):
        return ComparisonReplies()
    named_by: Json = {"sites": {site: to_facts(question) for site, question in lines.items()}, "version": version}
    run = world.run(f"compare-{short_digest(digest_json(named_by))}")
    replies = world.ask(COMPARE, dict.fromkeys(lines, run), lines).replies
    gains = {site: site_gains for site, reply in replies.items() if (site_gains := read_gains(lines[site], reply))}
    sums_by_site = sum_other_gains(gains, [*lines]) if len(lines) > 1 else {}
    others: dict[str, Others] = {
        site: {"hospitals": sums.hospitals, "sums": {label: (*pair,) for label, pair in sums.sums.items()}}
        for site, sums in sums_by_site.items()
    }
    return ComparisonReplies(others, {site: read_scores(lines[site], reply) for site, reply in replies.items()})


def read_decisions(
    facts: Mapping[str, Mapping[str, Any] | None], models: Sequence[Model], rows: Sequence[ScoreRow]
) -> tuple[Decision, ...]:
    """The hospitals' decisions. facts: `decision` of their replies to `report`; None where a hospital keeps it to
    itself: then a view of what it released, which is not final. A decision that names a model the hospital does not
    have is not believed.
    """
    known_models = {(model.site, model.method) for model in models}
    return tuple(
        _read_decision(facts.get(decision.site), decision, known_models) for decision in make_decisions(models, rows)
    )


def _read_decision(
    facts: Mapping[str, Any] | None, seen: Decision, known_models: Collection[tuple[str, str]]
) -> Decision:
    """The hospital's decision if it told one that can be. seen: what the coordinator would decide for it."""
    if facts is None:
        return replace(seen, final=False)
    try:
        decision = replace(from_facts(facts), site=seen.site, final=True)
    except (Malformed, ValueError):
        return replace(seen, final=False)
    known = all((seen.site, method) in known_models for method in (decision.method, *decision.withdrawn) if method)
    return decision if known else replace(seen, final=False)
