"""Runs that are tried a thousand times draw no figure and no map: these take long and touch no file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import evaluation.drawing
import harmonize.drift
import harmonize.embedding


def unpainted(size: tuple[float, float], alt: str, draw: object) -> str:
    """In place of `evaluation.drawing.render_svg`: figures take most of a small run's time, and touch no file."""
    return "<svg/>"


def unmapped(features: torch.Tensor, *, perplexity: float = 30.0, seed: int) -> torch.Tensor:
    """In place of `harmonize.embedding.tsne`, for the same reason: the first two features."""
    return torch.nn.functional.pad(features.float(), (0, 2))[:, :2].clone()


def unfitted(x: Any, seen: Any, y: Any, train: Any, test: Any) -> Any:
    """In place of `harmonize.drift._predict_probabilities`: no classifier is fitted."""
    return np.stack([1 / (1 + np.exp(-other[test].mean(axis=1))) for other in seen])


def unpaneled(size: tuple[float, float], alt: str, draws: object, *, share_y: bool = False) -> str:
    """In place of `evaluation.drawing.render_panels`, for the same reason."""
    return "<div></div>"


STAND_INS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "render_svg": (evaluation.drawing.render_svg, unpainted),
    "render_panels": (evaluation.drawing.render_panels, unpaneled),
    "tsne": (harmonize.embedding.tsne, unmapped),
    "_predict_probabilities": (harmonize.drift._predict_probabilities, unfitted),
}
"""Names of functions that take long and touch no file, with what stands in for each."""


@contextmanager
def plain() -> Iterator[None]:
    """Draw no figure and no map, in no module, however late it is imported; afterwards as before."""
    for name, (real, other) in STAND_INS.items():
        _exchange(name, real, other)
    try:
        yield
    finally:
        for name, (real, other) in STAND_INS.items():
            _exchange(name, other, real)


def _exchange(name: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Exchange a function wherever modules have it by this name."""
    for module in [*sys.modules.values()]:
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)
