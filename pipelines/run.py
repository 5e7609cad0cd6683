"""python -m pipelines.run CONFIG: everything that the configuration says, from files to the report.

CONFIG is looked up in the current folder, then among the configurations that come with the package. One with the key
`models` is that of a hospital outside a federation: see `pipelines.external.run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from federation.engine import Engine, InProcess
from federation.rounds import QuorumLost
from pipelines.coordinator.check import check
from pipelines.coordinator.stages import (
    audit,
    evaluate,
    ingest,
    report,
    route,
    sample,
    score,
    synthesize,
    train,
    translate,
)
from pipelines.coordinator.stages.ingest import UnusableCohort
from pipelines.coordinator.summary import as_json, publish, refused_told, results_table, tell_inside
from pipelines.coordinator.world import DATA_CODES, SitesMissing, World
from pipelines.external.run import run_outside
from pipelines.external.settings import Outside, is_outside
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import trace, worker
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.document import ConfigError, Document, FilesMissing, render
from pipelines.loader.files import document
from pipelines.loader.validation import validate
from pipelines.runs.exits import Exit, exit_code
from pipelines.runs.progress import Shown, shown
from pipelines.runs.replies import on_disk
from pipelines.runs.runner import (
    Event,
    Results,
    SelectionError,
    Stage,
    StageFailed,
    Step,
    execute,
    explain,
    explained,
    plan,
)
from pipelines.runs.stopping import RunLock, Stop, safe_stop
from pipelines.settings.config import Config, chosen_device
from pipelines.settings.load import configured
from pipelines.settings.own_policies import played
from pipelines.settings.sites import Elsewhere
from privacy.settings_error import Problem

HARMONIZING: tuple[Stage[World], ...] = (score.STAGE, synthesize.STAGE, sample.STAGE, translate.STAGE)
STAGES: tuple[Stage[World], ...] = (
    ingest.STAGE,
    *HARMONIZING,
    train.STAGE,
    evaluate.STAGE,
    audit.STAGE,
    route.STAGE,
    report.STAGE,
)
PUBLIC = ".public"
"""Folder beside the runs, for networks that learnt from public images only: any run may use them again."""
CODES: Mapping[type[BaseException], Exit] = {
    UnusableCohort: Exit.DATA,
    SelectionError: Exit.CONFIG,
    FilesMissing: Exit.DATA,
}


class Engines(NamedTuple):
    """What carries questions to the hospitals of the federation, and to those outside it. far: where these are on
    machines of their own, the command that began the run; empty in a simulation.
    """

    inside: Engine
    outside: Engine
    far: str = ""


def main(
    arguments: Sequence[str] | None = None,
    *,
    engines: Engines | None = None,
    console: Console | None = None,
    stop: Stop | None = None,
) -> int:
    """Run, and return the exit code (see docs/reference/exit-codes.md).

    engines: to hospitals on other machines; None = all are played here. stop: who may ask it to stop; None = signals.
    """
    line = parser()
    options = line.parse_args(arguments)
    if options.only and (options.first or options.until):
        line.error("--only goes alone; --from and --until go together")
    os.umask(0o077)  # everything below the runs folder is for its owner alone
    console = console or Console(stderr=True)
    root: Path | None = None
    try:
        said = meant_for(document(options.config), "run", shlex.quote(options.config))
        if is_outside(said.data):
            settings = validate(said, Outside)
            root = Path(settings.out)
            return run_outside(settings, said, options, console)
        if options.engine == "flare" and engines is None:
            return _far(said, options, console)
        config = configured(said) if engines is None else validate(said, Config)
        root = Path(config.runs) / config.name
        return _run(config, options, console, engines, stop)
    except (Exception, KeyboardInterrupt) as error:
        code = code_of(error)
        words = render(error, options.config) if isinstance(error, ConfigError) else str(error) or type(error).__name__
        if code is Exit.FAILED and root is not None:
            words = f"trace: {write_trace(root, error)}\n{words}"
        console.print(words, markup=False, highlight=False, soft_wrap=True)
        if options.json:
            print(json.dumps({"exit": int(code), "error": words}))  # noqa: T201 - the machine's answer
        return int(code)


def _far(said: Document, options: argparse.Namespace, console: Console) -> int:
    """With hospitals on other machines. Raises: ConfigError: what that takes is not installed, or set wrongly."""
    try:
        from pipelines.remote.operate import operate  # takes seconds, and an extra that most do not need
    except ModuleNotFoundError as error:
        text = f"--engine flare: {error.name} is not installed; pip install consilium[flare]"
        raise ConfigError([Problem((), text)]) from error
    return operate(said, options, console)


def code_of(error: BaseException) -> Exit:
    """The exit code; of sites that did not answer, by the codes that they gave."""
    cause = error.cause if isinstance(error, StageFailed) else error
    if isinstance(cause, SitesMissing | QuorumLost):
        codes = set(cause.missing.values())
        return Exit.DATA if codes <= DATA_CODES else Exit.DISK if codes <= {"disk"} else Exit.SITE
    return exit_code(error, also=CODES)


def keep_trace(config: Config, error: BaseException) -> Path:
    """Write where the error came from to where it can be found again: into the run's folder."""
    return write_trace(Path(config.runs) / config.name, error)


def write_trace(root: Path, error: BaseException) -> Path:
    """The same, into any folder."""
    path = root / "trace.txt"
    with suppress(OSError, ValueError):  # a failure of this one would hide the real one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(trace(error))
    return path


