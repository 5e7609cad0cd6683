"""Private evolution: patients vote, with noise, for the pictures of a public prior that resemble them.

Lin et al., Differentially private synthetic data via foundation model APIs 1, ICLR 2024, with a simulator in place
of a foundation model (arXiv 2502.05505). A population of candidates - parameters of the prior's pictures - is rendered;
each patient has one vote, shared by their images, each of which votes for the nearest candidate of its own class; the
noised histogram selects the parents of the next population. Everything after the histogram is post-processing, and the
last population with its weights is the model: patients influence it only through noised histograms.

Only pictures that the prior can draw are possible: a kind of lesion that it does not model will not appear. And where
each candidate has fewer votes than a standard deviation of the noise, chance selects the parents: the population then
shrinks to a few pictures that may be farther from the patients than the prior is (48 patients at epsilon 3, for
instance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harmonize.drawing import Inputs
from harmonize.prior import PRIORS, PriorName
from harmonize.public_features import View, compute_features, make_view
from harmonize.scale import Progress, ignore_progress
from privacy.dp.access import Access
from privacy.dp.accounting import mu_of
from privacy.message import Params
from privacy.release.policy import MOST_DELTA
from privacy.settings_error import Problem, out_of_range, refuse

SLACK = 1e-9  # the root that `mu_of` finds may lie on the wrong side by its tolerance
SEEDS = 2**62


@dataclass(frozen=True, kw_only=True)
class PrivateEvolution:
    """Settings. epsilon, delta: of all rounds together, for adding or removing a patient; None: no noise, no guarantee.

    prior: source of the pictures. candidates: how many, half of each class. rounds: how often patients vote; k rounds
    need sqrt(k) times the noise. threshold: votes below this many deviations of the noise count as none. spread,
    settled: standard deviation of a child's theta in the first and last generation. share: of theta's numbers that a
    child changes; mixed: of those that it has from a second parent of either class, because a scanner affects both
    classes alike. jitter: the deviation in `draw_images`. public: prior pictures behind the features; components:
    principal components of these; roughness: weight of local contrast relative to them.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["private_evolution"] = "private_evolution"
    prior: PriorName = "prostate_adc"
    epsilon: float | None = 10.0
    delta: float = 1e-5
    candidates: int = 150
    rounds: int = 6
    threshold: float = 1.0
    spread: float = 0.3
    settled: float = 0.05
    share: float = 0.4
    mixed: float = 0.5
    jitter: float = 0.03
    public: int = 2000
    components: int = 40
    roughness: float = 1.0

    def __post_init__(self) -> None:
        """Check all settings.

        Raises:
            ValueError: one message names all problems.
        """
        problems = out_of_range(
            self,
            epsilon=(1e-3, 1e3),
            delta=(1e-12, MOST_DELTA),
            candidates=(2, 10_000),
            rounds=(1, 100),
            threshold=(0.0, 10.0),
            spread=(1e-4, 1.0),
            settled=(1e-4, 1.0),
            share=(0.0, 1.0),
            mixed=(0.0, 1.0),
            jitter=(0.0, 1.0),
            public=(2, 100_000),
            components=(1, 1000),
            roughness=(0.0, 100.0),
        )
        if self.prior not in PRIORS:
            text = f"must be one of {', '.join(PRIORS)}, found {self.prior!r}"
            problems.append(Problem(("prior",), text))
        refuse(problems)

    @property
    def private(self) -> bool:
        """Whether these settings give a privacy guarantee."""
        return self.epsilon is not None


