"""A run at hospitals on their own machines, over NVIDIA FLARE: what `python -m pipelines.run --engine flare` does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from consilium.errors import RunFailed, build_run_failed
from consilium.reading import read_results
from consilium.results import Results
from federation.origins import list_origins
from pipelines.coordinator.arguments import parse_arguments, read_settings
from pipelines.loader.document import ConfigError
from pipelines.runs.exits import Exit
from pipelines.runs.runner import Results as Ended
from pipelines.runs.stopping import Stopped
from pipelines.settings.config import Config
from privacy.settings_error import Problem


@dataclass(frozen=True, kw_only=True)
class Flare:
    """kit: folder of the startup kit of the user who submits runs. patience_min: how long to wait for hospitals.
    silence_s: after which a hospital counts as gone. The coordinator is FLARE's server, on this machine or one that
    shares the run's folder (docs/how-to/deployment.md).
    """

    kit: str | Path
    patience_min: float = 60.0
    silence_s: float = 60.0


def far_problems(config: Config, flare: Flare, examples: Iterable[str]) -> list[Problem]:
    """Why a run cannot go to hospitals on their own machines. examples: the hospitals whose arrays lie here."""
    return [*_find_local_code(config, list(examples)), *_no_kit(flare)]


def _find_local_code(config: Config, examples: list[str]) -> Iterator[Problem]:
    """Arrays and code that exist only on this machine, so that other hospitals lack them."""
    if examples:
        text = (
            f"examples of {', '.join(examples)} lie on this machine, and FLARE asks hospitals on theirs; each writes "
            'its own file and names it in its site.yaml; say {"source": {"kind": "elsewhere"}} here'
        )
        yield Problem(("hospitals",), text)
    for origin in list_origins(config.train, config.model):
        if origin.offer is None:
            text = f"{origin.what} is known in this process only; put it into a package that each hospital installs"
            yield Problem(("engine",), f"{text} (docs/how-to/extend.md)")


def _no_kit(flare: Flare) -> Iterator[Problem]:
    """What is wrong with FLARE's startup kit and its waiting times."""
    if not isinstance(flare.kit, str | Path):
        yield Problem(("engine",), f"kit: must be the path of a folder, found {flare.kit!r}")
    elif not (Path(flare.kit) / "startup" / "fed_admin.json").is_file():
        text = f"kit: {flare.kit} has no startup/fed_admin.json; give the kit of the user who submits runs"
        yield Problem(("engine",), text)
    for name, value in (("patience_min", flare.patience_min), ("silence_s", flare.silence_s)):
        if not (isinstance(value, int | float) and 0 < value < math.inf):
            yield Problem(("engine",), f"{name}: must be a finite number > 0, found {value!r}")


def run_far(config: Config, yaml: Path | None, flare: Flare, *, quiet: bool) -> Results:
    """Run all stages, or go on with them. yaml: of the settings, which the coordinator's process reads.

    Raises:
        ConfigError: FLARE is not installed, or there is no such file. RunFailed, Stopped: it ended early.
    """
    if yaml is None:
        text = "a run over FLARE is read again by the coordinator's process; write it into a file, and give its path"
        raise ConfigError([Problem((), text)])
    try:
        from pipelines.remote.operate import execute_remotely  # slow to import, and needs an optional package
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed; pip install consilium[flare]"
        raise ConfigError([Problem(("engine",), text)]) from error
    where = ["--kit", str(flare.kit), "--patience", str(flare.patience_min), "--silence", str(flare.silence_s)]
    options = parse_arguments([str(yaml.resolve()), "--engine", "flare", *where, "--json"])
    try:
        ended = execute_remotely(read_settings(options), options, Console(stderr=True, quiet=quiet, emoji=False))
    except (Stopped, ConfigError):
        raise
    except Exception as error:
        raise build_run_failed(error, []) from error
    answer = _parse_answer(ended.output)
    if ended.code != Exit.OK or "artifacts" not in answer:
        text = str(answer.get("error") or "the run over FLARE gave no results; what it told is in its folder remote")
        raise RunFailed(text, Exit(ended.code or Exit.FAILED))
    root = Path(config.runs) / config.name
    folders = {stage: root / folder for stage, folder in answer["artifacts"].items()}
    done = Ended(folders, tuple(answer["ran"]), tuple(answer["kept"]), answer["seconds"])
    return read_results(done, root, yaml, (), config.sites)


def _parse_answer(text: str) -> dict[str, Any]:
    """The JSON object that a command printed; empty if it is none."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
