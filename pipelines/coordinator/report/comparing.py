"""What hospitals hear of each other's gains before they recommend a model, and what they decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from evaluation.choice import decisions
from evaluation.decision import Decision, from_facts
from evaluation.recommendation import heard
from evaluation.records import Model
from evaluation.rows import ScoreRow
from pipelines.coordinator.world import World
from pipelines.hospital.recommending import gains_told, others_to_facts
from pipelines.runs.store import digest, short
from privacy.message import Call, Json, Malformed, Message, as_mapping


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


def decided(
    said: Mapping[str, Mapping[str, Json]], models: Sequence[Model], rows: Sequence[ScoreRow]
) -> tuple[Decision, ...]:
    """The hospitals' decisions, from their replies to `report`; of one that did not tell a view of what was sent, which
    is not final. A decision that names a model the hospital does not have is not believed.
    """
    have = {(model.site, model.method) for model in models}
    return tuple(_told(said.get(one.site, {}), one, have) for one in decisions(models, rows))


def _told(said: Mapping[str, Json], seen: Decision, have: Collection[tuple[str, str]]) -> Decision:
    try:
        found = replace(from_facts(as_mapping(said.get("decision"))), site=seen.site, final=True)
    except (Malformed, ValueError):
        return replace(seen, final=False)
    known = all((seen.site, method) in have for method in (found.method, *found.withdrawn) if method)
    return found if known else replace(seen, final=False)
