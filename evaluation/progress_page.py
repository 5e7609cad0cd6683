"""The page of a run that is at work: its stages, how far its trainings are, and for whom it waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from evaluation.page import (
    Block,
    Code,
    Fields,
    Page,
    Paragraph,
    Section,
    SilenceNotice,
    Span,
    compose_text,
    make_table,
    number_column,
)
from evaluation.rendering import render_page
from evaluation.run_list import Training, build_training_table
from evaluation.wording import format_count, format_duration, format_list, format_moment

RELOAD_S = 5
"""After so many seconds a browser reads the page again, while the run works."""
StageState: TypeAlias = Literal["waits", "at work", "done", "kept", "left out"]
RunState: TypeAlias = Literal["at work", "done", "stopped", "failed"]


@dataclass(frozen=True)
class StageLine:
    """A stage. seconds: that it took, NaN if it has not ended, or was kept. why: in words, why it runs or is kept."""

    name: str
    state: StageState = "waits"
    seconds: float = math.nan
    why: str = ""


@dataclass(frozen=True)
class TaskLine:
    """A task at work, as the terminal shows it. titles: the outermost first. share: that is done; None = unknown.
    seconds_left: at the pace so far, when the page was written; None = unknown.
    """

    titles: tuple[str, ...]
    text: str = ""
    share: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class RunProgress:
    """A run at work. start, written: ISO, UTC. trainings: how far each is. answered: hospital -> whether it has
    answered the round that is at work; empty where nobody may say. report: the address of the report; empty = none yet.
    command: with which a run goes on that has ended early, or is ended from outside while it works.
    """

    title: str
    run: str
    state: RunState
    start: str
    written: str
    stages: Sequence[StageLine]
    tasks: Sequence[TaskLine] = ()
    trainings: Sequence[Training] = ()
    answered: Sequence[tuple[str, bool]] = ()
    report: str = ""
    command: str = ""


def render_progress_page(progress: RunProgress) -> str:
    """The page. While the run works, a browser reads it again after `RELOAD_S`."""
    facts = compose_text(
        "run **{run}** · begun {start} · written {written}",
        run=progress.run, start=format_moment(progress.start), written=format_moment(progress.written),
    )  # fmt: skip
    sections = [_build_task_section(progress.tasks)] if progress.tasks else []
    sections.append(_build_stage_section(progress.stages))
    if progress.answered:
        sections.append(Section("Hospitals", [Paragraph(_describe_answers(progress.answered))], "hospitals"))
    if progress.trainings:
        sections.append(Section("Trainings", [build_training_table(progress.trainings, "Trainings")], "trainings"))
    reload_s = RELOAD_S if progress.state == "at work" else None
    title = f"{progress.run}: {progress.state}"
    return render_page(Page(title, progress.title, facts, sections, _describe_state(progress), reload_s=reload_s))


def _describe_state(progress: RunProgress) -> list[Block]:
    """Whether the run works, and how to go on with it."""
    if progress.state == "at work":
        command = (": ", Span(progress.command, "code")) if progress.command else ""
        text = compose_text(
            "**At work.** This page is written every few seconds, and a browser reads it again by itself. If it was "
            "written long ago, the run was ended from outside; the same command goes on with it{command}.",
            command=command,
        )
        return [Paragraph(text, "banner"), SilenceNotice(progress.written)]
    if progress.state == "done":
        report = (" ", Span("The report", href=progress.report), " says what came out.") if progress.report else ""
        return [Paragraph(compose_text("**Done.**{report}", report=report), "banner stays")]
    text = compose_text("**{state}.** The command's last lines say why. To go on:", state=progress.state.capitalize())
    return [Paragraph(text, "banner"), Code(progress.command, "command to go on")]


def _build_task_section(tasks: Sequence[TaskLine]) -> Section:
    """Tasks at work."""
    caption = "As the terminal shows it. Time left: at the pace so far, when this page was written."
    fields: Fields = [
        ("task", lambda task: " › ".join(task.titles)),
        ("step", lambda task: task.text or "–"),
        (number_column("done"), lambda task: "–" if task.share is None else f"{100 * task.share:.0f} %"),
        (
            number_column("time left"),
            lambda task: "–" if task.seconds_left is None else format_duration(task.seconds_left),
        ),
    ]
    return Section("At work", [make_table("At work", caption, tasks, fields)], "tasks")


def _build_stage_section(stages: Sequence[StageLine]) -> Section:
    """All stages."""
    done = sum(stage.state in ("done", "kept") for stage in stages)
    fields: Fields = [
        ("stage", lambda stage: stage.name),
        ("state", lambda stage: stage.state),
        (number_column("time"), lambda stage: format_duration(stage.seconds)),
        ("why", lambda stage: stage.why or "–"),
    ]
    table = make_table("Stages", f"{done} of {len(stages)} are done.", stages, fields, look="narrow")
    return Section("Stages", [table], "stages")


def _describe_answers(answered: Sequence[tuple[str, bool]]) -> str:
    """For whom a round waits."""
    waiting = [site for site, has_answered in answered if not has_answered]
    waits = f"This round waits for {format_list(waiting)}. " if waiting else ""
    done = format_count(len(answered) - len(waiting), "hospital has", "hospitals have")
    return f"{waits}{done} answered it, of {len(answered)}."
