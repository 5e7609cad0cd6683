"""Whether the sampling rule can accept a synthesis at all: foreseen from settings and public pictures, not patients.

A rule of thumb, no proof: a setting is refused where both answers are no, and the way out is in the error.

1. *Can anything be learnt under the noise?* Only of a whole critic with private access. In one step the gradients of
   the B patients that are drawn, each clipped to c, are summed, and noise of standard deviation sigma c is added to
   each of the critic's d numbers. The sum has a norm of at most B c, reached only if all gradients point in one
   direction; the noise has one of about sigma c sqrt(d). Over T steps a constant direction adds up to T B c, noise to
   sigma c sqrt(T d). If sqrt(T) B < sigma sqrt(d), all that patients say in the whole training is shorter than the
   noise around it. What lies in a few directions could be learnt all the same, which this does not tell. In variant
   `paper` B and sigma follow from the number of patients, and the share grows with it; so the largest number that is
   possible is taken.
2. *Would Algorithm 1 accept the images?* Pictures of the public prior stand for the hospital's images. Where nothing
   can be learnt, and the networks begin with random numbers, the candidates come from a generator whose critic hears
   noise alone, for as many steps as the setting has, `STEPS` at most: further steps move it away from images. Where
   closeness or spacing is not the usual one, other pictures of the prior are candidates too, as imitations without a
   fault: if the rule rejects them all, with closeness doubled `SPARE` times more, no synthesis gives images that it
   accepts.

A synthesis without noise, one that begins with pictures of the prior, and `surrogate`, whose references come from the
same generator, are not refused for noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from harmonize.networks import Critic, Inputs
from harmonize.prior import Prior, draw_pictures
from harmonize.sampling import Sampling, measure_gaps, measure_spread
from harmonize.synthesis import AnySynthesis, Real, make_protection
from harmonize.wgan import MOST, WganGp, draw_images, rehearse_on_noise

PICTURES = 64
"""References, and candidates, of a rehearsal: t-SNE of both takes less than a second."""
STEPS, BATCH = 400, 8
"""Of a generator whose critic hears noise alone: a second or two."""
SPARE = 2
"""How often closeness is doubled in favour of imitations: a hospital's images may be nearer to each other."""


class Noise(NamedTuple):
    """One training of a whole critic with noise. patients: of the hospital, at most; batch: of them in a step.
    multiplier: standard deviation of the noise on the sum of gradients, divided by clip. numbers: of the critic.
    """

    patients: int
    steps: int
    batch: float
    clip: float
    multiplier: float
    numbers: int

    @property
    def norm(self) -> float:
        """The expected norm of the noise of a step, in the unit of the gradients."""
        return self.multiplier * self.clip * math.sqrt(self.numbers)

    @property
    def share(self) -> float:
        """Norm of all that patients can say in the whole training, divided by that of all noise; 1 = equal."""
        return math.sqrt(self.steps) * self.batch * self.clip / self.norm

    @property
    def steps_needed(self) -> int:
        """Steps from which the share is 1, with this noise."""
        return math.ceil(self.steps / self.share**2)


def measure_noise(settings: AnySynthesis, inputs: Inputs, patients: int) -> Noise | None:
    """The noise of a training with at most so many patients; None: no whole critic is trained with noise.

    inputs: (C, H, W).

    Raises:
        ValueError: as `make_protection`.
    """
    if not isinstance(settings, WganGp) or not settings.private or settings.head:
        return None
    protection, placed = make_protection(settings, patients=patients), settings.at(patients)
    critic = Critic(inputs, settings.width, settings.classes)
    numbers = sum(value.numel() for value in critic.parameters())
    batch = placed.sampling * patients
    return Noise(patients, settings.steps, batch, placed.clip, protection.noise, numbers)


