"""An empirical audit of differential privacy in one run, with synthetic patients.

Synthetic patients, the canaries, are each included with probability 1/2, the audited mechanism runs once, and an
auditor who sees everything that was released guesses which were included. Too many right guesses refute the claimed
epsilon (Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023, arXiv 2305.08846).

A bound below the claim proves nothing: the audit can find faults of clipping, sampling and noise, but not their
absence. m canaries can refute no claim above about ln(m / 3), so code is audited at a small claim, such as 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from privacy.dp import moments
from privacy.dp.access import Batch, Rows
from privacy.dp.entropy import Source, draw_choices
from privacy.dp.events import Declared
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.release.statement import Audit as Audit

Step: TypeAlias = Callable[[], Tensor]
"""step() -> (m,) one noisy gradient, of which coordinate j belongs to canary j."""
Make: TypeAlias = Callable[[Tensor], Step]
"""make(included (m,) bool) -> the steps of a run in which just these canaries are patients."""

COUNTS = Declared("counts")  # the number of canaries is no secret: the auditor made them
FEWEST = 10  # guesses on either side: with fewer no bound is above 0
HIGHEST = 100.0  # no number of canaries refutes a claim this high
TOLERANCE = 1e-6
RADIUS = 2.0  # of moments: not 1, so that a power of it that is wrong shows
MANY = 10**9  # patients by whose number the centre is divided: it is then 0 but for a canary's own part
LOUDNESS = 10.0  # a canary's gradient in units of the clipping norm: above 1, so that missing clipping shows


def lower_bound(scores: Tensor, included: Tensor, *, delta: float, confidence: float = 0.95) -> float:
    """A lower bound on the code's epsilon, if each canary was included with probability 1/2, independently.

    The k highest scores are guessed to be in and the k lowest to be out, for k = m/2, m/4, m/8 ..; each k gets an equal
    part of the allowed error (Bonferroni), and the best bound is returned.

    Args:
        scores: (m,), higher for a canary that is more likely included. Computed from released values only.
        included: (m,) bool, the true inclusion.
        delta: of the claim. The term that it adds (theorem 5.2) is never left out.
        confidence: least probability that the bound is not above the true epsilon.

    Returns:
        A number >= 0; 0 if nothing is refuted.

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    wrong = _wrong_claim(delta, confidence)
    if scores.ndim != 1 or len(scores) < 2 * FEWEST or scores.shape != included.shape:
        wrong.append(
            f"scores have shape {tuple(scores.shape)} and included {tuple(included.shape)}, needed is (m,) of both "
            f"with m >= {2 * FEWEST}"
        )
    elif not bool(scores.isfinite().all()):
        wrong.append(f"{int((~scores.isfinite()).sum())} of {len(scores)} scores are not finite")
    if included.dtype != torch.bool:
        wrong.append(f"included is {included.dtype}, needed is bool")
    if wrong:
        raise ValueError("lower_bound: " + "; ".join(wrong))
    m = len(scores)
    order = scores.argsort(stable=True)  # ties by index, which is independent of inclusion
    sides = [m >> halvings for halvings in range(1, m.bit_length()) if m >> halvings >= FEWEST]
    error = (1 - confidence) / len(sides)
    right = [int(included[order[-k:]].sum() + (~included[order[:k]]).sum()) for k in sides]
    return max(_largest_refuted_epsilon(m, 2 * k, v, delta, error) for k, v in zip(sides, right, strict=True))


