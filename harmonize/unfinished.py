"""State of an interrupted training on the site's own disk, from which it resumes with the same result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from privacy.folder import Folder
from privacy.message import Json, Malformed, Message, Params, from_bytes, seal_parts, to_bytes, unseal_parts


class Training(NamedTuple):
    """nets: all networks. mean: running mean of the transformers' weights. pool: earlier translations, by
    discriminator.
    """

    nets: nn.ModuleDict
    mean: AveragedModel
    rule: torch.optim.Adam
    pool: dict[str, Tensor]


def _training_tensors(training: Training) -> Params:
    """All tensors of the state, by part and name."""
    named = dict(training.nets.named_parameters())
    slots = {f"{n}/{slot}": v for n, p in named.items() for slot, v in training.rule.state[p].items()}
    parts = {
        "nets": training.nets.state_dict(),
        "mean": training.mean.state_dict(),
        "rule": slots,
        "pool": training.pool,
    }
    return {f"{part}/{name}": value for part, tensors in parts.items() for name, value in tensors.items()}


def write_state(training: Training, folder: Folder, step: int, training_id: str) -> None:
    """Write the state after `step` steps; `training_id` is the fingerprint of the training."""
    folder.write(
        _state_name(training_id),
        seal_parts(to_bytes(Message(_training_tensors(training), {"step": step, "of": training_id}))),
    )


def _state_name(training_id: str) -> str:
    """The name of the state's file."""
    return f"cyclegan-{training_id[:16]}"


def restore_state(training: Training, folder: Folder | None, training_id: str) -> int:
    """Load the folder's state into `training` and return its number of steps; 0: no state, or of another training."""
    if folder is None or not folder.has(_state_name(training_id)):
        return 0
    try:
        message = from_bytes(unseal_parts(folder.read(_state_name(training_id))))
    except Malformed:
        return 0
    if message.facts.get("of") != training_id:
        return 0
    parts: dict[str, dict[str, Tensor]] = {"nets": {}, "mean": {}, "rule": {}, "pool": {}}
    for key, value in message.tensors.items():
        part, name = key.split("/", 1)
        parts[part][name] = value
    training.nets.load_state_dict(parts["nets"])
    training.mean.load_state_dict(parts["mean"])
    named = dict(training.nets.named_parameters())
    for key, value in parts["rule"].items():
        name, slot = key.rsplit("/", 1)
        # Same memory layout as the parameter's, which the file does not hold.
        like = torch.empty_like(named[name]) if value.dim() else torch.empty((), device=named[name].device)
        training.rule.state[named[name]][slot] = like.detach().copy_(value)
    training.pool.update({name: value.to(next(iter(named.values())).device) for name, value in parts["pool"].items()})
    return int(str(message.facts["step"]))


def compute_fingerprint(facts: Json, tensors: Sequence[Tensor]) -> str:
    """sha256 of everything a training depends on: only a state with the same fingerprint is resumed."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for tensor in tensors:
        digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
