"""Train the networks with which methods begin on public pictures, or take weights of a file. No hospital is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from federation.models.features import Features
from federation.pretraining import Pretrained
from federation.weights import Weights
from pipelines.coordinator.public import public_stamps, read_public_set
from pipelines.coordinator.public_kept import make_waiter
from pipelines.coordinator.public_starts import start_on
from pipelines.coordinator.world import World
from pipelines.data.weights_file import load_start_weights, weights_digest
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.image_spaces import NetworkStart, find_starts
from privacy.message import Json, Message, to_bytes

VERSION = 4  # 1 knew no heads on features; 2 no window among the disturbances; 3 no weights of a file


def settings(world: World) -> Json:
    """Which networks are trained on what."""
    starts = find_starts(world.config)
    facts: dict[str, Json] = {
        name: [to_plain(part) for part in (begin.how, begin.model, begin.through)] for name, begin in starts.items()
    }
    return {"starts": facts, "images": to_plain(world.config.images), "classes": len(world.config.task.names)}


def outside(world: World) -> Mapping[str, str]:
    """Names, sizes and times of the files of declared public pictures; digests of files of weights."""
    starts = [start for start in find_starts(world.config).values() if isinstance(start.how, Pretrained)]
    files = {
        start.how.file: weights_digest(start.how)
        for start in find_starts(world.config).values()
        if isinstance(start.how, Weights)
    }
    scales = (start.model.public for start in starts if isinstance(start.model, Features))
    pictures = (start.how.on for start in starts if isinstance(start.how, Pretrained))
    return public_stamps(world.config, (*pictures, *scales)) | files


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Train each different start once; write its parameters, and what it was trained on."""
    starts, summary = find_starts(world.config), dict[str, Json]()
    with show_progress("pretrain") as step:
        for position, (name, begin) in enumerate(starts.items()):
            how = begin.how
            where = f"on {how.on}" if isinstance(how, Pretrained) else f"from {Path(how.file).name}"
            step(position, len(starts), f"{begin.model.name} {where}")
            waits = make_waiter(world.stop, step, position, len(starts))
            made = _read_start(begin, how) if isinstance(how, Weights) else learn_start(world, begin, how, waits)
            (out / f"{name}.safetensors").write_bytes(made.data)
            (out / f"{name}.json").write_text(json.dumps(made.facts, indent=1))
            summary[name] = {**made.facts, "refused": list(made.refused)}
            world.stop.check()
    return {"starts": summary}


class Made(NamedTuple):
    """The parameters of a start as bytes, what hospitals are told of it, and files of pictures that were refused."""

    data: bytes
    facts: dict[str, Json]
    refused: tuple[str, ...] = ()


def _read_start(begin: NetworkStart, how: Weights) -> Made:
    """Weights of a file; the digest is of the file itself. Raises: ValueError: it changed since it was checked."""
    weights = load_start_weights(how, begin.task)
    facts: dict[str, Json] = {"weights": {"public": how.public, "head": how.head}, "sha256": weights.sha256}
    return Made(to_bytes(Message(weights.tensors)), facts)


def learn_start(world: World, begin: NetworkStart, how: Pretrained, waits: Callable[[], None]) -> Made:
    """Weights that are trained here, or were."""
    public = read_public_set(world.config, how.on, how.pictures)
    data = to_bytes(Message(start_on(world, begin, how, public, waits)))
    return Made(data, {"public": public.told, "sha256": hashlib.sha256(data).hexdigest()}, public.refused)


STAGE = Stage("pretrain", VERSION, (), settings, run, outside=outside)
