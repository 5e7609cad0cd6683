"""Pictures of a prior in the form of any run's images: planes, slices between their neighbours, volumes.

A stack's slices have one anatomy and one acquisition (theta), each its own bends, texture and noise. A lesion of class
1 lies in a run of slices about a random one, of slices with neighbours in all of them; the others are of class 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from harmonize.drawing import Inputs
from harmonize.prior import Prior, draw_pictures

CHUNK = 64  # examples drawn at a time
LESION = 0.3  # of a volume's slices show the lesion, and at least one


def find_form_problems(prior: Prior, inputs: Inputs, kind: str) -> list[str]:
    """Why a prior has no pictures of this form; empty = it has. kind: of the run's images."""
    planes = 1 if kind in ("slices", "volumes") else inputs[0]
    if prior.channels == planes:
        return []
    stacks = ", and stacks of such" if prior.channels == 1 else ""
    what = f"{prior.name} draws pictures of {prior.channels} channels, height and width{stacks}"
    return [f"{what}; images are {list(inputs)}"]


def draw_in_form(prior: Prior, y: Tensor, inputs: Inputs, seed: int) -> Iterator[Tensor]:
    """Images (n, *inputs) in [-1, 1] for the classes y (n,), in parts. Deterministic in its arguments.

    inputs: (C, H, W) of the prior's channels; or (k, H, W), a slice among neighbours, and (1, D, H, W), a volume, of a
    prior of one channel.
    """
    if len(inputs) == 3 and inputs[0] == prior.channels:
        yield from torch.split(draw_pictures(prior, y, inputs, seed), CHUNK)
        return
    depth, sides = (inputs[1], inputs[2:]) if len(inputs) == 4 else (inputs[0], inputs[1:])
    generator = torch.Generator().manual_seed(seed)
    theta = torch.rand(len(y), prior.latent, generator=generator)
    seeds = torch.randint(2**62, (len(y), depth), generator=generator)
    middle = torch.randint(depth, (len(y), 1), generator=generator)
    reach = depth if len(inputs) == 3 else max(1.0, LESION * depth) / 2
    classes = ((torch.arange(depth) - middle).abs() <= reach).long() * y[:, None]
    for theta_part, labels, noise in zip(*(torch.split(part, CHUNK) for part in (theta, classes, seeds)), strict=True):
        rows = prior.render(theta_part.repeat_interleave(depth, dim=0), labels.flatten(), noise.flatten(), (1, *sides))
        yield rows.reshape(len(theta_part), *inputs)
