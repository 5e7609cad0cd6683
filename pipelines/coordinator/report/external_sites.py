"""The report's requests to external sites, and their part of the coordinator's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from evaluation.records import Knew, SiteCounts, SplitCount, Withdrawn
from pipelines.coordinator.artifacts import OUTSIDE_FOLDER, Counts, read_counts, read_index
from pipelines.coordinator.report.gap import find_untreated_line
from pipelines.coordinator.world import World
from pipelines.data.images import Pictures, Slices, Target, Volumes
from pipelines.hospital.hospital import SPLITS
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.ingest import Counted, CountedOnce
from pipelines.requests.report import OutsideReport, Reported
from pipelines.settings.config import Config
from pipelines.settings.image_spaces import list_routed_spaces
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
