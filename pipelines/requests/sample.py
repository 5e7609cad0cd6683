"""Synthetic images of a hospital, for every hospital."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from pipelines.requests.fields import Count, Line, Run
from pipelines.requests.request import Repeat, Request
from privacy.release.form import Of, Shape


@dataclass(frozen=True, kw_only=True)
class Sample:
    """synthesis_run: of the request `synthesize`. sampling: `harmonize.sampling.Sampling`."""

    cohort: Line
    synthesis_run: Run
    sampling: Any
    scale: Any


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """images (n, C, H, W) in [-1, 1], labels (n,); how many candidates were tried and refused, and why."""

    images: Annotated[Tensor, Of.SYNTHETIC, Shape(axes=4, whole=False)]
    labels: Annotated[Tensor, Of.SYNTHETIC, Shape(axes=1)]
    tried: Count
    far: Count
    near: Count
    same: Count


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Training images of patients as they are, for simulations (synthesis `real`)."""

    images: Annotated[Tensor, Of.IMAGE, Shape(axes=4, whole=False)]
    labels: Annotated[Tensor, Of.LABEL, Shape(axes=1)]
    tried: Count


SAMPLE = Request(
    name="sample",
    question=Sample,
    replies=(Sampled, Shared),
    says="synthetic images, which every hospital gets",
    brief="synthetic images that other hospitals translate their images towards",
    records="training examples of patients as they are, with their labels, for every hospital (synthesis: real)",
    repeat=Repeat.RESTORED,
    writes=True,
)
