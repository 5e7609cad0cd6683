"""Settings of privacy: `none`, which must be stated, or patient-level differential privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from privacy.dp.protection import Protection
from privacy.release.policy import delta_problems
from privacy.settings_error import Problem, problems_of, refuse, unmet


@dataclass(frozen=True, kw_only=True)
class SharedNoise:
    """Hospitals share the noise of a sum of which nobody sees a part (`train.secure_sum`).

    colluding: how many of them may work together with the coordinator, at most, a curious hospital included: it knows
    its own part of the noise. Each hospital adds so much that the others' parts suffice.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    colluding: int = 1

    def __post_init__(self) -> None:
        refuse(unmet(self, colluding=(0 <= self.colluding <= 10**4, "in [0, 10000]")))


@dataclass(frozen=True, kw_only=True)
class PatientLevel:
    """Patient-level differential privacy: how much one method may reveal about one patient.

    epsilon, delta: of one method's training, choice of round and evaluation together, for each patient; they determine
    the noise. The report states the sum over methods. noise: instead of epsilon, the noise multiplier of gradients,
    which determines epsilon. clip: C, the clipping norm of a patient's gradient. sampling: q, the probability with
    which a patient is in a step; an epoch is 1 / q steps, and `work.batch` is not used. views: K, images of a patient
    in a step. loss_bound: clipping bound of a patient's validation loss. chunk: without effect (`Protection`).
    unit: what `patient` stands for in these data, for the statement. shared: of methods that send sums of gradients
    (fedsgd), null = every hospital adds all of the noise.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    epsilon: float | None = None
    noise: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    sampling: float = 0.2
    views: int = 4
    loss_bound: float = 2.0
    chunk: int | None = None
    unit: str = "patient"
    shared: SharedNoise | None = None

    @property
    def colluding(self) -> int | None:
        """How many hospitals may work together with the coordinator, by this run's epsilon; None = all others."""
        return None if self.shared is None else self.shared.colluding

    def __post_init__(self) -> None:
        problems = unmet(
            self,
            epsilon=(self.epsilon is None or 0 < self.epsilon <= 1000, "in (0, 1000] or null"),
            noise=(self.noise is None or 0 < self.noise <= 1000, "in (0, 1000] or null"),
            unit=(self.unit.replace(" ", "").isalpha() and len(self.unit) <= 40, "a word or two"),
        )
        problems += delta_problems(self.delta)
        if (self.epsilon is None) == (self.noise is None):
            text = f"give either epsilon or noise, found {self.epsilon} and {self.noise}"
            problems.append(Problem(("epsilon",), text))
        try:
            self.protection(1.0)
        except ValueError as error:
            problems += problems_of(error)
        refuse(problems)

    def protection(self, noise: float) -> Protection:
        """The protection with these numbers and a noise multiplier, for private data access, which checks their
        bounds.
        """
        return Protection(
            clip=self.clip,
            sampling=self.sampling,
            views=self.views,
            noise=noise,
            loss_bound=self.loss_bound,
            chunk=self.chunk,
        )


AnyPrivacy: TypeAlias = Literal["none"] | PatientLevel
