"""Run a plan stage by stage; the message of a failure or a stop contains the command that resumes the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pipelines.runs.plan import (
    MADE_AGAIN,
    SelectionError,
    Stage,
    Step,
    describe_changed_inputs,
    explain_steps,
    explanation_facts,
    find_artifact_problem,
    plan_steps,
)
from pipelines.runs.stopping import Stop, Stopped
from pipelines.runs.store import content_digest, read_manifest, remove_unfinished, short_digest, write_artifact
from privacy.pickled import reduce_error
from privacy.settings_error import words_of

if TYPE_CHECKING:
    from privacy.message import Json

__all__ = [
    "Event",
    "Results",
    "SelectionError",
    "Stage",
    "StageFailed",
    "Step",
    "execute_steps",
    "explain_steps",
    "explanation_facts",
    "plan_steps",
]

W = TypeVar("W")

CALL = "the same call of "
"""With a function's name it replaces the command in messages, if a run was started from Python and no command resumes
it.
"""


@dataclass(frozen=True)
class Event:
    """An event for the progress display. `seconds`: the duration of a stage that is done."""

    kind: Literal["begun", "done", "kept", "skipped"]
    step: Step[Any]
    index: int
    total: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Results:
    """artifacts: folders of the stages that were kept or ran. ran, kept: their names. seconds: of those that ran."""

    artifacts: Mapping[str, Path]
    ran: tuple[str, ...]
    kept: tuple[str, ...]
    seconds: Mapping[str, float]


class StageFailed(RuntimeError):
    """A stage raised `cause`. The last line of the text is the command that resumes the run. gone: the run's folder, if
    it was removed while the run worked.
    """

    def __init__(self, stage: str, cause: Exception, command: str, gone: Path | None = None) -> None:
        self.stage, self.cause, self.command, self.gone = stage, cause, command, gone
        text = f"stage {stage} failed: {type(cause).__name__}: {words_of(cause)}"
        what = "finished stages are kept; to go on:"
        if gone is not None:
            what = f"{gone} is gone, with the stages that were finished: somebody removed it meanwhile; to begin anew:"
        super().__init__(f"{text}\n{what}\n{command}")

    __reduce__ = reduce_error


def ignore_event(event: Event) -> None:
    """Show nothing."""


def execute_steps(
    steps: Sequence[Step[W]],
    world: W,
    root: Path,
    *,
    stop: Stop | None = None,
    on_step: Callable[[Event], None] = ignore_event,
    command: str = "python -m pipelines.run CONFIG",
) -> Results:
    """Execute a plan. The caller must hold a `RunLock` on `root`: leftovers of killed runs are removed first.

    stop: checked before each stage. command: the command line of the run, without its selection; for messages.

    Raises:
        StageFailed: a stage raised an exception; earlier artifacts stay, this stage has none.
        Stopped: a stop was requested, here or inside a stage.
    """
    remove_unfinished(root)
    seconds_by_stage: dict[str, float] = {}
    kept_names: list[str] = []
    for index, step in enumerate(steps):
        name = step.stage.name
        if step.state == "skip":
            on_step(Event("skipped", step, index, len(steps)))
        elif step.state == "keep" or (step.reason.startswith(MADE_AGAIN) and _is_still_valid(step, world, root, steps)):
            kept_names.append(name)
            on_step(Event("kept", step, index, len(steps)))
        else:
            on_step(Event("begun", step, index, len(steps)))
            try:
                seconds_by_stage[name] = _run_stage(
                    step, world, root, steps, stop, _format_resume_command(step, steps, command)
                )
            except StageFailed as error:
                if (
                    all(
                        earlier_step.folder(root).is_dir()
                        for earlier_step in steps[:index]
                        if earlier_step.state != "skip"
                    )
                    and root.is_dir()
                ):
                    raise
                raise StageFailed(name, error.cause, command, root) from error.cause
            on_step(Event("done", step, index, len(steps), seconds_by_stage[name]))
    artifacts = {step.stage.name: step.folder(root) for step in steps if step.state != "skip"}
    return Results(artifacts, tuple(seconds_by_stage), tuple(kept_names), seconds_by_stage)


def _is_still_valid(step: Step[W], world: W, root: Path, steps: Sequence[Step[W]]) -> bool:
    """Whether the inputs that were made again are unchanged, so that the step's artifact is still valid."""
    steps_by_name = {each.stage.name: each for each in steps}
    return (
        find_artifact_problem(step, world, root) is None and describe_changed_inputs(step, root, steps_by_name) is None
    )


def _run_stage(step: Step[W], world: W, root: Path, steps: Sequence[Step[W]], stop: Stop | None, command: str) -> float:
    """Run a stage and write its artifact; returns the seconds."""
    folders = {each.stage.name: each.folder(root) for each in steps if each.stage.name in step.stage.needs}
    start = time.monotonic()
    try:
        if stop is not None:
            stop.check()
        made_from: dict[str, Json] = {name: content_digest(read_manifest(folder)) for name, folder in folders.items()}
        write_artifact(
            root,
            step.stage.name,
            short_digest(step.digest),
            lambda out: step.stage.run(world, folders, out),
            about={**step.identity, "made_from": made_from},
        )
    except Stopped as error:
        raise Stopped(error.reason, command) from None
    except Exception as error:
        raise StageFailed(step.stage.name, error, command) from error
    return time.monotonic() - start


def _format_resume_command(step: Step[W], steps: Sequence[Step[W]], command: str) -> str:
    """The command that resumes at a step, with the original selection of stages; a call from Python has none."""
    if command.startswith(CALL):
        return command
    names = [each.stage.name for each in steps]
    stage_names = [each.stage.name for each in steps if each.state != "skip"]
    if len(stage_names) == 1 and len(names) > 1:
        return f"{command} --only {step.stage.name}"
    until = "" if stage_names[-1] == names[-1] else f" --until {stage_names[-1]}"
    return f"{command} --from {step.stage.name}{until}"
