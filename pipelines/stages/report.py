"""The coordinator's page, from messages only; every site writes its own page, which stays there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from evaluation.floors import FLOORS, with_floor
from evaluation.overlap import measures
from evaluation.report import (
    Command,
    Knew,
    Left,
    Missing,
    RunPage,
    SiteCounts,
    SplitCount,
    StageState,
    Withdrawn,
    coordinator_page,
)
from evaluation.rows import MEASURES, gain_rows, outside_rows, score_rows, scores_csv, to_json
from evaluation.statement_page import MechanismAudit, site_statement
from pipelines.door import to_plain
from pipelines.harmonize_settings import RAW
from pipelines.privacy_settings import AnyPrivacy, PatientLevel
from pipelines.runner import Stage
from pipelines.site.hospital import SPLITS
from pipelines.site.page import DELTA
from pipelines.site.ready import READY
from pipelines.site.segmenting import measured
from pipelines.stages.attacked import inversion, membership
from pipelines.stages.costs import costs, whole
from pipelines.stages.costs import lowest_loss as lowest_loss
from pipelines.stages.costs import reached as reached
from pipelines.stages.evaluate import window_of
from pipelines.stages.evidence import read_floor, read_tables
from pipelines.stages.harmony import harmony
from pipelines.stages.pictures import pictures
from pipelines.stages.spaces import homes, homes_of
from pipelines.stages.strangers import counts, field, questions, read_homes
from pipelines.stages.train import CENTRAL
from pipelines.stages.world import World
from pipelines.store import digest, read_manifest, short
from privacy.message import Json, Message, as_list, as_mapping
from privacy.statement import from_json, markdown

VERSION = 9
PAGE = "report.html"


def settings(world: World) -> Json:
    """What the page depends on beside what it reports."""
    return {"title": world.config.title, "reference": world.config.evaluate.reference, "name": world.config.name}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Compute every score, ask every site for its page and for what left it, write the coordinator's page."""
    config = world.config
    cohorts = json.loads((inputs["ingest"] / "sites.json").read_text())
    trained = [json.loads((inputs["train"] / f"{label}.json").read_text()) for label in config.train.methods]
    tables = read_tables(inputs["evaluate"], copies=config.evaluate.copies, seed=config.seed)
    audits = json.loads((inputs["audit"] / "audits.json").read_text())
    said = _ask_sites(world, inputs, trained, audits["mechanism"])
    strange, everybody = _ask_outside(world, inputs, audits["mechanism"]), dict(sorted(said.items()))
    everybody |= strange
    (out / "sites.json").write_text(json.dumps({site: facts["page"] for site, facts in everybody.items()}))
    reference = config.evaluate.reference if config.evaluate.reference in tables else None
    structures = config.task.names[1:] if config.task.target else ()
    scored = measures(structures) if structures else MEASURES
    rows = score_rows(with_floor(tables, read_floor(inputs["evaluate"])), reference=reference, measures=scored)
    routed = read_tables(inputs["route"], copies=config.evaluate.copies, seed=config.seed) if "route" in inputs else {}
    outside = outside_rows(routed, scored)
    (out / "scores.json").write_text(to_json((*rows, *outside)))
    (out / "scores.csv").write_text(scores_csv((*rows, *outside)))
    page = RunPage(
        title=config.title or config.name,
        run=config.name,
        date=world.now(),
        what=_what(world),
        simulation=world.simulation,
        reference=reference or "",
        sites=tuple(_counts(site, facts, said[site]) for site, facts in sorted(cohorts.items())),
        scores=rows,
        gains=gain_rows(tables, reference=reference, measures=scored) if reference else (),
        methods=tuple(costs(trained, said, config.evaluate.reference)),
        left=tuple(_left(site, entry) for site, facts in everybody.items() for entry in as_list(facts["left"])),
        missing=tuple(_missing(trained, json.loads((inputs["evaluate"] / "refused.json").read_text()))),
        stages=tuple(_state(name, folder) for name, folder in inputs.items()),
        settings=json.dumps(without_patients(to_plain(config)), indent=1),
        commands=_commands(world),
        pooled=any(result["name"] == CENTRAL for result in trained),
        pictures=tuple(pictures(tables, [row for row in rows if row.method not in FLOORS], trained, reference)),
        words=measured(config.images.kind),
        structures=structures,
        outside=outside,
        strangers=tuple(counts(read_homes(inputs["route"]), strange)) if strange else (),
        field=field(config) if strange else "",
        statements=tuple(site_statement(facts["statement"]) for facts in everybody.values()),
        audits=(TypeAdapter(MechanismAudit).validate_python(audits["mechanism"]),) if audits["mechanism"] else (),
        membership=tuple(membership(one) for one in audits["membership"]),
        inversion=tuple(row for one in audits["inversion"] for row in inversion(one)),
        harmony=harmony(world, inputs),
    )
    stated = {site: facts["statement"] for site, facts in everybody.items()}
    (out / "statement.json").write_text(json.dumps(stated, indent=1))
    (out / "statement.md").write_text("\n".join(markdown(from_json(one)) for one in stated.values()))
    heads = {site: facts["ledger"] for site, facts in everybody.items()}
    (out / "ledgers.json").write_text(json.dumps(heads, indent=1))
    text = coordinator_page(page)
    (out / PAGE).write_text(text)
    (out / "report.json").write_text(to_json(replace(page, pictures=())))
    return {"report": PAGE, "scores": len(rows)}


