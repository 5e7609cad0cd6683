"""A public prior fitted to a hospital: noised means of its patients' images say which of the prior's pictures to draw.

The prior draws a picture from theta in [0, 1]^d. Here theta = Phi(m + s e) with e ~ N(0, I) and Phi the normal
distribution function, so that m = 0 and s = 1 are the prior as it is, and (m, log s) are the 2 d numbers to be found: a
hospital's scanner is a narrow part of what the prior draws, its patients a wide one.

Patients are used for one thing, the mean over them of public features f(x): principal components of the prior's
pictures, a map of roughness (`public_features`), and products of pairs of the first components, which tell how much
patients differ. It is taken in looks of equal noise; each patient's own mean is centred, divided by a unit, and with
privacy cut to a norm of 1 first. Centre and unit are public: those of pictures drawn from what is known so far, so that
later looks, about a centre nearer to the patients, cut them to a smaller norm and need less noise for it.

The rest is post-processing. With t the noised mean, of precision 1 / v, (m, log s) minimizes

    |E f(x(theta)) - t|^2 / v + |m|^2 / tau_m^2 + |log s|^2 / tau_s^2,                                            (1)

by damped Gauss-Newton steps, of which one that goes uphill is taken back and damped more. No derivative of the drawing
is needed, because by Stein's identity

    dE f / dm = E[f e] / s,    dE f / dlog s = E[f (e^2 - 1)],                                                    (2)

which are means over drawn pictures. So noise that no picture explains has no effect, and what the patients' means do
not determine stays as in the prior.

Matching features of simulated to those of real data is indirect inference (Gourieroux et al., J Appl Econometrics 1993,
doi:10.1002/jae.3950080507); steps as (2), from an ensemble, are those of ensemble Kalman inversion (Iglesias et al.,
Inverse Problems 2013, doi:10.1088/0266-5611/29/4/045001); a noised mean of public features as all that private
synthesis needs is from Harder et al., DP-MERF, AISTATS 2021. The three together are our own;
benchmarks/studies/synthesis.py measures them. Only pictures that the prior can draw are possible: what it does not
model will not appear, and what makes a picture one of class 1 stays as the prior has it, because the means are of all
images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from harmonize.drawing import Inputs
from harmonize.evolution import SEEDS, noise_per_round
from harmonize.prior import PRIORS, Prior, PriorName
from harmonize.public_features import View, compute_features, make_view
from harmonize.scale import Progress, ignore_progress
from privacy.dp.access import Access, Batch
from privacy.message import Params
from privacy.release.policy import MOST_DELTA
from privacy.settings_error import Problem, out_of_range, refuse

LOOKS = (1, 2, 5)  # of equal noise; each group has a centre and a unit of its own
STEPS = (5, 5, 12)  # of Gauss-Newton after each group
PUBLIC, COMPONENTS, ROUGHNESS = 2000, 40, 1.0  # as of private evolution
LARGEST_STEP = 0.5
FARTHEST = 2.2  # of m: Phi(2.2) = 0.986
NARROWEST, WIDEST = -2.5, 0.2  # of log s


@dataclass(frozen=True, kw_only=True)
class FittedPrior:
    """Settings. epsilon, delta: of all looks together, for adding or removing a patient; None: no noise, no guarantee.

    prior: source of the pictures. pictures: drawn for one step. squared: components whose products are features as
    well. within: the quantile of the norms of public features, about their centre, that a patient's are cut to.
    of_mean, of_spread: tau_m and tau_s of (1).
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fitted_prior"] = "fitted_prior"
    prior: PriorName = "prostate_adc"
    epsilon: float | None = 10.0
    delta: float = 1e-5
    pictures: int = 1500
    squared: int = 16
    within: float = 0.25
    of_mean: float = 1.0
    of_spread: float = 1.2

    def __post_init__(self) -> None:
        """Check all settings.

        Raises:
            ValueError: one message names all problems.
        """
        problems = out_of_range(
            self,
            epsilon=(1e-3, 1e3),
            delta=(1e-12, MOST_DELTA),
            pictures=(16, 100_000),
            squared=(0, COMPONENTS),
            within=(0.01, 1.0),
            of_mean=(1e-3, 10.0),
            of_spread=(1e-3, 10.0),
        )
        if self.prior not in PRIORS:
            problems.append(Problem(("prior",), f"must be one of {', '.join(PRIORS)}, found {self.prior!r}"))
        refuse(problems)

    @property
    def private(self) -> bool:
        """Whether these settings give a privacy guarantee."""
        return self.epsilon is not None


