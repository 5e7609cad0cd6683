"""What ε and δ mean for a person, in numbers and in words, and what no ε covers.

An attacker who knows everything but whether one given patient took part makes a test between two worlds. Under (ε, δ)
no test has an error pair outside of a region (Kairouz, Oh and Viswanath, "The Composition Theorem for Differential
Privacy", ICML 2015, theorem 2.1): with f the share of false alarms and t the share of true ones,

    t <= e^ε f + δ     and     1 - f <= e^ε (1 - t) + δ.

Both functions below read off that region; a mechanism that reaches its edge exists, so neither can be made smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

STRONG, MODERATE = 1.0, 3.0
"""Up to which ε a guarantee is called strong and moderate here; above, it is called formal but weak. Ponomareva et al.,
"How to DP-fy ML" (JAIR 77, 2023), draw their lines at 1 and 10; for single patients of a hospital 10 is too kind."""

NO_GUARANTEE = "no formal guarantee"
UNBOUNDED = f"∞: {NO_GUARANTEE}"

OUTSIDE = (
    "The same {unit} at another hospital: each hospital counts its own records only, and for a person who is known to "
    "several the ε of all of them add up.",
    "What reading decides across {unit}s: a picture or a series that two of them claim is used for neither, and one "
    "of them can be the one too many for a limit, which stops the hospital (docs/privacy.md has the list).",
    "A person under several identifiers counts as several {unit}s: with k of them ε is k times as large, and δ grows "
    "by more than that.",
    "How the {unit}s were divided into training, validation and test, and how the settings were chosen (method, "
    "learning rate, clip, noise, number of steps), if somebody looked at {unit}s, or at earlier results, for it.",
    "When a reply comes, how long the work took and how large the reply is.",
    "What this hospital's own pages, logs and files show inside it.",
    "A model that this hospital trains without noise for its own use: no ε covers it, and it must not be handed on.",
    "What is true of {unit}s in general: a model may say it of a person who never took part.",
)
"""Outside of every guarantee, whatever was done. {unit} is to be filled in."""

RANDOMNESS = (
    "Noise, and the choice of who is in a sample, come from the operating system (os.urandom), never from a seed that "
    "is written down. A Gaussian value is the sum of four, in 64 bits, so that gaps between floating-point numbers "
    "tell nothing that can be searched (Holohan and Braghin, arXiv 2107.10138). The calculation is still one of "
    "floating-point numbers: what ε says holds for real numbers, and rounding is not counted."
)
TRUST = (
    "This hospital adds its own noise before anything leaves: the promise does not rest on the discretion of the "
    "coordinator or of other hospitals. The coordinator is taken to keep to the protocol and to look at all that it "
    "gets. It sees every reply of this hospital by itself: there is no secure aggregation, and nobody adds noise "
    "later. The promise rests on this hospital's machine, its operating system and this program, and on a ledger that "
    "nobody rewrote."
)
COMPOSITION = (
    "All lines of the ledger that count are added up, over requests, rounds, runs and stages, where each could depend "
    "on all that had left before. The splits of one division hold different {unit}s, so each {unit} pays for one of "
    "them, and the dearest counts; different divisions add up. A reply that is sent again is the same bytes and costs "
    "nothing more. An ε is rounded up, what remains is rounded down. The ε of single rows do not sum to that of the "
    "run: each is at the same δ by itself."
)
SCRATCH = "Random numbers: no model was pretrained, and no other data were used."
ADJACENCY = (
    "two sets of {unit}s of which one is the other with one {unit} added or taken away, with everything that is that "
    "{unit}'s: all studies, slices and augmented copies"
)

LEGEND = (
    "q: probability of each {unit} to be in a sample, independently of all others (Poisson sampling; 1: all are in). "
    "σ: standard deviation of Gaussian noise, or scale of Laplace noise, in units of the most that one {unit} can "
    "change. T: how many times. ε alone: as if nothing else had left."
)
DECLARED: Mapping[str, str] = {
    "counts": "counts of files and bytes, studies, patients and examples, by split, label, reason of rejection and "
    "scanner, and what follows from them (who takes part, which earlier runs an excluded patient had a part in)",
    "failure": "that a request failed",
}


def success(epsilon: float, delta: float) -> float:
    """How often, at most, an attacker is right about one patient's part when both answers were equally likely before.

    (1 - f + t) / 2 is largest where both edges of the region meet: (e^ε + δ) / (1 + e^ε).

    Raises:
        ValueError: ε is negative or NaN, or δ is not in [0, 1].
    """
    _check(epsilon, delta)
    small = math.exp(-epsilon)  # e^ε itself may not be a number
    return (1 + delta * small) / (1 + small)


def found(epsilon: float, delta: float, false_alarms: float) -> float:
    """Which share of those who took part an attacker finds at most, who wrongly names this share of those who did not.

    Raises:
        ValueError: as `success`, or false_alarms is not in [0, 1].
    """
    _check(epsilon, delta)
    if not 0 <= false_alarms <= 1:
        raise ValueError(f"false_alarms must be a share in [0, 1], found {false_alarms}")
    near = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return max(0.0, min(1.0, near, 1 - math.exp(-epsilon) * (1 - delta - false_alarms)))


def strength(epsilon: float) -> str:
    """One word for ε at patient level; it says nothing without the numbers of `meaning`."""
    return "strong" if epsilon <= STRONG else "moderate" if epsilon <= MODERATE else "formal but weak"


def meaning(epsilon: float, delta: float, unit: str = "patient") -> str:
    """What ε and δ promise to one person, in two or three sentences.

    Raises:
        ValueError: as `success`.
    """
    _check(epsilon, delta)
    if math.isinf(epsilon):
        return f"ε = {UNBOUNDED}. Nothing is proved about what all that left tells of one {unit}."
    if epsilon == 0:
        return f"ε = 0. Nothing that left depends on a single {unit}, but for what is declared to be outside."
    return (
        f"ε = {epsilon:g} at δ = {delta:g}: {strength(epsilon)}. An attacker who knows everything else, and wants to "
        f"know whether a given {unit} took part, is right at most {percent(success(epsilon, delta))} of the time where "
        f"both were equally likely before (a coin: 50 %). If 1 of 100 who did not take part is wrongly named, at most "
        f"{percent(found(epsilon, delta, 0.01))} of those who did are found. This bounds every attack; how well a "
        f"known one does is another question. The words: strong up to ε = {STRONG:g} "
        f"({percent(success(STRONG, delta))}), moderate up to {MODERATE:g} ({percent(success(MODERATE, delta))}), "
        f"formal but weak above."
    )


def loss(epsilon: float) -> str:
    """An ε as text: with its words where there is none."""
    return UNBOUNDED if math.isinf(epsilon) else f"{upwards(epsilon):g}"


def upwards(value: float, figures: int = 3) -> float:
    """The next number of so many significant figures that is not smaller; infinity stays."""
    return _rounded(value, figures, ROUND_CEILING)


def downwards(value: float, figures: int = 3) -> float:
    """The next number of so many significant figures that is not larger; infinity stays."""
    return _rounded(value, figures, ROUND_FLOOR)


def percent(share: float) -> str:
    """A share as per cent, rounded up, with as many decimals as it takes not to say 100 of less."""
    exact = 100 * Decimal(repr(share))
    for decimals in range(1, 13):
        up = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING)
        if up < 100:
            return f"{up.normalize():f} %"
    return "100 %"


def _rounded(value: float, figures: int, rounding: str) -> float:
    return float(Context(prec=figures, rounding=rounding).plus(Decimal(repr(value)))) if math.isfinite(value) else value


def _check(epsilon: float, delta: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"ε must be >= 0, found {epsilon}")
    if not 0 <= delta <= 1:
        raise ValueError(f"δ must be in [0, 1], found {delta}")
