"""Networks with which methods begin, trained on public pictures; those on drawn pictures alone are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch

from federation.models.features import Features
from federation.pretraining import Pretrained, Translate, pretrain_network
from federation.task import Task
from harmonize.prior import PRIORS
from pipelines.coordinator.public import PublicSet
from pipelines.coordinator.public_features import public_head
from pipelines.coordinator.public_kept import learn_or_load
from pipelines.coordinator.world import World
from pipelines.hospital.public_networks import PUBLIC, learn_translation
from pipelines.loader.validation import to_plain
from pipelines.settings.harmonization import default_scale
from pipelines.settings.image_spaces import NetworkStart
from privacy.message import Json, Message, Params, to_bytes


class _Way(NamedTuple):
    """Into the space of a method's images; about: all that decides it."""

    translate: Translate | None
    about: Json


def is_kept(begin: NetworkStart) -> bool:
    """Whether a start is kept: a network that learns on drawn pictures alone. A head on features takes seconds."""
    return isinstance(begin.how, Pretrained) and begin.how.on in PRIORS and not isinstance(begin.model, Features)


def start_on(
    world: World, begin: NetworkStart, how: Pretrained, public: PublicSet, waits: Callable[[], None]
) -> Params:
    """A network's parameters, trained on public pictures; those of a prior have two classes. waits: see `kept`.

    Raises:
        ValueError: the labels of declared pictures leave the task's classes.
    """
    config, model = world.config, begin.model
    classes = 2 if "prior" in public.told else len(config.task.names)
    if int(public.labels.max()) >= classes:
        raise ValueError(f"{how.on} has labels up to {int(public.labels.max())}, the task has {classes} classes")
    if isinstance(model, Features):
        return public_head(world, model, public, classes)
    scale, way = default_scale(config.images), _learn_way(world, begin, waits)
    task = Task(model, config.images.inputs, classes)

    def learn_parameters() -> Params:
        x = torch.cat(list(public.parts))
        return pretrain_network(task, how, x, public.labels, low=scale.low, high=scale.high, through=way.translate)

    if not is_kept(begin):
        return learn_parameters()
    about: dict[str, Json] = {"start": to_plain(how), "model": to_plain(model), "inputs": list(task.inputs)}
    return learn_or_load(world.root, {**about, "scale": to_plain(scale), "through": way.about}, learn_parameters, waits)


def _learn_way(world: World, begin: NetworkStart, waits: Callable[[], None]) -> _Way:
    """The way into the space of a method's images, learnt here as hospitals learn it; none without such a space."""
    if (translator := begin.through) is None:
        return _Way(None, None)
    plan, (channels, height, width) = world.config.harmonize_settings, world.config.images.inputs
    scale = plan.scale or default_scale(world.config.images)

    def report_progress(done: int, total: int, what: str) -> None:
        world.stop.check()

    folder = world.root.parent / PUBLIC
    params = learn_translation(
        folder, translator, (channels, height, width), progress=report_progress, device="cpu", waits=waits
    )
    by = [to_plain(translator), to_plain(scale), hashlib.sha256(to_bytes(Message(params))).hexdigest()]
    return _Way(lambda x: scale.back(translator.translate(params, scale.into(x), torch.arange(len(x)))), by)
