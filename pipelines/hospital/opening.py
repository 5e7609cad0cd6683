"""A run's settings as the coordinator sent them to a hospital, and the run's models that the hospital holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from federation.algorithm import (
    Recipient,
    allows_own_networks,
    find_work_problems,
    recipient_of,
    sends_gradient_sums,
)
from federation.conversation import load_memory, load_newest_intact_memory
from federation.descent import Rate, Work
from federation.models.clip import Clip
from federation.participant import Checkpoint, load_checkpoint
from federation.task import Kind, Task
from federation.upload import SUM_NEEDS, Int8
from personalize import AnyAlgorithm
from personalize.at_home import list_policy_names
from pipelines.data.cohort import Cohort
from pipelines.data.images import Target
from pipelines.data.stored import count_outputs, finding_names
from pipelines.hospital.frozen import held_here
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.private_limits import check_paid
from pipelines.loader.overrides import override_settings
from pipelines.models.file import ALGORITHM, MODEL
from pipelines.models.size_limits import find_size_problems
from pipelines.requests.check import read_question
from pipelines.requests.train import FileStart, Introduce, PublicStart
from pipelines.settings.task import MOST_LABELS, MOST_MASK_CLASSES
from privacy.dp.protection import Protection
from privacy.message import Json, Malformed, Message, Params
from privacy.release.form import Absent, value_or_none
from privacy.release.gate import Refused
from privacy.release.policy import SITES

PROTECTION: TypeAdapter[Protection] = TypeAdapter(Protection)
UPLOAD: TypeAdapter[Int8 | None] = TypeAdapter(Int8 | None)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A run's settings from the introduction, with this hospital's overrides applied.

    target: the masks that are learnt; None = labels. protection: None without differential privacy. evaluation_noise:
    of test histograms, in patients. recipient: who gets the replies of introduction and training; `sites` if the
    method, in the coordinator's or this hospital's form, forwards them. begun: what the coordinator says of weights
    with which networks begin; None = random numbers. secure_sum: whether parameters leave only as words that their sum
    over hospitals reveals. bound: of an update's norm in such a sum, where nobody else could shorten it. upload: how
    tensors of replies are packed; None = not. rounds: of the method, over which the learning rate changes. averaged:
    whether the average of the models over rounds is kept.
    figures: whether scores, confusion and seconds of each round are written down here (`pipelines.hospital.figures`).
    """

    algorithm: AnyAlgorithm
    task: Task
    work: Work
    seed: int
    cohort: str
    protection: Protection | None = None
    evaluation_noise: float = 0.0
    target: Target | None = None
    recipient: Recipient = "coordinator"
    begun: FileStart | PublicStart | None = None
    secure_sum: bool = False
    upload: Int8 | None = None
    bound: float = math.inf
    rounds: int = 1
    averaged: bool = False
    figures: bool = False


