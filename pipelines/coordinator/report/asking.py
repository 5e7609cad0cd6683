"""The report's requests to hospitals and external sites: each writes its own page and returns its facts. Which lines
are compared with an oracle, and what hospitals hear of each other's gains before they recommend a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

from evaluation.choice import make_decisions
from evaluation.decision import Decision, from_facts
from evaluation.oracle_gap import Compared
from evaluation.recommendation import sum_other_gains
from evaluation.records import Knew, Model, SiteCounts, SplitCount, Withdrawn
from evaluation.rows import ScoreRow
from pipelines.coordinator.artifacts import OUTSIDE_FOLDER, Counts, read_counts, read_index, target_of
from pipelines.coordinator.spaces import Cohorts, read_cohorts_of_method, window_of
from pipelines.coordinator.trained import TrainedMethod
from pipelines.coordinator.world import World
from pipelines.data.images import Pictures, Slices, Target, Volumes
from pipelines.hospital.hospital import SPLITS
from pipelines.hospital.recommending import read_gains, read_scores
from pipelines.loader.validation import to_plain
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.compare import COMPARE, Compare
from pipelines.requests.ingest import Counted, CountedOnce
from pipelines.requests.methods import Method, Variant
from pipelines.requests.report import REPORT, Oracle, Others, OutsideReport, Report, Reported
from pipelines.requests.writing import to_facts
from pipelines.runs.store import digest_json, short_digest
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW
from pipelines.settings.harmonization import Oracle as OracleSpace
from pipelines.settings.home_lines import asks_comparisons
from pipelines.settings.image_spaces import image_space, list_routed_spaces
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
    return {**world.ask_all(REPORT, _name_run(world, "report", renamed, version), questions)}


def _name_run(world: World, request: str, asked_by_site: Json, version: int) -> str:
    """The name of a conversation, after what is asked."""
    return world.run(f"{request}-{short_digest(digest_json({'sites': asked_by_site, 'version': version}))}")


def ask_outside(world: World, inputs: Mapping[str, Path], version: int) -> dict[str, Reported]:
    """The same for external sites, with the routing lines of each."""
    if "route" not in inputs:
        return {}
    by_site: dict[str, Report] = {**build_outside_questions(world, inputs["route"], _build_common_part(world))}
    run = _name_run(world, "report", {site: to_facts(question) for site, question in by_site.items()}, version)
    replies = world.outside_world().ask_all(REPORT, run, by_site)
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
    run = _name_run(world, "compare", {site: to_facts(question) for site, question in lines.items()}, version)
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


class CommonPart(TypedDict):
    """What all sites are asked for their pages."""

    title: str
    copies: int
    ordered: bool | Absent
    target: Target | Absent
    structures: list[str] | Absent
    window: list[int] | Absent | None


def read_outside_counts(route: Path) -> dict[str, Counts]:
    """The external sites' counts of their cohorts, in the artifact of the stage `route`."""
    return read_counts(route / OUTSIDE_FOLDER)


def build_outside_questions(world: World, route: Path, common: CommonPart) -> dict[str, OutsideReport]:
    """What each external site is asked; `lines` has the runs in which it was routed. common: what all sites are asked.

    Gains are over the line that nothing was done to (`untreated`), else over the first whose model was not adapted.
    """
    index = read_index(route)
    config, plan = world.config, world.config.route
    still = [label for label, line in plan.lines.items() if line.how.name == "as_trained"] if plan is not None else []
    return {
        site: OutsideReport(
            lines=[{"label": e.label, "run": e.run or ""} for e in index if e.test_site == site],
            reference=find_untreated_line(config) or next(iter(still), None),
            names=list(config.task.names),
            field=find_field_setting(config),
            methods=[],
            spaces=[*list_routed_spaces(config)],
            cohort=counts.cohort,
            excluded=counts.excluded if isinstance(counts, Counted) else ABSENT,
            unmatched_exclusions=counts.unmatched_exclusions if isinstance(counts, Counted) else ABSENT,
            **common,
        )
        for site, counts in sorted(read_outside_counts(route).items())
    }


