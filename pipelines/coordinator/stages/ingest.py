"""Each hospital turns its files into a cohort and returns counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evaluation.classes import compare_classes, one_class, strange_counting
from pipelines.coordinator.permissions import check_permitted, permissions_from
from pipelines.coordinator.spaces import complaint_about
from pipelines.coordinator.witness import asked_to_survey
from pipelines.coordinator.world import World
from pipelines.data.images import Features
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import counting, print_remark, shown
from pipelines.runs.runner import Stage
from pipelines.settings.checks.partition import partition_differences
from pipelines.settings.config import Config
from pipelines.settings.privacy import PatientLevel
from privacy.message import Json, Message
from privacy.release.policy import largest_delta

VERSION = 14
MOMENTS = ("count", "total", "squares")


class UnusableCohort(RuntimeError):
    """A site rejected more studies than its `max_rejected` allows, or has no training or no test patients."""


def settings(world: World) -> Json:
    """Settings that change the result, besides the hospitals' files and settings, which `outside` covers."""
    config = world.config
    return {
        "images": _without_nulls(config.images),
        "split": _without_nulls(config.split),
        "seed": config.seed,
        "independent": config.independent,
        **_task(config),
    }


def _task(config: Config) -> dict[str, Json]:
    """Which masks are needed, or the names of labels; empty if these are negative and positive."""
    task = config.task
    if task.target is None:
        return {"classes": list(task.classes)} if task.classes else {}
    return {"target": task.target, "classes": list(task.names[1:]) if task.target == "masks" else []}


def _without_nulls(settings: object) -> Json:
    """Settings without nulls, so that a new optional setting does not change the digest of older runs."""
    plain = to_plain(settings)
    return {key: value for key, value in plain.items() if value is not None} if isinstance(plain, dict) else plain


def outside(world: World) -> Mapping[str, str]:
    """Each site's digest of its file names, sizes, times and settings; no pixel is read."""
    replies = world.ask_all(world.run("survey"), "survey", asked_to_survey(world))
    if not world.simulation:  # fails early if a hospital's policy refuses a needed request
        check_permitted(world.config, {site: permissions_from(reply.facts) for site, reply in replies.items()})
    return {site: str(reply.facts["digest"]) for site, reply in replies.items()}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request `ingest` from every site; write the replies (counts by split and by reason of rejection)."""
    asked = settings(world)
    name = world.run(world.named("ingest", "ingest", VERSION, {"asked": asked, "outside": dict(outside(world))}))
    facts = asked if isinstance(asked, dict) else {}
    sites = world.engine.sites
    with shown("ingest") as step:
        step(0, 2 * len(sites))
        scale = _scale(world, name, facts, counting(step, 2 * len(sites)))
        asked_for, told = dict.fromkeys(sites, Message(scale, facts)), counting(step, 2 * len(sites), len(sites))
        replies = world.ask_each(dict.fromkeys(sites, name), "ingest", asked_for, told=told)
        found: dict[str, Mapping[str, Json]] = {site: replies[site].facts for site in sites}
        for odd in _odd_classes(world.config, found):
            print_remark(odd)
    (out / "sites.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    problems = [text for site, facts in sorted(found.items()) for text in _unusable(world, site, facts)]
    problems += [text for site, facts in sorted(found.items()) for text in _loose(world.config, site, facts)]
    problems += partition_differences(world.config.sites, {site: facts.get("dealing") for site, facts in found.items()})
    if problems:
        raise UnusableCohort("; ".join(problems))
    return {"sites": {site: dict(facts) for site, facts in found.items()}}


def _scale(world: World, name: str, facts: Mapping[str, Json], told: Callable[[str], None]) -> Mapping[str, Tensor]:
    """The summed moments of all sites' training features, if features are normalized by them; otherwise empty."""
    images = world.config.images
    if not (isinstance(images, Features) and images.normalize == "pooled"):
        return {}
    sites = world.engine.sites
    asked = dict.fromkeys(sites, Message({}, facts))
    replies = world.ask_each(dict.fromkeys(sites, name), "moments", asked, told=told)
    parts = [replies[site].tensors for site in sites]
    return {moment: torch.stack([tensors[moment] for tensors in parts]).sum(dim=0) for moment in MOMENTS}