def _ask_sites(
    world: World, inputs: Mapping[str, Path], trained: list[Any], audit: Json
) -> dict[str, Mapping[str, Json]]:
    config = world.config
    cohorts, spaces = homes(inputs, RAW), {r["label"]: homes_of(config, inputs, r["label"]) for r in trained}

    def methods(site: str) -> list[Json]:
        return [
            {
                "label": result["label"],
                "train_run": result["train_run"],
                "checkpoint": config.evaluate.checkpoint,
                "best": result["best"],
                "cohort": spaces[result["label"]][site]["cohort"],
            }
            for result in trained
        ]

    facts: dict[str, Json] = {
        **_common(world, audit),
        "reference": config.evaluate.reference,
        "variants": list(config.evaluate.variants),
        "spaces": list(config.harmonize.translate) if config.harmonize else [],
    }
    asked = {
        site: Message({}, {**facts, "methods": methods(site), **_of_ingest(cohorts[site]), "date": world.now()})
        for site in world.engine.sites
    }
    used: dict[str, Json] = {
        site: {"cohort": cohorts[site]["cohort"], "methods": methods(site)} for site in sorted(cohorts)
    }
    known = {**facts, "sites": used, "version": VERSION}
    replies = world.ask_all(world.run(f"report-{short(digest(known))}"), "report", asked)
    return {site: reply.facts for site, reply in replies.items()}


def _ask_outside(world: World, inputs: Mapping[str, Path], audit: Json) -> dict[str, Mapping[str, Json]]:
    """The same of hospitals outside the federation, of their own lines."""
    if "route" not in inputs:
        return {}
    own = {site: {**_common(world, audit), **asked} for site, asked in questions(world, inputs["route"]).items()}
    known: Json = {"sites": dict(own), "version": VERSION}
    run_ = world.run(f"report-{short(digest(known))}")
    messages = {site: Message({}, {**facts, "date": world.now()}) for site, facts in own.items()}
    return {site: reply.facts for site, reply in sorted(world.beyond().ask_all(run_, "report", messages).items())}


def _common(world: World, audit: Json) -> dict[str, Json]:
    """What every hospital's page needs to know."""
    config = world.config
    return {
        "title": config.title or config.name,
        "run": config.name,
        "copies": config.evaluate.copies,
        "delta": config.privacy.delta if isinstance(config.privacy, PatientLevel) else DELTA,
        "unit": config.privacy.unit if isinstance(config.privacy, PatientLevel) else "patient",
        "audit": audit,
        **_learnt(world),
    }


def _learnt(world: World) -> dict[str, Json]:
    """Which masks the methods outline; nothing where they give labels."""
    task = world.config.task
    if task.target is None:
        return {}
    return {"target": task.target, "structures": list(task.names[1:]), "window": window_of(world)}


