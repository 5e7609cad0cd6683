"""Several findings of each slice of a phantom, as a report of a whole image names them."""

from __future__ import annotations

import numpy as np

from pipelines.phantom.organs import NON_SIGNIFICANT, PIXEL_MM, SIGNIFICANT
from pipelines.phantom.patients import TRANSITION, Anatomy

PHANTOM_FINDINGS = ("significant", "indolent", "transition", "large")
"""A clinically significant cancer, a lesion that is none, a lesion of either kind in the transition zone, and a gland
of more than `LARGE_CM2`."""
LARGE_CM2 = 12.4
"""Area of the gland in a slice above which it is large: about four of ten slices are."""


def list_findings(
    anatomy: Anatomy, generator: np.random.Generator, unknown: float
) -> list[tuple[int | str | float, ...]]:
    """Of each slice, the inferior one first: each of `PHANTOM_FINDINGS` as 1, 0, or empty where nobody noted it.

    unknown: probability that one was not noted, each for itself, drawn by `generator`.
    """
    pixel_cm2 = PIXEL_MM**2 / 100
    columns = (
        (anatomy.grade == SIGNIFICANT).any(axis=(1, 2)),
        (anatomy.grade == NON_SIGNIFICANT).any(axis=(1, 2)),
        ((anatomy.grade > 0) & (anatomy.zone == TRANSITION)).any(axis=(1, 2)),
        (anatomy.zone > 0).sum(axis=(1, 2)) * pixel_cm2 > LARGE_CM2,
    )
    gone = generator.random((len(anatomy.zone), len(columns))) < unknown
    return [
        tuple("" if is_gone else int(has) for has, is_gone in zip(slice_findings, lost, strict=True))
        for slice_findings, lost in zip(zip(*columns, strict=True), gone, strict=True)
    ]