class _Family(NamedTuple):
    """m and log s of equation (1), (d,) each."""

    mean: Tensor
    spread: Tensor


class _FamilyFeatures(NamedTuple):
    """Pictures of a family: the mean of their features (k,), its derivatives (2) (k, 2 d), the norm of features about
    it that a patient's are cut to, and their mean variance.
    """

    family: _Family
    mean: Tensor
    slope: Tensor
    unit: float
    variance: float


class _NoisedMean(NamedTuple):
    """A noised mean of features (k,), and the variance of its noise and of the choice of patients together."""

    mean: Tensor
    variance: float


class Looked(nn.Module):
    """A linear function of the public features of images, of which the gradient is their mean. (b, C, H, W) to (b,)."""

    def __init__(self, view: View, squared: int, centre: Tensor, unit: float) -> None:
        super().__init__()
        self.view, self.squared, self.centre, self.unit = view, squared, centre, unit
        self.weight = nn.Linear(len(centre), 1, bias=False)
        nn.init.zeros_(self.weight.weight)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        f = (features_with_products(self.view, self.squared, x) - self.centre.to(x)) / self.unit
        output: Tensor = self.weight(f)[:, 0]
        return output


def features_with_products(view: View, squared: int, images: Tensor) -> Tensor:
    """f: the public features (n, k), then the products of pairs of the first `squared`, those of two different ones
    times sqrt(2), so that their norm is that of the whole matrix.
    """
    f = compute_features(view, images)
    first = f[:, :squared]
    i, j = torch.triu_indices(first.shape[1], first.shape[1]).to(f.device)
    return torch.cat([f, first[:, i] * first[:, j] * torch.where(i == j, 1.0, 2**0.5)], dim=1)


def noise_of(epsilon: float, delta: float) -> float:
    """The noise multiplier of each look. Raises: ValueError: epsilon or delta is out of range."""
    return noise_per_round(epsilon, delta, sum(LOOKS))


def fit(
    settings: FittedPrior, access: Access, inputs: Inputs, *, seed: int, progress: Progress = ignore_progress
) -> Params:
    """Fit the prior to the training patients of `access`, whose images are in network space (C, H, W).

    Returns:
        "mean" and "spread": m and log s, (d,) each.

    Raises:
        ValueError: the inputs do not fit the prior.
    """
    prior = PRIORS[settings.prior]
    progress(0, sum(STEPS), "public pictures")
    view = make_view(prior, inputs, PUBLIC, COMPONENTS, ROUGHNESS, seed=seed)

    def features(images: Tensor) -> Tensor:
        return features_with_products(view, settings.squared, images).double()

    random = torch.Generator().manual_seed(seed)

    def describe_family(family: _Family) -> _FamilyFeatures:
        return _describe_family(prior, features, family, settings, inputs, random)

    current, means, done = (
        describe_family(_Family(torch.zeros(prior.latent), torch.zeros(prior.latent))),
        list[_NoisedMean](),
        0,
    )
    patients = max(1, access.size("train"))
    for looks, steps in zip(LOOKS, STEPS, strict=True):
        module = Looked(view, settings.squared, current.mean.float(), current.unit).to(access.device).eval()
        mean, noise = _noised_mean(access, module, looks)
        chance = current.variance * (1 / patients + 1 / settings.pictures)
        means.append(_NoisedMean(current.mean + current.unit * mean, (current.unit * noise) ** 2 + chance))
        target, damping = _combine_means(means), 1.0
        for _ in range(steps):
            proposal = describe_family(_gauss_newton_step(settings, current, target, damping))
            better = _objective_value(settings, proposal, target) < _objective_value(settings, current, target)
            current, damping = (proposal, damping / 2) if better else (current, damping * 4)
            done += 1
            progress(done, sum(STEPS), "fit")
    return {"mean": current.family.mean, "spread": current.family.spread}


