"""Private data access: patient-level differential privacy with the same interface as plain access.

Adjacency: one patient with all their data is added or removed; all others keep their split. Sums are divided by given
numbers of patients (`sizes`): those that the hospital released with noise, or the true ones if it declares them public.
A draw is a Poisson sample: every patient is in it with probability q, independently. Of each drawn patient K random
views are used; their mean gradient is clipped once, and noise is added once to the sum. The recorded event of a draw
that was used k times: k Gaussian mechanisms on one Poisson sample.

Nothing here is reproducible: samples, views, dropout and noise come from the operating system. With a known seed, even
the views of other patients would depend on who is in the sample.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privacy.dp.access import Assign, Augment, Batch, Draw, Gradient, Objective, Rows, Sample, Split, count_ballots
from privacy.dp.access_limit import AccessLimit
from privacy.dp.chunks import compute_repeatably, copy_rows
from privacy.dp.dpsgd import discrete_sigma, private_gradient, private_gradient_sum
from privacy.dp.entropy import Source, draw_choices, draw_integers, make_generator_state, seed_unrepeatably
from privacy.dp.events import (
    NON_PRIVATE,
    Event,
    Gaussian,
    Part,
    PoissonSampled,
    SharedGaussian,
    compose_events,
)
from privacy.dp.mechanisms import bounded_mean, vote_histogram
from privacy.dp.modules import find_unfit_parts, keep_unchanged
from privacy.dp.moments import Embed, Moments, Patients, noised_moments
from privacy.dp.persample import patient_gradients
from privacy.dp.protection import Protection
from privacy.dp.units import Units, Views, all_views, some_views, units_of
from privacy.message import Params

SHARED = "noise is shared (privacy.shared), so that only sums over hospitals may: take fedsgd, or leave out shared"


@dataclass
class _Use:
    """One draw: the rows of its patients, whether it holds all patients (`full`), and how often it was used.

    state: of the augmentation's generator, so that a second use augments the images in the same way.
    """

    views: Views
    full: bool
    state: Tensor
    times: int = 0


@dataclass(frozen=True)
class PrivateAccess:
    """See `open_private`. strays: number of patients whose gradient was not finite, so far; it stays at the site.

    dry: no patient's data are used; only events are recorded, so that a cost is known in advance. `limit` bounds how
    much may be asked then.
    """

    splits: Mapping[Split, Rows]
    protection: Protection
    units: Mapping[Split, Units]
    counts: Event
    augment: Augment | None
    source: Source
    sizes: Mapping[Split, int]
    dry: bool = False
    booked: list[Event] = field(default_factory=list)
    uses: list[_Use] = field(default_factory=list)
    fit: list[nn.Module] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    limit: AccessLimit = field(default_factory=AccessLimit)

    @property
    def events(self) -> list[Event]:
        """Every use of every draw, and all other releases."""
        p = self.protection
        gaussian = Gaussian(p.noise) if p.hospitals == 1 else SharedGaussian(p.noise, p.hospitals)
        drawn = [
            Part(
                p.cut, "train", PoissonSampled(1.0 if use.full else p.sampling, compose_events([gaussian] * use.times))
            )
            for use in self.uses
            if use.times
        ]
        together = compose_events([*self.booked, *drawn])
        return [together] if self.booked or drawn else []

    @property
    def device(self) -> torch.device:
        """Where the patients lie."""
        return self.splits["train"].x.device

    def epoch(self) -> int:
        """Draws after which a patient was drawn once on average: 1 / q."""
        return max(1, round(1.0 / self.protection.sampling))

    def size(self, split: Split) -> int:
        """Number of patients of a split, as the hospital released it: means here weight patients, not rows."""
        self._count_access("size")
        self.booked.append(self.counts)
        return self.sizes.get(split, 0)

    def shares(self, classes: int) -> Tensor:
        """How common each class is among training patients, with noise; a patient's vote is split over rows or pixels.

        Uniform without `counts_noise`, because then no privacy budget was planned for it.
        """
        self._count_access("share of each class")
        noise = self.protection.counts_noise
        if noise is None:
            return torch.full((classes,), 1.0 / classes, dtype=torch.float64)
        rows, units = self.splits["train"], self.units["train"]
        votes = torch.zeros(len(units.sizes), classes, dtype=torch.float64)
        whose = torch.repeat_interleave(torch.arange(len(units.sizes)), units.sizes)
        y = rows.y.cpu().reshape(len(rows.y), -1)[units.order]
        votes.index_add_(0, whose, torch.stack([(y == c).sum(dim=1) for c in range(classes)], dim=1).double())
        noised = vote_histogram(votes, noise_multiplier=noise, source=self.source)
        self.booked.append(Part(self.protection.cut, "train", noised.event))
        counts = noised.value.clamp(min=1.0)
        return counts / counts.sum()

    def draw(self, *, full: bool = False) -> Sample:
        """Draw a Poisson sample of patients, or with `full` all patients with every row, not augmented."""
        self._count_access("draw")
        units, p = self.units["train"], self.protection
        who = torch.arange(0 if self.dry else len(units.sizes))
        who = who if full else who[draw_choices(len(who), p.sampling, self.source)]
        views = all_views(units, who) if full else some_views(units, who, p.views, self.source)
        self.uses.append(_Use(views, full, torch.zeros(0) if self.dry else make_generator_state(self.source)))
        return Sample(len(self.uses) - 1)

    def gradient(
        self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
    ) -> Gradient:
        """(sum of clipped mean gradients of the drawn patients + noise) / (q N), by name; N as in `size`.

        aux: (A, K, ...) for any A: each patient of the sample gets one of the A sets, drawn at random and independently
        of other patients. The number of sampled patients and the loss (NaN) are not released.

        Raises:
            ValueError: the module cannot be trained privately (all reasons), or aux has another K.
        """
        if not isinstance(draw, Sample):
            raise TypeError("this draw belongs to plain data access; ask the access that drew it")
        use, p = self.uses[draw.number], self.protection
        named = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if p.hospitals > 1:
            raise ValueError(f"a gradient of one hospital would leave, and {SHARED}")
        self._check_module(module)
        self._count_access("gradient", sum(value.numel() for value in named.values()))
        use.times += 1
        self.booked.append(self.counts)  # N divides the sum
        if self.dry:
            return Gradient({name: torch.zeros_like(value) for name, value in named.items()}, torch.zeros(0))
        expected = (1.0 if use.full else p.sampling) * max(1, self.sizes.get("train", 0))
        patients = patient_gradients(module, objective, self._iterate_views(use, aux))
        with seed_unrepeatably(self.source), compute_repeatably(), keep_unchanged(module):
            gradient = private_gradient(
                named,
                patients,
                clip=p.clip,
                noise=p.noise,
                expected=expected,
                source=self.source,
                strays=self.strays.append,
            )
        return Gradient(gradient, torch.zeros(0), p.noise * p.clip / expected)

    def gradient_sum(self, module: nn.Module, objective: Objective, draw: Draw | Sample) -> Params:
        """The sum of clipped mean gradients of the drawn patients + noise, int64 of SUM_UNIT, by name.

        Raises:
            ValueError: as `gradient`; or as `privacy.dp.dpsgd.discrete_sigma`.
        """
        if not isinstance(draw, Sample):
            raise TypeError("this draw belongs to plain data access; ask the access that drew it")
        use, p = self.uses[draw.number], self.protection
        named = {name: value for name, value in module.named_parameters() if value.requires_grad}
        numbers = sum(value.numel() for value in named.values())
        self._check_module(module)
        discrete_sigma(p.clip, p.noise, numbers)
        self._count_access("gradient", numbers)
        use.times += 1
        if self.dry:
            return {name: torch.zeros_like(value, dtype=torch.int64) for name, value in named.items()}
        patients = patient_gradients(module, objective, self._iterate_views(use, None))
        with seed_unrepeatably(self.source), compute_repeatably(), keep_unchanged(module):
            return private_gradient_sum(
                named, patients, clip=p.clip, noise=p.noise, source=self.source, strays=self.strays.append
            )

    def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
        """Mean over patients of each one's mean statistic, clipped to [0, loss_bound], with noise.

        NaN where it was not paid for (`validation_noise`), and for a split without patients.
        """
        self._count_access("measure")
        p, rows = self.protection, self.splits.get(split)
        if p.validation_noise is None or rows is None or not self.sizes.get(split, 0):
            return math.nan
        self._check_module(module)
        units = self.units[split]
        values = (
            torch.zeros(len(units.sizes))
            if self.dry or not len(rows.y)
            else _per_patient(module, statistic, rows, units)
        )
        noised = bounded_mean(
            values,
            low=0.0,
            high=p.loss_bound,
            count=self.sizes[split],
            noise_multiplier=p.validation_noise,
            source=self.source,
        )
        self.booked.extend((self.counts, Part(p.cut, split, noised.event)))
        return float(noised.value)

    def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
        """Moments of the training patients' embedded rows, with noise: one event of the noise multiplier of gradients.

        See `privacy.dp.moments`.
        """
        if self.protection.hospitals > 1:
            raise ValueError(f"moments of one hospital would leave, and {SHARED}")
        self._count_access("moments", width * width)
        p, rows, units = self.protection, self.splits["train"], self.units["train"]
        whose = [] if self.dry else list(torch.split(units.order, units.sizes.tolist()))
        patients = Patients(rows.x, rows.y, whose)
        count = self.sizes.get("train", 0)
        self.booked.extend((self.counts, Part(p.cut, "train", Gaussian(p.noise))))  # the count divides the centre
        with compute_repeatably():
            return noised_moments(
                patients, embed, classes, width=width, radius=radius, count=count, noise=p.noise, source=self.source
            )

    def votes(self, assign: Assign, bins: int) -> Tensor:
        """The sum of training patients' vote shares, with noise: (bins,) float64. A patient's shares sum to 1.

        Adding or removing a patient changes the sum by that patient's shares, whose L2 norm is at most their L1 norm,
        1, however many rows (copies of images included) the patient has (Lin et al., Differentially private synthetic
        data via foundation model APIs 1, ICLR 2024, with the patient as the unit).

        Raises:
            ValueError: `votes_noise` is not set, or as `privacy.dp.access.count_ballots`.
        """
        self._count_access("vote")
        noise = self.protection.votes_noise
        if noise is None:
            raise ValueError("votes were not paid for: votes_noise is null; give the noise multiplier that was planned")
        with compute_repeatably():
            cast = torch.zeros(0, bins) if self.dry else count_ballots(self.splits["train"], assign, bins)
        noised = vote_histogram(cast, noise_multiplier=noise, source=self.source)
        self.booked.append(Part(self.protection.cut, "train", noised.event))
        return noised.value

    def _iterate_views(self, use: _Use, aux: Tensor | None) -> Iterator[Batch]:
        """The views of each drawn patient, augmented, in memory of their own: one patient at a time."""
        rows, p = self.splits["train"], self.protection
        if aux is not None and not use.full and aux.shape[1] != p.views:
            raise ValueError(f"aux must be (A, {p.views}, ...): one for each view, found {tuple(aux.shape)}")
        random = torch.Generator()
        if self.augment is not None:
            random.set_state(use.state)
        set_numbers = torch.zeros(len(use.views)) if aux is None else self._draw_set_numbers(len(use.views), len(aux))
        sizes = [len(index) for index in use.views]
        places = torch.split(torch.cat(list(use.views)).to(self.device), sizes) if sizes else []  # moved once
        for index, number in zip(places, set_numbers, strict=True):
            x, y = copy_rows(rows.x, index), copy_rows(rows.y, index)
            if self.augment is not None and not use.full:
                x, y = self.augment(x, y, random)
            yield Batch(
                x,
                y,
                None
                if aux is None
                else copy_rows(aux[int(number)], torch.arange(len(y), device=aux.device) % aux.shape[1]),
            )

    def _draw_set_numbers(self, patients: int, sets: int) -> Tensor:
        """Which set of aux each patient of a sample gets: (patients,), drawn independently for each.

        It must not follow from the position in the sample: one more patient would shift all later ones to other sets
        and change many gradients, where the guarantee bounds the change of one.
        """
        shape = (patients, 1)
        return draw_integers(shape, torch.full(shape, sets), self.source)[:, 0]

    def _count_access(self, what: str, numbers: int = 0) -> None:
        """In a dry run, count a request. Raises: TooLong: there were too many."""
        if self.dry:
            self.limit.count(what, numbers)

    def _check_module(self, module: nn.Module) -> None:
        """Check the module, once; and on every call, that it has no buffers."""
        if all(known is not module for known in self.fit) and (complaints := find_unfit_parts(module)):
            raise ValueError("this network cannot be trained privately: " + "; ".join(complaints))
        if any(True for _ in module.buffers()):
            raise ValueError("this network got buffers while it was trained: they pass by clipping and noise")
        self.fit[:] = [module]


def open_private(
    splits: Mapping[Split, Rows],
    protection: Protection,
    *,
    augment: Augment | None = None,
    counts: Event = NON_PRIVATE,
    source: Source = os.urandom,
    sizes: Mapping[Split, int] | None = None,
    dry: bool = False,
) -> PrivateAccess:
    """Open private data access for one request.

    augment: applied to each view before clipping. counts: the event of releasing the numbers of patients: `Declared` if
    the hospital declares them public. source: of random bytes; only tests replace it. sizes: patients by split as the
    hospital released them; None = the true numbers. dry: record events without using any patient, and raise
    `privacy.dp.access_limit.TooLong` if a method asks for too much.

    Raises:
        ValueError: the training split has no patients (the divisor q N would be 0).
    """
    if len(splits["train"].y) == 0:
        raise ValueError("the training split has no rows: check the split fractions and the number of patients")
    units = {split: units_of(rows) for split, rows in splits.items()}
    patient_counts = {split: len(unit.sizes) for split, unit in units.items()} if sizes is None else sizes
    return PrivateAccess(splits, protection, units, counts, augment, source, patient_counts, dry)


def _per_patient(module: nn.Module, statistic: Objective, rows: Rows, units: Units) -> Tensor:
    """Each patient's mean of a statistic over their rows, in evaluation mode: (N,)."""
    training = module.training
    module.eval()
    with torch.no_grad(), compute_repeatably(), keep_unchanged(module):
        means = [
            float(statistic(module, Batch(copy_rows(rows.x, index), copy_rows(rows.y, index))).double().mean())
            for index in all_views(units, torch.arange(len(units.sizes)))
        ]
    module.train(training)
    return torch.tensor(means, dtype=torch.float64)
