"""Public pictures at the coordinator, in the form and the unit of the run's images: drawn by a prior, or declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from harmonize.prior import PRIORS
from harmonize.stacks import draw_in_form
from pipelines.data.public import public_stamp, read_public
from pipelines.settings.config import Config
from pipelines.settings.harmonization import default_scale
from privacy.message import Json

SEED = 0  # of priors: the same in all runs, so that a digest of the settings says everything
PARTS = 64  # examples at a time


class PublicSet(NamedTuple):
    """parts: images (n, *inputs), one after the other; labels (n,) of all. told: `prior`, or `folder` (the name in the
    settings) and `sha256`; and `pictures`, their number. refused: files of a folder that could not be read, and why.
    """

    parts: Iterable[Tensor]
    labels: Tensor
    told: dict[str, Json]
    refused: tuple[str, ...] = ()


def read_public_set(config: Config, name: str, most: int) -> PublicSet:
    """Public pictures by the name of a prior, both classes equally often, or of `public_pictures`; at most so many.

    Raises:
        ValueError: a folder cannot be read; all problems at once.
    """
    images = config.images
    if name in PRIORS:
        y = torch.arange(most) % 2
        return PublicSet(_draw_pictures(config, name, y), y, {"prior": name, "pictures": most})
    source = config.public_pictures[name]
    read = read_public(
        images, most, folder=source.folder, source=source.source, labels=source.labels, gland=source.gland
    )
    facts: dict[str, Json] = {"folder": name, "sha256": read.sha256, "pictures": len(read.images)}
    refused = tuple(f"{study.study}: {study.reason}: {study.detail}" for study in read.refused)
    return PublicSet(torch.split(read.images, PARTS), read.labels, facts, refused)


def public_stamps(config: Config, names: Iterable[str]) -> dict[str, str]:
    """Digests of names, sizes and times of the files of declared pictures; none for priors."""
    stamps = {}
    for name in names:
        if (source := config.public_pictures.get(name)) is not None:
            stamps[f"public_pictures.{name}"] = public_stamp(source.folder, source.source, source.labels, source.gland)
    return stamps


def _draw_pictures(config: Config, name: str, y: Tensor) -> Iterator[Tensor]:
    """Pictures of a prior in the form of the run's images, part by part."""
    scale = default_scale(config.images)
    return (scale.back(part) for part in draw_in_form(PRIORS[name], y, config.images.inputs, SEED))