def _unusable(world: World, site: str, facts: Mapping[str, Any]) -> list[str]:
    where = world.root / "sites" / site / "cohorts" / facts["cohort"] / "rejected.json"
    if "released" in facts:
        return _too_few(world, site, facts)
    if facts["too_many_rejected"]:
        used = facts.get("source_studies", facts["studies"])
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(facts["rejected_by_reason"].items()))
        return [
            f"{site}: {facts['rejected']} of {facts['rejected'] + used} studies were rejected, and max_rejected allows "
            f"{facts['max_rejected']:.0%}: {reasons}. Repair or exclude them, or raise max_rejected; study by study: "
            f"{where}, and in full in linkage.json of that site"
        ]
    patients = {split: facts["splits"][split]["patients"] for split in ("train", "test")}
    return [
        f"{site}: no patient in the {split} split, of {facts['patients']} in all ({facts['rejected']} studies "
        f"rejected, see {where}); give it more patients, another split, or leave the site out"
        for split, number in patients.items()
        if number == 0
    ]


def _odd_classes(config: Config, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is odd about the hospitals' classes, of those that count images exactly."""
    told = {site: facts for site, facts in found.items() if "released" not in facts}
    if config.task.target is not None:
        return []
    held = {site: _of_classes(facts) for site, facts in told.items()}
    names = config.task.names
    strange = {site: facts["rejected_by_reason"].get("bad_label", 0) for site, facts in told.items()}
    odd = [compare_classes(held, names) if len(held) == len(found) else "", strange_counting(held, names, strange)]
    for site, facts in told.items():
        alone = one_class({split: _of_classes(own) for split, own in facts["splits"].items()}, names)
        odd.append(f"{site} {alone}" if alone else "")
    return [text for text in odd if text]


def _of_classes(counts: Mapping[str, Any]) -> list[int]:
    """Images of each class."""
    return list(counts.get("classes") or (counts["images"] - counts["positives"], counts["positives"]))


def _too_few(world: World, site: str, facts: Mapping[str, Any]) -> list[str]:
    """What a hospital with a budget will refuse because of its released counts, found before it is asked."""
    found, patients = [], {split: facts["splits"][split]["patients"] for split in ("train", "test")}
    if patients["train"] < max(1, facts["min_patients"]):
        found.append(
            f"{site}: its policy asks for {facts['min_patients']} training patients (min_patients), and its released "
            f"counts say {patients['train']}; leave the site out, or let it gather more patients and count anew"
        )
    if not patients["test"]:
        found.append(f"{site}: its released counts say no patient in the test split; give it another split")
    return found


def _loose(config: Config, site: str, facts: Mapping[str, Any]) -> list[str]:
    """A problem for every delta that is too large for the number of patients: a hospital with a budget refuses it."""
    deltas = {"privacy.delta": config.privacy.delta} if isinstance(config.privacy, PatientLevel) else {}
    if config.harmonize is not None:
        score, synthesis = config.harmonize.score, config.harmonize.synthesis
        deltas |= {"harmonize.score.delta": score.delta} if score.release == "dp" else {}
        deltas |= {"harmonize.synthesis.delta": float(getattr(synthesis, "delta", 0.0))} if synthesis.private else {}
    largest = largest_delta(facts["patients"])
    return [
        f"{site}: {name} is {delta:g}, and its {facts['patients']} patients allow {largest:.2g} at most (1 / (10 x "
        "patients)): above it a record may be lost to the failure that delta allows for; say 1e-5"
        for name, delta in deltas.items()
        if delta > largest
    ]


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its cohort unchanged."""
    return complaint_about(world, artifact / "sites.json")


STAGE = Stage("ingest", VERSION, (), settings, run, outside=outside, intact=intact)
