"""Synthetic images of one hospital: WGAN-GP with a critic trained through data access, plain or private.

Yan et al. (VAFL), IEEE JBHI 2021, section II, equation 1; Gulrajani et al., Improved training of Wasserstein GANs,
NeurIPS 2017. For each view of a patient the critic's loss is

    D(G(z, y), y) - D(x, y) + lambda (||grad D(x~, y)||_2 - 1)^2,    x~ = alpha x + (1 - alpha) G(z, y),

with a fake of the view's own class, and the generator's is -E[D(G(z, y), y)]. Only the critic's gradient uses
patients, and it comes from `privacy.dp.access.Access`: clipped for each patient and noised there, so that the critic,
the generator and every image are post-processing of it. The fakes, alpha and the generator follow from a seed.

Two critics. A whole critic is a network that patients train in every step, by all of equation 1. Under noise it is
of no use with tens of patients: at patient epsilon 10, N = 48 and 48x48 its noise has a norm of 18 where a patient's
share has one of 0.5 at most, and the images get worse than those of the public start. `head` (the default under a
guarantee) is linear in public features, and uses patients only for the gradient of -D(x, y)
(`harmonize/moments.py`).

Two generators. A network starts from pictures of the prior, learnt by regression. `drawn` is the prior itself, with its
2 d numbers for the critic to train (`harmonize/drawn_generator.py`).

Every default of the head, and of the public start, was chosen on pictures of the prior `prostate_adc` alone: hospitals
were simulated by narrowing the ranges of its theta, one of them with a blur, a tone curve and a shift beyond what the
prior draws; 48 patients of 6 pictures each. No phantom and no patient was used for it.

Variant `paper` is the paper's own training, without a public start, classes or a running mean: `harmonize/ppwgan.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from harmonize import ppwgan
from harmonize.game import (
    BETAS,
    Players,
    Rules,
    copy_parameters,
    copy_players,
    load_module,
    make_generator,
    make_players,
    train_adversarially,
    train_on_noise,
    train_on_pairs,
)
from harmonize.moments import make_moments, mean_features, train_generator
from harmonize.networks import CLASSES, Inputs, Moments
from harmonize.prior import PRIORS, PriorName, draw_pictures
from harmonize.scale import Progress, ignore_progress
from privacy.dp.access import Access, Rows, open_access
from privacy.dp.accounting import Cost, compute_cost
from privacy.dp.events import Event, Gaussian, Part, PoissonSampled, SelfComposed
from privacy.message import Params
from privacy.release.policy import MOST_DELTA
from privacy.settings_error import Problem, refuse, unmet

SAMPLED = 256  # images that are drawn together
PUBLIC = 512  # images that a head's penalty mixes with fakes
CRITIC_SHARE = 8  # prior_steps per step of the critic alone, after the generator's training
CRITIC_LR = 1e-3  # of the critic alone
MOST: Mapping[str, int] = {
    **dict.fromkeys(("steps", "prior_steps"), 10**6),
    **dict.fromkeys(("critic_steps", "views", "looks", "prior_components"), 1000),
    **dict.fromkeys(("batch", "latent"), 4096),
    "width": 512,
    "prior_images": 10**5,
}
"""Whole numbers from 1 on, and the largest allowed, so that a coordinator cannot request an endless training."""


@dataclass(frozen=True, kw_only=True)
class WganGp:
    """dp_wgan_gp: private with (epsilon, delta), per patient. wgan_gp: no guarantee, epsilon null; the best possible
    images, for simulations.

    variant: `paper` fixes what `ppwgan.PAPER` lists, of which lr alone may be set otherwise. Its noise is that of
    equation 2, of which epsilon is the paper's claim: as printed for wgan_gp (null = none), and for dp_wgan_gp on
    clipped gradients, so that there is a true epsilon, which is reported; its sampling and views follow from the batch.
    learns: which critic; null is `head` for dp_wgan_gp with a prior, else whole. steps: of the critic. critic_steps:
    steps of the critic per step of the generator. clip: of private data access (`Protection`); the features of the
    median public image have norm 1. batch: rows per step with plain data access, and fakes per step. latent, width: of
    the networks. ema: decay of the generator's running mean, which makes the images. gp_weight: lambda.

    whole: sampling and views are those of private data access, lr is that of critic and generator. head: looks is how
    often patients are used, all of them at a time; the noise allows for it, and with noise it is 2 or more, because the
    noise is estimated from their differences; rate is the generator's learning rate, which falls to 0.

    generator: `drawn` draws the prior's pictures, and its 2 d numbers say which (`harmonize/drawn_generator.py`). Its
    lesions stay, and nothing can appear that the prior cannot draw; its rate is about 0.03, latent does not matter. A
    `network` can draw anything, and loses what is small.

    prior: a public prior for the start. A network learns which of prior_images pictures belongs to which
    theta (z is its normal quantile), for prior_steps at prior_lr at most; then the critic learns to separate the two.
    null: both start from random numbers. prior_components: of the pictures' basis, which the head uses.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["dp_wgan_gp", "wgan_gp"] = "dp_wgan_gp"
    variant: Literal["consilium", "paper"] = "consilium"
    learns: Literal["head", "whole"] | None = None
    generator: Literal["network", "drawn"] = "network"
    epsilon: float | None = 10.0
    delta: float = 1e-5
    steps: int = 400
    critic_steps: int = 3
    sampling: float = 1 / 3
    views: int = 4
    looks: int = 4
    clip: float = 1.0
    lr: float = 1.2e-4
    rate: float = 1e-3
    batch: int = 32
    latent: int = 48
    width: int = 16
    ema: float = 0.98
    gp_weight: float = 10.0
    prior: PriorName | None = "prostate_adc"
    prior_steps: int = 800
    prior_lr: float = 4e-3
    prior_images: int = 6000
    prior_components: int = 30

    def __post_init__(self) -> None:
        problems = [
            Problem((name,), f"must be a whole number in [1, {most}], found {getattr(self, name)!r}")
            for name, most in MOST.items()
            if not _is_whole_number(self, name)
        ]
        problems += unmet(
            self,
            delta=(0 < self.delta <= MOST_DELTA, f"in (0, {MOST_DELTA:g}]"),
            sampling=(1e-6 <= self.sampling <= 1, "in [1e-6, 1]"),
            clip=(1e-4 <= self.clip <= 1e4, "in [1e-4, 1e4]"),
            lr=(0 < self.lr <= 1, "in (0, 1]"),
            rate=(0 < self.rate <= 1, "in (0, 1]"),
            prior_lr=(0 < self.prior_lr <= 1, "in (0, 1]"),
            ema=(0 <= self.ema < 1, "in [0, 1)"),
            gp_weight=(0 <= self.gp_weight <= 1e6, "in [0, 1e6]"),
            prior_images=(self.prior_images != 1, "above 1: one of each class"),
            looks=(self.looks != 1 or not (self.private and self.head), "above 1 for private heads"),
            prior=(self.prior is None or self.prior in PRIORS, f"null or one of {sorted(PRIORS)}"),
        )
        if self.generator == "drawn" and (self.prior is None or self.variant == "paper"):
            problems.append(Problem(("generator",), "drawn needs the pictures of a prior; give one, or say network"))
        if self.learns == "head" and self.prior is None:
            problems.append(Problem(("learns",), "head needs a prior for its features; give one, or say whole"))
        refuse(problems + _guarantee_problems(self))
        for field in fields(self) if self.variant == "paper" else ():
            if field.name in ppwgan.FIXED or (
                field.name in ppwgan.PAPER and getattr(self, field.name) == field.default
            ):
                object.__setattr__(self, field.name, ppwgan.PAPER[field.name])

    @property
    def private(self) -> bool:
        """Whether data access is private."""
        return self.name == "dp_wgan_gp"

    @property
    def head(self) -> bool:
        """Whether the critic is linear in public features."""
        if self.learns is None:
            return self.private and self.prior is not None
        return self.learns == "head"

    @property
    def classes(self) -> int:
        """How many classes the networks know; the paper's know none."""
        return 0 if self.variant == "paper" else CLASSES

    def noise_on(self, access: Access) -> float:
        """Standard deviation of the noise as printed, which is no guarantee: of wgan_gp, variant paper."""
        if self.private or self.epsilon is None:
            return 0.0
        return ppwgan.noise_sigma(min(1.0, self.batch / access.size("train")), epsilon=self.epsilon, delta=self.delta)

    def at(self, patients: int) -> WganGp:
        """These settings, with what the paper's batch means for this number of patients."""
        return self if self.variant == "consilium" else replace(self, **ppwgan.plan_draws(patients)._asdict())


