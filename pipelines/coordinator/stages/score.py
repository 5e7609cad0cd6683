"""Score the complexity of each hospital's images, and choose the target of harmonization (VAFL, section II.A)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harmonize.complexity import Score, chosen, deviation_of, most, replaces
from pipelines.coordinator.artifacts import SCORES
from pipelines.coordinator.spaces import cohorts_in, common_facts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import counting, shown
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW
from privacy.message import Json, Message, number_of, numbers_of

VERSION = 4  # 1 trained the default imitation for variant paper too, 2 asked all again when one joined


def settings(world: World) -> Json:
    """Settings that change the choice."""
    plan = world.config.harmonized
    return {"score": to_plain(plan.score), "prior": plan.public_prior(world.config.images), **common_facts(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request one number from every site and take the lowest as target; request none if the YAML names the target."""
    config, plan = world.config, world.config.harmonized
    cohorts, score = cohorts_in(inputs, RAW), plan.score
    smallest = min(int(facts["splits"]["train"]["images"]) for facts in cohorts.values())
    facts: dict[str, dict[str, Json]] = {
        site: {
            "score": to_plain(replace(score, current=None, margin=Score().margin)),  # which hospitals do not need
            "images": min(smallest, score.images or smallest),
            "cohort": str(cohorts[site]["cohort"]),
            "prior": plan.public_prior(config.images),
            **common_facts(world),
        }
        for site in (world.engine.sites if score.release != "public" else ())
    }
    with shown("score") as step:
        runs = {
            site: world.conversation(world.named("score", "score", VERSION, one), site) for site, one in facts.items()
        }
        asked = {site: Message({}, one) for site, one in facts.items()}
        replies = world.ask_each(runs, "score", asked, told=counting(step, len(cohorts))) if asked else {}
    scores = {site: dict(replies[site].facts) for site in facts}
    declared = {site: int(facts["splits"]["train"]["patients"]) for site, facts in cohorts.items()}
    target = score.target or (_lowest(score, scores, declared) if scores else most(declared))
    found: dict[str, Json] = {"release": score.release, "target": target, "scores": dict(scores)}
    (out / SCORES).write_text(json.dumps(found, indent=1, sort_keys=True))
    return found


def _lowest(score: Score, scores: Mapping[str, Mapping[str, Json]], declared: Mapping[str, int]) -> str:
    """The site with the lowest score; `score.current` stays the target unless another is lower by the margin."""
    numbers = {site: number_of(said, "score") for site, said in scores.items()}
    if score.current is None:
        return chosen(numbers)
    values = {site: numbers_of(said, "values") for site, said in scores.items()}
    known = {site: deviation_of(score, count) if score.release == "dp" else None for site, count in declared.items()}
    mine = known[score.current]
    lower = {
        site: number
        for site, number in numbers.items()
        if site != score.current
        and replaces(values[score.current], values[site], score.margin, deviation=_both(mine, known[site]))
    }
    return chosen(lower) if lower else score.current


def _both(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else math.hypot(one, other)


STAGE = Stage("score", VERSION, ("ingest",), settings, run)