def parser() -> argparse.ArgumentParser:
    """The command line."""
    names = [stage.name for stage in STAGES]
    made = argparse.ArgumentParser(prog="python -m pipelines.run", description=__doc__.splitlines()[0])
    made.add_argument("config", help="a YAML file, or the name of one that comes with the package")
    made.add_argument("--only", metavar="STAGE", help=f"run this stage alone; stages are {', '.join(names)}")
    made.add_argument("--from", dest="first", metavar="STAGE", help="begin at this stage (with --fresh: run it again)")
    made.add_argument("--until", metavar="STAGE", help="stop after this stage")
    made.add_argument("--fresh", action="store_true", help="run again what is chosen, whatever is there")
    made.add_argument("--check", action="store_true", help="look at settings, files and methods; compute nothing")
    made.add_argument("--headers", action="store_true", help="as --check, and look inside the files: a line a site")
    made.add_argument("--explain", action="store_true", help="say what would run and why; run nothing")
    made.add_argument("--engine", choices=("in_process", "flare"), default="in_process", help="who carries questions")
    made.add_argument("--kit", metavar="FOLDER", help="with --engine flare: the startup kit of who submits the run")
    made.add_argument("--patience", type=float, default=60.0, metavar="MIN", help="how long to wait for hospitals")
    made.add_argument("--silence", type=float, default=60.0, metavar="S", help="after which a hospital counts as gone")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return made


def _run(
    config: Config, options: argparse.Namespace, console: Console, engines: Engines | None, asked: Stop | None
) -> int:
    torch.set_num_threads(config.threads)
    root = Path(config.runs) / config.name
    with RunLock(root), safe_stop() if asked is None else nullcontext(asked) as stop:
        world = make_world(config, root, stop, engines=engines, fresh=options.fresh, command=_command(options))
        if options.check or options.headers:
            return check(world, console, as_json=options.json, headers=options.headers)
        chosen = {"only": options.only, "first": options.first, "until": options.until, "fresh": options.fresh}
        steps = plan(stages_of(config), world, root, **chosen, command=_command(options))
        if options.explain:
            print(json.dumps(explained(steps)) if options.json else explain(steps))  # noqa: T201 - the answer
            return int(Exit.OK)
        results = computed(steps, world, console)
    if options.json:
        print(json.dumps(as_json(results, root)))  # noqa: T201 - the machine's answer
    else:
        results_table(results, root, Console(width=None if sys.stdout.isatty() else 160))
    return int(Exit.OK)


def run_config(config: Config, stop: Stop, console: Console, *, command: str) -> Results:
    """All of a run in its own folder, as the command line does it; what is there is kept. command: that goes on.

    Raises:
        LockedError, StageFailed, Stopped: see `RunLock` and `execute`.
    """
    torch.set_num_threads(config.threads)
    root = Path(config.runs) / config.name
    with RunLock(root):
        world = make_world(config, root, stop, command=command)
        return computed(plan(stages_of(config), world, root, command=command), world, console)


def computed(steps: Sequence[Step[World]], world: World, console: Console) -> Results:
    """Do what was planned, show how far it is, and put the page where a person looks first."""
    with shown(world.config.title or world.config.name, console=console) as step, refused_told(world, console):
        told = _told_to(step, console, world)
        results = execute(steps, world, world.root, stop=world.stop, on_step=told, command=world.command)
    publish(results, world.root)
    return results


def _told_to(step: Shown, console: Console, world: World) -> Callable[[Event], None]:
    """A line for each stage, with its reason, and the bar; after ingest a line for each site's files."""

    def told(event: Event) -> None:
        if event.kind != "begun":
            text = f"{event.step.stage.name:<9} {event.kind:<8} {event.step.reason}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        if event.step.stage.name == ingest.STAGE.name and event.kind in ("done", "kept"):
            tell_inside(world, console)
        step(event.index + (event.kind != "begun"), event.total, event.step.stage.name)

    return told


def _command(options: argparse.Namespace) -> str:
    return f"python -m pipelines.run {shlex.quote(options.config)}"


def stages_of(config: Config) -> tuple[Stage[World], ...]:
    """The stages of a run: without `harmonize:` or `route:` theirs are not there, and nothing needs them."""
    without = {stage.name for stage in HARMONIZING} if config.harmonize is None else set()
    without |= {route.STAGE.name} if config.route is None else set()
    kept = (stage for stage in STAGES if stage.name not in without)
    return tuple(replace(stage, needs=tuple(need for need in stage.needs if need not in without)) for stage in kept)


def make_world(
    config: Config, root: Path, stop: Stop, *, engines: Engines | None = None, fresh: bool = False, command: str = ""
) -> World:
    """What the stages work in. Without engines a simulation: every hospital in this process, with its own folder."""
    if engines is None:
        engines = simulated(config, root, stop)
    command = engines.far or command
    return World(config, engines.inside, root, stop, _now, fresh, command, engines.outside, simulation=not engines.far)


def simulated(config: Config, root: Path, stop: Stop) -> Engines:
    """Every hospital of the configuration in this process, each with a folder of its own.

    Raises:
        ConfigError: hospitals that are on machines of their own.
    """
    if far := [name for name, site in config.sites.items() if isinstance(site.source, Elsewhere)]:
        text = f"elsewhere: {', '.join(far)} cannot be played here; say --engine flare --kit KIT, or where files are"
        raise ConfigError([Problem(("sites",), text)])
    sites, device = root / "sites", chosen_device(config.device)
    workers = {
        name: worker(
            Hospital(name, sites / name, own, _now, device=device, pause=stop.check, public=root.parent / PUBLIC)
        )
        for name, own in played(config).items()
    }
    workers = {name: on_disk(own, root / "federation") for name, own in workers.items()}
    inside = InProcess({name: own for name, own in workers.items() if name not in config.outside})
    return Engines(inside, InProcess({name: workers[name] for name in config.outside}))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
