"""Train the networks with which methods begin on public pictures. No hospital is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from federation.models.features import Features
from federation.pretraining import Translate, pretrained
from federation.task import Task
from pipelines.coordinator.public import PublicSet, public_set, public_stamps
from pipelines.coordinator.public_features import public_head
from pipelines.coordinator.world import World
from pipelines.hospital.public_networks import PUBLIC, translation
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import default_scale
from pipelines.settings.image_spaces import Begin, starts_in
from privacy.message import Json, Message, Params, to_bytes

VERSION = 3  # 1 knew no heads on features; 2 no window among the disturbances


def settings(world: World) -> Json:
    """Which networks are trained on what."""
    starts = starts_in(world.config)
    said: dict[str, Json] = {name: [to_plain(part) for part in begin] for name, begin in starts.items()}
    return {"starts": said, "images": to_plain(world.config.images), "classes": len(world.config.task.names)}


def outside(world: World) -> Mapping[str, str]:
    """Names, sizes and times of the files of declared public pictures."""
    starts = starts_in(world.config).values()
    scales = (one.model.public for one in starts if isinstance(one.model, Features))
    return public_stamps(world.config, (*(one.how.on for one in starts), *scales))


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Train each different start once; write its parameters, and what it was trained on."""
    starts, told = starts_in(world.config), dict[str, Json]()
    with shown("pretrain") as step:
        for position, (name, begin) in enumerate(starts.items()):
            step(position, len(starts), f"{begin.model.name} on {begin.how.on}")
            public = public_set(world.config, begin.how.on, begin.how.pictures)
            data = to_bytes(Message(start_on(world, begin, public)))
            (out / f"{name}.safetensors").write_bytes(data)
            facts: dict[str, Json] = {"public": public.told, "sha256": hashlib.sha256(data).hexdigest()}
            (out / f"{name}.json").write_text(json.dumps(facts, indent=1))
            told[name] = {**facts, "refused": list(public.refused)}
            world.stop.check()
    return {"starts": told}


def start_on(world: World, begin: Begin, public: PublicSet) -> Params:
    """A network's parameters, trained on public pictures; those of a prior have two classes.

    Raises:
        ValueError: the labels of declared pictures leave the task's classes.
    """
    config, (how, model, _) = world.config, begin
    classes = 2 if "prior" in public.told else len(config.task.names)
    if int(public.labels.max()) >= classes:
        raise ValueError(f"{how.on} has labels up to {int(public.labels.max())}, the task has {classes} classes")
    if isinstance(model, Features):
        return public_head(config, model, public, classes)
    scale = default_scale(config.images)
    task = Task(model, config.images.inputs, classes)
    x, into = torch.cat(list(public.parts)), _translation(world, begin)
    return pretrained(task, how, x, public.labels, low=scale.low, high=scale.high, through=into)


def _translation(world: World, begin: Begin) -> Translate | None:
    """The way into the space of a method's images, learnt here as hospitals learn it; None: it has no such space."""
    if (translator := begin.through) is None:
        return None
    plan, (channels, height, width) = world.config.harmonized, world.config.images.inputs
    scale = plan.scale or default_scale(world.config.images)

    def told(done: int, total: int, what: str) -> None:
        world.stop.check()

    folder = world.root.parent / PUBLIC
    params = translation(folder, translator, (channels, height, width), progress=told, device="cpu")
    return lambda x: scale.back(translator.translate(params, scale.into(x), torch.arange(len(x))))


STAGE = Stage("pretrain", VERSION, (), settings, run, outside=outside)
