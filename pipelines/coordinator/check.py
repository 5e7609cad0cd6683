"""--check: check settings, file names and sizes, and methods; rehearse training on zeros, and compute its epsilon."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from federation.parameters import count_values
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.upload import packed_form
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.cautions import list_cautions
from pipelines.coordinator.check_words import (
    describe_harmonization_plan,
    describe_public_testing,
    format_file_counts,
    privacy_table,
)
from pipelines.coordinator.conversations import choose_upload
from pipelines.coordinator.paying import compute_prices, describe_prices
from pipelines.coordinator.permissions import check_permitted, permissions_from, permissions_in
from pipelines.coordinator.rehearsing import check_synthesis
from pipelines.coordinator.report.methods import describe_buffer, work_of
from pipelines.coordinator.stages import ingest
from pipelines.coordinator.stages.ingest import UnusableCohort
from pipelines.coordinator.witness import build_surveys
from pipelines.coordinator.world import World
from pipelines.data.archive_sources import DicomNodeSource, DicomWebSource
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.split import SPLITS, division_code
from pipelines.hospital.files import ARCHIVE_ERRORS, files_of, in_archive, is_unwritten
from pipelines.hospital.foreseen import READ_WHOLE, Foreseen, foresee_ingest, table_problems
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.released_counts import cost_of_counts
from pipelines.loader.document import ConfigError
from pipelines.loader.overrides import override_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.ingest import Ingest
from pipelines.requests.survey import SURVEY, Surveyed
from pipelines.requests.writing import to_facts
from pipelines.runs.plan import Stage, plan_steps
from pipelines.settings.foreign import describe_foreign_failure
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.sites import Elsewhere
from privacy.dp.events import Event, compose_events
from privacy.message import Json, Message, as_list, as_mapping, count_message_bytes, number_of
from privacy.release.form import read_form
from privacy.release.policy import Policy
from privacy.settings_error import Problem

if TYPE_CHECKING:
    from pipelines.coordinator.spending import Plan
    from privacy.dp.accounting import Cost

WEAK = 20.0  # of all methods together
MOST_SITES_UNTOLD = 32
"""Hospitals at which every hospital's model may be tested without a word."""


