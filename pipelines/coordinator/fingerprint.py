"""Ask all hospitals for the fingerprint of their studies: what `consilium plan` plans by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pipelines.coordinator.held import RecordingEngine
from pipelines.coordinator.witness import build_surveys
from pipelines.coordinator.world import SitesMissing, World
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.loader.document import ConfigError
from pipelines.requests.asking import is_refusal
from pipelines.requests.fingerprint import FINGERPRINT, Fingerprint, Measured, MeasuredWithNoise
from pipelines.requests.survey import SURVEY
from pipelines.requests.writing import read_reply, to_facts
from pipelines.runs.witness import remember_answers
from pipelines.settings.config import Config
from privacy.message import Json, Message, as_mapping
from privacy.release.gate import BUDGET
from privacy.settings_error import Problem

VERSION = 1


class Fingerprints(NamedTuple):
    """replies: what hospitals say of their studies. refusals: codes of hospitals whose policy or budget refuses."""

    replies: Mapping[str, Measured | MeasuredWithNoise]
    refusals: Mapping[str, str]


def ask_fingerprints(world: World) -> Fingerprints:
    """Ask every hospital of the federation. Of the same files the same answer comes again, and nobody pays twice.

    Raises:
        ConfigError: the run segments nothing that a plan is for.
        SitesMissing: a hospital gave no answer, and did not refuse.
    """
    question, last = build_question(world.config), dict[str, Message]()
    noting = replace(world, engine=RecordingEngine(world.engine, {}, last))
    try:
        surveyed = noting.ask_all(SURVEY, world.run(SURVEY.name), build_surveys(world))
        runs = {
            site: world.run(
                world.name_question(
                    "fingerprint", "fingerprint", VERSION, {"asked": to_facts(question), "files": reply.digest}
                )
            )
            for site, reply in surveyed.items()
        }
        answers = noting.ask(FINGERPRINT, runs, world.same_for_all(question))
    finally:
        remember_answers(world.root, last)
    failed = {site: code for site, code in answers.missing.items() if not (is_refusal(code) or code == BUDGET)}
    if failed:
        raise SitesMissing(FINGERPRINT.name, failed, where=world.log_paths(*failed))
    return Fingerprints(answers.replies, answers.missing)


def build_question(config: Config) -> Fingerprint:
    """What hospitals are asked. Raises: ConfigError: the run segments nothing that a plan is for."""
    images, task = config.images, config.task
    if task.target is None or not isinstance(images, Volumes | Slices | Pictures):
        text = "a plan is for masks of volumes, slices or pictures"
        kinds = f"found task: {{kind: {task.kind}}} and images: {{kind: {images.kind}}}"
        raise ConfigError([Problem(("task",), f"{text}, {kinds}; say task: {{kind: segmentation, ...}}")])
    return Fingerprint(
        images=images.kind,
        values="standardized" if isinstance(images, Pictures) else images.values,
        target=task.target,
        classes=[*task.names[1:]],
    )


def to_json(prints: Fingerprints) -> dict[str, Json]:
    """As JSON, for a process on another machine."""
    return {
        "replies": {site: to_facts(reply) for site, reply in prints.replies.items()},
        "refusals": dict(prints.refusals),
    }


def parse_json(facts: Json) -> Fingerprints:
    """What `to_json` wrote. Raises: ValueError: it is none of it."""
    each_reply, refusals = (as_mapping(as_mapping(facts).get(key)) for key in ("replies", "refusals"))
    replies = {site: read_reply(FINGERPRINT, Message({}, as_mapping(each))) for site, each in each_reply.items()}
    return Fingerprints(replies, {site: str(code) for site, code in refusals.items()})
