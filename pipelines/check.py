"""--check: settings, files and methods are looked at; of files names and sizes only; training is rehearsed on zeros."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from federation.parameters import count
from federation.rehearsal import initial_parameters, rehearse
from pipelines.config import overridden
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
    if as_json:
        print(json.dumps({"sites": sites, "methods": methods}, indent=1))  # noqa: T201 - the machine's answer
        return 0
    files = Table("site", "files", "MB", title="Files", title_justify="left")
    for site, facts in sites.items():
        files.add_row(site, f"{facts['files']:,}", f"{float(str(facts['bytes'])) / 1e6:.1f}")
    rounds = Table(
        "method", "parameters", "kB per site and round", "tensors sent", title="Methods", title_justify="left"
    )
    for label, said in methods.items():
        rounds.add_row(label, f"{said['parameters']:,}", f"{float(str(said['bytes'])) / 1e3:.1f}", str(said["tensors"]))
    for table in (files, rounds):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)
    console.print("Settings, files and methods are in order. privacy: none - every release is non-private (ε = ∞).")
    return 0


def _rehearsed(world: World, label: str) -> dict[str, Json]:
    config = world.config
    algorithm, task = config.train.methods[label], config.task(label)
    work = overridden(config.train.work, config.train.method_work.get(label, {}))
    initial = initial_parameters(algorithm, task, seed=config.seed)
    reply = rehearse(algorithm, task, work, initial)
    leaves = 0 if algorithm.name == CENTRAL else len(to_bytes(reply))
    return {"parameters": count(initial), "bytes": leaves, "tensors": len(reply.tensors)}