def _is_whole_number(settings: WganGp, name: str) -> bool:
    """Whether a setting is an int from 1 to its largest allowed value."""
    value = getattr(settings, name)
    return type(value) is int and 1 <= value <= MOST[name]


def _guarantee_problems(settings: WganGp) -> list[Problem]:
    """Problems of the requested guarantee, and of fields that the paper fixes."""
    is_paper, number = settings.variant == "paper", settings.epsilon
    problems = []
    if settings.name == "wgan_gp" and not is_paper and number is not None:
        text = f"must be null for wgan_gp, found {number}: it adds no noise; variant paper has the paper's, without a "
        problems.append(Problem(("epsilon",), f"{text}guarantee"))
    elif (number is None and settings.private) or not (number is None or 0 < number < math.inf):
        text = f"must be a number above 0 for dp_wgan_gp, found {number}: give one, or name wgan_gp"
        problems.append(Problem(("epsilon",), f"{text} where no guarantee is needed"))
    fixed = {f.name: (f.default, ppwgan.PAPER[f.name]) for f in fields(settings) if f.name in ppwgan.FIXED}
    if is_paper and (set_ := [name for name, allowed in fixed.items() if getattr(settings, name) not in allowed]):
        expected = ", ".join(f"{name} {fixed[name][1]}" for name in set_)
        text = f"paper has {expected}, found {', '.join(str(getattr(settings, name)) for name in set_)}: remove "
        problems.append(Problem(("variant",), f"{text}{', '.join(set_)}, or set variant: consilium"))
    return problems