def check_run(
    world: World, console: Console, stages: Sequence[Stage[World]] = (), *, as_json: bool, headers: bool = False
) -> int:
    """Survey the files of every site, external ones too, rehearse every method on zeros, and print the findings.

    stages: of the run: it is told which would run, and what patients would pay for each, where some ran before.
    headers: also look inside the files that are on this machine.

    Raises:
        ConfigError: a hospital's policy refuses what the run needs.
        SitesMissing: a site cannot find its files.
        UnusableCohort: ingest would fail.
        ValueError: a method fails its rehearsal.
    """
    surveyed: dict[str, Surveyed] = {}
    check_permitted(world.config, permissions_in(world.config))
    simulated = ({} if headers else _survey_unwritten_phantoms(world)) | _survey_archives(world)
    for part in (world, world.outside_world()):
        questions = {site: question for site, question in build_surveys(part).items() if site not in simulated}
        surveyed |= part.ask_all(SURVEY, part.run(SURVEY.name), questions)
    far = [site for site, site_settings in world.config.sites.items() if isinstance(site_settings.source, Elsewhere)]
    check_permitted(world.config, {site: permissions_from(surveyed[site]) for site in far if site in surveyed})
    sites = {site: to_facts(surveyed[site]) if site in surveyed else simulated[site] for site in world.config.sites}
    check_synthesis(
        world.config, {site: int(number_of(facts, "files")) for site, facts in sites.items() if "files" in facts}
    )
    inside = _describe_files(world, headers=headers)
    methods = {label: _rehearse_method(world, label) for label in world.config.train.methods}
    private = world.config.privacy != "none"
    costs, warnings_of_settings = _compute_costs(world) if private else {}, list_cautions(world.config)
    steps = plan_steps(stages, world, world.root, versions=world.versions) if (world.root / "ingest").is_dir() else ()
    prices = compute_prices(world, steps)
    if as_json:
        answer = {
            "exit": 0,
            "sites": sites,
            "methods": methods,
            **({"inside": inside} if headers else {}),
            **({"privacy": costs} if private else {}),
            **({"paid": {stage: dict(price) for stage, price in prices.items()}} if prices else {}),
            **({"warnings": [*warnings_of_settings]} if warnings_of_settings else {}),
        }
        print(json.dumps(answer, indent=1))  # noqa: T201 - the machine's answer
        return 0
    _show_tables(console, inside, sites, methods, costs)
    if len({method_facts["work"] for method_facts in methods.values() if method_facts["work"]}) > 1:
        console.print(
            "Methods do unequal work in a round; method_work or their own keys make it equal.", soft_wrap=True
        )
    if late := describe_buffer(world):
        console.print(late.rstrip(), markup=False, highlight=False, soft_wrap=True)
    if len(world.config.sites) > MOST_SITES_UNTOLD and world.config.evaluate.public:
        console.print(describe_public_testing(len(world.config.sites)), soft_wrap=True)
    if world.config.harmonize is not None:
        console.print(
            describe_harmonization_plan(world.config.harmonize), markup=False, highlight=False, soft_wrap=True
        )
    for site, cost in costs.items():
        console.print(f"{site}: {cost['words']}", markup=False, highlight=False, soft_wrap=True)
    for line in describe_prices(steps, prices):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    warnings = [
        *warnings_of_settings,
        *(f"{site}: {w}" for site, cost in costs.items() for w in as_list(cost["warnings"])),
    ]
    for text in warnings:
        console.print(f"! {text}", markup=False, highlight=False, soft_wrap=True)
    end = "" if private else " privacy: none - every release is non-private (ε = ∞)."
    console.print(f"Settings, files and methods are in order{', but mind the lines with !' if warnings else ''}.{end}")
    return 0


def _show_tables(
    console: Console,
    inside: Mapping[str, str],
    sites: Mapping[str, Mapping[str, Json]],
    methods: Mapping[str, Mapping[str, Json]],
    costs: Mapping[str, Mapping[str, Json]],
) -> None:
    """Print what is in the files, and tables of files, methods and, in a private run, costs."""
    for site, line in inside.items():
        console.print(f"{site}: {line}", markup=False, highlight=False, soft_wrap=True)
    files = Table("site", "files", "MB", title="Files", title_justify="left")
    for site, facts in sites.items():
        files.add_row(site, *format_file_counts(facts))
    rounds = Table(
        *("method", "parameters", "kB per site and round", "tensors sent", "batches or epochs a round"),
        title="Methods",
        title_justify="left",
    )
    for label, method_facts in methods.items():
        leaves = f"{number_of(method_facts, 'bytes') / 1e3:.1f}"
        rounds.add_row(
            label,
            f"{method_facts['parameters']:,}",
            leaves,
            str(method_facts["tensors"]),
            str(method_facts["work"] or "–"),
        )
    for table in (files, rounds, *([privacy_table(costs)] if costs else [])):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)


def _survey_unwritten_phantoms(world: World) -> dict[str, dict[str, Json]]:
    """Phantom hospitals whose files are not written yet: writing them takes longer than all the rest of the check."""
    facts_by_site: dict[str, dict[str, Json]] = {}
    for site, settings in world.config.sites.items():
        unwritten = world.simulation and is_unwritten(Hospital(site, world.root / "sites" / site, settings, world.now))
        if unwritten and isinstance(settings.source, PhantomSource):
            facts_by_site[site] = {"simulated": settings.source.patients}
    return facts_by_site


