"""The page of all runs of a folder: what each says of its models, what it cost, and where settings differ."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from evaluation.page import (
    Block,
    Code,
    Column,
    Curve,
    Fields,
    Page,
    Paragraph,
    Section,
    SilenceNotice,
    Span,
    Table,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.rendering import render_page
from evaluation.wording import format_count, format_duration, format_list, format_moment, format_number, format_size

MOST_COMPARED = 8
"""Runs whose settings stand side by side: the newest ones."""
State: TypeAlias = Literal["done", "at work", "stopped", "unknown"]
TITLE = "Runs in "
"""Begins the page's title: by it a program knows the page as one of its own."""
LONGEST = 120  # characters of a setting where it is shown


@dataclass(frozen=True)
class HospitalModel:
    """The model that a hospital should use, as its run says. method: empty if it names none. value: its score on the
    hospital's test patients by `measure`; NaN if it was not scored. assessable: whether enough patients were tested.
    """

    site: str
    method: str
    measure: str = ""
    value: float = math.nan
    assessable: bool = False


@dataclass(frozen=True)
class Training:
    """How far a method's training is. round: the last whose validation loss is known, or that is merged if none is.
    losses: mean validation losses by round, as far as they are known. rounds: it has in all; 0 = unknown.
    """

    method: str
    round: int
    losses: tuple[tuple[int, float], ...] = ()
    rounds: int = 0

    @property
    def newest(self) -> float:
        """The loss of the newest round that has one; NaN without one."""
        return self.losses[-1][1] if self.losses else math.nan

    @property
    def curve(self) -> str:
        """The losses as points of a line within 120 x 20; empty if there are fewer than two."""
        if len(self.losses) < 2:
            return ""
        (first, *_), values = self.losses[0], [loss for _, loss in self.losses]
        last, low, high = self.losses[-1][0], min(values), max(values)
        wide, tall = max(last - first, 1), (high - low) or 1.0
        points = ((120 * (number - first) / wide, 20 * (high - loss) / tall) for number, loss in self.losses)
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True)
class RunLine:
    """A run. finished: when its newest report was written, in seconds since 1970; None = never. seconds: of the stages
    that are stored. size: of its folder, in bytes. after: the stage whose artifact is the newest. epsilons: what left
    cost a patient, in words, each kind once. settings: of its newest report, by path. page: the address of its page;
    empty if it has none. trainings: of a run that is not done, how far they are. trouble: what of it cannot be read.
    """

    name: str
    state: State
    finished: float | None
    seconds: float
    size: int
    after: str = ""
    models: tuple[HospitalModel, ...] = ()
    epsilons: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    page: str = ""
    trainings: tuple[Training, ...] = ()
    trouble: str = ""

    @property
    def progress(self) -> str:
        """Its state, and how far it is unless it is done."""
        return f"{self.state} after {self.after}" if self.after and self.state != "done" else self.state

    @property
    def when(self) -> str:
        """When its newest report was written; empty without one. Days sort by their text."""
        if self.finished is None:
            return ""
        return datetime.fromtimestamp(self.finished, UTC).strftime("%Y-%m-%d %H:%M UTC")

    @property
    def methods(self) -> str:
        """The models in use, the most frequent first."""
        counted = Counter(model.method or "none" for model in self.models)
        several = len(self.models) > 1
        return ", ".join(f"{name} × {number}" if several else name for name, number in counted.most_common())

    @property
    def measure(self) -> str:
        """The measure of the models' scores; empty if there is none, or if hospitals have several."""
        measures = {model.measure for model in self.models if model.measure}
        return measures.pop() if len(measures) == 1 else ""

    @property
    def mean(self) -> float:
        """The mean score of the hospitals' models by `measure`; NaN without one."""
        values = [model.value for model in self.models if math.isfinite(model.value)]
        return math.fsum(values) / len(values) if values and self.measure else math.nan

    @property
    def is_assessable(self) -> bool:
        """Whether there are scores, and all of them of enough patients."""
        scored = [model for model in self.models if math.isfinite(model.value)]
        return bool(scored) and all(model.assessable for model in scored)

    @property
    def share_scored(self) -> str:
        """Of how many hospitals the mean is, where some have no score; empty where all or none have one."""
        scored = sum(math.isfinite(model.value) for model in self.models)
        return f"{scored} of {len(self.models)} hospitals" if 0 < scored < len(self.models) else ""

    @property
    def scores(self) -> str:
        """Each hospital's score."""
        return ", ".join(f"{model.site} {format_number(model.value)}" for model in self.models)


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in all runs that are compared. values: of each of them, "–" where it is absent."""

    path: str
    values: tuple[str, ...]


def flatten_settings(settings: object, path: str = "") -> dict[str, str]:
    """Settings by path, as `train.work.lr`, in words of YAML; lists of plain values are one setting."""
    if isinstance(settings, Mapping) and settings:
        parts = (flatten_settings(value, f"{path}.{name}" if path else str(name)) for name, value in settings.items())
        return {name: value for part in parts for name, value in part.items()}
    if isinstance(settings, list) and any(isinstance(value, Mapping) for value in settings):
        parts = (flatten_settings(value, f"{path}.{place}") for place, value in enumerate(settings))
        return {name: value for part in parts for name, value in part.items()}
    text = settings if isinstance(settings, str) else json.dumps(settings, ensure_ascii=False, default=str)
    return {path: text}


def find_differences(lines: Sequence[RunLine]) -> tuple[Difference, ...]:
    """The settings that differ between runs, by path. The name of a run is none."""
    tables = [line.settings or {} for line in lines]
    paths = sorted({path for table in tables for path in table} - {"name"})
    rows = ((path, [table.get(path, "–") for table in tables]) for path in paths)
    return tuple(Difference(path, _shorten(values)) for path, values in rows if len(set(values)) > 1)


def _shorten(values: Sequence[str]) -> tuple[str, ...]:
    """Values that differ, each of at most `LONGEST` characters, cut so that what differs first is seen."""
    if all(len(value) <= LONGEST for value in values):
        return tuple(values)
    long = [*{value for value in values if len(value) > LONGEST}]
    same = next((k for k, letters in enumerate(zip(*long, strict=False)) if len({*letters}) > 1), LONGEST)
    same = same if len(long) > 1 else 0
    begin = max(0, same - LONGEST // 4)
    cut = (f"…{value[begin:]}" if begin and len(value) > LONGEST else value for value in values)
    return tuple(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in cut)


def render_run_list(lines: Sequence[RunLine], folder: str, date: str, reload_s: int | None = None) -> str:
    """The page. lines: the newest first. folder: the name of the folder of runs. date: of today, ISO. reload_s: after
    how many seconds a browser reads the page again; None = it does not.
    """
    compared = [line for line in lines if line.settings is not None][:MOST_COMPARED]
    unfinished = [line for line in lines if line.trainings]
    sections = [_build_runs_section(lines)]
    for place, line in enumerate(unfinished, 1):
        table = build_training_table(line.trainings, f"Trainings of {line.name}")
        sections.append(Section(f"{line.name}: {line.progress}", [table], f"trainings-{place}"))
    if len(compared) > 1:
        sections.append(_build_differences_section(compared))
    title = f"{TITLE}{folder}"
    facts = f"{format_count(len(lines), 'run', 'runs')} · written {format_moment(date)}"
    return render_page(Page(title, title, facts, sections, reload_s=reload_s))


def _build_runs_section(lines: Sequence[RunLine]) -> Section:
    """All runs, a row each."""
    caption = (
        "Models: those that each run says hospitals should use, and how many hospitals. Score: their mean on the "
        "hospitals' own test patients; * = of too few patients at some hospital. A score of one run may be compared "
        "with that of another only where patients and splits are the same. State: when this page was written, which a "
        "run of this folder does when it begins and when it ends; one that was killed is still said to be at work."
    )
    fields: Fields = [
        ("run", lambda line: Span(line.name, href=line.page)),
        ("state", lambda line: (line.progress, Span(line.trouble, "sub why") if line.trouble else "")),
        ("finished", lambda line: line.when or "–"),
        ("models in use", lambda line: line.methods or "–"),
        ("measure", lambda line: line.measure or "–"),
        (number_column("score"), _describe_scores),
        ("privacy loss ε", lambda line: "; ".join(line.epsilons) or "–"),
        (number_column("time"), lambda line: format_duration(line.seconds)),
        (number_column("size"), lambda line: format_size(line.size)),
    ]
    table = make_table("All runs", caption, lines, fields, empty="No run is in this folder.")
    return Section("All runs, the newest first", [table], "runs")


def _describe_scores(line: RunLine) -> Text:
    """The mean score of a run's models, and each of a few."""
    star = "" if line.is_assessable or not line.measure else "*"
    scores = line.scores if len(line.models) < 5 else line.share_scored
    return (Span(format_number(line.mean), "value"), star, make_subline(scores))