def p_value(m: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Largest probability of at least `right` right ones of `guesses` guesses on m canaries if the code is
    (epsilon, delta)-private (theorem 5.2, with the maximum over i of appendix D).
    """
    from scipy import stats  # slow to import

    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, accuracy))
    missed = np.arange(1, right + 1)
    just_below = np.cumsum(stats.binom.pmf(right - missed, guesses, accuracy))
    steepest = float(np.max(just_below / missed, initial=0.0))
    return min(1.0, tail + 2 * m * delta * steepest)


def audit_gradients(
    make: Make,
    *,
    claimed: float,
    delta: float,
    canaries: int = 1000,
    steps: int = 200,
    confidence: float = 0.95,
    source: Source = os.urandom,
) -> Audit:
    """Audit any source of noisy gradients: a canary's score is the sum of its coordinate over all steps.

    The setting decides which faults are detectable. Missing subsampling is found if it should have saved much: at a
    claim of 1 the bound was 3.3 to 4.4 with a sampling of 0.1 and 50 steps, but 0.9 to 1.7 with 1/3 and 200 steps.

    Args:
        make: builds the run from the inclusion; `through_private_access` builds one of private data access.
        claimed: the epsilon that an accountant gives for `steps` steps at `delta`.
        canaries: m. 1000 find a noise that is 4 times too small at a claim of 1; 150 do not.
        source: draws the inclusion.

    Raises:
        ValueError: naming every argument that is not allowed, or a gradient that has no coordinate for each canary.
    """
    wrong = _wrong_claim(delta, confidence)
    if not (claimed > 0 and math.isfinite(claimed)):
        wrong.append(f"claimed is {claimed}, allowed is a finite number above 0")
    if canaries < 2 * FEWEST:
        wrong.append(f"canaries is {canaries}, allowed is {2 * FEWEST} or more, useful is 1000 or more")
    if steps < 1:
        wrong.append(f"steps is {steps}, allowed is 1 or more")
    if wrong:
        raise ValueError("audit_gradients: " + "; ".join(wrong))
    included = draw_choices(canaries, 0.5, source)
    step = make(included)
    scores = torch.zeros(canaries, dtype=torch.float64)
    for _ in range(steps):
        gradient = step()
        if gradient.shape != scores.shape:
            raise ValueError(f"a gradient has shape {tuple(gradient.shape)}, needed is {(canaries,)}, one a canary")
        scores += gradient.detach().cpu().double()
    bound = lower_bound(scores, included, delta=delta, confidence=confidence)
    return Audit(claimed, bound, canaries, steps, delta, confidence)


def through_private_access(protection: Protection, *, slices: int = 7, source: Source = os.urandom) -> Make:
    """Runs of private data access itself: draw, per-patient gradients, clipping, noise.

    The module is a vector w (m,) and the objective <w, x>, so that the gradient of an image is the image. Canary j has
    `slices` equal images, `LOUDNESS` times the clipping norm in coordinate j and 0 elsewhere.
    """

    def make(included: Tensor) -> Step:
        rows = canary_rows(included, protection.clip, slices)
        access = open_private({"train": rows}, protection, counts=COUNTS, source=source)
        module = _Weights(len(included))

        def step() -> Tensor:
            return access.gradient(module, _inner_product, access.draw()).gradient["w"]

        return step

    return make


def through_moments(protection: Protection, *, slices: int = 7, source: Source = os.urandom) -> Make:
    """Releases of moments by private data access itself: of all canaries' rows, of one class.

    A canary has a feature of its own, as in `through_private_access`. So it is alone in a coordinate of the centre and
    of its class's sum, and in one number on the diagonal of the second moments. The sum of the three, each
    weighted by its share, reveals as much about a canary as one Gaussian mechanism does, less 5 % for the class sizes.
    """

    def make(included: Tensor) -> Step:
        rows = canary_rows(included, RADIUS, slices)
        access = open_private({"train": rows}, protection, counts=COUNTS, source=source, sizes={"train": MANY})

        def step() -> Tensor:
            noised_moments = access.moments(_as_it_is, 2, width=len(included), radius=RADIUS)
            parts = (
                noised_moments.centre * MANY / RADIUS,
                noised_moments.sums[0] / RADIUS,
                noised_moments.gram.diagonal() / RADIUS**2,
            )
            return moments.CENTRE * parts[0] + moments.SUMS * parts[1] + moments.GRAM * parts[2]

        return step

    return make


def canary_rows(included: Tensor, clip: float, slices: int) -> Rows:
    """The images of the included canaries. x: (included * slices, m) float32."""
    who = included.nonzero().flatten()
    patient = who.repeat_interleave(slices)
    x = torch.zeros(len(patient), len(included))
    x[torch.arange(len(patient)), patient] = LOUDNESS * clip
    return Rows(x, torch.zeros(len(patient), dtype=torch.long), patient)


def _as_it_is(x: Tensor) -> Tensor:
    """The rows unchanged: the embedding of which the audited moments are taken."""
    return x


class _Weights(nn.Module):
    def __init__(self, m: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(m))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def _inner_product(forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """The objective <w, x> of each row (b,), whose gradient is the row itself."""
    return forward(batch.x)


def _largest_refuted_epsilon(m: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Largest epsilon at which this many right guesses have a probability below `error`."""
    from scipy import optimize  # slow to import

    def excess(epsilon: float) -> float:
        return p_value(m, guesses, right, epsilon, delta) - error

    if excess(0.0) >= 0:
        return 0.0
    root = float(optimize.brentq(excess, 0.0, HIGHEST, xtol=TOLERANCE))
    return max(0.0, root - TOLERANCE)  # the root may be approached from above


def _wrong_claim(delta: float, confidence: float) -> list[str]:
    """A sentence for delta, and one for the confidence, if it is out of range."""
    wrong = []
    if not 0 <= delta < 1:
        wrong.append(f"delta is {delta}, allowed is 0 or more and below 1, for instance 1e-5")
    if not 0 < confidence < 1:
        wrong.append(f"confidence is {confidence}, allowed is above 0 and below 1, for instance 0.95")
    return wrong
