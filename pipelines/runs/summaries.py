"""What the list of all runs says of each run, read from its artifacts."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.run_list import HospitalModel, RunLine, State, Training, flatten_settings
from pipelines.runs.holdings import PAGE, PLACES, measure_size
from pipelines.runs.listing import list_paths
from pipelines.runs.stopping import HOLDER
from pipelines.runs.store import ArtifactError, read_manifest
from privacy.message import as_mapping, glance_at_facts, whole_of

PROGRESS = "progress.html"
REPORT, STATE = "report", "state"
SILENT_S = 3600.0
"""A run of another machine that has changed nothing for so long is taken for stopped."""


class Stored(NamedTuple):
    """A stored artifact. stage: its stage. finished: seconds since 1970. seconds: that making it took."""

    path: Path
    stage: str
    finished: float
    seconds: float


def sort_lines(lines: Iterable[RunLine]) -> list[RunLine]:
    """Runs at work first, then the newest report first, then those without one by name."""
    return sorted(lines, key=lambda line: (line.state != "at work", -(line.finished or 0.0), line.name))


def summarize_run(run: Path) -> RunLine:
    """One run. What of it cannot be read is said in `trouble`, so that the others are still listed."""
    try:
        return _summarize(run)
    except (OSError, RecursionError) as error:  # a folder that cannot be listed, JSON that was built to harm
        trouble = (
            f"it cannot be read ({type(error).__name__}{f': {error.strerror}' if isinstance(error, OSError) else ''})"
        )
        return RunLine(name=run.name, state="unknown", finished=None, seconds=0.0, size=0, trouble=trouble)


def _summarize(run: Path) -> RunLine:
    """One run. Raises: OSError, RecursionError: it cannot be read."""
    (stored, troubles), (_, size, _) = _list_artifacts(run), measure_size(run)
    report = max((artifact for artifact in stored if artifact.stage == REPORT), key=lambda a: a.finished, default=None)
    newest = max(stored, key=lambda artifact: artifact.finished, default=None)
    ended: State = "done" if report is not None and report == newest else "stopped"
    state: State = "at work" if is_at_work(run) else ended
    shown: dict[str, Any] = {}
    if report is not None:
        try:
            shown = _read_report(report.path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            troubles.append(f"its report cannot be read ({type(error).__name__}); run it again with --from report")
    return RunLine(
        name=run.name,
        state=state,
        after="" if newest is None else newest.stage,
        finished=None if report is None else report.finished,
        seconds=math.fsum(artifact.seconds for artifact in stored),
        size=size,
        page=find_page(run, state),
        trainings=() if state == "done" else tuple(_list_trainings(run)),
        trouble="; ".join(troubles),
        **shown,
    )


def find_page(run: Path, state: State) -> str:
    """The address of a run's page: while it works that of its progress; empty if it has none."""
    names = (PROGRESS, PAGE) if state == "at work" else (PAGE, PROGRESS)
    return next((f"{run.name}/{name}" for name in names if (run / name).is_file()), "")


def _list_artifacts(run: Path) -> tuple[list[Stored], list[str]]:
    """The stored artifacts of a run, and what cannot be read, one of a kind."""
    stored, troubles = list[Stored](), list[str]()
    for path in list_artifact_folders(run):
        try:
            manifest = read_manifest(path)
            times = float(manifest["finished"]), float(manifest["seconds"])
        except (ArtifactError, KeyError, TypeError, ValueError) as error:
            troubles.append(f"{path.parent.name}: {error}")
            continue
        stored.append(Stored(path, str(manifest["stage"]), *times))
    return stored, [*dict.fromkeys(troubles)]


def list_artifact_folders(run: Path) -> list[Path]:
    """The folders of a run's artifacts. Raises: OSError: a folder cannot be listed."""
    return [path for pattern in PLACES["artifacts"].patterns for path in list_paths(run, pattern)]


def list_training_states(run: Path) -> list[Path]:
    """The files of how far a run's trainings are. Raises: OSError: a folder cannot be listed."""
    return list_paths(run, f"federation/*/{STATE}")


def _list_trainings(run: Path) -> Iterable[Training]:
    """How far each training is, by the coordinator's files; one that cannot be read now is left out."""
    for path in list_training_states(run):
        try:
            facts = glance_at_facts(path)
            totals = as_mapping(facts["totals"])
            losses = {int(number): loss for number, loss in totals.items() if isinstance(loss, int | float)}
            name = path.parent.name.rpartition("-")[0]
            newest = max(losses, default=whole_of(facts, "round"))  # the last message of all counts as a round, too
            yield Training(name, newest, tuple((n, float(losses[n])) for n in sorted(losses)))
        except (OSError, ValueError, KeyError, TypeError):
            continue


def is_at_work(run: Path) -> bool:
    """Whether a process of this machine has the run's lock, or one of another machine, where the run has changed within
    `SILENT_S`: whether that process lives is not seen from here. The lock itself is not tried: a run that begins at
    this moment would find it taken. Raises: OSError: a folder cannot be listed.
    """
    try:
        holder = json.loads((run / HOLDER).read_text(encoding="utf-8"))
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if host != platform.node():
        return time.time() - measure_size(run)[2] < SILENT_S
    if not 1 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_report(path: Path) -> dict[str, Any]:
    """What a report says, as fields of `RunLine`.

    Raises:
        OSError, ValueError, KeyError, TypeError: it cannot be read.
    """
    answers = json.loads((path / "answers.json").read_bytes())
    page = json.loads((path / "report.json").read_bytes())
    return {
        "models": tuple(_read_models(answers["use"])),
        "epsilons": tuple(dict.fromkeys(str(departure["epsilon"]) for departure in answers["left"])),
        "settings": flatten_settings(json.loads(page["settings"])),
    }


def _read_models(choices: Iterable[Mapping[str, Any]]) -> Iterable[HospitalModel]:
    """The model of each hospital."""
    for choice in choices:
        score = choice["score"]
        if score is None:
            yield HospitalModel(str(choice["site"]), str(choice["method"]))
            continue
        value = math.nan if score["value"] is None else float(score["value"])
        places = str(score["measure"]), value, bool(score["assessable"])
        yield HospitalModel(str(choice["site"]), str(choice["method"]), *places)
