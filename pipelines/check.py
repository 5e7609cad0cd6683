"""--check: settings, files and methods are looked at; of files names and sizes only; training is rehearsed on zeros,
and what it would cost in privacy is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from federation.parameters import count
from federation.rehearsal import initial_parameters, rehearse
from pipelines.cohort.pseudonym import normalized
from pipelines.cohort.split import SPLITS, division_code
from pipelines.config import overridden
from pipelines.site.hospital import Hospital
from pipelines.stages.train import CENTRAL
from pipelines.stages.world import World
from privacy.message import Json, to_bytes


def check(world: World, console: Console, *, as_json: bool) -> int:
    """Survey every site's files and rehearse every method on zeros; print what was found.

    Raises:
        SitesMissing: a site cannot find its files.
        ValueError: a method fails its rehearsal.
    """
    replies = world.ask_all(world.run("survey"), "survey", world.everyone({}))
    sites = {site: dict(reply.facts) for site, reply in replies.items()}
    methods = {label: _rehearsed(world, label) for label in world.config.train.methods}
    private = world.config.privacy != "none"
    costs = _costs(world) if private else {}
    if as_json:
        answer = {"sites": sites, "methods": methods, **({"privacy": costs} if private else {})}
        print(json.dumps(answer, indent=1))  # noqa: T201 - the machine's answer
        return 0
    files = Table("site", "files", "MB", title="Files", title_justify="left")
    for site, facts in sites.items():
        files.add_row(site, f"{facts['files']:,}", f"{float(str(facts['bytes'])) / 1e6:.1f}")
    rounds = Table(
        "method", "parameters", "kB per site and round", "tensors sent", title="Methods", title_justify="left"
    )
    for label, said in methods.items():
        rounds.add_row(label, f"{said['parameters']:,}", f"{float(str(said['bytes'])) / 1e3:.1f}", str(said["tensors"]))
    for table in (files, rounds, *([_privacy_table(costs)] if private else [])):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)
    if not private:
        console.print("Settings, files and methods are in order. privacy: none - every release is non-private (ε = ∞).")
        return 0
    for site, cost in costs.items():
        console.print(f"{site}: {cost['words']}", markup=False, highlight=False, soft_wrap=True)
    console.print("Settings, files and methods are in order.")
    return 0


def _privacy_table(costs: Mapping[str, Mapping[str, Json]]) -> Table:
    """Noise and cost of each method at each site."""
    table = Table(
        *("site", "method", "noise σ", "sampling q", "steps", "ε", "δ"),
        title="Privacy: what a patient pays, in the dearest split",
        title_justify="left",
    )
    for site, said in costs.items():
        for one in _list(said["methods"]):
            row = _mapping(one)
            numbers = (f"{float(str(row['noise'])):.3f}", f"{row['sampling']}", f"{row['steps']}")
            table.add_row(site, str(row["method"]), *numbers, f"{float(str(row['epsilon'])):.3f}", f"{row['delta']:g}")
    return table


def _costs(world: World) -> dict[str, dict[str, Json]]:
    """For each site: what each method will cost its patients, all together, and what its budget says to that."""
    from pipelines.spending import after, at_cut, planned, planned_in_all, steps_of  # accountants: seconds for others

    config, found = world.config, {}
    for site, settings in config.sites.items():
        plans = {label: planned(config, label, site) for label in config.train.methods}
        methods: list[Json] = [
            {
                "method": label,
                "noise": plan.protection.noise,
                "sampling": plan.protection.sampling,
                "steps": steps_of(plan.events),
                "epsilon": plan.cost.epsilon,
                "delta": plan.cost.delta,
                "accountant": plan.cost.accountant,
            }
            for label, plan in plans.items()
        ]
        whole = planned_in_all(config, site)
        hospital = Hospital(site, world.root / "sites" / site, settings, world.now)
        words = f"all methods together ε = {whole.epsilon:.3f} at δ = {whole.delta:g}"
        facts: dict[str, Json] = {"methods": methods, "epsilon": whole.epsilon, "delta": whole.delta}
        if settings.policy.budget is not None:
            budget = settings.policy.budget
            cut = division_code(
                {part: getattr(config.split, part) for part in SPLITS},
                seed=config.seed,
                test=[*map(normalized, settings.test)],
                independent=True,
                key=hospital.key(),
            )
            events = [at_cut(event, cut) for plan in plans.values() for event in plan.events]
            spent, then = after(hospital.ledger, budget.delta, events)
            enough = "within" if then <= budget.epsilon else "MORE than"
            words += (
                f"; spent so far ε = {spent:.3f}, after a whole new run {then:.3f}: {enough} the budget of "
                f"{budget.epsilon:g} at δ = {budget.delta:g}"
            )
            facts |= {"spent": spent, "after": then, "budget": budget.epsilon}
        found[site] = {**facts, "words": words + "; counts of patients are outside of it"}
    return found


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _rehearsed(world: World, label: str) -> dict[str, Json]:
    config = world.config
    algorithm, task = config.train.methods[label], config.task(label)
    work = overridden(config.train.work, config.train.method_work.get(label, {}))
    initial = initial_parameters(algorithm, task, seed=config.seed)
    reply = rehearse(algorithm, task, work, initial)
    leaves = 0 if algorithm.name == CENTRAL else len(to_bytes(reply))
    return {"parameters": count(initial), "bytes": leaves, "tensors": len(reply.tensors)}