def noise_per_round(epsilon: float, delta: float, rounds: int) -> float:
    """The noise multiplier of each of `rounds` noised histograms that cost (epsilon, delta) together.

    Gaussian noise s used k times is Gaussian noise s / sqrt(k); one is calibrated by the analytic Gaussian mechanism.

    Raises:
        ValueError: epsilon, delta or rounds is out of range.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, found {rounds}")
    return math.sqrt(rounds) * (1 + SLACK) / mu_of(epsilon, delta)


class _Candidates(NamedTuple):
    theta: Tensor  # (n, latent)
    y: Tensor  # (n,)
    noise_seed: Tensor  # (n,)


def evolve_population(
    settings: PrivateEvolution,
    access: Access,
    inputs: Inputs,
    *,
    seed: int,
    progress: Progress = ignore_progress,
) -> Params:
    """Let the training patients of `access`, whose images are in network space (C, H, W), vote for `rounds` rounds.

    Returns:
        The last population: "theta" (n, latent), "y" (n,), "noise_seed" (n,), "weight" (n,) float64, which sums to 1
        within each class.

    Raises:
        ValueError: the inputs do not fit.
    """
    prior = PRIORS[settings.prior]
    y = torch.arange(settings.candidates) % 2
    noise = 0.0 if settings.epsilon is None else noise_per_round(settings.epsilon, settings.delta, settings.rounds)
    generator = torch.Generator().manual_seed(seed)
    progress(0, settings.rounds, "public pictures")
    view = make_view(prior, inputs, settings.public, settings.components, settings.roughness, seed=seed)
    now = _Candidates(torch.rand(len(y), prior.latent, generator=generator), y, _draw_seeds(len(y), generator))
    weight = torch.zeros(len(y), dtype=torch.float64)
    for turn in range(settings.rounds):
        if turn:
            done_share = (turn - 1) / max(1, settings.rounds - 2)
            scale = settings.spread ** (1 - done_share) * settings.settled**done_share
            now = _next_generation(settings, now, weight, scale, generator)
        features = compute_features(view, prior.render(*now, inputs))
        weight = _weights_from_votes(_collect_votes(access, view, features, y), y, settings.threshold * noise)
        progress(turn + 1, settings.rounds, "votes")
    return {"theta": now.theta, "y": now.y, "noise_seed": now.noise_seed, "weight": weight}


def draw_images(settings: PrivateEvolution, inputs: Inputs, params: Params, y: Tensor, *, seed: int) -> Tensor:
    """Pictures (n, C, H, W) in network space of the classes y (n,): candidates drawn by weight, with jitter and new
    seeds.

    Deterministic in its arguments. Rows differ even if one candidate is drawn for several.
    """
    prior = PRIORS[settings.prior]
    generator = torch.Generator().manual_seed(seed)
    parent = torch.zeros(len(y), dtype=torch.long)
    for where, members in zip(_indices_by_class(y.cpu()), _indices_by_class(params["y"]), strict=True):
        if len(where):
            parent[where] = members[torch.multinomial(params["weight"][members], len(where), True, generator=generator)]
    theta = params["theta"][parent]
    theta = reflect_into_unit(theta + settings.jitter * torch.randn(theta.shape, generator=generator))
    return prior.render(theta, y.cpu(), _draw_seeds(len(y), generator), inputs)


def reflect_into_unit(theta: Tensor) -> Tensor:
    """Reflect into [0, 1] at 0 and at 1."""
    return 1 - (theta.remainder(2) - 1).abs()


def _collect_votes(access: Access, view: View, features: Tensor, y: Tensor) -> Tensor:
    """The noised votes of the patients, one number for each candidate."""

    def assign(images: Tensor, labels: Tensor) -> Tensor:
        mine = compute_features(view, images.cpu().float())
        far = torch.cdist(mine, features)
        other = labels.cpu()[:, None] != y[None]
        return far.masked_fill(other, math.inf).argmin(dim=1).to(labels.device)

    return access.votes(assign, len(y)).cpu()


def _weights_from_votes(votes: Tensor, y: Tensor, floor: float) -> Tensor:
    """Votes above the floor, summing to 1 within each class; uniform where a class has none left."""
    weights = (votes - floor).clamp(min=0.0)
    for members in _indices_by_class(y):
        if not bool(weights[members].any()):
            weights[members] = 1.0
        weights[members] = weights[members] / weights[members].sum()
    return weights


def _next_generation(
    settings: PrivateEvolution, now: _Candidates, weight: Tensor, scale: float, generator: torch.Generator
) -> _Candidates:
    """Draw parents by weight: a candidate's first draw keeps it unchanged, each further draw makes a child."""
    parent = torch.empty(len(now.y), dtype=torch.long)
    again = torch.zeros(len(now.y), dtype=torch.bool)
    for members in _indices_by_class(now.y):
        parent[members] = (
            members[torch.multinomial(weight[members], len(members), True, generator=generator)].sort().values
        )
        again[members[1:]] = parent[members[1:]] == parent[members[:-1]]
    second = torch.multinomial(weight, len(parent), True, generator=generator)
    shape = now.theta.shape
    mixed = torch.rand(shape, generator=generator) < settings.mixed
    step = scale * torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < settings.share)
    child = reflect_into_unit(torch.where(mixed, now.theta[second], now.theta[parent]) + step)
    return _Candidates(
        torch.where(again[:, None], child, now.theta[parent]),
        now.y,
        torch.where(again, _draw_seeds(len(parent), generator), now.noise_seed[parent]),
    )


def _indices_by_class(y: Tensor) -> list[Tensor]:
    """The indices of each class's candidates."""
    return [(y == label).nonzero().flatten() for label in (0, 1)]


def _draw_seeds(number: int, generator: torch.Generator) -> Tensor:
    """Random noise seeds, (number,)."""
    return torch.randint(SEEDS, (number,), generator=generator)
