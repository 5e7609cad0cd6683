"""The organs of a simulated pelvis: their shapes, and their properties in a diffusion-weighted scan.

Each function yields (where, tissue) in painting order: later ones cover earlier ones. Lengths are in mm,
x towards the patient's left, y towards posterior, z towards superior. Sizes follow a prostate of about 46 x 35 x 46 mm.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipelines.data.study import Array

Where: TypeAlias = NDArray[np.bool_]
Rectum: TypeAlias = tuple[float, float, float, float]  # centre (x, y) and half axes (x, y), mm

GRID = 96
PIXEL_MM = 0.75
SMALLEST_VISIBLE_MM2 = 20.0  # radiologists see no smaller cross-section, so it is not drawn in that slice
NON_SIGNIFICANT, SIGNIFICANT = 1, 2  # grades of a lesion, 0 = none
GRADE_GROUPS = ("none", "gg1", "gg2", "gg3", "gg4", "gg5")
GROUP_BELOW = (880.0, 830.0, 770.0)
"""Diffusivity of a significant lesion below which it is of group 3, 4 and 5; others are of group 2. Diffusion falls
with the grade in patients, too, with much overlap between neighbours; here the group is known from the tissue alone.
"""


class Kind(IntEnum):
    """What a tissue is."""

    FAT = 0
    MUSCLE = 1
    BONE = 2
    URINE = 3
    RECTAL_WALL = 4
    STOOL = 5
    GAS = 6
    PERIPHERAL = 7
    TRANSITION = 8
    STROMA = 9
    NODULE = 10
    INFLAMED = 11
    LESION = 12


class Tissue(NamedTuple):
    """A tissue, and its properties in a diffusion-weighted scan; units as in `Anatomy`."""

    kind: Kind
    diffusivity: float
    kurtosis: float
    density: float
    perfusion: float = 0.05


class Frame(NamedTuple):
    """Coordinates of the pixel centres in mm, deformed by a smooth field so that no organ is an exact ellipse."""

    x: Array  # (slices, 96, 96), towards the patient's left
    y: Array  # (slices, 96, 96), towards posterior
    z: Array  # (slices, 1, 1), towards superior


class Gland(NamedTuple):
    """The prostate's centre (x, y) and half axes (left-right, anterior-posterior, inferior-superior), in mm."""

    x: float
    y: float
    a: float
    b: float
    c: float


class Parts(NamedTuple):
    """Which pixels belong to which part of the gland."""

    gland: Where
    transition: Where
    stroma: Where


FAT = Tissue(Kind.FAT, 450, 0.6, 0.13)  # fat-suppressed
MUSCLE = Tissue(Kind.MUSCLE, 1420, 0.85, 0.42)
BONE = Tissue(Kind.BONE, 420, 0.6, 0.09)
BLADDER = Tissue(Kind.URINE, 2950, 0.0, 1.5, 0.0)
RECTAL_WALL = Tissue(Kind.RECTAL_WALL, 1380, 0.8, 0.5)
STOOL = Tissue(Kind.STOOL, 850, 0.8, 0.35)
GAS = Tissue(Kind.GAS, 1000, 0.0, 0.012, 0.0)


def _ellipse(frame: Frame, centre: tuple[float, float], radii: tuple[float, float], *, power: float = 2.0) -> Where:
    enclosed: Where = (
        np.abs((frame.x - centre[0]) / radii[0]) ** power + np.abs((frame.y - centre[1]) / radii[1]) ** power < 1
    )
    return enclosed


def _ball(frame: Frame, centre: tuple[float, float, float], radii: tuple[float, float, float]) -> Where:
    enclosed: Where = (
        ((frame.x - centre[0]) / radii[0]) ** 2
        + ((frame.y - centre[1]) / radii[1]) ** 2
        + ((frame.z - centre[2]) / radii[2]) ** 2
    ) < 1
    return enclosed


def parts(frame: Frame, gland: Gland) -> Parts:
    """The gland with its concave back, two lobes of transition zone that grow towards the base, and the stroma."""
    x, taper = frame.x - gland.x, np.sqrt(1 - (frame.z / gland.c) ** 2)
    y = frame.y - gland.y + 2.2 * np.exp(-((x / 9) ** 2))
    u, v = x / (gland.a * taper), y / (gland.b * taper)
    in_gland = u**2 * (1 + 0.25 * u**2) + v**2 * (1 + 0.15 * v**2) < 1.15
    lobe = np.float32(0.86) + np.float32(0.010) * frame.z
    transition = ((np.abs(u) - 0.27) / (0.42 * lobe)) ** 2 + ((v + 0.22) / (0.56 * lobe)) ** 2 < 1
    stroma = (v < -0.70 + 0.25 * u**2) & (np.abs(u) < 0.55)
    return Parts(in_gland, in_gland & transition & ~stroma, in_gland & stroma)


