"""The page of a run that is at work: its stages, how far its trainings are, and for whom it waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from evaluation.rendering import render_template
from evaluation.run_list import Training

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
    reload_s = RELOAD_S if progress.state == "at work" else None
    return render_template("progress.html", page=progress, reload_s=reload_s)
