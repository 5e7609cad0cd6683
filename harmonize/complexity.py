"""The complexity of each hospital's images, and the choice of the target hospital of all translations.

VAFL (Yan et al., IEEE JBHI 2021, section II.A) trains a WGAN-GP at each site for a fixed time, maps real and synthetic
images with PCA and t-SNE, and calls "the L2 distance between the features" the site's complexity; the site with the
lowest is the target. Two sets of unpaired points have no such distance, so `paper_score` takes that of their centroids,
in units of the real points' spread, because coordinates of a t-SNE map have no unit. Even so, each site has a map of
its own. `frechet_score`, the default, is the Frechet distance between the two sets in the principal components of
public images: one space for all sites. Both depend on the number of images, so they take equally many of either kind,
and `Score.images` makes the number the same at all sites.

One number leaves a site. `exact`: as computed, with no guarantee. `dp`: not the score above but the share of the images
that public images do not explain (`Outside`), with noise. The GAN's score cannot be released with such noise: a bounded
mean needs one value per patient that no other patient changes, but every patient changes the GAN, its fakes, and so
the reference of all others; the sensitivity of the distance to one patient has no bound from which noise could be
calibrated. public: no number at all; the target is named, or is the site that declared most patients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from harmonize.distances import frechet
from harmonize.embedding import Basis, compute_basis, project_images, tsne
from harmonize.wgan import WganGp
from privacy.dp.access import Batch, Forward
from privacy.release.policy import MOST_DELTA
from privacy.settings_error import Problem, out_of_range, refuse

BOUND = 1.0
"""Upper bound of a patient's share: `Protection.loss_bound` of the data access that measures it."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """release: what leaves a site. variant: paper = `paper_score` of the paper's WGAN-GP (`make_imitation`), consilium
    = `frechet_score`. target: of release public, the site; null = that with most declared patients. steps, seeds: of
    the WGAN-GP, critic steps and how many are trained. images: how many real and synthetic images are compared, the
    same at all sites; null = all of the site. components: of PCA. perplexity: of t-SNE. current: the present target,
    where sites join later; another site replaces it only if its score is lower by `margin` standard deviations.
    epsilon, delta: of `dp`, spent once on the training patients.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    release: Literal["exact", "dp", "public"] = "public"
    variant: Literal["consilium", "paper"] = "consilium"
    target: str | None = None
    current: str | None = None
    steps: int = 400
    seeds: int = 3
    images: int | None = None
    components: int = 40
    perplexity: float = 30.0
    margin: float = 2.0
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        problems = out_of_range(
            self,
            steps=(1, 10**6),
            seeds=(1, 100),
            images=(8, 10**5),
            components=(1, 1000),
            perplexity=(1, 1000),
            margin=(0, 100),
            epsilon=(1e-3, 1e3),
            delta=(1e-15, MOST_DELTA),
        )
        if self.target is not None and self.release != "public":
            text = f"is {self.target}, but with release {self.release} the scores choose it: leave it out, or write "
            problems.append(Problem(("target",), f"{text}release: public"))
        if self.current is not None and self.release == "public":
            text = f"is {self.current}, and with release public nothing is compared: name a target"
            problems.append(Problem(("current",), text))
        if self.current is not None and self.release == "exact" and self.seeds < 2:
            text = "needs the spread of scores over seeds: score.seeds of 2 or more, found 1"
            problems.append(Problem(("current",), text))
        if self.release == "dp" and self.variant == "paper":
            text = "paper has no release dp, because no bound holds for it: write exact or public"
            problems.append(Problem(("variant",), text))
        refuse(problems)


SCORE_RATE = 1e-3
"""Learning rate of the imitation that is scored, which starts from random numbers; chosen on public images."""


