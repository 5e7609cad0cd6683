"""A run: its stages, their shared state (`World`), and the hospitals of a simulation.

`run_command` runs in this process, or in FLARE's job.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from federation.engine import Engine, InProcess, Worker
from federation.processes import Processes
from pipelines.coordinator.ahead import learn_ahead
from pipelines.coordinator.arguments import command_of, read_settings
from pipelines.coordinator.check import check_run
from pipelines.coordinator.failures import report_failure
from pipelines.coordinator.fingerprint import Fingerprints, ask_fingerprints, to_json
from pipelines.coordinator.following import follow_run
from pipelines.coordinator.held import record_answers
from pipelines.coordinator.paying import check_may_spend, kept_stage_versions, show_plan
from pipelines.coordinator.rehearsing import check_synthesis
from pipelines.coordinator.stages import (
    audit,
    augment,
    evaluate,
    features,
    figures,
    ingest,
    pretrain,
    report,
    route,
    sample,
    score,
    synthesize,
    track,
    train,
    translate,
)
from pipelines.coordinator.summary import as_json, publish_page, refused_told, results_table, tell_inside
from pipelines.coordinator.tracking.sending import track_and_report
from pipelines.coordinator.world import OnRound, World, ignore_round
from pipelines.external.settings import ExternalSettings, is_external
from pipelines.hospital.simulated import make_simulated_workers, make_simulation
from pipelines.loader.command_of_file import check_training
from pipelines.loader.document import Document
from pipelines.loader.validation import validate_settings
from pipelines.runs.exits import Exit
from pipelines.runs.kept_versions import save_versions
from pipelines.runs.plan import select_stage_names
from pipelines.runs.progress import ShowStep, show_progress
from pipelines.runs.run_index import list_while_at_work
from pipelines.runs.runner import (
    Event,
    Results,
    Stage,
    Step,
    execute_steps,
    plan_steps,
)
from pipelines.runs.stopping import RunLock, Stop, safe_stop
from pipelines.settings.benchmark import is_benchmark
from pipelines.settings.config import Config, select_device
from pipelines.settings.image_spaces import find_starts, list_features
from pipelines.settings.load import check_config, simulated_sites
from pipelines.settings.processes import count_processes

HARMONIZING: tuple[Stage[World], ...] = (score.STAGE, synthesize.STAGE, sample.STAGE, translate.STAGE)
BEFORE_REPORT: tuple[Stage[World], ...] = (
    ingest.STAGE,
    *HARMONIZING,
    augment.STAGE,
    features.STAGE,
    pretrain.STAGE,
    train.STAGE,
    figures.STAGE,
    evaluate.STAGE,
    audit.STAGE,
    route.STAGE,
    track.STAGE,
)
STAGES = (*BEFORE_REPORT, replace(report.STAGE, needs=tuple(stage.name for stage in BEFORE_REPORT)))
"""All stages in their order. The report needs every other one: each has its row on the page."""


class Engines(NamedTuple):
    """The engines that send requests to the federation's hospitals and to external sites. far: the command that began
    the run, where hospitals are on other machines; empty in a simulation. resumes: whether whoever gave this run goes
    on with it after it ended with a code.
    """

    inside: Engine
    outside: Engine
    far: str = ""
    resumes: Callable[[Exit], bool] = lambda code: False


def run_command(
    options: argparse.Namespace,
    console: Console,
    *,
    document: Document | None = None,
    engines: Engines | None = None,
    stop: Stop | None = None,
) -> int:
    """Run with these options (`pipelines.coordinator.arguments`), and return the exit code.

    said: the settings file; None: read it here. engines: to hospitals on other machines; None: simulate all here.
    stop: stops the run; None: signals do.
    """
    root: Path | None = None
    try:
        document = read_settings(options) if document is None else document
        if options.fingerprint:
            check_training(document)
        if is_external(document.data):
            from pipelines.external.run import run_external_site  # slow to import

            settings = validate_settings(document, ExternalSettings)
            root = Path(settings.out)
            return run_external_site(settings, document, options, console)
        if is_benchmark(document.data):
            from pipelines.benchmark.run import run_benchmark  # slow to import

            far, command = (None, command_of(options)) if engines is None else (engines.inside, engines.far)
            return run_benchmark(document, options, console, command=command, engine=far, stop=stop)
        config = check_config(document) if engines is None else validate_settings(document, Config)
        root = Path(config.runs) / config.name
        return _run_config(config, options, console, engines, stop)
    except (Exception, KeyboardInterrupt) as error:
        resumes = (lambda code: False) if engines is None else engines.resumes
        return report_failure(error, document, options, console, root, resumes)


def _run_config(
    config: Config, options: argparse.Namespace, console: Console, engines: Engines | None, stop_of_caller: Stop | None
) -> int:
    """Run all stages under the folder's lock; return the exit code."""
    torch.set_num_threads(config.threads)
    root = Path(config.runs) / config.name
    with (
        safe_stop() if stop_of_caller is None else nullcontext(stop_of_caller) as stop,
        ExitStack() as without_lock,
        RunLock(root),
        ExitStack() as work,
    ):
        chosen = {"only": options.only, "first": options.first, "until": options.until}
        stages, command = select_stages(config), command_of(options)
        spend = select_stage_names([stage.name for stage in stages], **chosen) if options.spend else ()
        made = make_world(config, root, stop, engines=engines, fresh=options.fresh, command=command, spend=spend)
        world = work.enter_context(_at_work(made))
        if options.fingerprint:
            print(json.dumps(to_json(ask_fingerprints(world))))  # noqa: T201 - the answer
            return int(Exit.OK)
        if options.check or options.headers:
            return check_run(world, console, stages, as_json=options.json, headers=options.headers)
        steps = plan_steps(stages, world, root, **chosen, fresh=options.fresh, versions=world.versions, command=command)
        if options.spend:
            check_may_spend(config, steps)
        if options.explain:
            show_plan(steps, world, as_json=options.json)
            return int(Exit.OK)
        without_lock.enter_context(list_while_at_work(root, console))
        results = run_steps(steps, world, console)
    if options.json:
        print(json.dumps(as_json(results, root)))  # noqa: T201 - the machine's answer
    else:
        results_table(results, root, Console(width=None if sys.stdout.isatty() else 160, emoji=False))
    return int(Exit.OK)