def parse_opening(hospital: Hospital, facts: Mapping[str, Json]) -> Opening:
    """Parse a run's settings, as strictly as YAML. facts: those of `Introduce`.

    Raises:
        Refused: `unknown_setting`; `malformed_opening`; `policy_algorithm`: this hospital does not train by this
            method.
    """
    question = read_question(Introduce, Message({}, facts))
    try:
        site_settings = hospital.settings
        common = algorithm = ALGORITHM.validate_json(json.dumps(question.algorithm), strict=True)
        work = override_settings(Work(), question.work)
        if site_settings is not None:
            algorithm = override_settings(algorithm, site_settings.methods.get(question.label, {}))
            work = override_settings(work, site_settings.work)
        target: Target | None = value_or_none(question.target)
        classes = question.classes
        model = MODEL.validate_json(json.dumps(question.model), strict=True)
        frozen = held_here(hospital, question.cohort, model) if isinstance(model, Clip) else None
        kind = _find_kind(target, classes, are_findings=question.findings is True)
        shared = None if isinstance(question.shared, Absent) else tuple(question.shared)
        is_ordered = question.ordered is True
        task = Task(model, tuple(question.inputs), classes, kind, frozen=frozen, ordered=is_ordered, shared=shared)
        how = value_or_none(question.privacy)
        protection = None if how is None else PROTECTION.validate_json(json.dumps(how), strict=True)
        evaluation_noise = value_or_none(question.evaluation_noise) or 0.0
        if not (bound := math.inf if (limit := value_or_none(question.bound)) is None else limit) > 0:
            raise ValueError(f"bound must be > 0, found {bound}")
        least, most = (1, MOST_LABELS) if target is None else (2, MOST_MASK_CLASSES + 1)
        if not 0 <= evaluation_noise <= 1e6 or not least <= classes <= most:
            text = (
                f"evaluation_noise must be in [0, 1e6], classes in [{least}, {most}], found {evaluation_noise}, {task}"
            )
            raise ValueError(text)
        upload, rounds = UPLOAD.validate_python(value_or_none(question.upload)), value_or_none(question.rounds) or 0
        is_hidden = question.secure_sum is True
        problems = [*find_size_problems(algorithm, task, work), *map(str, find_work_problems(algorithm, task, work))]
        if shared is not None and not allows_own_networks(algorithm):
            problems.append(f"hospitals have networks of their own, and {algorithm.name} needs the same everywhere")
        if upload is not None and is_hidden:
            problems.append(f"replies would be rounded and hidden in sums, and {SUM_NEEDS}")
        if kind == "findings" and work.balance:
            problems.append("it balances classes, and findings have none")
        problems += _find_privacy_problems(protection, algorithm, work, is_hidden=is_hidden)
        if rounds < 1 and work.rate != Rate():
            problems.append("the learning rate changes over rounds, and the coordinator does not say over how many")
        problems += [work.transform.missing] if work.transform is not None and work.transform.missing else []
        if problems:
            raise ValueError("; ".join(problems))
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("malformed_opening") from error
    if hospital.policy.promises:  # an error while reading patients would count as if it depended on them
        _check_cohort(cohort_of(hospital, question.cohort), task, target)
    known = hospital.policy.algorithms
    if known is not None and not {*list_policy_names(algorithm)} <= {*known}:
        raise Refused("policy_algorithm") from ValueError(f"this hospital's policy trains by {', '.join(known)} only")
    return Opening(
        algorithm=algorithm,
        task=task,
        work=work,
        seed=question.seed,
        cohort=question.cohort,
        protection=protection,
        evaluation_noise=evaluation_noise,
        target=target,
        recipient="sites" if SITES in (recipient_of(common), recipient_of(algorithm)) else "coordinator",
        begun=None if isinstance(question.start, Absent) else question.start,
        secure_sum=is_hidden,
        upload=upload,
        bound=bound,
        rounds=max(1, rounds),
        averaged=question.averaged is True,
        figures=question.figures is True,
    )


def _check_cohort(read_as: Cohort, task: Task, target: Target | None) -> None:
    """Raises: Refused: `malformed_opening`: the cohort was read as something else."""
    if (
        tuple(read_as.images.shape[1:]) != task.inputs
        or target not in (None, read_as.recipe.get("target"))
        or (target is None and task.classes != count_outputs(read_as))
        or (target is None and bool(finding_names(read_as)) != (task.kind == "findings"))
    ):
        raise Refused("malformed_opening") from ValueError("the cohort was read with other inputs, masks or classes")


def _find_kind(target: Target | None, classes: int, *, are_findings: bool) -> Kind:
    """What is learnt: masks of a target, several findings, one number, or classes."""
    if are_findings and target is None:
        return "findings"
    return "segmentation" if target is not None else "regression" if classes == 1 else "classification"


def _find_privacy_problems(
    protection: Protection | None, algorithm: AnyAlgorithm, work: Work, *, is_hidden: bool
) -> list[str]:
    """Why a run cannot keep what it promises to patients. is_hidden: whether replies are hidden in sums."""
    problems = [] if protection is None else work.private_problems
    if protection is None or protection.hospitals == 1:
        return problems
    if not is_hidden:
        problems.append(f"noise would be a part of what {protection.hospitals} hospitals add, and no sum is secure")
    if not sends_gradient_sums(algorithm):
        problems.append(f"noise would be shared, and {algorithm.name} sends more than sums of gradients")
    return problems


def read_opening(hospital: Hospital, run: str) -> Opening:
    """The settings of a run that this hospital accepted. Raises: Refused: `not_introduced`."""
    try:
        facts = load_memory(hospital.conversation(run), 0).facts.get("opening")
    except Malformed as error:
        raise Refused("not_introduced") from error
    if not isinstance(facts, dict):
        raise Refused("not_introduced")
    return parse_opening(hospital, facts)


def own_model(hospital: Hospital, run: str, which: Checkpoint, best: int | None) -> tuple[int, Params]:
    """Round and parameters of a checkpoint. best: the globally best round. Raises: Refused: `no_model`."""
    memory = load_newest_intact_memory(hospital.conversation(run))
    check_paid(hospital, memory)
    try:
        return load_checkpoint(hospital.models(run), memory, which, best=best)
    except (KeyError, Malformed) as error:
        raise Refused("no_model") from error
