"""Attacks: on private data access with synthetic patients, and by each hospital on its own models, to find who was in
training and to draw their images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.audits import AUDITS
from pipelines.coordinator.spaces import Cohorts, read_cohorts_of_method
from pipelines.coordinator.trained import TrainedMethod, read_trained
from pipelines.coordinator.world import SitesMissing, World
from pipelines.loader.validation import to_plain
from pipelines.requests.asking import is_refusal
from pipelines.requests.audit import AUDIT, Attacked, Audit
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.privacy import PatientLevel
from privacy.dp.entropy import Source
from privacy.message import Json
from privacy.release.form import value_or_none

VERSION = 4
CLAIM, STEPS, SAMPLING = 1.0, 50, 0.1
"""Private data access is audited at epsilon 1, because the canaries of a few seconds cannot refute much more, and at a
low sampling rate, where missing sampling shows most: at 1/3 and 200 steps the audit did not always find it."""


class Attack(NamedTuple):
    """What a site answered about one method. refused: the code by which it refused; None: it replied."""

    site: str
    method: str
    refused: str | None
    reply: Attacked | None


def settings(world: World) -> Json:
    """Settings besides training's that change the result."""
    config = world.config
    checkpoint = config.evaluate.checkpoint
    return {"audit": to_plain(config.audit), "privacy": to_plain(config.privacy), "checkpoint": checkpoint}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Audit the run's protection with canaries, have every hospital attack its own models, and write the results."""
    trained = [read_trained(inputs["train"], label) for label in world.config.train.methods]
    plan, attacks = world.config.audit, list[Attack]()
    with show_progress("audit") as step:
        step(0, 1 + len(trained), "canaries")
        mechanism = audit_mechanism(world.config.privacy, plan.canaries)
        for position, result in enumerate(trained):
            step(1 + position, 1 + len(trained), result.label)
            if (plan.membership or plan.inversion) and result.name != CENTRAL:
                attacks += _ask_attacks(world, result, read_cohorts_of_method(world.config, inputs, result.label))
    replies = [(attack, attack.reply) for attack in attacks]
    members = [_build_entry(a, None if r is None else r.found) for a, r in replies] if plan.membership else []
    inversions = [_build_entry(a, None if r is None else value_or_none(r.inversion)) for a, r in replies]
    drawn = inversions if plan.inversion else []
    audits = {"mechanism": mechanism, "membership": members, "inversion": drawn}
    (out / AUDITS).write_text(json.dumps(audits, indent=1))
    return {"attacks": len(members), "inversions": len(drawn), "mechanism": mechanism}


def audit_mechanism(privacy: object, canaries: int, source: Source = os.urandom) -> dict[str, Json] | None:
    """An audit of private data access with a run's clipping and views, at an epsilon that canaries can refute."""
    if not isinstance(privacy, PatientLevel) or not canaries:
        return None
    from privacy.attacks.audit import audit_gradients, through_private_access
    from privacy.dp.accounting import calibrate_noise  # slow to import
    from privacy.dp.events import Gaussian, PoissonSampled, SelfComposed

    delta = privacy.delta
    noise = calibrate_noise(
        lambda noise: [SelfComposed(PoissonSampled(SAMPLING, Gaussian(noise)), STEPS)], epsilon=CLAIM, delta=delta
    )
    make = through_private_access(replace(privacy.protection(noise), sampling=SAMPLING), source=source)
    return asdict(audit_gradients(make, claimed=CLAIM, delta=delta, canaries=canaries, steps=STEPS, source=source))


def _ask_attacks(world: World, trained: TrainedMethod, cohorts: Cohorts) -> list[Attack]:
    """What each site answers; attacks are voluntary, so that a policy may refuse them."""
    questions = {
        site: Audit(
            label=trained.label,
            train_run=trained.train_run,
            checkpoint=world.config.evaluate.checkpoint,
            best=trained.best,
            cohort=cohorts[site].cohort,
            membership=world.config.audit.membership,
            inversion=world.config.audit.inversion,
        )
        for site in world.engine.sites
    }
    runs = {
        site: world.run(world.name_question("audit", "audit", VERSION, {**to_facts(question), "site": site}))
        for site, question in questions.items()
    }
    answers = world.ask(AUDIT, runs, questions)
    if failed := {site: code for site, code in answers.missing.items() if not is_refusal(code)}:
        raise SitesMissing(AUDIT.name, failed, where=world.log_paths(*failed))
    return [
        Attack(site, trained.label, answers.missing.get(site), answers.replies.get(site)) for site in world.engine.sites
    ]


def _build_entry(attack: Attack, figures: Json) -> dict[str, Json]:
    """The record of an attack; `found` is null where the result stays at the hospital."""
    return {"site": attack.site, "method": attack.method, "refused": attack.refused, "found": figures}


STAGE = Stage("audit", VERSION, ("ingest", "translate", "augment", "features", "train"), settings, run)