def run_config(
    config: Config,
    stop: Stop,
    console: Console,
    *,
    command: str,
    engines: Engines | None = None,
    on_round: OnRound = ignore_round,
) -> Results:
    """Run all stages in the run's folder, keeping finished ones. command: the command that continues the run. engines:
    as in `run_command`. on_round: called after each round of training.

    Raises:
        LockedError, StageFailed, Stopped: see `RunLock` and `execute`.
    """
    torch.set_num_threads(config.threads)
    root = Path(config.runs) / config.name
    with (
        ExitStack() as without_lock,
        RunLock(root),
        _at_work(make_world(config, root, stop, engines=engines, command=command)) as world,
    ):
        steps = plan_steps(select_stages(config), world, root, versions=world.versions, command=command)
        without_lock.enter_context(list_while_at_work(root, console))
        return run_steps(steps, replace(world, on_round=on_round), console)


def gather_fingerprints(config: Config, *, command: str) -> Fingerprints:
    """What every hospital of a simulation says of its studies. Raises: as `run_config` and `ask_fingerprints`."""
    torch.set_num_threads(config.threads)
    root = Path(config.runs) / config.name
    with RunLock(root), safe_stop() as stop, _at_work(make_world(config, root, stop, command=command)) as world:
        return ask_fingerprints(world)


def run_steps(steps: Sequence[Step[World]], world: World, console: Console) -> Results:
    """Execute the planned steps with a progress bar, and copy the page to the top of the run's folder."""
    title = world.config.title or world.config.name
    if any(step.stage.name == synthesize.STAGE.name and step.state == "run" for step in steps):
        check_synthesis(world.config, {})
    if world.versions:
        save_versions(world.root, world.versions)
    with (
        learn_ahead(steps, world),
        follow_run(world, steps) as (followed, note_event),
        show_progress(title, console=console) as step,
        refused_told(world, console),
    ):
        show = _stage_printer(step, console, world)

        def hear_event(event: Event) -> None:
            show(event)
            note_event(event)

        results = execute_steps(steps, followed, world.root, stop=world.stop, on_step=hear_event, command=world.command)
    publish_page(results, world.root)
    if report.STAGE.name in results.artifacts:
        track_and_report(world, {step.stage.name: step.folder(world.root) for step in steps}, console)
    return results


