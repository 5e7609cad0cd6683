"""Files of models for external sites: one for each pair of methods that a line of `route` uses, made from the models
that sites released.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from federation.models import OnFeatures
from pipelines.data.images import Slices, Volumes
from pipelines.external.models_file import GLOBAL, LONGEST_TEXT, ModelsDescription, Part, image_problems, models_bytes
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW
from pipelines.settings.route import PERSONAL, SHARED, Route
from pipelines.settings.run_settings import select_model
from privacy.message import Json, Params
from privacy.settings_error import Problem

EXPORTED = ("routing", "ensemble", "tent")
"""Values of `how` for which an external site needs only the file."""
DEFAULT = "models.safetensors"


class Offer(NamedTuple):
    """A file of models. methods: part -> label of the method whose models it contains."""

    name: str
    methods: Mapping[str, str]


def write_offers(config: Config, plan: Route, handed: Mapping[str, Mapping[str, Params]], out: Path) -> dict[str, Json]:
    """Write the files of a run into a folder. handed: method -> site -> its released model.

    Returns:
        Name of each file -> why it was not written, because no external site could use it; empty = it was written.
    """
    missing: dict[str, Json] = {}
    for offer in list_offers(plan):
        offer_problems = problems(config, offer)
        missing[offer.name] = "; ".join(map(str, offer_problems))
        if not offer_problems:
            (out / offer.name).write_bytes(offer_bytes(config, offer, handed))
    return missing


def list_offers(plan: Route) -> list[Offer]:
    """The files of a run: models.safetensors for the methods of `route`, and one for each other pair of lines."""
    pairs: dict[tuple[str, str], dict[str, str]] = {}
    for line in plan.lines.values():
        if line.how.name in EXPORTED:
            pair = (line.shared or plan.shared, line.personal or plan.personal)
            pairs.setdefault(pair, {}).update(plan.methods(line))
    first_pair = (plan.shared, plan.personal)
    return [
        Offer(DEFAULT if pair == first_pair else f"models.{pair[0]}+{pair[1]}.safetensors", methods)
        for pair, methods in pairs.items()
    ]


def problems(config: Config, offer: Offer) -> list[Problem]:
    """Why no external site could use these models; empty = they can."""
    spaces = {label: config.train.method_images.get(label, RAW) for label in dict.fromkeys(offer.methods.values())}
    return [
        *image_problems(config.images),
        *(
            Problem(
                ("train", "method_images", label),
                f"it learnt in the space {space}, and who has this file alone has no translator into it; name the "
                "hospital in outside, or leave the method on raw images",
            )
            for label, space in spaces.items()
            if space != RAW
        ),
        *(
            Problem(("train", "methods", label), "it is on fixed features, which such a file does not hold")
            for label in spaces
            if isinstance(config.model_of(label), OnFeatures)
        ),
    ]


def offer_bytes(config: Config, offer: Offer, handed: Mapping[str, Mapping[str, Params]]) -> bytes:
    """The bytes of the file. handed: method -> site -> its model, released to recipients `outside`."""
    personal, shared = offer.methods.get(PERSONAL), offer.methods.get(SHARED)
    experts = dict(handed[personal]) if personal else {}
    if shared:  # one model for all: any site's
        experts[GLOBAL] = next(iter(handed[shared].values()))
    described = ModelsDescription(
        run=config.name,
        title="".join(filter(str.isprintable, config.title))[:LONGEST_TEXT],
        kind=config.task.kind,
        names=config.task.names,
        ordered=config.task.ordered,
        inputs=config.images.inputs,
        images=config.images,
        gland=_is_centred(config),
        experts=tuple(experts),
        personal=_build_part(config, personal),
        shared=_build_part(config, shared),
    )
    return models_bytes(described, experts)


def _build_part(config: Config, label: str | None) -> Part | None:
    if label is None:
        return None
    return Part(algorithm=config.train.methods[label], model=select_model(config, label))


def _is_centred(config: Config) -> bool:
    """Whether any site of the federation crops studies about a gland mask."""
    images = config.images
    if not isinstance(images, Slices | Volumes):
        return False
    is_asked = images.centre == "gland" or (isinstance(images, Slices) and images.slices == "gland")
    inside = [site for name, site in config.sites.items() if name not in config.outside]
    return is_asked and any(site.gland is not None or isinstance(site.source, PhantomSource) for site in inside)
