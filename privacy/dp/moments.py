"""Moments of a hospital's training patients in one release: class sizes, class sums, second moments.

A patient's rows are averaged first, so each patient weighs the same. What is released about a patient with rows
z_r = embed(x_r), labels y_r (one-hot) and u_r = z_r - m, cut to norm R: the means over r of y_r, of y_r u_r' and of
u_r u_r'. With R = 1 each of the three has norm 1 at most (L2; of the matrix: Frobenius), which is the sensitivity
to adding or removing a patient. The centre m is the mean of all patients' mean rows, cut to R too.

The four parts are released with noise s / sqrt(share), where s is the noise multiplier and the shares sum to 1. Their
adaptive composition is as private as one Gaussian mechanism with noise multiplier s (Dong, Roth, Su: Gaussian
differential privacy, J R Stat Soc B 2022, on composition; a test prices both). So one event is recorded for all.

Sums are exact: each patient's part is rounded to a multiple of 2^-40 first, and whole numbers are added. So neither the
order of patients nor their number changes how a patient's part is rounded. Rounding moves the norm of a part by 2^-41
for each root of its numbers, 1e-10 for a thousand; `SLACK` covers it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from privacy.dp import entropy
from privacy.dp.chunks import copy_rows
from privacy.dp.entropy import Source

Embed: TypeAlias = Callable[[Tensor], Tensor]
"""embed(x (m, ...)) -> (m, d): what moments are taken of; each row on its own. `embed` itself must not depend on
patients.
"""
CENTRE, GRAM, SUMS, SIZES = 0.10, 0.60, 0.25, 0.05
"""Shares of 1 / s², set once and not tuned: the second moments have most numbers, the class sizes fewest."""
UNIT = 2.0**40
SLACK = 1 + 1e-8


class Patients(NamedTuple):
    """x: (n, ...) and y: (n,) int64 of all rows; whose: for each patient the numbers of their rows."""

    x: Tensor
    y: Tensor
    whose: Sequence[Tensor]


class Moments(NamedTuple):
    """Sums over patients, about `centre`, in float64; where noised they may be negative, and the matrix indefinite.

    centre: (d,). sizes: (classes,). sums: (classes, d). gram: (d, d), symmetric. deviation: standard deviation of the
    noise of a number on the diagonal of `gram`; off it, 1 / sqrt(2) of that. 0 without noise.
    """

    centre: Tensor
    sizes: Tensor
    sums: Tensor
    gram: Tensor
    deviation: float = 0.0


def exact_moments(patients: Patients, embed: Embed, classes: int) -> Moments:
    """Without noise, and without a bound on rows. Patients weigh the same."""
    means = [z.mean(dim=0) for z, _ in _embed_patients(patients, embed, classes)]
    centre = torch.stack(means).mean(dim=0)
    sizes, sums, gram = _patient_parts(torch.zeros(0, len(centre)).double(), torch.zeros(0, classes).double())
    for z, y in _embed_patients(patients, embed, classes):
        patient_parts = _patient_parts(z - centre, y)
        sizes, sums, gram = sizes + patient_parts[0], sums + patient_parts[1], gram + patient_parts[2]
    return Moments(centre, sizes, sums, gram)


def noised_moments(
    patients: Patients,
    embed: Embed,
    classes: int,
    *,
    width: int,
    radius: float,
    count: int,
    noise: float,
    source: Source = os.urandom,
) -> Moments:
    """With noise; see the head of this file.

    Args:
        width: d. radius: R, a public number. count: the number of patients by which the sum of mean rows is divided, as
        the hospital released it. noise: the noise multiplier s.

    Raises:
        ValueError: radius is not a positive number.
    """
    if not (radius > 0 and math.isfinite(radius)):
        raise ValueError(f"radius must be a positive number, found {radius}")
    total = centre_sum(patients, embed, classes, width=width, radius=radius).double() / UNIT
    centre = (total + _draw_noise((width,), noise, CENTRE, source)) / max(1, count)
    sizes, sums, gram = sums_about(centre, patients, embed, classes, radius=radius)
    around = _draw_noise((width, width), noise, GRAM, source).triu()
    symmetric = around.triu(1) / math.sqrt(2)
    return Moments(
        centre * radius,
        sizes.double() / UNIT + _draw_noise((classes,), noise, SIZES, source),
        (sums.double() / UNIT + _draw_noise((classes, width), noise, SUMS, source)) * radius,
        (gram.double() / UNIT + around.diag().diag() + symmetric + symmetric.T) * radius**2,
        SLACK * noise / math.sqrt(GRAM) * radius**2,
    )


def centre_sum(patients: Patients, embed: Embed, classes: int, *, width: int, radius: float) -> Tensor:
    """The sum of the patients' mean rows, each row cut to the radius and divided by it: (width,) int64 of 1 / UNIT."""
    means = (_to_whole_numbers(cut_rows(z / radius).mean(dim=0)) for z, _ in _embed_patients(patients, embed, classes))
    return sum(means, torch.zeros(width, dtype=torch.int64))


def sums_about(
    centre: Tensor, patients: Patients, embed: Embed, classes: int, *, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums over patients of y, y u' and u u' with u = z / radius - centre cut to norm 1, int64 of 1 / UNIT."""
    width = len(centre)
    sizes = torch.zeros(classes, dtype=torch.int64)
    sums, gram = torch.zeros(classes, width, dtype=torch.int64), torch.zeros(width, width, dtype=torch.int64)
    for z, y in _embed_patients(patients, embed, classes):
        for part, patient_part in zip(
            (sizes, sums, gram), _patient_parts(cut_rows(z / radius - centre), y), strict=True
        ):
            part += _to_whole_numbers(patient_part)
    return sizes, sums, gram


def cut_rows(z: Tensor) -> Tensor:
    """Rows (m, d) cut to norm 1; one that is not finite is 0."""
    z = torch.where(z.isfinite().all(dim=1, keepdim=True), z, 0.0)
    z = z / z.abs().amax(dim=1, keepdim=True).clamp(min=1.0)  # of huge numbers the squares would not be finite
    short: Tensor = z / z.norm(dim=1, keepdim=True).clamp(min=1.0)
    return short


def _patient_parts(u: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one patient with rows u (m, d) and labels y (m, classes): means of y, y u' and u u'."""
    rows = max(1, len(u))
    return y.sum(dim=0) / rows, y.T @ u / rows, u.T @ u / rows


def _embed_patients(patients: Patients, embed: Embed, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each patient's embedded rows and one-hot labels, float64 on the CPU. A label outside the classes is no class."""
    for patient_rows in patients.whose:
        y = copy_rows(patients.y, patient_rows).cpu()
        yield (
            embed(copy_rows(patients.x, patient_rows)).detach().double().cpu(),
            (y[:, None] == torch.arange(classes)).double(),
        )


def _to_whole_numbers(part: Tensor) -> Tensor:
    """The numbers in units of 1 / UNIT, rounded: int64."""
    return (part * UNIT).round().to(torch.int64)


def _draw_noise(shape: tuple[int, ...], noise: float, share: float, source: Source) -> Tensor:
    """Gaussian noise for a part with this share of 1 / s², for a sensitivity of 1."""
    return entropy.draw_gaussian(shape, SLACK * noise / math.sqrt(share), source)
