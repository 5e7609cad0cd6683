"""Slices of phantom hospitals, as runs would read them, without files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipelines.data.images import Slices
from pipelines.data.prepare import prepare_slices
from pipelines.phantom.files import render
from pipelines.phantom.patients import PhantomSource
from pipelines.phantom.scanner import SCANNERS

LEAST = 3
"""Pixels of a slice's lesion, as the shipped configurations have it."""


class PhantomSlices(NamedTuple):
    """x: (n, 1, h, w). y: whether a slice shows a lesion. patient: their numbers. lesion, gland: (n, h, w)."""

    x: Tensor
    y: Tensor
    patient: Tensor
    lesion: Tensor
    gland: Tensor


def exported_adc(source: PhantomSource) -> Callable[[Any], np.ndarray]:
    """From a scanner's values to 1e-3 mm²/s after its export's window."""
    return lambda values: (np.minimum(values, SCANNERS[source.scanner].window) / 1000).astype(np.float32)


def read_slices(
    source: PhantomSource,
    *,
    first: int | None = None,
    images: Slices | None = None,
    values: Callable[[Any], np.ndarray] | None = None,
) -> PhantomSlices:
    """Slices of the first patients, or of all. values: from a scanner's to those that are learnt from."""
    values, parts = values or exported_adc(source), []
    for one in range(source.patients if first is None else first):
        image, lesion, gland = render(source, one)[:3]
        read = replace(image, values=values(image.values))
        made = prepare_slices(read, lesion=lesion, gland=gland, images=images or Slices())
        y = torch.from_numpy(made.lesion.sum(axis=(1, 2)) >= LEAST).long()
        masks = (torch.from_numpy(mask) for mask in (made.lesion, made.gland))
        parts.append((torch.from_numpy(made.images), y, torch.full((len(made.images),), one), *masks))
    return PhantomSlices(*map(torch.cat, zip(*parts, strict=True)))
