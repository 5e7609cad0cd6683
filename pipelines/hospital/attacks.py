"""A hospital's attacks on its own models: membership inference, and reconstruction of training images."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import nn

from federation.parameters import loaded
from federation.task import Task, label_loss
from pipelines.data.stored import of_patients
from pipelines.hospital.hospital import Context, Done, Hospital, rows_of
from pipelines.hospital.inversion import invert_model
from pipelines.hospital.kept import cohort_of, scores_name, scores_name_of
from pipelines.hospital.opening import own_model, read_opening
from pipelines.requests.audit import Attacked, Audit
from pipelines.requests.methods import TableLine
from pipelines.runs.store import DiskFolder
from privacy.attacks.membership import Membership, model_membership
from privacy.dp.access import Rows
from privacy.dp.chunks import at_once
from privacy.dp.events import NON_PRIVATE, NOTHING, describe_event
from privacy.message import Json, as_mapping
from privacy.release.form import ABSENT, value_or_none

MEMBERSHIP: TypeAdapter[Membership] = TypeAdapter(Membership)


def attack_models(hospital: Hospital, context: Context[Audit]) -> Done[Attacked]:
    """Attack this hospital's model of a checkpoint: membership inference, and inversion of gradients and features.

    The results are computed from training patients
    without noise. So they leave only if the model has no guarantee either, and otherwise stay on the hospital's own
    page. Reconstructed images never leave.

    Raises:
        Refused: `malformed_inversion`.
    """
    question = context.question
    cohort, scores_file = question.cohort, scores_name(question.train_run, question.checkpoint, question.best)
    start = read_opening(hospital, question.train_run)
    _, params = own_model(hospital, question.train_run, question.checkpoint, question.best)
    module = loaded(start.algorithm.network(start.task), params).to(hospital.device)
    reply = Attacked(found=None)
    if question.membership is not False:
        membership = _infer_membership(hospital, start.task, module, cohort, scores_file)
        reply = replace(reply, found=as_mapping(membership))
    if (how := value_or_none(question.inversion)) is not None:
        reply = replace(reply, inversion=invert_model(hospital, start, module, how, cohort, scores_file))
    leaves = start.protection is None and not hospital.policy.promises
    if not leaves:
        reply = Attacked(found=None, inversion=ABSENT if reply.inversion is ABSENT else None)
    return Done(reply, describe_event(NON_PRIVATE if leaves else NOTHING))


def _infer_membership(hospital: Hospital, task: Task, module: nn.Module, cohort: str, scores_file: str) -> Json:
    """Membership inference by the losses of training and test patients; the result is also stored here."""
    rows = rows_of(of_patients(cohort_of(hospital, cohort)), hospital.device, scratch=hospital.scratch())
    members, non_members = rows["train"], rows["test"]
    result = model_membership(
        _compute_losses(task, module, members),
        members.patient.cpu().numpy(),
        _compute_losses(task, module, non_members),
        non_members.patient.cpu().numpy(),
        member_images=members.x.cpu().numpy(),
        other_images=non_members.x.cpu().numpy(),
        seed=hospital.bootstrap_seed(),
    )
    plain: Json = json.loads(MEMBERSHIP.dump_json(result))
    _attack_folder(hospital).write(_result_name(scores_file), json.dumps(plain).encode())
    return plain


def read_membership(hospital: Hospital, method: TableLine) -> Membership | None:
    """The stored result of a membership attack, for the hospital's own page; None if there was none."""
    folder, name = _attack_folder(hospital), _result_name(scores_name_of(method))
    if not folder.has(name):
        return None
    return parse_membership(json.loads(folder.read(name)))


def parse_membership(facts: Mapping[str, Json]) -> Membership:
    """The result from its JSON, where NaN is null."""
    numbers = {name: math.nan if value is None and name != "reason" else value for name, value in facts.items()}
    return MEMBERSHIP.validate_python(numbers)


def _compute_losses(task: Task, module: nn.Module, rows: Rows) -> NDArray[np.float64]:
    """Cross-entropy of each row, or what a number or findings have in its place, in evaluation mode."""
    module.eval()
    with torch.no_grad():
        size = at_once(rows.x)
        pairs = zip(torch.split(rows.x, size), torch.split(rows.y, size), strict=True)
        compute = task.comparable_loss if task.kind == "findings" else label_loss
        losses = torch.cat([compute(module(x), y).double().cpu() for x, y in pairs])
    return np.asarray(losses.nan_to_num().numpy(), dtype=np.float64)


def _attack_folder(hospital: Hospital) -> DiskFolder:
    """The folder with results of attacks."""
    return DiskFolder(hospital.root / "scores")


def _result_name(scores_file: str) -> str:
    """The file of a model's result."""
    return f"{scores_file.removesuffix('.safetensors')}.membership.json"
