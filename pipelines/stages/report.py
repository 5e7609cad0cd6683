"""The coordinator's page, from messages only; every site writes its own page, which stays there."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from evaluation.floors import FLOORS, with_floor
from evaluation.gains import rounds_to_reach
from evaluation.overlap import measures
from evaluation.report import (
    Command,
    Knew,
    Left,
    MethodCost,
    Missing,
    RunPage,
    SiteCounts,
    SplitCount,
    StageState,
    Withdrawn,
    coordinator_page,
)
from evaluation.rows import MEASURES, gain_rows, outside_rows, score_rows, scores_csv, to_json
from evaluation.statement_page import MechanismAudit, MembershipRow, site_statement
from pipelines.door import to_plain
from pipelines.harmonize_settings import RAW
from pipelines.privacy_settings import AnyPrivacy, PatientLevel
from pipelines.runner import Stage
from pipelines.site.attack import from_plain
from pipelines.site.hospital import SPLITS
from pipelines.site.page import DELTA
from pipelines.site.ready import READY
from pipelines.site.segmenting import measured
from pipelines.stages.evaluate import window_of
from pipelines.stages.evidence import read_floor, read_tables
from pipelines.stages.harmony import harmony
from pipelines.stages.pictures import pictures
from pipelines.stages.spaces import homes, homes_of
from pipelines.stages.train import CENTRAL
from pipelines.stages.world import World
from pipelines.store import digest, read_manifest, short
from privacy.message import Json, Message, as_list, as_mapping
from privacy.statement import from_json, markdown

VERSION = 7
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
    (out / "sites.json").write_text(json.dumps({site: facts["page"] for site, facts in said.items()}))
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
        simulation=True,
        reference=reference or "",
        sites=tuple(_counts(site, facts, said[site]) for site, facts in sorted(cohorts.items())),
        scores=rows,
        gains=gain_rows(tables, reference=reference, measures=scored) if reference else (),
        methods=tuple(_costs(trained, said, config.evaluate.reference)),
        left=tuple(_left(site, entry) for site, facts in sorted(said.items()) for entry in as_list(facts["left"])),
        missing=tuple(_missing(trained, json.loads((inputs["evaluate"] / "refused.json").read_text()))),
        stages=tuple(_state(name, folder) for name, folder in inputs.items()),
        settings=json.dumps(without_patients(to_plain(config)), indent=1),
        commands=_commands(world),
        pooled=any(result["name"] == CENTRAL for result in trained),
        pictures=tuple(pictures(tables, [row for row in rows if row.method not in FLOORS], trained, reference)),
        words=measured(config.images.kind),
        structures=structures,
        outside=outside,
        statements=tuple(site_statement(facts["statement"]) for _, facts in sorted(said.items())),
        audits=(TypeAdapter(MechanismAudit).validate_python(audits["mechanism"]),) if audits["mechanism"] else (),
        membership=tuple(_attack(one) for one in audits["membership"]),
        harmony=harmony(world, inputs),
    )
    stated = {site: facts["statement"] for site, facts in sorted(said.items())}
    (out / "statement.json").write_text(json.dumps(stated, indent=1))
    (out / "statement.md").write_text("\n".join(markdown(from_json(one)) for one in stated.values()))
    heads = {site: facts["ledger"] for site, facts in sorted(said.items())}
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
        "title": config.title or config.name,
        "run": config.name,
        "reference": config.evaluate.reference,
        "copies": config.evaluate.copies,
        "spaces": list(config.harmonize.translate) if config.harmonize else [],
        "delta": config.privacy.delta if isinstance(config.privacy, PatientLevel) else DELTA,
        "unit": config.privacy.unit if isinstance(config.privacy, PatientLevel) else "patient",
        "audit": audit,
        **_learnt(world),
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


def _costs(trained: list[Any], said: Mapping[str, Mapping[str, Json]], reference: str | None) -> Iterator[MethodCost]:
    """What each method cost, by the sites' ledgers. One site's bytes are the largest."""
    lowest = next((lowest_loss(result) for result in trained if result["label"] == reference), None)
    for result in trained:
        sent = [_number(as_mapping(facts["sent"]).get(result["train_run"], 0)) for facts in said.values()]
        received = 0 if result["name"] == CENTRAL else result["received"]  # nothing is sent to sites for it
        yield MethodCost(
            result["label"],
            result["parameters"],
            max(sent, default=0),
            received,
            result["rounds"],
            total=sum(sent) + received * len(sent),
            reached=None if lowest is None else reached(result, lowest),
        )


def lowest_loss(result: Mapping[str, Any]) -> float | None:
    """The lowest validation loss over all sites of any round; None without one."""
    return min((float(loss) for loss in result["totals"].values() if math.isfinite(loss)), default=None)


def reached(result: Mapping[str, Any], lowest: float) -> int | None:
    """The first round of a method whose aggregated validation loss is at most `lowest`."""
    losses = [result["totals"].get(str(number), math.inf) for number in range(1, result["rounds"] + 1)]
    return rounds_to_reach([-loss for loss in losses], -lowest)


def _left(site: str, entry: Json) -> Left:
    facts = as_mapping(entry)
    request = str(facts["request"])
    content, epsilon = str(facts["content"]), str(facts["epsilon"])
    return Left(site, request, _number(facts["messages"]), _number(facts["bytes"]), epsilon=epsilon, content=content)


def _attack(said: Mapping[str, Any]) -> MembershipRow:
    """An attack that a hospital told of, or that it made and kept to itself."""
    if said["found"] is None:
        nan, note = float("nan"), "computed, and kept on the hospital's own page: it has no noise"
        note = f"not made: {said['refused']}" if said.get("refused") else note
        return MembershipRow(said["site"], said["method"], nan, nan, nan, nan, 0, 0, note)
    found = from_plain(said["found"])
    numbers = (found.auc, found.low, found.high, found.control_auc, found.members, found.others)
    return MembershipRow(said["site"], said["method"], *numbers, found.reason or "")


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


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def intact(world: World, artifact: Path) -> str | None:
    """Whether every site's own page is the one of this report: settings may have gone and come back."""
    for site, page in json.loads((artifact / "sites.json").read_text()).items():
        reply = world.ask_one(world.run("holds"), "holds", site, {"page": page})
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
