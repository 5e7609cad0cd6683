"""What a method's conversation begins with: what each hospital is told of it, and the pooled site of a simulation."""

from __future__ import annotations

from federation.engine import Engine, InProcess
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.spaces import Cohorts
from pipelines.coordinator.world import World
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file
from pipelines.hospital.pooled import adopt
from pipelines.hospital.worker import worker
from pipelines.loader.overrides import overridden
from pipelines.loader.validation import to_plain
from pipelines.runs.store import digest, short
from pipelines.settings.config import Config, chosen_device
from privacy.message import Json, Message
from privacy.release.gate import Refused


def opening(world: World, label: str, site: str, cohort: str) -> dict[str, Json]:
    """What a site must know of a run: see `pipelines.hospital.training.opening`."""
    config = world.config
    task = config.task_of(label)
    return {
        "label": label,
        "algorithm": to_plain(config.train.methods[label]),
        "model": to_plain(task.model),
        "inputs": list(task.inputs),
        "classes": task.classes,
        **_target(config, site),
        "work": to_plain(overridden(config.train.work, config.train.method_work.get(label, {}))),
        "seed": config.seed,
        "cohort": cohort,
        **_protected(config, label, site),
    }


def _protected(config: Config, label: str, site: str) -> dict[str, Json]:
    """How this site's patients are protected; the hospital counts for itself what that costs."""
    if config.privacy == "none":
        return {"privacy": None}
    from pipelines.coordinator.spending import planned  # accountants: seconds that a run without privacy saves

    plan = planned(config, label, site)
    return {"privacy": to_plain(plan.protection), "evaluation_noise": plan.evaluation_noise}


def _target(config: Config, site: str) -> dict[str, Json]:
    """Which masks a site learns; what is pooled has but one kind. Nothing where labels are learnt."""
    target = config.task.target
    return {} if target is None else {"target": "masks" if site == CENTRAL else target}


def learnt(config: Config) -> dict[str, Json]:
    """What is learnt; nothing where it is labels, as it was before there was a choice."""
    return {} if config.task.target is None else {"task": to_plain(config.task)}


def pooled_engine(world: World, cohorts: Cohorts) -> tuple[Engine, Cohorts]:
    """A site that holds everybody's images, in this process. `Config` lets nobody get here without `pooling:
    allowed`.
    """
    held: dict[str, Json] = {site: [cohorts[site]["cohort"], cohorts[site]["sha256"]] for site in sorted(cohorts)}
    name = short(digest({**held, **learnt(world.config)}))
    hospital = Hospital(CENTRAL, world.root / "pooled", None, world.now, device=chosen_device(world.config.device))
    try:
        read_cohort_file(hospital.cohort_folder(name) / COHORT)
    except Refused:  # not pooled yet, or damaged
        said = {site: {"cohort": str(cohorts[site]["cohort"]), **_target(world.config, site)} for site in cohorts}
        asked = {site: Message({}, said[site]) for site in world.engine.sites}
        adopt(hospital, name, world.ask_all(world.run(f"pool-{name}"), "pool", asked))
    return InProcess({CENTRAL: worker(hospital)}), {CENTRAL: {"cohort": name, "sha256": name}}