def make_imitation(settings: Score) -> WganGp:
    """The WGAN-GP whose images are compared. The paper's has 100 epochs: `steps` = 100 * training images / 24."""
    if settings.variant == "paper":
        return WganGp(name="wgan_gp", variant="paper", epsilon=None, steps=settings.steps)
    return WganGp(name="wgan_gp", epsilon=None, steps=settings.steps, prior=None, lr=SCORE_RATE)


class Scored(NamedTuple):
    """mean of the scores over seeds; deviation: their sample standard deviation, NaN of one; values: by seed."""

    mean: float
    deviation: float
    values: tuple[float, ...]


def score_site(settings: Score, real: Tensor, synthetic: Sequence[Tensor], public: Basis, *, seed: int) -> Scored:
    """The complexity of one site.

    Args:
        real: (n, C, H, W) not augmented. synthetic: of each WGAN-GP (m, C, H, W); m >= n, or >= `images`.
        public: principal components of public images, the same at all sites; not used by variant `paper`.
        seed: selects images if there are more than needed, and seeds the jitter of t-SNE.

    Raises:
        ValueError: there is nothing to compare, or there are fewer images than `images`.
    """
    if not synthetic:
        raise ValueError("no synthetic images to score: train at least one WGAN-GP (score.seeds)")
    counts = {"real": len(real), **{f"synthetic {k}": len(images) for k, images in enumerate(synthetic)}}
    number = settings.images or len(real)
    if too_few := [f"{name} has {n}" for name, n in counts.items() if n < number]:
        raise ValueError(f"too few images to compare {number}: {', '.join(too_few)}; lower score.images")
    values = []
    for turn, images in enumerate(synthetic):
        pair = _subset(real, number, seed + turn), _subset(images, number, seed + turn)
        if settings.variant == "paper":
            by = paper_score(*pair, components=settings.components, perplexity=settings.perplexity, seed=seed + turn)
        else:
            by = frechet_score(*pair, public, seed=seed + turn)
        values.append(by)
    all_ = torch.tensor(values, dtype=torch.float64)
    return Scored(float(all_.mean()), float(all_.std()) if len(values) > 1 else math.nan, tuple(values))


def paper_score(
    real: Tensor, synthetic: Tensor, *, components: int = 40, perplexity: float = 30.0, seed: int = 0
) -> float:
    """`centroid_distance` on one t-SNE map of the principal components of real (n, ...) and synthetic (m, ...) images.

    The larger set is reduced at random to the size of the other. n and m >= 2.
    """
    number = min(len(real), len(synthetic))
    both = torch.cat([_subset(real, number, seed), _subset(synthetic, number, seed)])
    points = tsne(project_images(compute_basis(both, components), both), perplexity=perplexity, seed=seed)
    return centroid_distance(points[:number], points[number:])


def centroid_distance(real: Tensor, synthetic: Tensor) -> float:
    """Distance between the centroids of points (n, k) and (m, k), divided by the RMS radius of the real ones.

    Raises:
        ValueError: all real points are equal, so there is no unit.
    """
    a, b = real.double(), synthetic.double()
    centre = a.mean(dim=0)
    radius = (a - centre).square().sum(dim=1).mean().sqrt()
    if not float(radius) > 0:
        raise ValueError("the real images are all the same in features, so that their complexity has no unit")
    return float((b.mean(dim=0) - centre).norm() / radius)


def frechet_score(real: Tensor, synthetic: Tensor, public: Basis, *, seed: int = 0) -> float:
    """Squared Frechet distance of real (n, ...) and synthetic (m, ...) images in a public basis.

    0 = the same mean and covariance. The larger set is reduced at random to the size of the other.
    """
    number = min(len(real), len(synthetic))
    return frechet(
        project_images(public, _subset(real, number, seed)), project_images(public, _subset(synthetic, number, seed))
    )