def _survey_archives(world: World) -> dict[str, dict[str, Json]]:
    """Hospitals that learn from an archive: it is asked, and nothing is copied."""
    facts_by_site: dict[str, dict[str, Json]] = {}
    for site, settings in world.config.sites.items():
        if isinstance(settings.source, DicomWebSource | DicomNodeSource):
            try:
                facts_by_site[site] = {"archived": in_archive(settings.source)}
            except ARCHIVE_ERRORS as error:
                raise ConfigError([Problem(("sites", site, "source"), str(error))]) from error
    return facts_by_site


def _describe_files(world: World, *, headers: bool) -> dict[str, str]:
    """One line for each hospital about its files; for a hospital on another machine, how to see it there. headers:
    else only tables are read, and no lines are given.

    Raises:
        UnusableCohort: ingest would fail, with all that is wrong.
    """
    lines, problems = dict[str, str](), list[str]()
    question = read_form(Ingest, Message({}, as_mapping(ingest.settings(world))))
    for site, settings in world.config.sites.items():
        if isinstance(settings.source, Elsewhere):
            lines[site] = "its files are at the hospital; python -m pipelines.site SITE.yaml --check shows them there"
            continue
        if isinstance(settings.source, DicomWebSource | DicomNodeSource):
            lines[site] = "its images are copied from the archive when a run begins, and read then"
            continue
        hospital = Hospital(site, world.root / "sites" / site, settings, world.now)
        if not headers and is_unwritten(hospital):
            continue
        files = files_of(hospital)
        seen = Foreseen("", table_problems(files, question))
        if not seen.problems and (headers or files.source.kind in READ_WHOLE):
            seen = foresee_ingest(hospital, question)
        lines[site] = seen.line
        problems += [f"{site}: {text}" for text in seen.problems]
    if problems:
        raise UnusableCohort("; ".join(problems))
    return lines if headers else {}


def _compute_costs(world: World) -> dict[str, dict[str, Json]]:
    """For each site: epsilon of each method, of all together, and how much of the budget that uses."""
    from pipelines.coordinator.spending import (  # accountants: seconds
        at_cut,
        augmentation_events,
        count_steps,
        epsilon_after,
        foresee_refusals,
        harmonization_events,
        plan_method,
        total_cost,
    )
    from privacy.dp.accounting import compute_cost
    from privacy.dp.replacing import replaced_cost

    config, costs_by_site = world.config, {}
    delta = config.privacy.delta if isinstance(config.privacy, PatientLevel) else 0.0
    for site, settings in config.sites.items():
        plans = {label: plan_method(config, label, site) for label in config.train.methods}
        methods: list[Json] = [_method_cost_row(label, plan) for label, plan in plans.items()]
        other_events = {"(harmonize)": harmonization_events(config, site), "(augment)": augmentation_events(config)}
        shared = [event for made in other_events.values() for event in made]
        methods += [
            _synthesis_cost_row(name, compute_cost(made, delta), count_steps(made))
            for name, made in other_events.items()
            if made
        ]
        total = total_cost(config, site)
        hospital = Hospital(site, world.root / "sites" / site, settings, world.now)
        warnings: list[Json] = []
        if total.epsilon > WEAK:
            warnings.append(f"ε = {total.epsilon:.3g} in all hardly limits anything")
        other = total_cost(config, site, replaced_cost).epsilon
        words = (
            f"all methods together ε = {total.epsilon:.3f} at δ = {total.delta:g} for one patient added or taken away"
        )
        words += f", {other:.3f} for one replaced by another"
        words += _describe_shared_noise(plans, delta)
        facts: dict[str, Json] = {"methods": methods, "epsilon": total.epsilon, "delta": total.delta}
        facts |= {"replaced": other if math.isfinite(other) else "Infinity"}
        if settings.policy.budget is not None:
            budget = settings.policy.budget
            cut = division_code(
                {part: getattr(config.split, part) for part in SPLITS},
                seed=config.seed,
                test=[*map(normalize_identifier, settings.test)],
                independent=True,
                key=hospital.key(),
                fold=config.split.place,
            )
            events = [at_cut(e, cut) for e in (*shared, *(e for plan in plans.values() for e in plan.events))]
            events += cost_of_counts(hospital)
            spent, then = epsilon_after(hospital.ledger, budget.delta, events, colluding=settings.policy.colluding)
            enough = "within" if then <= budget.epsilon else "MORE than"
            releases: dict[str, list[Event]] = {label: [*plan.releases] for label, plan in plans.items()}
            releases |= {name: [compose_events(made)] for name, made in other_events.items()}
            releases |= {"counts": [*cost_of_counts(hospital)]}
            policy, ledger = settings.policy, hospital.ledger
            warnings += foresee_refusals(policy, ledger, run=config.name, releases=releases, events=events)
            words += (
                f"; spent so far ε = {spent:.3f}, after a whole new run {then:.3f}: {enough} the budget of "
                f"{budget.epsilon:g} at δ = {budget.delta:g}"
            )
            facts |= {"spent": spent, "after": then, "budget": budget.epsilon, "fits": then <= budget.epsilon}
        facts["warnings"] = warnings
        costs_by_site[site] = {**facts, "words": words + _describe_count_cost(settings.policy)}
    return costs_by_site