def _build_differences_section(compared: Sequence[RunLine]) -> Section:
    """The settings that differ, a column for each run."""
    title = "Settings that differ"
    differences = find_differences(compared)
    if not differences:
        return Section(title, [Paragraph("These runs have the same settings.")], "differences")
    which = "all runs with a report" if len(compared) < MOST_COMPARED else "the newest runs with a report"
    caption = f"Between {which}; settings that are the same in all of them are left out."
    fields: Fields = [
        ("setting", lambda row: Span(row.path, "code")),
        *(
            (Column(line.name, run=str(place + 1)), lambda row, place=place: row.values[place])
            for place, line in enumerate(compared)
        ),
    ]
    return Section(title, [make_table(title, caption, differences, fields, look="grid", is_tall=True)], "differences")


def build_training_table(trainings: Sequence[Training], label: str) -> Table:
    """How far trainings are, with their losses by round."""
    caption = (
        "Trainings so far. Loss: the mean over hospitals on validation patients, of the newest round that they told; "
        "the line shows all rounds, from their highest to their lowest."
    )
    fields: Fields = [
        ("training", lambda training: training.method),
        (number_column("rounds"), lambda t: f"{t.round} of {t.rounds}" if t.rounds else str(t.round)),
        (number_column("loss"), lambda training: format_number(training.newest)),
        ("by round", _draw_losses),
    ]
    return make_table(label, caption, trainings, fields, look="narrow")


def _draw_losses(training: Training) -> Text:
    """The losses as a line."""
    if not training.curve:
        return "–"
    span = f"from {format_number(training.losses[0][1])} to {format_number(training.newest)}"
    return Curve(training.curve, f"validation loss by round: {span}")


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