def _of_ingest(said: Mapping[str, Any]) -> dict[str, Json]:
    return {name: said[name] for name in ("cohort", "excluded", "unmatched_exclusions")}


def without_patients(settings: Json) -> Json:
    """Settings without what is each site's own: of files only their kind, of named patients only their number."""
    if not isinstance(settings, dict):
        return settings
    return {**settings, "sites": {site: _nameless(own) for site, own in as_mapping(settings.get("sites")).items()}}


def _nameless(site: Json) -> Json:
    own = as_mapping(site)
    kinds: dict[str, Json] = {
        name: {"kind": as_mapping(own[name]).get("kind")} for name in ("source", "labels") if own.get(name)
    }
    lists: dict[str, Json] = {name: f"{len(as_list(own[name]))} names" for name in ("exclude", "test") if own.get(name)}
    return {name: value for name, value in {**own, **kinds, **lists}.items() if name != "gland"}


def _what(world: World) -> str:
    config = world.config
    names = ", ".join(config.train.methods)
    beside = f" and {len(config.outside)} outside the federation" if config.outside else ""
    return (
        f"{len(config.sites) - len(config.outside)} hospitals{beside}, {len(config.train.methods)} methods ({names}), "
        f"{config.train.schedule.rounds} rounds, checkpoint {config.evaluate.checkpoint}. {_promise(config.privacy)}"
    )


def _promise(privacy: AnyPrivacy) -> str:
    if not isinstance(privacy, PatientLevel):
        return "Privacy: none; no formal guarantee is given."
    asked = f"noise {privacy.noise:g}" if privacy.epsilon is None else f"ε = {privacy.epsilon:g}"
    return f"Patient-level differential privacy: {asked} at δ = {privacy.delta:g} for each method; see the statement."


def _counts(site: str, facts: Mapping[str, Any], said: Mapping[str, Json]) -> SiteCounts:
    splits = tuple(SplitCount(split, **facts["splits"][split]) for split in SPLITS)
    knew = tuple(Knew(str(run)) for run in as_list(said.get("knew")))
    withdrawn = Withdrawn(facts["excluded"], facts["unmatched_exclusions"], knew)
    return SiteCounts(site, splits, dict(facts["rejected_by_reason"]), withdrawn)


def _left(site: str, entry: Json) -> Left:
    facts = as_mapping(entry)
    request = str(facts["request"])
    content, epsilon = str(facts["content"]), str(facts["epsilon"])
    return Left(site, request, whole(facts["messages"]), whole(facts["bytes"]), epsilon=epsilon, content=content)


def _missing(trained: list[Any], refused: list[Any]) -> list[Missing]:
    lost = Counter(
        (site, f"train {result['label']}", code) for result in trained for _, site, code in result["missing"]
    )
    lost.update((one["site"], one["request"], one["code"]) for one in refused)
    return [Missing(site, request, code, times) for (site, request, code), times in sorted(lost.items())]


def _state(name: str, folder: Path) -> StageState:
    manifest = read_manifest(folder)
    return StageState(name, "run", float(manifest["seconds"]), f"artifact {folder.name}")


def _commands(world: World) -> tuple[Command, ...]:
    model = world.root / "sites" / "SITE" / READY / "METHOD.safetensors"
    return (
        Command(
            "Use a finished model on new patients, at the hospital that trained it",
            f"python -m pipelines.predict {model} FOLDER",
        ),
        Command("Why each stage ran or was kept", f"{world.command} --explain"),
        Command("Train again, and everything after it", f"{world.command} --from train --fresh"),
        Command("All of it again", f"{world.command} --fresh"),
    )


def intact(world: World, artifact: Path) -> str | None:
    """Whether every site's own page is the one of this report: settings may have gone and come back."""
    for site, page in json.loads((artifact / "sites.json").read_text()).items():
        there = world.beyond() if site in world.outside.sites else world
        reply = there.ask_one(world.run("holds"), "holds", site, {"page": page})
        if reply.facts["complaint"]:
            return f"{site}: {reply.facts['complaint']}"
    return None


STAGE = Stage(
    "report",
    VERSION,
    ("ingest", "score", "sample", "translate", "train", "evaluate", "audit", "route"),
    settings,
    run,
    intact=intact,
)