def find_impossible(
    settings: AnySynthesis, sampling: Sampling, prior: Prior, inputs: Inputs, patients: int | None
) -> list[tuple[str, str]]:
    """The setting (`synthesis` or `sampling`) and why, with it, no image would be shared; empty: it may work.

    inputs: (C, H, W). patients: how many the target has at most; None: unknown, and then noise is not judged.
    """
    if isinstance(settings, Real):
        return []
    impossible = []
    if not _is_usual(sampling):
        impossible += [("sampling", text) for text in _find_strictness(sampling, prior, inputs)]
    if patients is None or sampling.name != "raw" or not isinstance(settings, WganGp) or settings.prior is not None:
        return impossible
    noise = measure_noise(settings, inputs, max(1, patients))
    if noise is None or noise.share >= 1:
        return impossible
    reference = draw_pictures(prior, torch.arange(PICTURES) % 2, inputs, 0)
    taught = rehearse_on_noise(settings, inputs, steps=STEPS, batch=BATCH, seed=0)
    made = draw_images(settings, inputs, taught, torch.arange(PICTURES) % 2, seed=0)
    gaps = measure_gaps(sampling, made, reference)
    if float(gaps.min()) >= sampling.last_closeness:
        impossible.append(("synthesis", _describe_noise(settings, sampling, noise, gaps, prior)))
    return impossible


def _is_usual(sampling: Sampling) -> bool:
    """Whether the rule has the closeness and the spacing of the defaults, or of the paper, which imitations pass."""
    return sampling.variant == "paper" or (sampling.closeness is None and sampling.spacing <= Sampling().spacing)


def _find_strictness(sampling: Sampling, prior: Prior, inputs: Inputs) -> Iterator[str]:
    """Why the rule would reject even images without a fault."""
    reference, perfect = draw_pictures(prior, torch.arange(2 * PICTURES) % 2, inputs, 0).chunk(2)
    if (needed := float(measure_gaps(sampling, perfect, reference).min())) >= sampling.last_closeness * 2**SPARE:
        yield _describe_strictness(sampling, needed)
    elif (least := sampling.spacing) > (spread := measure_spread(reference)) and sampling.name == "surrogate":
        yield (
            f"spacing {least:g} times the usual distance between images that are alike is more than the largest "
            f"distance between any two ({spread:.3g} times, among pictures of {prior.name}): one image would be kept; "
            f"say spacing: 0 to {spread / 4:.2g}"
        )


def count_doublings(sampling: Sampling, needed: float) -> int:
    """How often closeness must be doubled until candidates this far away pass."""
    return max(0, math.floor(math.log2(needed / sampling.in_use[1])) + 1)


def _describe_strictness(sampling: Sampling, needed: float) -> str:
    """What is wrong with a closeness that rejects even pictures without a fault."""
    usual = Sampling(name=sampling.name, features=sampling.features).in_use[1]
    return (
        f"closeness {sampling.last_closeness:.3g} rejects even images without a fault: of {PICTURES} public pictures, "
        f"compared with {PICTURES} others of the same kind, the nearest lies at {needed:.2g} of the largest distance "
        f"in features; say closeness: null, which is {usual:g}, or "
        f"doublings: {count_doublings(sampling, needed)} or more"
    )


def _describe_noise(settings: WganGp, sampling: Sampling, noise: Noise, gaps: Tensor, prior: Prior) -> str:
    """Why a training with this noise gives no image that would be kept, with its numbers, and what to do."""
    remedy = f"say steps: {noise.steps_needed} or more, " if noise.steps_needed <= MOST["steps"] else ""
    other = "variant: consilium" if settings.variant == "paper" else "learns: head with a prior"
    rule = "Algorithm 1" if sampling.variant == "paper" else "The sampling rule"
    doublings = count_doublings(sampling, float(gaps.max())) + 1
    return (
        f"{settings.name}{', variant paper,' if settings.variant == 'paper' else ''} would learn noise: in each of "
        f"{noise.steps} steps the gradients of about {noise.batch:.3g} patients (of {noise.patients} at most), clipped "
        f"to {noise.clip:g}, have a sum of norm {noise.batch * noise.clip:.3g} at most, and the noise one of "
        f"{noise.norm:.4g} ({noise.multiplier:.3g} x {noise.clip:g} x the root of the critic's {noise.numbers} "
        f"numbers); over all steps patients' part is at most {noise.share:.2g} of the noise, and 1 is needed. {rule}, "
        f"rehearsed on pictures of {prior.name}, then keeps none of {len(gaps)} candidates: the nearest lies at "
        f"{float(gaps.min()):.2g} of the largest distance in features, allowed is below "
        f"{sampling.last_closeness:.3g}. Either {remedy}take {other} (or fitted_prior), or, for images that "
        f"show little more than noise, say sampling: {{doublings: {doublings}}} or more, which doubles closeness where "
        f"too few pass"
    )