def surroundings(frame: Frame, gland: Gland, rectum: Rectum, gas: bool) -> Iterator[tuple[Where, Tissue]]:
    """All tissues around the gland, in painting order; the rest is fat."""
    side = np.abs(frame.x - gland.x)
    mirrored = frame._replace(x=side)
    yield _ellipse(mirrored, (38.0, -6.0), (12.0, 24.0)), MUSCLE  # internal obturator
    yield _ellipse(mirrored, (15.0, -36.0), (13.0, 8.0)), BONE  # pubic bone
    sling = _ellipse(frame, (gland.x, gland.y + 3), (gland.a + 5.5, gland.b + 8), power=2.4)
    inner = _ellipse(frame, (gland.x, gland.y + 3), (gland.a + 2.5, gland.b + 5), power=2.4)
    yield sling & ~inner & (side > 11) & (frame.y > -14), MUSCLE  # levator ani
    top = float(frame.z.max())
    grown = 0.75 + 0.35 * np.clip(frame.z / top, 0, 1)
    centre = gland.y - gland.b - 1
    bladder = ((frame.x - gland.x) / (17 * grown)) ** 2 + ((frame.y - centre) / (10 * grown)) ** 2 < 1
    yield bladder & (frame.z > 0.35 * top), BLADDER
    x, y, rx, ry = rectum
    yield _ellipse(frame, (x, y), (rx, ry)), RECTAL_WALL
    yield _ellipse(frame, (x, y), (rx - 2.6, ry - 2.6)), GAS if gas else STOOL


def inside(generator: np.random.Generator, frame: Frame, gland: Gland, within: Parts) -> Iterator[tuple[Where, Tissue]]:
    """The zones, benign hyperplasia and prostatitis, which can be mistaken for cancer."""
    yield within.gland, Tissue(Kind.PERIPHERAL, generator.normal(1650, 130), 0.55, 1.0)
    yield within.transition, Tissue(Kind.TRANSITION, generator.normal(1320, 90), 0.70, 0.72)
    yield within.stroma, Tissue(Kind.STROMA, generator.normal(1050, 40), 0.80, 0.48)
    for _ in range(int(generator.integers(0, 4))):
        x, y, z = gland.x + gland.a * generator.uniform(-0.5, 0.5), generator.uniform(-9, 4), generator.uniform(-9, 9)
        radius, nodule = generator.uniform(2.5, 6.0), Tissue(Kind.NODULE, generator.normal(1010, 110), 0.80, 0.62)
        yield _ball(frame, (x, gland.y + y, z), (radius, radius, radius)) & within.transition, nodule
    if generator.random() < 0.3:
        angle, width, z = generator.uniform(0.15, np.pi - 0.15), generator.uniform(0.15, 0.3), generator.uniform(-7, 7)
        direction = np.arctan2(frame.y - gland.y, frame.x - gland.x)
        wedge = (np.abs(direction - angle) < width) & (np.abs(frame.z - z) < 6)
        inflamed = Tissue(Kind.INFLAMED, generator.normal(1250, 90), 0.65, 0.85)
        yield wedge & ~within.transition & ~within.stroma, inflamed


def lesions(
    generator: np.random.Generator, frame: Frame, gland: Gland, within: Parts, grade: int
) -> Iterator[tuple[Where, Tissue, int, int]]:
    """One lesion of the patient's grade, sometimes two; seven in ten lie in the peripheral zone. With each its grade
    and its grade group, 1 to 5.
    """
    top = float(frame.z.max())
    count = 0 if grade == 0 else 1 + int(generator.random() < 0.2)
    for _ in range(count):
        if grade == SIGNIFICANT:
            radius, tissue = generator.uniform(4.5, 9.5), Tissue(Kind.LESION, generator.normal(830, 100), 0.95, 0.75)
        else:
            radius, tissue = generator.uniform(2.8, 5.5), Tissue(Kind.LESION, generator.normal(1080, 110), 0.75, 0.82)
        peripheral = generator.random() < 0.7
        angle = generator.uniform(0.1, np.pi - 0.1) * (1 if peripheral else -1)
        reach = 0.72 if peripheral else generator.uniform(0.25, 0.5)
        x = gland.x + reach * gland.a * np.cos(angle)
        y = gland.y + reach * gland.b * np.sin(angle)
        z = generator.uniform(-0.75, 0.75) * top
        flat = generator.uniform(0.7, 1.0)
        where = _ball(frame, (x, y, z), (radius, radius * flat, radius)) & within.gland
        area = where.sum(axis=(1, 2), keepdims=True) * PIXEL_MM**2
        where &= area >= SMALLEST_VISIBLE_MM2
        rim = tissue._replace(diffusivity=0.78 * tissue.diffusivity + 0.22 * 1450)  # tumour between benign glands
        group = 2 + sum(tissue.diffusivity < limit for limit in GROUP_BELOW) if grade == SIGNIFICANT else 1
        yield where, rim, grade, group
        yield (
            where & _ball(frame, (x, y, z), (0.75 * radius, 0.75 * radius * flat, 0.75 * radius)),
            tissue,
            grade,
            group,
        )
