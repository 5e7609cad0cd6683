"""Images that imitate a hospital's: one setting, four ways, and how each of them uses patients.

dp_wgan_gp (or wgan_gp, without a guarantee) trains a generator, fitted_prior fits a public prior to noised means,
private_evolution lets patients vote on the prior's pictures, real takes the training images themselves, for
simulations: no imitation is better. All of them use patients once, in `synthesize`; its result makes any number of
candidates without using them again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from harmonize import evolution, fitted_prior, ppwgan, wgan
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.networks import CLASSES, Inputs
from harmonize.scale import Progress, ignore_progress
from harmonize.wgan import WganGp
from privacy.dp.access import Access, Sample
from privacy.dp.accounting import calibrate_noise
from privacy.dp.events import Event, Gaussian, Part, PoissonSampled, SelfComposed
from privacy.dp.protection import Protection
from privacy.message import Params


@dataclass(frozen=True, kw_only=True)
class Real:
    """The hospital's own training images, shared as they are: no guarantee, for simulations only."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    private: ClassVar[bool] = False

    name: Literal["real"] = "real"


AnySynthesis: TypeAlias = Annotated[WganGp | FittedPrior | PrivateEvolution | Real, Field(discriminator="name")]


def draw_size(settings: AnySynthesis) -> int:
    """Rows of a draw with plain data access; 1 if all rows are used at once."""
    return settings.batch if isinstance(settings, WganGp) else 1


def make_protection(settings: AnySynthesis, *, patients: int, cut: str = "") -> Protection:
    """The parameters of private data access, with just the noise that the settings' (epsilon, delta) needs.

    Args:
        patients: with training images, a number that was declared public; only variant `paper` uses it, whose batch and
            noise depend on it, and whose epsilon is a claim (`harmonize.wgan.compute_true_cost` computes the true one).
        cut: names the division into splits.

    Raises:
        ValueError: these settings have no guarantee, or no noise is enough for theirs.
    """
    if isinstance(settings, FittedPrior) and settings.epsilon is not None:
        return Protection(
            clip=1.0, sampling=1.0, noise=fitted_prior.noise_of(settings.epsilon, settings.delta), cut=cut
        )
    if isinstance(settings, PrivateEvolution) and settings.epsilon is not None:
        noise = evolution.noise_per_round(settings.epsilon, settings.delta, settings.rounds)
        return Protection(votes_noise=noise, cut=cut)
    if isinstance(settings, WganGp) and settings.private and settings.epsilon is not None:
        epsilon, settings = settings.epsilon, settings.at(patients)
        if settings.variant == "paper":
            q = settings.sampling
            noise = ppwgan.noise_multiplier(q, q * patients, epsilon=epsilon, delta=settings.delta)
        else:
            noise = calibrate_noise(
                lambda value: wgan.list_events(settings, value, cut=cut), epsilon=epsilon, delta=settings.delta
            )
        sampling = 1.0 if settings.head else settings.sampling
        return Protection(clip=settings.clip, sampling=sampling, views=settings.views, noise=noise, cut=cut)
    raise ValueError(f"{settings.name} without an epsilon has no private data access; open plain data access")


def list_events(settings: AnySynthesis, protection: Protection) -> list[Event]:
    """The events that `synthesize` records with private data access, known in advance.

    Raises:
        ValueError: these settings have no guarantee, or votes have no noise.
    """
    if isinstance(settings, WganGp) and settings.private:
        drawn = replace(settings, sampling=protection.sampling, views=protection.views)
        return wgan.list_events(drawn, protection.noise, cut=protection.cut)
    if isinstance(settings, FittedPrior) and settings.private:
        look = PoissonSampled(1.0, Gaussian(protection.noise))
        return [SelfComposed(Part(protection.cut, "train", look), sum(fitted_prior.LOOKS))]
    if isinstance(settings, PrivateEvolution) and protection.votes_noise is not None:
        return [SelfComposed(Part(protection.cut, "train", Gaussian(protection.votes_noise)), settings.rounds)]
    raise ValueError(
        f"{settings.name} with {protection} has no known cost: give the protection that `protection` makes"
    )


def synthesize(
    settings: AnySynthesis,
    access: Access,
    inputs: Inputs,
    *,
    start: Params | None = None,
    seed: int,
    progress: Progress = ignore_progress,
) -> Params:
    """Learn to generate images like the training images.

    Args:
        inputs: (C, H, W) of the images, which are in [-1, 1].
        start: of the networks, from `harmonize.wgan.pretrain_networks`; only WGAN-GP has one.

    Returns:
        The parameters for `draw_candidates`: a generator and its critic, a family or a population of a prior's
        parameters, or images.

    Raises:
        ValueError: as the chosen way, or `real` is used with private data access.
    """
    if isinstance(settings, WganGp):
        return wgan.train(settings, access, inputs, start=start, seed=seed, progress=progress)
    if isinstance(settings, FittedPrior):
        return fitted_prior.fit(settings, access, inputs, seed=seed, progress=progress)
    if isinstance(settings, PrivateEvolution):
        return evolution.evolve_population(settings, access, inputs, seed=seed, progress=progress)
    draw = access.draw(full=True)
    if isinstance(draw, Sample):
        raise ValueError("private data access does not return real images; share them in simulations only")
    return {"images": draw.x.detach().cpu().clone(), "labels": draw.y.cpu().clone()}


def draw_candidates(settings: AnySynthesis, inputs: Inputs, params: Params, y: Tensor, *, seed: int) -> Tensor:
    """Images of the classes y (n,): (n, C, H, W) in [-1, 1], in y's order. Deterministic in its arguments.

    Real images come in random order, each one once before any repeats.

    Raises:
        ValueError: `real` has no image of a requested class.
    """
    if isinstance(settings, WganGp):
        return wgan.draw_images(settings, inputs, params, y, seed=seed)
    if isinstance(settings, FittedPrior):
        return fitted_prior.draw_images(settings, inputs, params, y, seed=seed)
    if isinstance(settings, PrivateEvolution):
        return evolution.draw_images(settings, inputs, params, y, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    index = torch.zeros(len(y), dtype=torch.long)
    for label in range(CLASSES):
        requested, available = (y.cpu() == label).nonzero()[:, 0], (params["labels"] == label).nonzero()[:, 0]
        if len(requested) and not len(available):
            raise ValueError(f"there is no image of class {label} to share, and {len(requested)} were asked for")
        if len(requested):
            mixed = available[torch.randperm(len(available), generator=generator)]
            index[requested] = mixed[torch.arange(len(requested)) % len(available)]
    return params["images"][index]