def _stage_printer(step: ShowStep, console: Console, world: World) -> Callable[[Event], None]:
    """A function that prints a line for each stage, moves the bar, and lists each site's files after ingest."""

    def show_event(event: Event) -> None:
        if event.kind != "begun":
            text = f"{event.step.stage.name:<9} {event.kind:<8} {event.step.reason}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        if event.step.stage.name == ingest.STAGE.name and event.kind in ("done", "kept"):
            tell_inside(world, console)
        step(event.index + (event.kind != "begun"), event.total, event.step.stage.name)

    return show_event


def select_stages(config: Config) -> tuple[Stage[World], ...]:
    """The stages of a run, without those that only some settings ask for, if these do not."""
    without = {stage.name for stage in HARMONIZING} if config.harmonize is None else set()
    without |= set() if config.augment is not None else {augment.STAGE.name}
    without |= set() if list_features(config) else {features.STAGE.name}
    without |= set() if find_starts(config) else {pretrain.STAGE.name}
    without |= {route.STAGE.name} if config.route is None else set()
    without |= {track.STAGE.name} if config.track is None else set()
    without |= set() if config.evaluate.rounds else {figures.STAGE.name}
    without |= (
        set()
        if config.train.methods
        else {stage.name for stage in (train.STAGE, figures.STAGE, evaluate.STAGE, audit.STAGE)}
    )
    stages = (stage for stage in STAGES if stage.name not in without)
    return tuple(
        record_answers(replace(stage, needs=tuple(need for need in stage.needs if need not in without)))
        for stage in stages
    )


def make_world(
    config: Config,
    root: Path,
    stop: Stop,
    *,
    engines: Engines | None = None,
    fresh: bool = False,
    command: str = "",
    spend: Collection[str] = (),
) -> World:
    """The stages' shared state. Without engines all hospitals are simulated here, each with its own folder. spend: the
    stages for which patients shall pay again.
    """
    versions = kept_stage_versions(config, select_stages(config), root, spend)
    if engines is None:
        engines = simulated_engines(config, root, stop)
    command = engines.far or command
    far = bool(engines.far)
    return World(
        config, engines.inside, root, stop, _iso_time, fresh, command, engines.outside, not far, versions, spend
    )


@contextmanager
def _at_work(world: World) -> Iterator[World]:
    """Processes of a simulation end with the run, not when nobody has its engine any more."""
    try:
        yield world
    finally:
        if isinstance(world.engine, Processes):
            world.engine.close()


def simulated_engines(config: Config, root: Path, stop: Stop) -> Engines:
    """Engines with every hospital of the configuration on this machine.

    Raises:
        ConfigError: as `simulated_workers`; or hospitals cannot be played in processes of their own.
    """
    everybody, device = simulated_sites(config), select_device(config.device)
    inside = {name: worker_of_site for name, worker_of_site in everybody.items() if name not in config.outside}
    outside = {name: everybody[name] for name in config.outside}
    engine = make_simulation(
        inside, root, device=device, now=_iso_time, stop=stop, threads=config.threads, processes=count_processes(config)
    )
    return Engines(
        engine, InProcess(make_simulated_workers(outside, root, device=device, now=_iso_time, pause=stop.check))
    )


def simulated_workers(config: Config, root: Path, stop: Stop) -> dict[str, Worker]:
    """Every hospital of the configuration, also external ones, each with a folder of its own.

    Raises:
        ConfigError: the settings say that some hospitals are on other machines.
    """
    device = select_device(config.device)
    return make_simulated_workers(simulated_sites(config), root, device=device, now=_iso_time, pause=stop.check)


def _iso_time() -> str:
    """The present time, ISO."""
    return datetime.now(UTC).isoformat(timespec="seconds")
