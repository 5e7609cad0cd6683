"""Attacks: on private data access with synthetic patients, and by each hospital on its own models, to find who was in
training and to draw their images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.spaces import cohorts_for
from pipelines.coordinator.world import SitesMissing, World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.settings.privacy import PatientLevel
from privacy.dp.entropy import Source
from privacy.message import Call, Json, Message, as_mapping

VERSION = 4
CLAIM, STEPS, SAMPLING = 1.0, 50, 0.1
"""Private data access is audited at epsilon 1, because the canaries of a few seconds cannot refute much more, and at a
low sampling rate, where missing sampling shows most: at 1/3 and 200 steps the audit did not always find it."""


def settings(world: World) -> Json:
    """Settings besides training's that change the result."""
    config = world.config
    checkpoint = config.evaluate.checkpoint
    return {"audit": to_plain(config.audit), "privacy": to_plain(config.privacy), "checkpoint": checkpoint}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Audit the run's protection with canaries, have every hospital attack its own models, and write the results."""
    trained = [json.loads((inputs["train"] / f"{label}.json").read_text()) for label in world.config.train.methods]
    asked, found = world.config.audit, list[dict[str, Json]]()
    with shown("audit") as step:
        step(0, 1 + len(trained), "canaries")
        mechanism = tried(world.config.privacy, asked.canaries)
        for position, result in enumerate(trained):
            step(1 + position, 1 + len(trained), result["label"])
            if (asked.membership or asked.inversion) and result["name"] != CENTRAL:
                found += _attacked(world, result, cohorts_for(world.config, inputs, result["label"]))
    members = [_entry(one, "found") for one in found] if asked.membership else []
    drawn = [_entry(one, "inversion") for one in found] if asked.inversion else []
    audits = {"mechanism": mechanism, "membership": members, "inversion": drawn}
    (out / "audits.json").write_text(json.dumps(audits, indent=1))
    return {"attacks": len(members), "inversions": len(drawn), "mechanism": mechanism}


def tried(privacy: object, canaries: int, source: Source = os.urandom) -> dict[str, Json] | None:
    """An audit of private data access with a run's clipping and views, at an epsilon that canaries can refute."""
    if not isinstance(privacy, PatientLevel) or not canaries:
        return None
    from privacy.attacks.audit import audit_gradients, through_private_access
    from privacy.dp.accounting import calibrated  # slow to import
    from privacy.dp.events import Gaussian, PoissonSampled, SelfComposed

    delta = privacy.delta
    noise = calibrated(
        lambda noise: [SelfComposed(PoissonSampled(SAMPLING, Gaussian(noise)), STEPS)], epsilon=CLAIM, delta=delta
    )
    make = through_private_access(replace(privacy.protection(noise), sampling=SAMPLING), source=source)
    return asdict(audit_gradients(make, claimed=CLAIM, delta=delta, canaries=canaries, steps=STEPS, source=source))


def _attacked(world: World, result: Mapping[str, Any], cohorts: Mapping[str, Any]) -> list[dict[str, Json]]:
    """One entry for each site: `site`, `method`, the code of a refusal, and `said`, the facts of its reply."""
    facts: dict[str, dict[str, Json]] = {
        site: {
            "label": result["label"],
            "train_run": result["train_run"],
            "checkpoint": world.config.evaluate.checkpoint,
            "best": result["best"],
            "cohort": cohorts[site]["cohort"],
            "membership": world.config.audit.membership,
            "inversion": to_plain(world.config.audit.inversion),
        }
        for site in world.engine.sites
    }
    names = {
        site: world.run(world.named("audit", "audit", VERSION, {**one, "site": site})) for site, one in facts.items()
    }
    asked = {site: Message({}, one) for site, one in facts.items()}
    answers = world.engine.ask(Call("", 0, "audit", {}, names), asked)
    if failed := {site: code for site, code in answers.missing.items() if not code.startswith("policy_")}:
        raise SitesMissing("audit", failed, where=world.logs(*failed))
    found: list[dict[str, Json]] = []
    for site in world.engine.sites:
        note = {"method": str(result["label"]), "refused": answers.missing.get(site)}  # attacks are voluntary
        found.append({"site": site, **note, "said": dict(answers.replies.get(site, Message()).facts)})
    return found


def _entry(one: Mapping[str, Json], attack: str) -> dict[str, Json]:
    """The record of an attack; `found` is null where the result stays at the hospital."""
    return {**{name: one[name] for name in ("site", "method", "refused")}, "found": as_mapping(one["said"]).get(attack)}


STAGE = Stage("audit", VERSION, ("ingest", "translate", "augment", "features", "train"), settings, run)
