"""Score the complexity of each hospital's images, and choose the target of harmonization (VAFL, section II.A)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harmonize.complexity import Score, deviation_of, replaces_target, select_largest_site, select_target
from pipelines.coordinator.artifacts import SCORES, read_counts
from pipelines.coordinator.rehearsing import check_synthesis
from pipelines.coordinator.spaces import build_common_part, common_settings
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.requests import score as requests
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import make_counter, show_progress
from pipelines.runs.runner import Stage
from privacy.message import Json

VERSION = 4  # 1 trained the default imitation for variant paper too, 2 asked all again when one joined


def settings(world: World) -> Json:
    """Settings that change the choice."""
    plan = world.config.harmonize_settings
    return {"score": to_plain(plan.score), "prior": plan.public_prior(world.config.images), **common_settings(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request one number from every site and take the lowest as target; request none if the YAML names the target."""
    config, plan = world.config, world.config.harmonize_settings
    counts, score = read_counts(inputs["ingest"]), plan.score
    check_synthesis(config, {site: each.splits["train"]["patients"] for site, each in counts.items()})
    smallest = min(each.splits["train"]["images"] for each in counts.values())
    questions = {
        site: requests.Score(
            score=replace(score, current=None, margin=Score().margin),  # which hospitals do not need
            images=min(smallest, score.images or smallest),
            cohort=counts[site].cohort,
            prior=plan.public_prior(config.images),
            **build_common_part(world),
        )
        for site in (world.engine.sites if score.release != "public" else ())
    }
    with show_progress("score") as step:
        runs = {
            site: world.choose_conversation(world.name_question("score", "score", VERSION, to_facts(question)), site)
            for site, question in questions.items()
        }
        report_site = make_counter(step, len(counts))
        replies = world.ask_each(requests.SCORE, runs, questions, report_site=report_site) if questions else {}
    scores = {site: replies[site] for site in questions}
    patients = {site: each.splits["train"]["patients"] for site, each in counts.items()}
    target = score.target or (_choose_target(score, scores, patients) if scores else select_largest_site(patients))
    summary: dict[str, Json] = {
        "release": score.release,
        "target": target,
        "scores": {site: to_facts(reply) for site, reply in scores.items()},
    }
    (out / SCORES).write_text(json.dumps(summary, indent=1, sort_keys=True))
    return summary


def _choose_target(score: Score, replies: Mapping[str, requests.Scored], patients: Mapping[str, int]) -> str:
    """The site with the lowest score; `score.current` stays the target unless another is lower by the margin."""
    scores = {site: reply.score for site, reply in replies.items()}
    if score.current is None:
        return select_target(scores)
    deviations = {
        site: deviation_of(score, count) if score.release == "dp" else None for site, count in patients.items()
    }
    current = replies[score.current].values
    lower = {
        site: number
        for site, number in scores.items()
        if site != score.current
        and replaces_target(
            current,
            replies[site].values,
            score.margin,
            deviation=_combine_deviations(deviations[score.current], deviations[site]),
        )
    }
    return select_target(lower) if lower else score.current


def _combine_deviations(first: float | None, second: float | None) -> float | None:
    """The deviation of a difference of two scores; None if one is not known."""
    return None if first is None or second is None else math.hypot(first, second)


STAGE = Stage("score", VERSION, ("ingest",), settings, run)
