"""The report's requests to external sites, and their part of the coordinator's page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluation.records import Knew, SiteCounts, SplitCount, Withdrawn
from pipelines.coordinator.artifacts import HOMES, INDEX
from pipelines.coordinator.report.gap import untreated
from pipelines.coordinator.world import World
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.hospital.hospital import SPLITS
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.config import Config
from privacy.message import Json, as_list


def read_homes(route: Path) -> dict[str, Mapping[str, Any]]:
    """The external sites' counts of their cohorts, in the artifact of the stage `route`."""
    homes: dict[str, Mapping[str, Any]] = json.loads((route / HOMES / "sites.json").read_text())
    return homes


def questions(world: World, route: Path) -> dict[str, dict[str, Json]]:
    """Further facts for each external site's page: `lines` with the runs in which it was routed.

    Gains are over the line that nothing was done to (`untreated`), else over the first whose model was not adapted.
    """
    index = json.loads((route / INDEX).read_text())
    config, plan = world.config, world.config.route
    still = [label for label, line in plan.lines.items() if line.how.name == "as_trained"] if plan is not None else []
    asked: dict[str, dict[str, Json]] = {}
    for site, said in sorted(read_homes(route).items()):
        lines: list[Json] = [{"label": e["label"], "run": e["run"]} for e in index if e["test_site"] == site]
        asked[site] = {
            "lines": lines,
            "reference": untreated(config) or next(iter(still), None),
            "names": list(config.task.names),
            "field": field(config),
            "methods": [],
            "spaces": [],
            **{name: said[name] for name in ("cohort", "excluded", "unmatched_exclusions") if name in said},
        }
    return asked


def field(config: Config) -> str:
    """The setting by which external sites' masks place the crop of their images; empty if masks do not."""
    images = config.images
    if isinstance(images, Pictures):
        return "images.fit: around" if images.fit == "around" else ""
    if not isinstance(images, Slices | Volumes):
        return ""
    own = [config.sites[name] for name in config.outside]
    if not any(site.gland is not None or isinstance(site.source, PhantomSource) for site in own):
        return ""  # cropped about the middle of the image
    told = ["images.centre: gland"] if images.centre == "gland" else []
    told += ["images.slices: gland"] if isinstance(images, Slices) and images.slices == "gland" else []
    return ", ".join(told)


def counts(homes: Mapping[str, Mapping[str, Any]], said: Mapping[str, Mapping[str, Json]]) -> Iterator[SiteCounts]:
    """Counts of the external sites, each in one split: all their patients are scored."""
    for site, facts in sorted(homes.items()):
        parts = [facts["splits"][split] for split in SPLITS]
        names = ("patients", "images", "positives")
        patients, images, positives = (sum(int(part[name]) for part in parts) for name in names)
        whole = SplitCount("all", patients, images, positives)
        knew = tuple(Knew(str(run)) for run in as_list(said[site].get("knew")))
        gone = Withdrawn(facts.get("excluded", 0), facts.get("unmatched_exclusions", 0), knew)
        yield SiteCounts(site, (whole,), dict(facts.get("rejected_by_reason", {})), gone)
