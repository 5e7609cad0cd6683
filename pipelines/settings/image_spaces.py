"""The images or fixed features from which a method learns, and the start of its network."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from federation.models import AnyModel, OnFeatures
from federation.models.clip import Clip
from federation.models.features import Features
from federation.origins import code_identity
from federation.pretraining import Pretrained
from federation.task import Task
from federation.weights import Weights
from harmonize.translation import Randomized
from pipelines.data.clip_file import make_portable as make_portable_clip
from pipelines.data.extractor_file import make_portable as make_portable_extractor
from pipelines.loader.validation import to_plain
from pipelines.runs.store import digest_json, short_digest
from pipelines.settings.harmonization import RAW
from pipelines.settings.route import Line
from pipelines.settings.run_settings import RunSettings


def image_space(config: RunSettings, label: str) -> str:
    """The space in which a method learns."""
    return config.train.method_images.get(label, RAW)


def find_line_spaces(config: RunSettings, line: Line) -> dict[str, str]:
    """Label of each method that a line of `route` uses -> the space into which an external site brings its images for
    it: one of `harmonize.translate`, or raw. Synthetic images of `augment` are added to training alone.
    """
    if config.route is None:
        return {}
    translated = {} if config.harmonize is None else config.harmonize.translate
    spaces = {label: image_space(config, label) for label in config.route.methods(line).values()}
    return {label: space if space in translated else RAW for label, space in spaces.items()}


def list_routed_spaces(config: RunSettings) -> list[str]:
    """The spaces into which external sites translate their images, in the order of `harmonize.translate`."""
    if config.route is None or config.harmonize is None or not config.outside:
        return []
    needed = {space for line in config.route.lines.values() for space in find_line_spaces(config, line).values()}
    return [space for space in config.harmonize.translate if space in needed]


def make_portable_model(model: AnyModel) -> AnyModel:
    """A model as it is sent to hospitals: a file is given by name, digest and architecture, without its folder."""
    if isinstance(model, Clip):
        return make_portable_clip(model)
    return replace(model, of=make_portable_extractor(model.of)) if isinstance(model, Features) else model


def list_features(config: RunSettings) -> list[tuple[str, OnFeatures]]:
    """The features that the methods' models need: a space and a model for each different kind of features."""
    features: dict[str, tuple[str, OnFeatures]] = {}
    for label in config.train.methods:
        space, model = image_space(config, label), config.model_of(label)
        if isinstance(model, OnFeatures):
            features[features_name(space, model)] = (space, drop_head(model))
    return list(features.values())


class NetworkStart(NamedTuple):
    """The start of a network: training on public pictures, or the weights of a file.

    how: its settings. model, task: of the network. through: the translator of the public pictures; None = as they are.
    """

    how: Pretrained | Weights
    model: AnyModel
    task: Task
    through: Randomized | None


def find_starts(config: RunSettings) -> dict[str, NetworkStart]:
    """The starts of the methods' networks, by name."""
    starts = {}
    for label in config.train.methods:
        if (name := start_name(config, label)) is not None and (how := config.train.start_of(label)) is not None:
            starts[name] = NetworkStart(
                how, config.model_of(label), config.task_of(label), _start_translator(config, label, how)
            )
    return starts


def find_translator(config: RunSettings, label: str) -> Randomized | None:
    """The translator of a method's images, if no patient influences it; public pictures of its start are translated
    too.
    """
    plan = config.harmonize
    translator = None if plan is None else plan.translate.get(image_space(config, label))
    learns_from_images = not isinstance(config.model_of(label), OnFeatures)
    return translator if learns_from_images and isinstance(translator, Randomized) else None


def _start_translator(config: RunSettings, label: str, how: Pretrained | Weights) -> Randomized | None:
    """The translator of the pictures of a method's start; None for weights of a file."""
    return find_translator(config, label) if isinstance(how, Pretrained) else None


def start_name(config: RunSettings, label: str) -> str | None:
    """The name of a method's start; methods with the same network and start share it. None: the network begins with
    random numbers.
    """
    how = config.train.start_of(label)
    if how is None:
        return None
    translator = _start_translator(config, label, how)
    identity = [
        to_plain(how),
        to_plain(config.model_of(label)),
        *([] if translator is None else [to_plain(translator)]),
    ]
    identity += [packages] if (packages := code_identity(config.model_of(label), translator)) else []
    return f"start-{short_digest(digest_json(identity))}"


def drop_head(model: OnFeatures) -> OnFeatures:
    """The model without the hidden layers that its network has on the features."""
    return replace(model, hidden=()) if isinstance(model, Features) else model


def extractor_name(model: OnFeatures) -> str:
    """The name of what computes a model's features."""
    return model.name if isinstance(model, Clip) else model.of.name


def features_name(space: str, model: OnFeatures) -> str:
    """The name of a kind of features of the images of a space; networks on the same features share it."""
    settings, packages = to_plain(make_portable_model(drop_head(model))), code_identity(model)
    digest = digest_json([settings, packages] if packages else settings)
    return f"{space}-{extractor_name(model)}-{short_digest(digest)}"
