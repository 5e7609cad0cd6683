"""The report's requests to external sites, and their part of the coordinator's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from evaluation.oracle_gap import Compared
from evaluation.records import Knew, SiteCounts, SplitCount, Withdrawn
from pipelines.coordinator.artifacts import OUTSIDE_FOLDER, Counts, read_counts, read_index
from pipelines.coordinator.world import World
from pipelines.data.images import Pictures, Slices, Target, Volumes
from pipelines.hospital.hospital import SPLITS
from pipelines.loader.validation import to_plain
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.ingest import Counted, CountedOnce
from pipelines.requests.report import OutsideReport, Reported
from pipelines.runs.store import digest_json
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW, Oracle
from pipelines.settings.image_spaces import image_space, list_routed_spaces
from privacy.release.form import ABSENT, Absent


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
        for best in (label for label in labels if isinstance(spaces.get(image_space(config, label)), Oracle)):
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
