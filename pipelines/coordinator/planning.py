"""The command `consilium plan`: from a configuration and what hospitals say to a planned configuration."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from pipelines.coordinator.arguments import parse_arguments, read_settings
from pipelines.coordinator.failures import report_failure
from pipelines.coordinator.fingerprint import Fingerprints, build_question, parse_json
from pipelines.coordinator.run import gather_fingerprints
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.loader.command_of_file import check_training
from pipelines.loader.document import ConfigError, Document, parse_document, render
from pipelines.loader.files import find_file
from pipelines.loader.validation import validate_settings
from pipelines.planning.draft import Source, write_plan
from pipelines.planning.fingerprint import Common, merge_fingerprints
from pipelines.planning.rules import NoPlan
from pipelines.planning.settings import CT, SMALL, Effort, Plan, plan_settings
from pipelines.runs.exits import Exit, print_error
from pipelines.settings.config import Config
from pipelines.settings.load import check_config
from pipelines.settings.route import find_patch_problem
from privacy.pickled import reduce_error

AskFar: TypeAlias = Callable[[Document, argparse.Namespace, Console], str]


class FarFailed(RuntimeError):
    """The coordinator's process on another machine ended with a code; it said why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"nothing to plan by: the coordinator's process ended with code {code}, and said why above")
        self.code = code

    __reduce__ = reduce_error


def plan_command(options: argparse.Namespace, console: Console, ask_far: AskFar | None) -> int:
    """Plan with these options (`pipelines.plan`); return the exit code. ask_far: asks hospitals on other machines;
    None: simulate all here.
    """
    far = ["--engine", "flare", "--kit", options.kit or ""] if ask_far else []
    waiting = ["--patience", str(options.patience), "--silence", str(options.silence)]
    run_options = parse_arguments([options.config, "--fingerprint", *far, *waiting])
    document: Document | None = None
    try:
        effort = _choose_effort(options)
        document = read_settings(run_options)
        check_training(document)
        if ask_far is None:
            config = check_config(document)
            build_question(config)
            _check_route(config)
            _check_own_plans(config, each=options.each)
            prints = gather_fingerprints(config, command=options.command)
        else:
            config = validate_settings(document, Config)
            build_question(config)
            _check_route(config)
            _check_own_plans(config, each=options.each)
            prints = parse_json(json.loads(ask_far(document, run_options, console)))
        source = _describe_source(options)
        text, plan = draft_plan(config, prints, effort, source=source, is_ct=options.ct, each=options.each)
    except NoPlan as error:
        return print_error(str(error), Exit.CONFIG, console, as_json=False)
    except FarFailed as error:
        return print_error(str(error), Exit(error.code), console, as_json=False)
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, document, run_options, console)
    if options.out is None:
        print(text, end="")  # noqa: T201 - the configuration is the answer
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    _tell(plan, options, console)
    _tell_problems(text, options, console)
    return int(Exit.OK)


def draft_plan(
    config: Config, prints: Fingerprints, effort: Effort, *, source: Source, is_ct: bool = False, each: bool = False
) -> tuple[str, Plan]:
    """The text of the planned configuration, and the plan. is_ct: a person says so, whatever headers say. each: also a
    plan for each hospital, by its figures alone.

    Raises:
        NoPlan: nobody answered, hospitals' images differ in kind, or the memory holds no patch.
    """
    images = config.images
    if not isinstance(images, Volumes | Slices | Pictures):
        raise NoPlan(f"images: {images.kind} are not planned; volumes, slices and pictures are")
    if not prints.replies:
        codes = ", ".join(f"{site}: {code}" for site, code in sorted(prints.refusals.items()))
        raise NoPlan(f"no hospital answers ({codes}); ask them to allow the request fingerprint")
    common = merge_fingerprints(prints.replies)
    common = replace(common, modality=CT) if is_ct else common
    plan = plan_settings(common, images, len(config.task.names), effort)
    own_plans = plan_each(config, prints, common, effort) if each else {}
    return write_plan(source, plan, common, prints.replies, prints.refusals, own_plans), plan


def plan_each(config: Config, prints: Fingerprints, common: Common, effort: Effort) -> dict[str, Plan]:
    """Hospital -> the plan by its own figures; hospitals whose figures are too noisy keep the plan of all.

    Raises:
        NoPlan: a hospital's studies give none, or it is a part of a source, which its file names as a whole.
    """
    images, plans = config.images, dict[str, Plan]()
    if parts := [site for site in prints.replies if config.sites[site].part is not None]:
        raise NoPlan(f"sites: {', '.join(parts)} are dealt out of one source, and have no settings of their own")
    if not isinstance(images, Volumes | Slices | Pictures):
        raise NoPlan(f"images: {images.kind} are not planned; volumes, slices and pictures are")
    for site in common.sites:
        fingerprint = replace(merge_fingerprints({site: prints.replies[site]}), modality=common.modality)
        try:
            plans[site] = plan_settings(fingerprint, images, len(config.task.names), effort)
        except NoPlan as error:
            raise NoPlan(f"{site}: {error}") from error
    return plans


def _check_route(config: Config) -> None:
    """Raises: NoPlan: a way to external sites cannot use models of patches, on which a planned network is trained."""
    lines = {} if config.route is None else config.route.lines
    problems = [f"{label}: {text}" for label, line in lines.items() if (text := find_patch_problem(line.how))]
    if problems:
        raise NoPlan(f"a planned network is trained on patches; in route, {'; '.join(problems)}, or remove it")


def _check_own_plans(config: Config, *, each: bool) -> None:
    """Raises: NoPlan: hospitals have plans of their own, and would keep them beside a new plan for all."""
    if not each and (sites := [name for name, site in config.sites.items() if site.images or site.model]):
        raise NoPlan(f"sites: {', '.join(sites)} have plans of their own; say --each, or remove their images and model")


def _choose_effort(options: argparse.Namespace) -> Effort:
    """What the run may take. Raises: NoPlan: a number is out of range."""
    usual = SMALL if options.small else Effort()
    limits = {"memory_gib": options.memory, "rounds": options.rounds, "steps": options.steps}
    return replace(usual, **{name: value for name, value in limits.items() if value is not None})


def _describe_source(options: argparse.Namespace) -> Source:
    """What is planned, as it stands in its file."""
    text = find_file(options.config).read_text(encoding="utf-8")
    return Source(file=options.config, text=text, command=options.command)


def _tell(plan: Plan, options: argparse.Namespace, console: Console) -> None:
    """Print what was planned, in a line, and what to do next."""
    network = plan.fitted.network
    sides, patch = (" x ".join(map(str, each)) for each in (plan.sides, network.patch))
    console.print(
        f"examples of {sides}, patches of {patch}, {len(network.strides)} stages, batches of {plan.fitted.batch}",
        soft_wrap=True,
    )
    file = shlex.quote(options.out or "planned.yaml")
    console.print(f"read it; then: python -m pipelines.run {file} --check", markup=False, soft_wrap=True)


def _tell_problems(text: str, options: argparse.Namespace, console: Console) -> None:
    """Print what must be changed before the planned configuration can be run: what a person wrote and the plan left as
    it was may not go with patches.
    """
    try:
        validate_settings(parse_document(text, environment=os.environ), Config)
    except ConfigError as error:
        problems = render(error, options.out or "planned.yaml")
        console.print(
            f"before it can be run, change what the plan left as it was:\n{problems}", markup=False, soft_wrap=True
        )
