"""What a method learns from, images in a space or fixed features of them, and what it begins with."""

from __future__ import annotations

from dataclasses import replace

from federation.features.encoder import Encoder
from federation.models import AnyModel
from federation.models.features import Features
from federation.pretraining import Pretrained
from pipelines.data.encoder_file import portable as portable_encoder
from pipelines.loader.validation import to_plain
from pipelines.runs.store import digest, short
from pipelines.settings.harmonization import RAW
from pipelines.settings.run_settings import RunSettings


def space_of(config: RunSettings, label: str) -> str:
    """The space in which a method learns."""
    return config.train.method_images.get(label, RAW)


def portable(model: AnyModel) -> AnyModel:
    """A model as it is sent: of an encoder's file the name, the digest and the architecture, and no folder."""
    if not isinstance(model, Features) or not isinstance(model.of, Encoder):
        return model
    return replace(model, of=portable_encoder(model.of))


def features_in(config: RunSettings) -> list[tuple[str, Features]]:
    """The features that the methods' models are built on: a space, and a model for each different kind of them."""
    found = {}
    for label in config.train.methods:
        space, model = space_of(config, label), config.model_of(label)
        if isinstance(model, Features):
            found[features_name(space, model)] = (space, replace(model, hidden=()))
    return list(found.values())


def starts_in(config: RunSettings) -> dict[str, tuple[Pretrained, AnyModel]]:
    """The networks that are trained on public pictures, for all methods that begin with them: name -> how, and what."""
    found = {}
    for label in config.train.methods:
        if (name := start_name(config, label)) is not None and (how := config.train.start_of(label)) is not None:
            found[name] = (how, config.model_of(label))
    return found


def start_name(config: RunSettings, label: str) -> str | None:
    """The name of a method's start; methods with the same network and start share it. None: it begins at random."""
    how = config.train.start_of(label)
    return None if how is None else f"start-{short(digest([to_plain(how), to_plain(config.model_of(label))]))}"


def features_name(space: str, model: Features) -> str:
    """The name of a kind of features of the images of a space; networks on the same features share it."""
    return f"{space}-{model.of.name}-{short(digest(to_plain(portable(replace(model, hidden=())))))}"
