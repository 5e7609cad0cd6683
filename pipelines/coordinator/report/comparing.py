"""What hospitals hear of each other's gains before they recommend a model, and what they decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from evaluation.choice import make_decisions
from evaluation.decision import Decision, from_facts
from evaluation.recommendation import sum_other_gains
from evaluation.records import Model
from evaluation.rows import ScoreRow
from pipelines.coordinator.world import World
from pipelines.hospital.recommending import read_gains, read_scores
from pipelines.requests.compare import COMPARE, Compare
from pipelines.requests.report import Others
from pipelines.requests.writing import to_facts
from pipelines.runs.store import digest_json, short_digest
from pipelines.settings.home_lines import asks_comparisons
from privacy.message import Json, Malformed


class Heard(NamedTuple):
    """What comparisons told. others: by site, sums of the gains that the others measured over their own models. scores:
    by site, the AUC of each line on validation patients.
    """

    others: Mapping[str, Others] = MappingProxyType({})
    scores: Mapping[str, Mapping[str, float]] = MappingProxyType({})


def ask_comparisons(world: World, lines: Mapping[str, Compare], version: int) -> Heard:
    """What hospitals tell of their models on validation patients; a site that does not answer is left out."""
    if not asks_comparisons(world.config):
        return Heard()
    named_by: Json = {"sites": {site: to_facts(question) for site, question in lines.items()}, "version": version}
    run = world.run(f"compare-{short_digest(digest_json(named_by))}")
    replies = world.ask(COMPARE, dict.fromkeys(lines, run), lines).replies
    gains = {site: site_gains for site, reply in replies.items() if (site_gains := read_gains(lines[site], reply))}
    sums_by_site = sum_other_gains(gains, [*lines]) if len(lines) > 1 else {}
    others: dict[str, Others] = {
        site: {"hospitals": sums.hospitals, "sums": {label: (*pair,) for label, pair in sums.sums.items()}}
        for site, sums in sums_by_site.items()
    }
    return Heard(others, {site: read_scores(lines[site], reply) for site, reply in replies.items()})


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
