"""Stages whose artifacts name the hospitals' answers that they rest on, so that a file that is gone is made again.

An artifact's manifest vouches for the files in its folder. What hospitals wrote for it, on their own disks (models for
`predict`, translators, scores of patients, lists of what was read), is named by `asked`: site -> the answers, each
as [run, round, request], in JSON. A stage is kept only while every hospital still has all files of these answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from federation.engine import Answers, Eager, Engine
from pipelines.coordinator.world import World
from pipelines.requests import REQUESTS
from pipelines.requests.holds import Holds
from pipelines.runs.plan import Stage
from pipelines.runs.witness import remember_answers
from privacy.message import Call, Json, Message
from privacy.release.form import read_form

ANSWERS_FILE = "asked"


class RecordingEngine:
    """An engine that notes which answers came: site -> [run, round, request]; and the last of each site."""

    def __init__(self, engine: Engine, answers: dict[str, list[Json]], last: dict[str, Message]) -> None:
        self._engine, self._asked, self._last = engine, answers, last

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return self._engine.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`."""
        answers = self._engine.ask(call, messages, deadline_s=deadline_s)
        self._last.update(answers.replies)
        if REQUESTS[call.request].writes:
            for site in answers.replies:
                self._asked.setdefault(site, []).append([call.at(site).run, call.round, call.request])
        return answers

    def begin(self, call: Call, messages: Mapping[str, Message]) -> None:
        """See `Eager.begin`; sites of another engine begin when they are asked."""
        if isinstance(self._engine, Eager):
            self._engine.begin(call, messages)


def record_answers(stage: Stage[World]) -> Stage[World]:
    """The same stage, whose artifact has `asked`, and which is run again if a file of an answer is gone. What hospitals
    answered last is remembered, also where the stage fails: see `pipelines.runs.witness`.
    """

    def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
        answers: dict[str, list[Json]] = {}
        last: dict[str, Message] = {}
        noting = replace(
            world,
            engine=RecordingEngine(world.engine, answers, last),
            outside=RecordingEngine(world.outside, answers, last),
        )
        try:
            summary = stage.run(noting, inputs, out)
        finally:
            remember_answers(world.root, last)
        unique_answers = {
            site: [json.loads(answer) for answer in sorted({json.dumps(answer) for answer in answers[site]})]
            for site in answers
        }
        if unique_answers:
            (out / ANSWERS_FILE).write_text(json.dumps(unique_answers, indent=0, sort_keys=True))
        return summary

    def intact(world: World, artifact: Path) -> str | None:
        complaint = _find_complaint(stage, world, artifact)
        path = artifact / ANSWERS_FILE
        if complaint is not None or not path.is_file():
            return complaint
        answers = json.loads(path.read_text())
        return world.find_complaint(
            {site: read_form(Holds, Message({}, {"answers": each})) for site, each in answers.items()}
        )

    return replace(stage, run=run, intact=intact)


def _find_complaint(stage: Stage[World], world: World, artifact: Path) -> str | None:
    """What a stage says about its parts elsewhere. Records of the coordinator that cannot be read are a complaint, too:
    no stage answers with an error, so the same command makes again what is damaged.
    """
    try:
        return stage.intact(world, artifact)
    except (ValueError, LookupError) as error:
        return f"records are damaged: {' '.join(str(error).split())}"
