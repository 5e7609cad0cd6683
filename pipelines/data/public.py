"""Read pictures that the user declares public, in the form of the run's images; the coordinator does this once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipelines.data.folder import list_files, resolve_path
from pipelines.data.images import AnyImages, Pictures
from pipelines.data.intake import Intake, WaitingStudy, read_study
from pipelines.data.sources import Files, GlandMask, Labels
from pipelines.data.study import Rejected
from pipelines.data.survey import survey
from pipelines.data.taking import natural_key

MOST_REFUSED = 0.2  # share of studies; with more, it is probably the wrong folder
SHOWN = 10


class Public(NamedTuple):
    """images (n, *inputs), in the run's unit; labels (n,). sha256: of both, as they were prepared. refused: the studies
    that could not be read, with reasons.
    """

    images: Tensor
    labels: Tensor
    sha256: str
    refused: tuple[Rejected, ...]


def public_stamp(folder: str | None, source: Files | None, labels: Labels | None, gland: GlandMask | None) -> str:
    """A digest of names, sizes and times of the files; no picture is read."""
    if source is not None:
        return str(survey(source, labels, gland)["digest"])
    root = resolve_path(Path(folder or ""))
    entries = sorted((path.relative_to(root).as_posix(), path.stat()) for path in list_files(root))
    return hashlib.sha256(repr([(n, s.st_size, s.st_mtime_ns) for n, s in entries]).encode()).hexdigest()


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
        ValueError: a folder is missing or wrong, or more than a fifth of the studies that were tried cannot be read.
    """
    opened = _open_intake(images, folder, source, labels, gland)
    refused = list(opened.rejected)
    tensors, classes, count = list[Tensor](), list[int](), 0
    for waiting in _shuffle_waiting(opened):
        read = read_study(waiting)
        if isinstance(read, Rejected):
            refused.append(read)
            continue
        tensors.append(torch.from_numpy(read.examples.images))
        classes += list(read.labels)
        count += len(read.labels)
        if count >= most:
            break
    if not tensors or len(refused) > MOST_REFUSED * (len(refused) + len(tensors)):
        reasons = "; ".join(f"{rejection.study}: {rejection.reason}" for rejection in refused[:SHOWN])
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        tried = len(refused) + len(tensors)
        raise ValueError(f"{len(refused)} of {tried} public pictures or studies cannot be read: {reasons}{more}")
    x, y = torch.cat(tensors)[:most].float(), torch.tensor(classes[:most])
    code = hashlib.sha256(x.contiguous().numpy().tobytes() + y.numpy().tobytes()).hexdigest()
    return Public(x, y, code, tuple(refused))


def _open_intake(
    images: AnyImages, folder: str | None, source: Files | None, labels: Labels | None, gland: GlandMask | None
) -> Intake:
    """The studies of the source, or of the folder of pictures. Raises: ValueError."""
    if source is not None:
        from pipelines.data.examples import open_source  # readers are slow to import

        return open_source(source, labels, images, gland)
    if isinstance(images, Pictures) and folder is not None:
        from pipelines.data.pictures.reader import open_loose_pictures

        return open_loose_pictures(folder, images)
    raise ValueError(f"a folder of pictures is no source of {images.kind}; give a source of dicom or nifti")


def _shuffle_waiting(opened: Intake) -> Iterator[WaitingStudy]:
    """The waiting studies in a fixed pseudo-random order of their sorted names."""
    ordered = sorted(opened.waiting, key=lambda study: natural_key(study.study))
    yield from (ordered[place] for place in np.random.default_rng(0).permutation(len(ordered)))
