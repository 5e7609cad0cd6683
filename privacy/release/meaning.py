"""What ε and δ mean for a person, in numbers and in words, and what no ε covers.

An attacker who knows everything except whether one given patient took part performs a hypothesis test. Under (ε, δ)
every test with false positive rate f and true positive rate t satisfies (Kairouz, Oh and Viswanath, "The Composition
Theorem for Differential Privacy", ICML 2015, theorem 2.1)

    t <= e^ε f + δ     and     1 - f <= e^ε (1 - t) + δ.

`attack_success` and `true_positive_rate` are the largest values that these bounds allow; some mechanism reaches them,
so they are tight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

STRONG, MODERATE = 1.0, 3.0
"""The largest ε of a guarantee that is called strong, and moderate; above, it is called formal but weak. Ponomareva et
al., "How to DP-fy ML" (JAIR 77, 2023), set these limits at 1 and 10; for patients of one hospital 10 is too high."""

NO_GUARANTEE = "no formal guarantee"
UNBOUNDED = f"∞: {NO_GUARANTEE}"

OUTSIDE = (
    (
        "The same {unit} at another hospital: each hospital accounts for its own records only. If several hospitals"
        " have data of one person, their ε add up."
    ),
    (
        "Decisions while reading files that involve several {unit}s: an image or a series that belongs to two of them"
        " is used for neither, and one additional {unit} can exceed a limit, which stops the hospital (list in"
        " docs/explanation/privacy.md)."
    ),
    (
        "A person with several identifiers counts as several {unit}s: with k identifiers ε is k times as large, and δ "
        "grows by a larger factor."
    ),
    (
        "How the {unit}s were divided into training, validation and test, and how the settings were chosen (method, "
        "learning rate, clip, noise, number of steps), if somebody looked at {unit}s, or at earlier results, to do so."
    ),
    "When a reply arrives, how long the computation took and how large the reply is.",
    "The pages, logs and files that this hospital keeps for itself.",
    "A model that this hospital trains without noise for its own use: no ε covers it, and it must not be passed on.",
    "What is true of {unit}s in general: a model can reveal it about a person who never took part.",
)
"""What no guarantee ever covers. {unit} is to be filled in."""

RANDOMNESS = (
    "Noise and random samples come from the operating system (os.urandom), never from a stored seed. Each Gaussian "
    "value is the sum of four in 64 bits, so that the gaps between floating-point numbers do not reveal the value "
    "below the noise (Holohan and Braghin, arXiv 2107.10138). The proof of ε is about real numbers; the rounding of "
    "floating-point arithmetic is not accounted for."
)
TRUST = (
    "This hospital adds noise before anything leaves, so the guarantee does not depend on the coordinator or on other "
    "hospitals. The coordinator is assumed to follow the protocol and to examine everything that it receives "
    "(honest but curious). It may see each reply of this hospital alone: this guarantee counts on no secure "
    "aggregation, and no noise is added later. The guarantee depends on this hospital's machine, its operating system "
    "and this program, and on a ledger that nobody has modified."
)
TRUST_IN_SUMS = (
    "In lines with shared noise nothing but a sum over at least {hospitals} hospitals left in a readable form: masks "
    "hide each reply, and every hospital adds a part of the noise. Such a guarantee depends on others. The ε above "
    "hold if {assumed}; if all other hospitals work together with the coordinator, what is noised costs ε = {alone}. "
    "{keys} In all other lines this hospital adds all noise itself, before anything leaves, and the coordinator may "
    "see the reply alone. The coordinator is assumed to follow the protocol and to examine everything that it receives "
    "(honest but curious). The guarantee depends on this hospital's machine, its operating system and this program, "
    "and on a ledger that nobody has modified."
)
SIGNED_KEYS = "This hospital verifies that the others signed their keys, by signing keys that its policy names."
UNSIGNED_KEYS = (
    "Keys are exchanged through the coordinator, which is trusted to hand them on unchanged and to invent no hospital."
)
ALL_OTHERS = "even all other hospitals work together with the coordinator (the policy names no smaller number)"
AT_MOST = "at most {colluding} of the other hospitals work together with the coordinator, as the policy assumes"
COMPOSITION = (
    "The costs of all charged lines of the ledger are composed, over requests, rounds, runs and stages; each line may "
    "depend on everything that had left before (adaptive composition). The splits of one division hold different "
    "{unit}s, so each {unit} is charged for one split only, and the split with the largest ε counts; different "
    "divisions add up. A repeated reply has the same bytes and costs nothing more. An ε is rounded up, a remaining "
    "budget is rounded down. The ε of single rows do not sum to that of the run: each is computed alone, at the same δ."
)
SCRATCH = "Random numbers: no model was pretrained, and no other data were used."
ADJACENCY = (
    "two data sets that differ in one {unit}, who is in one of them and not in the other (add-or-remove), with all "
    "studies, slices and augmented copies of that {unit}"
)

LEGEND = (
    "q: probability of each {unit} to be in a sample, independently of all others (Poisson sampling; 1: always). "
    "σ: standard deviation of Gaussian noise, or scale of Laplace noise, divided by the sensitivity (the largest "
    "change that one {unit} can cause). T: number of times. ε alone: as if nothing else had left."
)
DECLARED: Mapping[str, str] = {
    "counts": (
        "counts of files and bytes, studies, patients and examples, by split, label, reason of rejection and "
        "scanner, and what follows from them (who takes part, which earlier runs an excluded patient had a part in)"
    ),
    "fingerprint": (
        "percentiles of the spacings, shapes and extents of studies, of the values inside their masks, and of the "
        "volumes of what masks show; the median share of a study that is not empty; how many studies have masks, by "
        "modality, and how many have none, by reason"
    ),
    "failure": "that a request failed",
}


def attack_success(epsilon: float, delta: float) -> float:
    """The highest accuracy of an attacker who guesses whether one patient took part, if both were equally likely.

    (1 - f + t) / 2 is largest where both bounds are reached: (e^ε + δ) / (1 + e^ε).

    Raises:
        ValueError: ε is negative or NaN, or δ is not in [0, 1].
    """
    _check_loss(epsilon, delta)
    small = math.exp(-epsilon)  # e^ε itself may overflow
    return (1 + delta * small) / (1 + small)


def true_positive_rate(epsilon: float, delta: float, false_alarms: float) -> float:
    """The largest true positive rate of an attack on participation whose false positive rate is `false_alarms`.

    Raises:
        ValueError: as `attack_success`, or false_alarms is not in [0, 1].
    """
    _check_loss(epsilon, delta)
    if not 0 <= false_alarms <= 1:
        raise ValueError(f"false_alarms must be a share in [0, 1], found {false_alarms}")
    near = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return max(0.0, min(1.0, near, 1 - math.exp(-epsilon) * (1 - delta - false_alarms)))


def describe_strength(epsilon: float) -> str:
    """A word for ε at patient level, to be shown only with the numbers of `describe_meaning`."""
    return "strong" if epsilon <= STRONG else "moderate" if epsilon <= MODERATE else "formal but weak"


def describe_meaning(epsilon: float, delta: float, unit: str = "patient") -> str:
    """What ε and δ guarantee to one person, in a few sentences.

    Raises:
        ValueError: as `attack_success`.
    """
    _check_loss(epsilon, delta)
    if math.isinf(epsilon):
        return f"ε = {UNBOUNDED}. Nothing is proved about what the released data reveal about one {unit}."
    if epsilon == 0:
        return f"ε = 0. Nothing that left depends on a single {unit}, except what is declared outside the guarantee."
    return (
        f"ε = {epsilon:g} at δ = {delta:g}: {describe_strength(epsilon)}. An attacker who knows everything else, and"
        f" wants to know whether a given {unit} took part, is right at most"
        f" {format_percent(attack_success(epsilon, delta))} of the time if both were equally likely before (chance: 50"
        " %). With a false positive rate of 1 %, an attacker finds at most"
        f" {format_percent(true_positive_rate(epsilon, delta, 0.01))} of those who took part. These bounds hold for"
        f" every attack; known attacks may do worse. A guarantee is called strong up to ε = {STRONG:g}"
        f" ({format_percent(attack_success(STRONG, delta))}), moderate up to {MODERATE:g}"
        f" ({format_percent(attack_success(MODERATE, delta))}), formal but weak above."
    )


def format_loss(epsilon: float) -> str:
    """An ε as text; an infinite one is called "no formal guarantee"."""
    return UNBOUNDED if math.isinf(epsilon) else f"{round_up(epsilon):g}"


def round_up(value: float, figures: int = 3) -> float:
    """The value rounded up to `figures` significant figures; infinity stays."""
    return _round_to(value, figures, ROUND_CEILING)


def round_down(value: float, figures: int = 3) -> float:
    """The value rounded down to `figures` significant figures; infinity stays."""
    return _round_to(value, figures, ROUND_FLOOR)


def format_percent(share: float) -> str:
    """A share as per cent, rounded up, with enough decimals that a share below 1 is not shown as 100 %."""
    exact = 100 * Decimal(repr(share))
    for decimals in range(1, 13):
        up = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING)
        if up < 100:
            return f"{up.normalize():f} %"
    return "100 %"


def _round_to(value: float, figures: int, rounding: str) -> float:
    """The value with so many significant figures, rounded in the given direction; infinity stays."""
    return float(Context(prec=figures, rounding=rounding).plus(Decimal(repr(value)))) if math.isfinite(value) else value


def _check_loss(epsilon: float, delta: float) -> None:
    """Raises: ValueError: ε is negative or NaN, or δ is not in [0, 1]."""
    if not epsilon >= 0:
        raise ValueError(f"ε must be >= 0, found {epsilon}")
    if not 0 <= delta <= 1:
        raise ValueError(f"δ must be in [0, 1], found {delta}")