class Outside(nn.Module):
    """Share of an image's deviation from the public mean that public images do not explain.

    1 - |P(x - m)|^2 / |x - m|^2, with P the projection on the public basis and m its mean: 0 = in its span or equal to
    m, 1 = orthogonal to it. It depends on no other patient's images. Forward: (b, ...) -> (b,) in [0, 1].

    The basis is stored in parameters that are never trained: private data access takes no module with buffers, and none
    without a parameter that could be trained (`privacy.dp.modules.find_unfit_parts`).
    """

    def __init__(self, public: Basis) -> None:
        super().__init__()
        self.mean = nn.Parameter(public.mean.clone())
        self.components = nn.Parameter(public.components.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, ...) -> shares (b,)."""
        away = x.flatten(1) - self.mean
        all_, inside = away.square().sum(dim=1), (away @ self.components.T).square().sum(dim=1)
        share = 1.0 - inside / torch.where(all_ > 0, all_, 1.0)
        return torch.where(all_ > 0, share, 0.0).clamp(0.0, BOUND)


def measure_outside(forward: Forward, batch: Batch) -> Tensor:
    """The statistic for `Access.measure`: `Outside` of each row, (b,)."""
    value = forward(batch.x)
    if not isinstance(value, Tensor):
        raise TypeError(f"forward must give a tensor, found {type(value).__name__}: use an Outside")
    return value


def noise_of(settings: Score) -> float:
    """`Protection.validation_noise` that spends epsilon and delta of `dp` on one measured number."""
    from privacy.dp.accounting import mu_of  # an accountant takes seconds to import; other releases do not need it

    return 1.0 / mu_of(settings.epsilon, settings.delta)


def deviation_of(settings: Score, patients: int) -> float:
    """Standard deviation of the noise in the number that `dp` releases, for a (declared) number of training
    patients.
    """
    return noise_of(settings) * BOUND / 2 / max(1, patients)


def select_target(scores: Mapping[str, float]) -> str:
    """The site with the lowest score; of equal scores the first by name.

    Raises:
        ValueError: there is none, or a score is not a finite number.
    """
    wrong = [f"{site} has {value}" for site, value in sorted(scores.items()) if not math.isfinite(value)]
    if wrong or not scores:
        raise ValueError(
            "no target can be chosen: " + ("; ".join(wrong) or "no site has a score") + "; name one "
            "(score: {release: public, target: SITE})"
        )
    return min(sorted(scores), key=lambda site: scores[site])


def select_largest_site(declared: Mapping[str, int]) -> str:
    """The site that declared most training patients, which needs the least noise; of equal numbers the first by
    name.
    """
    return select_target({site: -count for site, count in declared.items()})


def replaces_target(
    current: Sequence[float], joining: Sequence[float], margin: float, *, deviation: float | None = None
) -> bool:
    """Whether a joining site's complexity is "notably lower" than the target's, so that it becomes the target.

    VAFL, section II.A, gives no number. Here: its mean is lower by more than `margin` standard deviations, pooled over
    the seeds of both sites.

    Args:
        current, joining: scores by seed.
        deviation: the standard deviation to use instead, if it is known: for one noised number of either site,
            sqrt(a^2 + b^2) of their `deviation_of`.

    Raises:
        ValueError: a score is missing or not finite, or a deviation is needed and neither site has two scores.
    """
    groups = [torch.tensor(list(scores), dtype=torch.float64) for scores in (current, joining)]
    if any(len(group) == 0 or not bool(group.isfinite().all()) for group in groups):
        raise ValueError(f"scores must be finite and at least one, found {list(current)} and {list(joining)}")
    freedom = sum(len(group) - 1 for group in groups)
    if deviation is None:
        if freedom < 1:
            raise ValueError("one score per site gives no deviation over seeds: use score.seeds of 2 or more")
        squares = sum(float((group - group.mean()).square().sum()) for group in groups)
        deviation = math.sqrt(squares / freedom)
    return float(groups[1].mean()) < float(groups[0].mean()) - margin * deviation


def _subset(images: Tensor, number: int, seed: int) -> Tensor:
    """That number of the images, at random without replacement; if that is all of them, in their order."""
    if number == len(images):
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[:number].to(images.device)]
