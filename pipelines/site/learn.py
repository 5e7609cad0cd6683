"""Federated training at the hospital: `introduce`, `train`, `finish`, `export`, and `pool` for a simulation's central
baseline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from federation.augmentation import AUGMENTATIONS
from federation.conversation import newest, remembered
from federation.descent import Site, Work
from federation.models import AnyModel
from federation.participant import Checkpoint, checkpoint, participate, prune
from federation.randomness import derived, seeded
from federation.task import Task
from personalize import AnyAlgorithm
from pipelines.cohort.cohort import Cohort
from pipelines.config import overridden
from pipelines.site.hospital import COHORT, Done, Hospital, read_cohort_file, rows_of
from privacy.access import Access, Rows, Split, open_access
from privacy.events import NON_PRIVATE, composed, describe
from privacy.gate import Refused
from privacy.message import Call, Json, Malformed, Message, Params

ALGORITHM: TypeAdapter[AnyAlgorithm] = TypeAdapter(AnyAlgorithm)
MODEL: TypeAdapter[AnyModel] = TypeAdapter(AnyModel)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a run is, as the coordinator said it in the introduction, with this hospital's own overrides applied."""

    algorithm: AnyAlgorithm
    task: Task
    work: Work
    seed: int
    cohort: str


def opening(hospital: Hospital, said: Mapping[str, Json]) -> Opening:
    """Read the settings of a run, as strictly as YAML.

    Args:
        said: `label`, `algorithm`, `model`, `inputs`, `classes`, `work`, `seed`, `cohort`, all plain JSON.

    Raises:
        Refused: `malformed_opening`.
    """
    try:
        own = hospital.settings
        algorithm = ALGORITHM.validate_json(json.dumps(said["algorithm"]), strict=True)
        work = overridden(Work(), _mapping(said["work"]))
        if own is not None:
            algorithm = overridden(algorithm, own.methods.get(str(said["label"]), {}))
            work = overridden(work, own.work)
        inputs = tuple(int(str(side)) for side in _list(said["inputs"]))
        task = Task(MODEL.validate_json(json.dumps(said["model"]), strict=True), inputs, int(str(said["classes"])))
        seed, cohort = int(str(said["seed"])), str(said["cohort"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("malformed_opening") from error
    return Opening(algorithm=algorithm, task=task, work=work, seed=seed, cohort=cohort)


def introduce(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Accept a run: remember its settings, say what the method must know first."""
    said = message.facts
    start = opening(hospital, said)
    site = _site(hospital, start, call)
    with seeded(derived(start.seed, hospital.name, call.round, call.request)):
        reply, kept = participate(start.algorithm, site, call, message, memory, hospital.models(call.run))
    said_something = bool(reply.tensors or reply.facts["algorithm"])
    event = describe(composed(site.access.events or ([NON_PRIVATE] if said_something else [])))
    return Done(reply, event, Message(kept.tensors, {**kept.facts, "opening": dict(said)}))


def train(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """One round of local work."""
    start = opened(hospital, call.run)
    site = _site(hospital, start, call)
    with seeded(derived(start.seed, hospital.name, call.round, call.request)):
        reply, kept = participate(start.algorithm, site, call, message, memory, hospital.models(call.run))
    # A reply is made from this request's patients and from memory that patients shaped in earlier rounds.
    return Done(reply, describe(composed([*site.access.events, NON_PRIVATE])), kept)


finish = train
"""The same door: the request's name decides what the participant does."""


def export(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Hand out this hospital's model of a checkpoint: facts `train_run`, `checkpoint`, `best`."""
    _, params = own_model(hospital, message.facts)
    return Done(Message(params), describe(NON_PRIVATE))


def pool(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Hand out training and validation images: for the central baseline of a simulation, where the policy says so."""
    rows = rows_of(read_cohort_file(hospital.cohort_folder(str(message.facts["cohort"])) / COHORT))
    tensors = {
        f"{split}/{part}": getattr(rows[split], part)
        for split in ("train", "validation")
        for part in Rows.__annotations__
    }
    return Done(Message(tensors), describe(NON_PRIVATE))


def opened(hospital: Hospital, run: str) -> Opening:
    """The settings of a run that this hospital accepted. Raises: Refused: `not_introduced`."""
    said = remembered(hospital.conversation(run), 0).facts.get("opening")
    if not isinstance(said, dict):
        raise Refused("not_introduced")
    return opening(hospital, said)


def own_model(hospital: Hospital, facts: Mapping[str, Json]) -> tuple[int, Params]:
    """Round and parameters of a checkpoint. Raises: Refused: `no_model`."""
    run, best = str(facts["train_run"]), facts.get("best")
    which: Checkpoint = TypeAdapter(Checkpoint).validate_python(facts["checkpoint"])
    memory = newest(hospital.conversation(run))
    try:
        return checkpoint(hospital.models(run), memory, which, best=best if isinstance(best, int) else None)
    except (KeyError, Malformed) as error:
        raise Refused("no_model") from error


def tidy(hospital: Hospital, call: Call, message: Message, memory: Message) -> None:
    """After the commit: drop models that no checkpoint can ask for."""
    best = message.facts.get("best")
    merged = remembered(hospital.conversation(call.run), call.merged.get(hospital.name, 0))
    best = best if isinstance(best, int) else None
    prune(hospital.models(call.run), (memory, merged), best=best, newest=call.round - 1)


def patients(hospital: Hospital, cohort: str, work: Work, seed: int) -> Access:
    """Open the door to this hospital's patients for one request."""
    return door(read_cohort_file(hospital.cohort_folder(cohort) / COHORT), work, seed, hospital.device)


def door(cohort: Cohort, work: Work, seed: int, device: str) -> Access:
    """The door to a cohort that has been read; its images lie on a device."""
    rows: dict[Split, Rows] = rows_of(cohort, device)
    augment = AUGMENTATIONS[work.augment]
    return open_access(rows, batch=work.batch, seed=seed, balance=work.balance, augment=augment)


def _site(hospital: Hospital, start: Opening, call: Call) -> Site:
    seed = derived(start.seed, hospital.name, call.round, call.request, "draws")
    return Site(hospital.name, start.task, start.work, patients(hospital, start.cohort, start.work, seed))


def _mapping(value: Json) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, found {type(value).__name__}")
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    return value
