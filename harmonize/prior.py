"""Public pictures of what a kind of image may look like, drawn by a few lines of code and from no patient.

A synthesis under differential privacy uses patients only a few times; the less it must learn from them the better
(Lin et al., Differentially private synthetic data via foundation model APIs 1, ICLR 2024; for simulators arXiv
2502.05505). It starts from these priors. Each is broader than any one hospital: a picture's `theta` in [0, 1]^latent
sets its anatomy and acquisition, and its noise seed sets unnamed variation: bends, texture, noise, hair.

Their limits: they solve no signal equation and model no vendor. Ranges were set by hand and fitted to no data; those of
skin_lesion after looking at a page of published dermatoscopy (HAM10000), those of prostate_t2w after looking at two
published patients (ProstateX), so that these are not entirely independent of those archives' patients. A picture that
patients select shows nothing its prior cannot draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from harmonize.drawing import Inputs, Plane, Ranges
from harmonize.prior_prostate import PROSTATE, prostate
from harmonize.prior_prostate_t2w import PROSTATE_T2W, prostate_t2w
from harmonize.prior_skin import SKIN, skin

PriorName: TypeAlias = Literal["prostate_adc", "prostate_t2w", "skin_lesion"]

CHUNK = 64  # images drawn at a time, so that their planes stay in the cache


class Prior(NamedTuple):
    """render(theta (n, latent) in [0, 1], y (n,) in {0, 1}, noise_seed (n,) int64, inputs) -> (n, C, H, W) in [-1, 1].
    marked: the same pictures, with where things are in them: see `drawing.Plane`.

    A row depends on its own theta, y and noise seed only, and is drawn on the CPU. channels: C. ranges: the meaning of
    each column of theta, with the numbers for 0 and 1.
    """

    name: PriorName
    latent: int
    render: Callable[[Tensor, Tensor, Tensor, Inputs], Tensor]
    marked: Callable[[Tensor, Tensor, Tensor, Inputs], tuple[Tensor, Tensor]]
    channels: int
    ranges: Ranges


def draw_pictures(prior: Prior, y: Tensor, inputs: Inputs, seed: int) -> Tensor:
    """Pictures of random theta: (n, C, H, W) in [-1, 1], for the classes y (n,). Deterministic in its arguments."""
    return draw_with_marks(prior, y, inputs, seed)[0]


def draw_with_marks(prior: Prior, y: Tensor, inputs: Inputs, seed: int) -> tuple[Tensor, Tensor]:
    """As `draw_pictures`, with where things are in the pictures (n, 2, H, W): see `drawing.Plane`."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.rand(len(y), prior.latent, generator=generator)
    return prior.marked(theta, y, torch.randint(2**62, (len(y),), generator=generator), inputs)


def _make_prior(name: PriorName, plane: Plane, ranges: Ranges, channels: int) -> Prior:
    """The prior that scales theta to `ranges` and draws with `plane`."""
    low, high = (torch.tensor(side) for side in zip(*ranges.values(), strict=True))

    def render_marked(theta: Tensor, y: Tensor, noise_seed: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        _check_arguments(theta, y, noise_seed, inputs, len(ranges), channels)
        values = low + (high - low) * theta.float().cpu()
        parts = zip(
            torch.split(values, CHUNK), torch.split(y.cpu(), CHUNK), torch.split(noise_seed, CHUNK), strict=True
        )
        made = [
            plane(
                {key: numbers[:, i, None, None] for i, key in enumerate(ranges)}, labels[:, None, None], seeds, inputs
            )
            for numbers, labels, seeds in parts
        ]
        images, marks = zip(*made, strict=True)
        return torch.cat(images), torch.cat(marks)

    def render(theta: Tensor, y: Tensor, noise_seed: Tensor, inputs: Inputs) -> Tensor:
        return render_marked(theta, y, noise_seed, inputs)[0]

    return Prior(name, len(ranges), render, render_marked, channels, ranges)


def _check_arguments(theta: Tensor, y: Tensor, noise_seed: Tensor, inputs: Inputs, latent: int, channels: int) -> None:
    """Raises ValueError with everything that is wrong with the arguments of `render`."""
    wrong = []
    if theta.ndim != 2 or theta.shape[1] != latent:
        wrong.append(f"theta has shape {tuple(theta.shape)}, needed is (n, {latent})")
    elif not bool(((theta >= 0) & (theta <= 1)).all()):
        wrong.append("theta leaves [0, 1] somewhere")
    if not len(theta) == len(y) == len(noise_seed):
        wrong.append(f"theta, y and noise_seed have {len(theta)}, {len(y)} and {len(noise_seed)} rows, needed is one n")
    if not bool(((y == 0) | (y == 1)).all()):
        wrong.append(f"y holds {sorted(set(y.tolist()))}, allowed are 0 and 1")
    if len(inputs) != 3 or inputs[0] != channels or min(inputs[1:]) < 8:
        wrong.append(f"inputs are {tuple(inputs)}, needed is ({channels}, H, W) with sides of at least 8")
    if wrong:
        raise ValueError("prior: " + "; ".join(wrong))


PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        "prostate_adc": _make_prior("prostate_adc", prostate, PROSTATE, 1),
        "prostate_t2w": _make_prior("prostate_t2w", prostate_t2w, PROSTATE_T2W, 1),
        "skin_lesion": _make_prior("skin_lesion", skin, SKIN, 3),
    }
)
