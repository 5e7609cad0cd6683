"""What the lines of a hospital's table hold, feature by feature and in the table's own numbers, for its own page."""

from __future__ import annotations

import torch

from evaluation.histograms import Floats
from pipelines.cohort.cohort import Cohort
from pipelines.cohort.examples import IMAGES
from pipelines.cohort.features import Features
from privacy.message import Json


def features_of(cohort: Cohort) -> dict[str, Floats]:
    """Feature -> (n,) values. A category is a feature "name = value" for each of its values; nothing for images."""
    said = cohort.recipe.get("images")
    images = IMAGES.validate_python(said) if said is not None else None
    if not isinstance(images, Features):
        return {}
    table: Floats = _unscaled(cohort.images.double(), cohort.recipe.get("scale")).numpy()
    found: dict[str, Floats] = {name: table[:, place] for place, name in enumerate(images.numbers)}
    start = len(images.numbers)
    for name, values in images.categories.items():
        coded = table[:, start : start + len(values) - 1].round()
        start += len(values) - 1
        columns = [1 - coded.sum(axis=1), *coded.T]
        found |= {f"{name} = {value}": column for value, column in zip(values, columns, strict=True)}
    return found


def _unscaled(x: torch.Tensor, scale: Json) -> torch.Tensor:
    """The inverse of `normalized_by`, as exactly as float32 kept the values."""
    if not isinstance(scale, dict):
        return x
    count = float(str(scale["count"]))
    total, squares = (torch.tensor(scale[name], dtype=torch.float64) for name in ("total", "squares"))
    mean = total / max(count, 1.0)
    spread = ((squares - count * mean**2) / max(count - 1, 1.0)).clamp(min=0).sqrt()
    constant = spread <= 1e-6 * mean.abs().clamp(min=1e-6)
    table = x * spread.masked_fill(constant, 1.0) + mean
    grain = 10.0 ** (torch.log10((mean.abs() + spread).clamp(min=1e-30)).floor() - 5)  # six digits: what float32 kept
    return (table / grain).round() * grain
