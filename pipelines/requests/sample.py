"""Synthetic images of a hospital, for every hospital."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from harmonize.sampling import Sampling
from pipelines.requests.fields import SETTINGS, Count, Name, Run
from pipelines.requests.harmonizing import Harmonizing
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Of, Shape

MOST_SHARED = 2000


@dataclass(frozen=True, kw_only=True)
class Sample(Harmonizing):
    """synthesis_run: of the request `synthesize`. shared: how many images of each class; distances between images grow
    with its square. recipient: `outside` if external sites get the images too.
    """

    synthesis_run: Run
    sampling: Annotated[Sampling, SETTINGS]
    shared: Annotated[int, Field(ge=1, le=MOST_SHARED), SETTINGS]
    recipient: Name | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """images (n, C, H, W) in [-1, 1], labels (n,); how many candidates were tried and refused, and why.
    doubled: how often the rule's closeness was doubled, if it was.
    """

    images: Annotated[Tensor, Of.SYNTHETIC, Shape(axes=4, whole=False)]
    labels: Annotated[Tensor, Of.SYNTHETIC, Shape(axes=1)]
    tried: Count
    far: Count
    near: Count
    same: Count
    doubled: Count | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Training images of patients as they are, for simulations (synthesis `real`)."""

    images: Annotated[Tensor, Of.IMAGE, Shape(axes=4, whole=False)]
    labels: Annotated[Tensor, Of.LABEL, Shape(axes=1)]
    tried: Count


SAMPLE: Request[Sample, Sampled | Shared] = Request(
    name="sample",
    question=Sample,
    replies=(Sampled, Shared),
    says="synthetic images, which every hospital gets",
    brief="synthetic images that other hospitals translate their images towards",
    records="training examples of patients as they are, with their labels, for every hospital (synthesis: real)",
    repeat=Repeat.RESTORED,
    writes=True,
)
