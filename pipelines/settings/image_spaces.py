"""What a method learns from, images in a space or fixed features of them, and what it begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from federation.features.encoder import Encoder
from federation.models import AnyModel
from federation.models.features import Features
from federation.pretraining import Pretrained
from harmonize.translation import Randomized
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


class Begin(NamedTuple):
    """A network that is trained on public pictures: how, which, and the translator that the pictures go through."""

    how: Pretrained
    model: AnyModel
    through: Randomized | None


def starts_in(config: RunSettings) -> dict[str, Begin]:
    """The networks that are trained on public pictures, for all methods that begin with them, by name."""
    found = {}
    for label in config.train.methods:
        if (name := start_name(config, label)) is not None and (how := config.train.start_of(label)) is not None:
            found[name] = Begin(how, config.model_of(label), through(config, label))
    return found


def through(config: RunSettings, label: str) -> Randomized | None:
    """The translator of a method's images, if no patient shapes it: pictures of its start are translated too."""
    plan = config.harmonize
    found = None if plan is None else plan.translate.get(space_of(config, label))
    images = not isinstance(config.model_of(label), Features)
    return found if images and isinstance(found, Randomized) else None


def start_name(config: RunSettings, label: str) -> str | None:
    """The name of a method's start; methods with the same network and start share it. None: it begins at random."""
    how = config.train.start_of(label)
    if how is None:
        return None
    translator = through(config, label)
    shaped = [to_plain(how), to_plain(config.model_of(label)), *([] if translator is None else [to_plain(translator)])]
    return f"start-{short(digest(shaped))}"


def features_name(space: str, model: Features) -> str:
    """The name of a kind of features of the images of a space; networks on the same features share it."""
    return f"{space}-{model.of.name}-{short(digest(to_plain(portable(replace(model, hidden=())))))}"