def _describe_shared_noise(plans: Mapping[str, Plan], delta: float) -> str:
    """Of methods whose noise hospitals share: what they cost if all other hospitals collude; empty without any."""
    from privacy.dp.accounting import compute_cost  # accountants: seconds

    shared = {label: plan for label, plan in plans.items() if plan.protection.hospitals > 1}
    if not shared:
        return ""
    events = [event for plan in shared.values() for event in plan.events]
    hospitals = max(plan.protection.hospitals for plan in shared.values())
    alone = compute_cost(events, delta).epsilon
    return (
        f"; σ of {', '.join(shared)} is one hospital's part of noise that {hospitals} share, and ε of it "
        f"{alone:.3f} if all others tell the coordinator theirs"
    )


def _method_cost_row(label: str, plan: Plan) -> Json:
    """Noise and cost of a method, as a row."""
    from pipelines.coordinator.spending import count_steps  # accountants: seconds

    return {
        "method": label,
        "noise": plan.protection.noise,
        "sampling": plan.protection.sampling,
        "steps": count_steps(plan.events, noise=plan.protection.noise),
        "epsilon": plan.cost.epsilon,
        "delta": plan.cost.delta,
        "accountant": plan.cost.accountant,
    }


def _synthesis_cost_row(name: str, price: Cost, steps: int) -> Json:
    """Noise and cost of a synthesis, as a row beside the methods."""
    numbers: dict[str, Json] = {"epsilon": price.epsilon, "delta": price.delta, "accountant": price.accountant}
    return {"method": name, "noise": None, "sampling": None, "steps": steps, **numbers}


def _describe_count_cost(policy: Policy) -> str:
    """Whether the budget's epsilon covers the numbers of patients that the hospital releases."""
    noised = policy.budget is not None and not policy.declares("counts")
    return (
        "; counts of patients leave once, with noise, and are in it"
        if noised
        else ("; counts of patients are outside of it")
    )


def _rehearse_method(world: World, label: str) -> dict[str, Json]:
    """Rehearse a method on zeros: how many parameters, what leaves, and how much work a round is."""
    config = world.config
    algorithm, task = config.train.methods[label], config.task_of(label)
    work = override_settings(config.train.work, config.train.method_work.get(label, {}))
    try:
        initial = initial_parameters(algorithm, task, seed=config.seed)
        forms = rehearse_forms(algorithm, task, work, initial)
    except Exception as error:
        if (text := describe_foreign_failure(error, algorithm, task.model)) is None:
            raise
        raise ConfigError([Problem(("train", "methods", label), text)]) from error
    reply = forms.reply if choose_upload(config, label) is None else packed_form(forms.reply, forms.sent)
    leaves = 0 if algorithm.name == CENTRAL else count_message_bytes(reply)
    sent = {"bytes": leaves, "tensors": len(forms.reply.tensors)}
    return {"parameters": count_values(initial), **sent, "work": work_of(config, label)}
