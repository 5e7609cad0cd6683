"""Record the noise of private data access, and test that it is the noise in the events, and never repeated.

Each answer is compared with that of a copy without noise: the same draw, the same random bytes. The difference is
the noise, whatever the patients are. It must have the deviation in the events, in every parameter and in every step,
and no two pieces of it may be correlated. The tests are exact for Gaussian noise:

* deviation: the sum of n squares is chi-square with n degrees of freedom, two-sided;
* a common part: K pieces of noise of one tensor, added up, have the variance K sigma^2 (chi-square again);
* any two pieces: the cosine r of two Gaussian vectors of length d has r^2 ~ Beta(1/2, (d - 1) / 2).

Each test of a group may be wrong with ALARM / (their number), so a group raises a false alarm once in 1 / ALARM runs.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from privacy.dp import moments
from privacy.dp.access import Assign, Objective, Sample, Split
from privacy.dp.access import Gradient as Answer
from privacy.dp.events import Composed, Event, Gaussian, Part, PoissonSampled, SelfComposed
from privacy.dp.moments import Embed, Moments, Patients
from privacy.dp.private_access import PrivateAccess

ALARM = 1e-7


class Piece(NamedTuple):
    """Noise of one answer, in units of one patient's greatest change: its deviation is the multiplier in the events.

    label: run, site, round, request and number of the answer. what: split and sampling probability in the events.
    parts: by name of a tensor, flat.
    """

    label: tuple[object, ...]
    what: tuple[str, float]
    parts: Mapping[str, np.ndarray]

    @property
    def all(self) -> np.ndarray:
        return np.concatenate([self.parts[name] for name in sorted(self.parts)])


@dataclass
class Tape:
    """A source of bytes that records them, to repeat them later."""

    source: Callable[[int], bytes]
    written: bytearray = field(default_factory=bytearray)

    def __call__(self, count: int) -> bytes:
        told = self.source(count)
        self.written += told
        return told

    def again(self, start: int) -> Callable[[int], bytes]:
        """The recorded bytes from a position on, then arbitrary ones."""
        place = start
        spare = random.Random(0)

        def told(count: int) -> bytes:
            nonlocal place
            found = bytes(self.written[place : place + count])
            place += count
            return found + spare.randbytes(count - len(found))

        return told


@dataclass
class RecordingAccess:
    """Private data access that records the noise of each answer. `access.source` must be a Tape."""

    access: PrivateAccess
    label: tuple[object, ...] = ()
    pieces: list[Piece] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return self.access.events

    @property
    def device(self) -> torch.device:
        return self.access.device

    def epoch(self) -> int:
        return self.access.epoch()

    def size(self, split: Split) -> int:
        return self.access.size(split)

    def shares(self, classes: int) -> Tensor:
        """With exact shares e of N patients in two classes, N (e_1 s_0 - e_0 s_1) / |e| is noise, to first order."""
        start = self._place()
        found = self.access.shares(classes)
        if self.access.protection.counts_noise is not None:
            exact = self._silent(start, counts_noise=0.0).shares(classes)
            turned = torch.stack([exact[1], -exact[0]]) / exact[:2].norm()
            number = len(self.access.units["train"].sizes)
            self._note(("train", 1.0), {"shares": number * (turned * found[:2]).sum().reshape(1)})
        return found

    def draw(self, *, full: bool = False) -> Sample:
        return self.access.draw(full=full)

    def gradient(self, module: nn.Module, objective: Objective, draw: Sample, aux: Tensor | None = None) -> Answer:
        start, use, p = self._place(), self.access.uses[draw.number], self.access.protection
        found = self.access.gradient(module, objective, draw, aux)
        exact = self._silent(start, noise=0.0).gradient(module, objective, draw, aux)
        share = 1.0 if use.full else p.sampling
        unit = p.clip / (share * len(self.access.units["train"].sizes))
        parts = {name: (value - exact.gradient[name]).double() / unit for name, value in found.gradient.items()}
        self._note(("train", share), parts)
        return found

    def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
        start, p = self._place(), self.access.protection
        found = self.access.measure(module, statistic, split)
        if p.validation_noise is not None and split in self.access.units:
            exact = self._silent(start, validation_noise=0.0).measure(module, statistic, split)
            if not 0 < found < p.loss_bound:
                raise AssertionError(f"a mean of {found} was cut at [0, {p.loss_bound}]: nothing can be said of noise")
            unit = p.loss_bound / 2 / len(self.access.units[split].sizes)
            self._note((split, 1.0), {"mean": torch.tensor([(found - exact) / unit])})
        return found

    def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
        """Noise of the four parts about the centre that was released, each by its share of the one event."""
        found = self.access.moments(embed, classes, width=width, radius=radius)
        rows, units = self.access.splits["train"], self.access.units["train"]
        patients = Patients(rows.x, rows.y, list(torch.split(units.order, units.sizes.tolist())))
        total = moments.centre_sum(patients, embed, classes, width=width, radius=radius).double() / moments.UNIT
        exact = moments.sums_about(found.centre / radius, patients, embed, classes, radius=radius)
        sizes, sums, gram = (part.double() / moments.UNIT for part in exact)
        upper = torch.triu_indices(width, width, 1)
        noise = found.gram / radius**2 - gram
        self._note(
            ("train", 1.0),
            {
                "centre": (found.centre / radius * len(units.sizes) - total) * math.sqrt(moments.CENTRE),
                "sizes": (found.sizes - sizes) * math.sqrt(moments.SIZES),
                "sums": (found.sums / radius - sums) * math.sqrt(moments.SUMS),
                "diagonal": noise.diagonal() * math.sqrt(moments.GRAM),
                "gram": noise[upper[0], upper[1]] * math.sqrt(2 * moments.GRAM),
            },
        )
        return found

    def votes(self, assign: Assign, bins: int) -> Tensor:
        start = self._place()
        found = self.access.votes(assign, bins)
        self._note(("train", 1.0), {"votes": found - self._silent(start, votes_noise=0.0).votes(assign, bins)})
        return found

    def _place(self) -> int:
        return len(self.access.source.written)  # type: ignore[attr-defined]

    def _silent(self, start: int, **quiet: float) -> PrivateAccess:
        source = self.access.source.again(start)  # type: ignore[attr-defined]
        uses = [replace(use) for use in self.access.uses]
        protection = replace(self.access.protection, **quiet)
        return replace(self.access, protection=protection, source=source, uses=uses, booked=[], fit=[], strays=[])

    def _note(self, what: tuple[str, float], parts: Mapping[str, Tensor]) -> None:
        flat = {name: value.detach().flatten().cpu().numpy() for name, value in parts.items()}
        self.pieces.append(Piece((*self.label, len(self.pieces)), what, flat))


def booked(events: Sequence[Event], split: str = "", share: float = 1.0, times: int = 1) -> Iterator[tuple]:
    """(split, sampling probability, sigma) of each Gaussian mechanism in events, with repetitions."""
    for event in events:
        if isinstance(event, Gaussian):
            yield from [(split, share, event.noise_multiplier)] * times
        elif isinstance(event, Composed):
            yield from booked(event.events, split, share, times)
        elif isinstance(event, SelfComposed):
            yield from booked([event.event], split, share, times * event.count)
        elif isinstance(event, Part):
            yield from booked([event.event], event.split, share, times)
        elif isinstance(event, PoissonSampled):
            yield from booked([event.event], split, event.probability, times)


def complaints(recorded: Sequence[Piece], events: Sequence[Event]) -> list[str]:
    """Problems with the noise of all these answers, given all their events; empty = none."""
    paid = Counter(booked(events))
    sigma = {(split, share): noise for split, share, noise in paid}
    known = Counter({(split, share): count for (split, share, _), count in paid.items()})
    answers = Counter(piece.what for piece in recorded)
    if len(sigma) != len(paid) or known != answers:
        return [f"booked {dict(paid)}, answered {dict(answers)}"]
    pieces = [
        piece._replace(parts={n: v / sigma[piece.what] for n, v in piece.parts.items()})
        for piece in recorded
        if sigma[piece.what] > 0
    ]
    if len(pieces) < len(recorded):
        return ["an answer without noise was booked as such: nothing can be said"]
    return [*wrong_deviations(pieces), *common_parts(pieces), *alike(pieces), *alike_within(pieces)]


def _by_name(pieces: Sequence[Piece]) -> dict[str, np.ndarray]:
    """(K, size) of each tensor: its noise, answer by answer."""
    found: dict[str, list[np.ndarray]] = {}
    for piece in pieces:
        for name, value in piece.parts.items():
            found.setdefault(name, []).append(value)
    return {name: np.stack(values) for name, values in found.items()}


def wrong_deviations(pieces: Sequence[Piece]) -> list[str]:
    """Tensors, and answers, whose noise has a deviation other than 1."""
    groups = {**_by_name(pieces), **{str(piece.label): piece.all for piece in pieces}}
    return [
        f"{name}: deviation {np.sqrt(np.mean(np.square(value))):.4g} of what was booked, over {value.size} numbers"
        for name, value in groups.items()
        if _chi2(float(np.square(value).sum()), value.size) < ALARM / len(groups)
    ]


def common_parts(pieces: Sequence[Piece]) -> list[str]:
    """Tensors whose noise has a part that is repeated in several answers."""
    groups = {name: value for name, value in _by_name(pieces).items() if len(value) > 1}
    found = []
    for name, value in groups.items():
        size, count = value.shape[1], len(value)
        if _chi2(float(np.square(value.sum(axis=0)).sum() / count), size) < ALARM / len(groups):
            found.append(f"{name}: the sum of {count} answers has not the deviation of independent ones")
    return found


def alike(pieces: Sequence[Piece]) -> list[str]:
    """Pairs of answers whose noise is correlated, over the length of the shorter one."""
    vectors = [piece.all for piece in pieces]
    lengths = sorted({len(one) for one in vectors if len(one) >= 4})
    found = []
    for length in lengths:
        rows = [number for number, one in enumerate(vectors) if len(one) >= length]
        matrix = np.stack([vectors[number][:length] for number in rows])
        p = _cosine_p(matrix)
        least = ALARM / len(lengths) / max(1, len(rows) * (len(rows) - 1) / 2)
        found += [
            f"{pieces[rows[i]].label} and {pieces[rows[j]].label}: noise alike in {length} numbers"
            for i, j in zip(*np.nonzero(np.triu(p < least, 1)), strict=True)
        ]
    return found


def alike_within(pieces: Sequence[Piece]) -> list[str]:
    """Pairs of tensors whose noise is correlated within answers, over the length of the shorter one."""
    found, pairs = [], set[tuple[str, str]]()
    for piece in pieces:
        names = sorted(piece.parts)
        pairs |= {(one, two) for place, one in enumerate(names) for two in names[place + 1 :]}
    for one, two in sorted(pairs):
        both = [piece.parts for piece in pieces if one in piece.parts and two in piece.parts]
        short = min(min(len(parts[one]), len(parts[two])) for parts in both)
        matrix = np.stack([np.concatenate([parts[name][:short] for parts in both]) for name in (one, two)])
        if matrix.shape[1] >= 4 and _cosine_p(matrix)[0, 1] < ALARM / len(pairs):
            found.append(f"{one} and {two}: noise alike in {matrix.shape[1]} numbers")
    return found


def _chi2(value: float, freedom: int) -> float:
    """The two-sided p-value of a sum of squares."""
    return float(2 * min(stats.chi2.sf(value, freedom), stats.chi2.cdf(value, freedom)))


def _cosine_p(matrix: np.ndarray) -> np.ndarray:
    """(n, n): the probability of a cosine at least as large between each two rows."""
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    squares = np.clip((unit @ unit.T) ** 2, 0.0, 1.0)
    found: np.ndarray = stats.beta.sf(squares, 0.5, (matrix.shape[1] - 1) / 2)
    return found
