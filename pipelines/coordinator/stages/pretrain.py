"""Train the networks with which methods begin on public pictures. No hospital is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from federation.models import AnyModel
from federation.models.features import Features
from federation.pretraining import Pretrained, pretrained
from federation.task import Task
from pipelines.coordinator.public import PublicSet, public_set, public_stamps
from pipelines.coordinator.public_features import public_head
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.settings.config import Config
from pipelines.settings.harmonization import default_scale
from pipelines.settings.image_spaces import starts_in
from privacy.message import Json, Message, Params, to_bytes

VERSION = 2  # 1 knew no heads on features


def settings(world: World) -> Json:
    """Which networks are trained on what."""
    starts = starts_in(world.config)
    said: dict[str, Json] = {name: [to_plain(how), to_plain(model)] for name, (how, model) in starts.items()}
    return {"starts": said, "images": to_plain(world.config.images), "classes": len(world.config.task.names)}


def outside(world: World) -> Mapping[str, str]:
    """Names, sizes and times of the files of declared public pictures."""
    starts = starts_in(world.config).values()
    scales = (model.public for _, model in starts if isinstance(model, Features))
    return public_stamps(world.config, (*(how.on for how, _ in starts), *scales))


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Train each different start once; write its parameters, and what it was trained on."""
    starts, told = starts_in(world.config), dict[str, Json]()
    with shown("pretrain") as step:
        for position, (name, (how, model)) in enumerate(starts.items()):
            step(position, len(starts), f"{model.name} on {how.on}")
            public = public_set(world.config, how.on, how.pictures)
            data = to_bytes(Message(start_on(world.config, how, model, public)))
            (out / f"{name}.safetensors").write_bytes(data)
            facts: dict[str, Json] = {"public": public.told, "sha256": hashlib.sha256(data).hexdigest()}
            (out / f"{name}.json").write_text(json.dumps(facts, indent=1))
            told[name] = {**facts, "refused": list(public.refused)}
            world.stop.check()
    return {"starts": told}


def start_on(config: Config, how: Pretrained, model: AnyModel, public: PublicSet) -> Params:
    """A network's parameters, trained on public pictures; those of a prior have two classes.

    Raises:
        ValueError: the labels of declared pictures leave the task's classes.
    """
    classes = 2 if "prior" in public.told else len(config.task.names)
    if int(public.labels.max()) >= classes:
        raise ValueError(f"{how.on} has labels up to {int(public.labels.max())}, the task has {classes} classes")
    if isinstance(model, Features):
        return public_head(config, model, public, classes)
    scale = default_scale(config.images)
    task = Task(model, config.images.inputs, classes)
    return pretrained(task, how, torch.cat(list(public.parts)), public.labels, low=scale.low, high=scale.high)


STAGE = Stage("pretrain", VERSION, (), settings, run, outside=outside)
