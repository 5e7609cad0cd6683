"""What hospitals hear of each other's gains before they recommend a model, and what they recommend."""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.recommendation import Recommendation, heard
from pipelines.coordinator.world import World
from pipelines.hospital.recommending import from_facts, gains_told, others_to_facts
from pipelines.runs.store import digest, short
from privacy.message import Call, Json, Message, as_mapping


def others(world: World, methods: Mapping[str, Mapping[str, Json]], version: int) -> dict[str, dict[str, Json]]:
    """The fact `others` for each site: sums of the gains that the other sites measured over their own models.

    Nothing in a private run, in segmentation, or with one site; a site that does not answer is left out.
    """
    config = world.config
    if config.privacy != "none" or config.task.target is not None or len(methods) < 2:
        return {site: {} for site in methods}
    known: Json = {"sites": {site: dict(facts) for site, facts in methods.items()}, "version": version}
    run = world.run(f"compare-{short(digest(known))}")
    world.stop.check()
    asked = {site: Message({}, facts) for site, facts in methods.items()}
    replies = world.engine.ask(Call(run, 0, "compare", {}), asked).replies
    world.stop.check()
    told = {site: gains for site, one in replies.items() if (gains := gains_told(methods[site], one.facts))}
    return {site: {"others": others_to_facts(one)} for site, one in heard(told, [*methods]).items()}


def recommendations(said: Mapping[str, Mapping[str, Json]]) -> tuple[Recommendation, ...]:
    """What hospitals told of their recommendations in their replies to `report`."""
    found = ((site, facts.get("recommended")) for site, facts in sorted(said.items()))
    return tuple(from_facts({**as_mapping(one), "site": site}) for site, one in found if isinstance(one, dict))
