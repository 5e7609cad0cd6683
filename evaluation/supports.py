"""On how many images and patients a score rests, and whether that is enough to judge by."""

from __future__ import annotations

from dataclasses import dataclass, field

NOISE_SHARE = 0.1  # what the noise in a class's number of patients may be of it: `Support.assessable`


@dataclass(frozen=True)
class Support:
    """On how many a score rests.

    `positives` and `negatives` count images of the rarest score row (two classes: class 1 and class 0; more: the class
    with fewest images, and the fewest images outside a class); `positive_patients` those of the rarest positive class.
    Noised counts do not tell the images of a class, only that each of its patients has one: both are then patients.
    `noise`: as in `Counts`; `class_noise`: in a class's number of patients. They say how, not on whom: not compared.
    Of masks (`evaluation.overlap`) both count patients, with and without the structure; `defined` = patients for whom
    the measure has a value, None where it has one for all. It hangs on the model, so it is not compared either.
    """

    patients: int
    images: int
    positives: int
    negatives: int
    positive_patients: int
    noise: float = field(default=0.0, compare=False)
    class_noise: float = field(default=0.0, compare=False)
    defined: int | None = field(default=None, compare=False)

    def assessable(self, *, images: int = 20, patients: int = 5, noise: float = NOISE_SHARE) -> bool:
        """Whether there are at least so many images on either side and so many positive patients, and little noise.
        Of masks: whether there are so many patients with the structure.

        noise: what `class_noise` may be of the smaller class. Up to 0.1 the 95 % intervals held AUC and balanced
        accuracy in 90 to 100 % of simulated hospitals, above that in as few as 73 % (benchmarks/noised_scores.py).
        """
        if self.defined is not None:
            return self.positive_patients >= patients
        few = min(self.positives, self.negatives)
        return few >= images and self.positive_patients >= patients and self.class_noise <= noise * few
