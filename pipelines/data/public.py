"""Read pictures that the user declares public, in the form of the run's images. The coordinator does, once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipelines.data.folder import resolved, walk
from pipelines.data.images import AnyImages, Pictures
from pipelines.data.intake import Intake, WaitingStudy, read_study
from pipelines.data.sources import Files, GlandMask, Labels
from pipelines.data.study import Rejected
from pipelines.data.survey import survey
from pipelines.data.taking import natural

MOST_REFUSED = 0.2  # share of studies; more, and the folder is not what the user thinks
SHOWN = 10


class Public(NamedTuple):
    """images (n, *inputs), in the run's unit; labels (n,). sha256: of both, as they were prepared. refused: what could
    not be read, and why.
    """

    images: Tensor
    labels: Tensor
    sha256: str
    refused: tuple[Rejected, ...]


def public_stamp(folder: str | None, source: Files | None, labels: Labels | None, gland: GlandMask | None) -> str:
    """A digest of names, sizes and times of the files; no picture is read."""
    if source is not None:
        return str(survey(source, labels, gland)["digest"])
    root = resolved(Path(folder or ""))
    found = sorted((path.relative_to(root).as_posix(), path.stat()) for path in walk(root))
    return hashlib.sha256(repr([(n, s.st_size, s.st_mtime_ns) for n, s in found]).encode()).hexdigest()


def read_public(
    images: AnyImages,
    most: int,
    *,
    folder: str | None = None,
    source: Files | None = None,
    labels: Labels | None = None,
    gland: GlandMask | None = None,
) -> Public:
    """Read about `most` examples, of studies in an order that depends on their number only.

    Raises:
        ValueError: a folder is missing or wrong, or more than a fifth of the studies that were tried cannot be read:
            all that was found.
    """
    opened = _opened(images, folder, source, labels, gland)
    refused = list(opened.rejected)
    found, classes, count = list[Tensor](), list[int](), 0
    for waiting in _shuffled(opened):
        read = read_study(waiting)
        if isinstance(read, Rejected):
            refused.append(read)
            continue
        found.append(torch.from_numpy(read.examples.images))
        classes += list(read.labels)
        count += len(read.labels)
        if count >= most:
            break
    if not found or len(refused) > MOST_REFUSED * (len(refused) + len(found)):
        said = "; ".join(f"{one.study}: {one.reason}" for one in refused[:SHOWN])
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        tried = len(refused) + len(found)
        raise ValueError(f"{len(refused)} of {tried} public pictures or studies cannot be read: {said}{more}")
    x, y = torch.cat(found)[:most].float(), torch.tensor(classes[:most])
    code = hashlib.sha256(x.contiguous().numpy().tobytes() + y.numpy().tobytes()).hexdigest()
    return Public(x, y, code, tuple(refused))


def _opened(
    images: AnyImages, folder: str | None, source: Files | None, labels: Labels | None, gland: GlandMask | None
) -> Intake:
    if source is not None:
        from pipelines.data.examples import open_source  # readers are slow to import

        return open_source(source, labels, images, gland)
    if isinstance(images, Pictures) and folder is not None:
        from pipelines.data.pictures.reader import loose_pictures

        return loose_pictures(folder, images)
    raise ValueError(f"a folder of pictures is no source of {images.kind}; give a source of dicom or nifti")


def _shuffled(opened: Intake) -> Iterator[WaitingStudy]:
    ordered = sorted(opened.waiting, key=lambda one: natural(one.study))
    yield from (ordered[place] for place in np.random.default_rng(0).permutation(len(ordered)))
