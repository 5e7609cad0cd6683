"""What hospitals hear of each other's gains before they recommend a model, and what they recommend."""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.recommendation import Recommendation
from pipelines.coordinator.world import SitesMissing, World
from pipelines.hospital.recommending import from_facts
from pipelines.runs.store import digest, short
from privacy.message import Json, Message, as_mapping


def others(world: World, methods: Mapping[str, Mapping[str, Json]], version: int) -> dict[str, dict[str, Json]]:
    """The fact `others` for each site: gains that the other sites measured over their own models, without names.

    Nothing in a private run, in segmentation, or with one site; a site that does not answer is left out.
    """
    config = world.config
    if config.privacy != "none" or config.task.target is not None or len(methods) < 2:
        return {site: {} for site in methods}
    known: Json = {"sites": {site: dict(facts) for site, facts in methods.items()}, "version": version}
    run = world.run(f"compare-{short(digest(known))}")
    told = dict[str, Json]()
    for site, facts in sorted(methods.items()):
        try:
            reply = world.ask_all(run, "compare", {site: Message({}, facts)})[site]
        except SitesMissing:
            continue
        if gains := as_mapping(reply.facts.get("gains")):
            told[site] = dict(gains)
    return {site: {"others": [gains for other, gains in told.items() if other != site]} for site in methods}


def recommendations(said: Mapping[str, Mapping[str, Json]]) -> tuple[Recommendation, ...]:
    """What hospitals told of their recommendations in their replies to `report`."""
    found = ((site, facts.get("recommended")) for site, facts in sorted(said.items()))
    return tuple(from_facts({**as_mapping(one), "site": site}) for site, one in found if isinstance(one, dict))
