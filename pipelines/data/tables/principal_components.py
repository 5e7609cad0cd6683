"""A hospital's own principal components: each hospital projects its features to its own space (FENDA-FL 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privacy.message import Json
from privacy.principal_components import fit_components

RANK = 1e-6
"""A direction whose spread is below this share of the largest depends on rounding errors."""


@dataclass(frozen=True)
class Axes:
    """mean: (F,) of the training examples. axes: (C, F), orthonormal rows. float64."""

    mean: Tensor
    axes: Tensor


def fit_axes(x: Tensor, components: int) -> Axes:
    """The first `components` principal axes of examples (n, F), each with its largest loading positive.

    Raises:
        ValueError: the examples do not span so many directions.
    """
    most = min(len(x), x.shape[1])
    fitted = fit_components(x.double().numpy(), most, solver="full") if most > 1 else None
    spread = [] if fitted is None else fitted.singular_values_.tolist()
    spanned = sum(value > RANK * spread[0] for value in spread)
    if fitted is None or spanned < components:
        raise ValueError(
            f"images.components: {components}, and the {len(x)} training examples vary in {spanned} directions; "
            "lower it, or give more training patients"
        )
    return Axes(torch.from_numpy(fitted.mean_.copy()), torch.from_numpy(fitted.components_[:components].copy()))


def project_features(x: Tensor, known: Axes) -> Tensor:
    """Examples (n, F) as (n, C) float32."""
    return ((x.double() - known.mean) @ known.axes.T).float()


def axes_to_json(known: Axes) -> Json:
    """Axes as a cohort and a ready model keep them."""
    return {"mean": known.mean.tolist(), "axes": known.axes.tolist()}


def axes_from_json(value: Json) -> Axes | None:
    """The inverse of `axes_to_json`; None for null."""
    if not isinstance(value, dict):
        return None
    return Axes(*(torch.tensor(value[name], dtype=torch.float64) for name in ("mean", "axes")))