def draw_images(settings: FittedPrior, inputs: Inputs, params: Params, y: Tensor, *, seed: int) -> Tensor:
    """Pictures (n, C, H, W) in network space of the classes y (n,). Deterministic in its arguments."""
    prior, random = PRIORS[settings.prior], torch.Generator().manual_seed(seed)
    family = _Family(params["mean"], params["spread"])
    return _draw_pictures(prior, family, len(y), inputs, random, y.cpu())[1]


def _noised_mean(access: Access, module: Looked, looks: int) -> tuple[Tensor, float]:
    """The mean of `looks` noised means of the module's features (k,), and the deviation of its noise."""
    gradients = [access.gradient(module, _negate_output, access.draw(full=True)) for _ in range(looks)]
    mean = -torch.stack([gradient.gradient["weight.weight"][0].detach().cpu().double() for gradient in gradients]).mean(
        dim=0
    )
    return mean, gradients[0].deviation / looks**0.5


def _negate_output(forward: Callable[..., Tensor], batch: Batch) -> Tensor:
    """The loss whose gradient is minus the mean of the features."""
    return -forward(batch.x)


def _combine_means(known: list[_NoisedMean]) -> _NoisedMean:
    """The mean of all looks, each by its precision."""
    precision = sum(1 / part.variance for part in known)
    mean = torch.stack([part.mean / part.variance for part in known]).sum(dim=0) / precision
    return _NoisedMean(mean, 1 / precision)


def _draw_pictures(
    prior: Prior, family: _Family, number: int, inputs: Inputs, random: torch.Generator, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """e (n, d), and the pictures of theta = Phi(m + s e); without y, of both classes in turn."""
    e = torch.randn(number, prior.latent, generator=random)
    theta = torch.special.ndtr(family.mean + family.spread.exp() * e).clamp(0, 1)
    seeds = torch.randint(SEEDS, (number,), generator=random)
    return e, prior.render(theta, torch.arange(number) % 2 if y is None else y, seeds, inputs)


def _describe_family(
    prior: Prior,
    features: Callable[[Tensor], Tensor],
    family: _Family,
    settings: FittedPrior,
    inputs: Inputs,
    random: torch.Generator,
) -> _FamilyFeatures:
    """Draw pictures of a family and compute the mean of their features and its derivatives."""
    e, images = _draw_pictures(prior, family, settings.pictures, inputs, random)
    f, e = features(images), e.double()
    mean = f.mean(dim=0)
    away = f - mean
    slope = torch.cat([away.T @ e / family.spread.exp().double(), away.T @ (e.square() - 1)], dim=1) / len(f)
    unit = float(away.norm(dim=1).quantile(settings.within))
    return _FamilyFeatures(family, mean, slope, unit, float(f.var(dim=0).mean()))


def _objective_value(settings: FittedPrior, at: _FamilyFeatures, target: _NoisedMean) -> float:
    """Equation (1)."""
    numbers, precision = _family_numbers(settings, at.family)
    return float((at.mean - target.mean).square().sum() / target.variance + (precision * numbers.square()).sum())


def _gauss_newton_step(settings: FittedPrior, at: _FamilyFeatures, target: _NoisedMean, damping: float) -> _Family:
    """One step of Gauss-Newton down equation (1), with `damped` times the prior's precision as Levenberg's damping."""
    numbers, precision = _family_numbers(settings, at.family)
    curvature = at.slope.T @ at.slope / target.variance + torch.diag((1 + damping) * precision)
    downhill = at.slope.T @ (target.mean - at.mean) / target.variance - precision * numbers
    step = torch.linalg.solve(curvature, downhill).clamp(-LARGEST_STEP, LARGEST_STEP)
    m, log_s = (numbers + step).float().chunk(2)
    return _Family(m.clamp(-FARTHEST, FARTHEST), log_s.clamp(NARROWEST, WIDEST))


def _family_numbers(settings: FittedPrior, family: _Family) -> tuple[Tensor, Tensor]:
    """(m, log s), and the precision that the prior gives to each."""
    taus = [torch.full_like(family.mean, tau) for tau in (settings.of_mean, settings.of_spread)]
    return torch.cat([family.mean, family.spread]).double(), 1 / torch.cat(taus).double().square()