def pretrain_networks(settings: WganGp, inputs: Inputs, *, seed: int, progress: Progress = ignore_progress) -> Params:
    """The start of training: networks trained on pictures of the public prior, without patients.

    Returns:
        As `train`, for either critic. The same arguments give the same tensors on the same machine, so they can be
        cached.

    Raises:
        ValueError: inputs that these networks, or this prior, do not take.
    """
    networks = _make_networks(settings, inputs, None, seed, torch.device("cpu"))
    if settings.prior is None:
        return copy_players(networks)
    prior, rng = PRIORS[settings.prior], torch.Generator().manual_seed(seed)
    y = torch.arange(settings.prior_images) % CLASSES
    theta = torch.rand(len(y), prior.latent, generator=rng)
    images = prior.render(theta, y, torch.randint(2**62, (len(y),), generator=rng), inputs)
    rules = replace(_make_rules(settings), steps=settings.prior_steps, lr=settings.prior_lr)
    if settings.generator == "network":
        z = torch.special.ndtri(theta[:, : settings.latent].clamp(1e-4, 1 - 1e-4))
        train_on_pairs(
            networks, z, y, images, rules, seed=seed, progress=lambda done, total: progress(done, total, "prior")
        )
    if not (settings.generator == "drawn" and settings.head):  # a head takes the place of that critic
        rows = Rows(images, y, torch.arange(len(y)))
        public = open_access({"train": rows}, batch=settings.batch, seed=seed)  # public images only, no patient
        alone = -(-settings.prior_steps // CRITIC_SHARE)
        rules = replace(rules, steps=alone, critic_steps=alone + 1, lr=CRITIC_LR)
        train_adversarially(
            networks, public, rules, seed=seed, progress=lambda done, total: progress(done, total, "prior's critic")
        )
    return {
        **copy_players(networks),
        **copy_parameters({"moments": make_moments(images, inputs, settings.prior_components)}),
    }


def train(
    settings: WganGp,
    access: Access,
    inputs: Inputs,
    *,
    start: Params | None = None,
    seed: int,
    progress: Progress = ignore_progress,
) -> Params:
    """Train for `steps` of the critic: a whole critic on patients, a head on mean features from data access.

    Args:
        inputs: (C, H, W) of the images, which are in [-1, 1].
        start: the result of `pretrain_networks`, or of an earlier call; None: random numbers from the seed, or, because
            a head needs the public start, that.
        seed: of the networks' start, the fakes and alpha. With private data access the result does not follow from it.

    Returns:
        The generator's running mean under "generator/..." and the critic under "critic/...", float32, a head under
        "moments/..." next to the critic of the start. The recorded events cover all of it.

    Raises:
        ValueError: inputs that these networks do not take, or `start` of other networks.
    """
    if start is None and settings.head:
        start = pretrain_networks(settings, inputs, seed=seed, progress=progress)
    networks = _make_networks(settings, inputs, start, seed, access.device)
    if start is None or not settings.head:
        rules = replace(_make_rules(settings), noise=settings.noise_on(access))
        train_adversarially(
            networks, access, rules, seed=seed, progress=lambda done, total: progress(done, total, "synthesis")
        )
        return copy_players(networks)
    critic = load_module(Moments(inputs, settings.prior_components), start, "moments").to(access.device)
    looks = settings.looks
    answer = mean_features(access, critic, looks, progress=lambda done: progress(done, looks, "patients"))
    train_generator(
        networks,
        critic,
        answer,
        replace(_make_rules(settings), lr=settings.rate),
        draw_pictures(PRIORS[cast(PriorName, settings.prior)], torch.arange(PUBLIC) % CLASSES, inputs, seed),
        bound=settings.clip,
        seed=seed,
        progress=lambda done, total: progress(done, total, "synthesis"),
    )
    return {**copy_players(networks), **copy_parameters({"moments": critic})}


def rehearse_on_noise(settings: WganGp, inputs: Inputs, *, steps: int, batch: int, seed: int) -> Params:
    """As `train`, for that many steps at most, with a critic that hears noise alone, and from random numbers: no
    patient and no prior is used.
    """
    networks = _make_networks(settings, inputs, None, seed, torch.device("cpu"))
    rules = replace(_make_rules(settings), steps=min(steps, settings.steps), batch=min(batch, settings.batch))
    train_on_noise(networks, rules, seed=seed)
    return copy_players(networks)


def draw_images(settings: WganGp, inputs: Inputs, params: Params, y: Tensor, *, seed: int) -> Tensor:
    """Images of the classes y (n,): (n, C, H, W) in [-1, 1]. Deterministic in its arguments. Variant paper knows no
    classes, and draws as many images.
    """
    generator = load_module(
        make_generator(settings.latent, inputs, settings.width, settings.classes, _drawn(settings)), params, "generator"
    )
    z = torch.randn(len(y), generator.latent, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        parts = [generator(a, b) for a, b in zip(torch.split(z, SAMPLED), torch.split(y.cpu(), SAMPLED), strict=True)]
    return torch.cat(parts)


def list_events(settings: WganGp, noise: float, *, cut: str = "") -> list[Event]:
    """The events that training records with private data access, without releases of sizes."""
    share, times = (1.0, settings.looks) if settings.head else (settings.sampling, settings.steps)
    return [SelfComposed(Part(cut, "train", PoissonSampled(share, Gaussian(noise))), times)]


def compute_true_cost(settings: WganGp, noise: float) -> Cost:
    """The true (epsilon, delta) per patient of a noise multiplier, of settings for a number of patients (`at`); the
    page shows it next to the paper's claim.
    """
    return compute_cost(list_events(settings, noise), settings.delta)


def _make_rules(settings: WganGp) -> Rules:
    """The numbers of the training that the settings give."""
    s = settings
    return Rules(
        steps=s.steps,
        critic_steps=s.critic_steps,
        views=s.views,
        batch=s.batch,
        lr=s.lr,
        gp_weight=s.gp_weight,
        betas=ppwgan.BETAS if s.variant == "paper" else BETAS,
    )


def _make_networks(settings: WganGp, inputs: Inputs, start: Params | None, seed: int, device: torch.device) -> Players:
    """Generator, running mean and critic of these settings."""
    s = settings
    return make_players(
        s.latent, inputs, s.width, ema=s.ema, start=start, seed=seed, device=device, classes=s.classes, drawn=_drawn(s)
    )


def _drawn(settings: WganGp) -> PriorName | None:
    """The prior that the generator draws, or None for a network."""
    return settings.prior if settings.generator == "drawn" else None
