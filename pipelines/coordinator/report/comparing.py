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
from pipelines.hospital.recommending import read_gains
from pipelines.requests.compare import COMPARE, Compare
from pipelines.requests.report import Others, Reported
from pipelines.requests.writing import to_facts
from pipelines.runs.store import digest, short
from privacy.message import Json, Malformed


def others(world: World, lines: Mapping[str, Compare], version: int) -> dict[str, Others]:
    """What each site hears of the others: sums of the gains that these measured over their own models.

    Nothing in a private run, in segmentation, or with one site; a site that does not answer is left out.
    """
    config = world.config
    if config.privacy != "none" or config.task.target is not None or len(lines) < 2:
        return {}
    known: Json = {"sites": {site: to_facts(question) for site, question in lines.items()}, "version": version}
    run = world.run(f"compare-{short(digest(known))}")
    replies = world.ask(COMPARE, dict.fromkeys(lines, run), lines).replies
    gains = {site: told for site, reply in replies.items() if (told := read_gains(lines[site], reply))}
    return {
        site: {"hospitals": sums.hospitals, "sums": {label: (*pair,) for label, pair in sums.sums.items()}}
        for site, sums in heard(gains, [*lines]).items()
    }


def decided(replies: Mapping[str, Reported], models: Sequence[Model], rows: Sequence[ScoreRow]) -> tuple[Decision, ...]:
    """The hospitals' decisions, from their replies to `report`; of one that did not tell a view of what was sent, which
    is not final. A decision that names a model the hospital does not have is not believed.
    """
    have = {(model.site, model.method) for model in models}
    return tuple(_told(replies.get(one.site), one, have) for one in decisions(models, rows))


def _told(reply: Reported | None, seen: Decision, have: Collection[tuple[str, str]]) -> Decision:
    if reply is None or reply.decision is None:
        return replace(seen, final=False)
    try:
        found = replace(from_facts(reply.decision), site=seen.site, final=True)
    except (Malformed, ValueError):
        return replace(seen, final=False)
    known = all((seen.site, method) in have for method in (found.method, *found.withdrawn) if method)
    return found if known else replace(seen, final=False)
