"""`progress.html` in the folder of a run at work: what the terminal shows, for whoever is not before it.

It repeats what the coordinator knows already: the progress of tasks (`pipelines.runs.progress`), the events of stages,
and after each round the validation losses that hospitals sent, which a private run has paid for. Who has answered is
shown in runs without a budget alone, because how long a hospital takes depends on its patients. Nothing is asked or
computed for it, and a page that cannot be written ends no run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock

from evaluation.run_list import RunProgress, RunState, StageLine, StageState, TaskLine, Training, render_progress_page
from federation.engine import listen_for_answers
from federation.rounds import method_schedule
from pipelines.coordinator.artifacts import PAGE as REPORT
from pipelines.coordinator.world import RoundEnded, World
from pipelines.runs.progress import TaskProgress, watch_progress
from pipelines.runs.runner import Event, Step
from pipelines.runs.stopping import Stopped
from pipelines.runs.store import replace_file
from pipelines.settings.config import Config
from pipelines.settings.learning import list_trainings, name_training

PAGE, TRAIN, REPORT_STAGE = "progress.html", "train", "report"
EVERY_S = 3.0
"""The page is written no more often than this, but when a stage begins or ends."""
STATES: dict[str, StageState] = {"begun": "at work", "done": "done", "kept": "kept", "skipped": "left out"}


@dataclass
class Followed:
    """What is known of a run at work. tasks: by their titles. depth: titles of a stage's task; 0 = not known yet.
    answered: hospitals that answered the round at work.
    """

    world: World
    start: str
    stages: dict[str, StageLine]
    trainings: dict[str, Training]
    clock: Callable[[], float] = time.monotonic
    written: float = -math.inf
    depth: int = 0
    tasks: dict[tuple[str, ...], TaskLine] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def note_event(self, event: Event) -> None:
        """Take down that a stage has begun or ended, and write the page."""
        stage = event.step.stage.name
        seconds = event.seconds if event.kind == "done" else math.nan
        self.stages[stage] = StageLine(stage, STATES[event.kind], seconds, event.step.reason)
        self.write("at work")

    def note_progress(self, task: TaskProgress) -> None:
        """Take down how far the run or a stage is, not what hospitals do within it: only a simulation sees that."""
        self.depth = self.depth or len(task.titles) + 1
        if len(task.titles) > self.depth:
            return
        if task.has_ended:
            self.tasks.pop(task.titles, None)
        else:
            share = task.done / task.total if task.total else None
            self.tasks[task.titles] = TaskLine(task.titles, task.text, share, task.seconds_left)
        self.write_if_due()

    def note_round(self, ended: RoundEnded) -> None:
        """Take down a round that has ended, and the losses that are known by then."""
        losses = tuple(sorted(ended.totals.items()))
        self.trainings[ended.method] = Training(ended.method, ended.round, losses, ended.rounds)
        self.answered.clear()
        self.write_if_due()

    def note_answer(self, site: str) -> None:
        """Take down that a hospital has answered."""
        self.answered.add(site)
        self.write_if_due()

    def write_if_due(self) -> None:
        """Write the page, if it was not written lately."""
        if self.clock() - self.written >= EVERY_S:
            self.write("at work")

    def write(self, state: RunState, command: str = "") -> None:
        """Replace the page. Another thread that writes it now is enough."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            self.written = self.clock()
            with suppress(OSError):
                replace_file(self.world.root / PAGE, render_progress_page(self.describe(state, command)).encode())
        finally:
            self.lock.release()

    def describe(self, state: RunState, command: str = "") -> RunProgress:
        """What the page says."""
        config, works, root = self.world.config, state == "at work", self.world.root
        train = self.stages.get(TRAIN, StageLine(TRAIN))
        is_shown = works and train.state == "at work" and config.privacy == "none"
        report = self.stages.get(REPORT_STAGE, StageLine(REPORT_STAGE))
        has_report = state == "done" and (report.state in ("done", "kept") or (root / REPORT).is_file())
        return RunProgress(
            title=config.title or config.name,
            run=config.name,
            state=state,
            start=self.start,
            written=self.world.now(),
            stages=tuple(self.stages.values()),
            tasks=tuple(self.tasks[titles] for titles in sorted(self.tasks)) if works else (),
            trainings=() if train.state in ("kept", "left out") else tuple(self.trainings.values()),
            answered=tuple((site, site in self.answered) for site in (self.world.engine.sites if is_shown else ())),
            report=REPORT if has_report else "",
            command=command or (self.world.command if works else ""),
        )


@contextmanager
def follow_run(world: World, steps: Sequence[Step[World]]) -> Iterator[tuple[World, Callable[[Event], None]]]:
    """While it lasts, `progress.html` says how far the run is; afterwards, how it ended. Gives the world in which the
    stages run, and a function that takes their events.
    """
    stages = {step.stage.name: StageLine(step.stage.name, why=step.reason) for step in steps}
    followed = Followed(world, world.now(), stages, list_planned_trainings(world.config) if TRAIN in stages else {})

    def hear_round(ended: RoundEnded) -> None:
        followed.note_round(ended)
        world.on_round(ended)

    try:
        with watch_progress(followed.note_progress), listen_for_answers(followed.note_answer):
            yield replace(world, on_round=hear_round), followed.note_event
    except BaseException as error:
        cause = getattr(error, "cause", error)
        stopped = isinstance(cause, (Stopped, KeyboardInterrupt))
        followed.write("stopped" if stopped else "failed", getattr(error, "command", "") or world.command)
        raise
    followed.write("done")


def list_planned_trainings(config: Config) -> dict[str, Training]:
    """All trainings of a run by name, none of which has begun."""
    trainings = dict[str, Training]()
    for number in list_trainings(config.train.repeats):
        for label, algorithm in config.train.methods.items():
            name, schedule = name_training(label, number), method_schedule(algorithm, config.train.schedule)
            trainings[name] = Training(name, 0, (), schedule.rounds)
    return trainings