def find_field_setting(config: Config) -> str:
    """The setting by which external sites' masks place the crop of their images; empty if masks do not."""
    images = config.images
    if isinstance(images, Pictures):
        return "images.fit: around" if images.fit == "around" else ""
    if not isinstance(images, Slices | Volumes):
        return ""
    outside_settings = [config.sites[name] for name in config.outside]
    if not any(site.gland is not None or isinstance(site.source, PhantomSource) for site in outside_settings):
        return ""  # cropped about the middle of the image
    names = ["images.centre: gland"] if images.centre == "gland" else []
    names += ["images.slices: gland"] if isinstance(images, Slices) and images.slices == "gland" else []
    return ", ".join(names)


def list_outside_counts(counts_by_site: Mapping[str, Counts], replies: Mapping[str, Reported]) -> Iterator[SiteCounts]:
    """Counts of the external sites, each in one split: all their patients are scored."""
    for site, each in sorted(counts_by_site.items()):
        parts = [each.splits[split] for split in SPLITS]
        patients, images = sum(part["patients"] for part in parts), sum(part["images"] for part in parts)
        all_splits = SplitCount("all", patients, images, sum(part["positives"] for part in parts))
        yield SiteCounts(site, (all_splits,), rejections_by_reason(each), count_withdrawn(each, replies[site]))


def rejections_by_reason(counts: Counts) -> dict[str, int]:
    """How many studies were rejected, by reason; empty where a hospital counts under a budget."""
    return dict(counts.rejected_by_reason) if isinstance(counts, Counted) else {}


def count_withdrawn(counts: Counts, reply: Reported) -> Withdrawn:
    """Patients who are excluded. A hospital with a budget does not say, because it changes with a single patient."""
    knew = tuple(map(Knew, reply.knew))
    if isinstance(counts, CountedOnce):
        return Withdrawn(0, 0, knew)
    return Withdrawn(counts.excluded, counts.unmatched_exclusions, knew)


def list_oracle_comparisons(config: Config) -> tuple[Compared, ...]:
    """For each method and network the lines whose share of the oracle gap can be told: one of them learns from images
    as they were read, and one, with the same start and work, from the same patients on the target's scanner. Where
    several pairs do, the one without a start counts.
    """
    methods = config.train.methods
    kinds: dict[str, list[str]] = {}
    for label, method in methods.items():
        kinds.setdefault(digest_json([to_plain(method), to_plain(config.model_of(label))]), []).append(label)
    comparisons = []
    for labels in kinds.values():
        pairs = sorted(_list_oracle_pairs(config, labels), key=lambda pair: config.train.start_of(pair[0]) is not None)
        if pairs:
            other_labels = [label for label in labels if label not in pairs[0]]
            variants = [label for label, variant in config.evaluate.variants.items() if variant.of in labels]
            comparisons.append(Compared(*pairs[0], (*other_labels, *variants)))
    return tuple(comparisons)


def _list_oracle_pairs(config: Config, labels: list[str]) -> Iterator[tuple[str, str]]:
    """Lines on images as they were read, each with its oracle."""
    spaces = {} if config.harmonize is None else config.harmonize.translate
    for raw in (label for label in labels if image_space(config, label) == RAW):
        for best in (label for label in labels if isinstance(spaces.get(image_space(config, label)), OracleSpace)):
            if all(
                _learning_settings(config, raw, site) == _learning_settings(config, best, site) for site in config.sites
            ):
                yield raw, best


def _learning_settings(config: Config, label: str, site: str) -> object:
    """What else than images can differ between two lines of a method."""
    return config.train.start_of(label), config.work(label, site), config.method(label, site)


def find_untreated_line(config: Config) -> str | None:
    """The line of `route` that outside hospitals' gains are over: a model as it was trained, on images as they were
    read, if possible without a start; None if there is none.
    """
    if config.route is None:
        return None
    still = [
        (label, method)
        for label, line in config.route.lines.items()
        if line.how.name == "as_trained"
        for method in config.route.methods(line).values()
        if image_space(config, method) == RAW
    ]
    first = sorted(still, key=lambda pair: config.train.start_of(pair[1]) is not None)
    return first[0][0] if first else None
