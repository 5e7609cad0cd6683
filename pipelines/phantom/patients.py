"""The phantom's settings, and the anatomy of its patients.

A phantom hospital has simulated patients. This file draws a patient's anatomy (prostate zones, lesions of two grades,
the organs around them) with the tissue properties that a diffusion-weighted scan measures; `scanner.py` images it. The
same patient can be imaged by any scanner, so two hospitals can be compared on one patient (an oracle pair).

Diffusivities are settings of this phantom, chosen to give plausible maps: peripheral zone about 1650, transition zone
about 1320, clinically significant cancer about 830, in 1e-6 mm²/s. Kurtosis follows Rosenkrantz et al., Radiology 2012,
doi:10.1148/radiol.12112290 (0.57 in the benign peripheral zone, 0.96 in cancer); other tissues' values are assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from pipelines.data.study import Affine, Array
from pipelines.phantom.organs import (
    FAT,
    GRID,
    NON_SIGNIFICANT,
    PIXEL_MM,
    SIGNIFICANT,
    Frame,
    Gland,
    Rectum,
    Tissue,
    Where,
    inside,
    lesions,
    parts,
    surroundings,
)
from privacy.settings_error import Problem, refuse, unmet

ScannerName: TypeAlias = Literal["A", "B", "D", "P", "L", "E"]
Contrast: TypeAlias = Literal["adc", "t2w"]
FileFormat: TypeAlias = Literal["dicom", "nifti"]
Export: TypeAlias = Literal["adc", "grey"]
Labelling: TypeAlias = Literal["significant", "grade_group", "gland_area", "findings"]
PHANTOM_UNITS: Mapping[str, str] = {"gland_area": "cm2"}
"""Labels of the phantom that are numbers, with their unit."""
Defect: TypeAlias = Literal["missing_slice", "duplicate_slice", "truncated", "mixed_orientation", "singular_affine"]
Mask: TypeAlias = NDArray[np.uint8]

SLICE_SPACING_MM = 3.6
SLICE_THICKNESS_MM = 3.0
PERIPHERAL, TRANSITION, STROMA = 1, 2, 3  # zones, in `Anatomy.zone`; STROMA is the anterior fibromuscular stroma
SHARE_SIGNIFICANT, SHARE_NON_SIGNIFICANT = 0.45, 0.35  # of the patients
GOLDEN = 0.6180339887498949
DEFECTS: Mapping[str, tuple[Defect, ...]] = {
    "dicom": ("missing_slice", "duplicate_slice", "truncated", "mixed_orientation"),
    "nifti": ("truncated", "singular_affine"),
}


@dataclass(frozen=True, kw_only=True)
class PhantomSource:
    """A hospital whose patients are simulated.

    scanner: the hospital's scanner, a key of `scanner.SCANNERS`. contrast: of its images: ADC maps, or T2-weighted ones
    in arbitrary units (`images` then say `values: standardized`). patients: the number of valid studies. seed: two
    hospitals with one seed have the same patients. damaged: the number of additional studies, each with one defect that
    a reader must detect. slices: per patient, 3.6 mm apart, centred on the mid-gland. significant: share of the
    patients with clinically significant cancer; of the others 64 % have a non-significant lesion. labels: of a slice:
    whether it shows clinically significant cancer, or the highest of the `GRADE_GROUPS` in it, which are then the
    task's classes, or the area of the gland in it, in cm2, which is a number (`task: {kind: regression}`), or the
    several of `findings.PHANTOM_FINDINGS` (`task: {kind: findings}`), each unknown with probability `unknown`. export:
    of ADC maps: with their unit, or `grey`, the grey values after the scanner's window and tone curve in the place of
    ADC, as in archives that keep no unit: hospitals then have none in common.

    Raises:
        ValueError: settings are out of range; one message names all of them.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["phantom"] = "phantom"
    scanner: ScannerName
    contrast: Contrast = "adc"
    patients: int
    seed: int = 0
    slices: int = 6
    format: FileFormat = "dicom"
    damaged: int = 0
    significant: float = SHARE_SIGNIFICANT
    labels: Labelling = "significant"
    export: Export = "adc"
    unknown: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            Problem((name,), f"must be a whole number from {low} to {high}, found {value}")
            for name, value, low, high in (
                ("patients", self.patients, 1, 9999),
                ("seed", self.seed, 0, 2**32 - 1),
                ("slices", self.slices, 4, 10),
                ("damaged", self.damaged, 0, 99),
            )
            if not low <= value <= high
        ]
        problems += unmet(
            self,
            significant=(0 <= self.significant <= 1, "a share in [0, 1]"),
            unknown=(0 <= self.unknown < 1, "a share in [0, 1)"),
        )
        if self.unknown and self.labels != "findings":
            problems.append(Problem(("unknown",), "is of findings; say labels: findings, or remove it"))
        for name, text, allowed in (
            ("scanner", self.scanner, get_args(ScannerName)),
            ("contrast", self.contrast, get_args(Contrast)),
            ("format", self.format, get_args(FileFormat)),
            ("labels", self.labels, get_args(Labelling)),
            ("export", self.export, get_args(Export)),
        ):
            if text not in allowed:
                problems.append(Problem((name,), f"must be one of {', '.join(allowed)}, found {text!r}"))
        refuse(problems)


@dataclass(frozen=True)
class Anatomy:
    """The anatomy of one patient, on a (slices, 96, 96) grid of 0.75 mm; slice 0 is the most inferior.

    Rows run from anterior to posterior, columns from the patient's right to the left. diffusivity: 1e-6 mm²/s.
    kurtosis: no unit. density: signal at b = 0 in units of the peripheral zone's. perfusion: IVIM fraction in [0, 1].
    kind: of `organs.Kind`. zone, grade: see the constants above, 0 = none. group: of `GRADE_GROUPS`. rectum: (x, y) of
    the rectum's centre and (x, y) of its radii, in mm from the image's centre. gas: whether gas fills the rectum.
    affine: (column, row, slice) index -> mm to the patient's Right, Anterior, Superior.
    """

    diffusivity: Array
    kurtosis: Array
    density: Array
    perfusion: Array
    kind: Mask
    zone: Mask
    grade: Mask
    group: Mask
    rectum: Rectum
    gas: bool
    affine: Affine


def patient_name(source: PhantomSource, patient: int) -> str:
    """The identifier of patient number `patient`: PatientID in DICOM, file name in NIfTI, `patient` in labels.csv."""
    return f"PH{source.seed}-{patient:04d}"


def find_defect(source: PhantomSource, patient: int) -> Defect | None:
    """The defect of the study of patient number `patient`: none before `source.patients`, then each in turn."""
    kinds = DEFECTS[source.format]
    return None if patient < source.patients else kinds[(patient - source.patients) % len(kinds)]


def draw_anatomy(seed: int, patient: int, slices: int, significant: float = SHARE_SIGNIFICANT) -> Anatomy:
    """Draw patient number `patient` (0, 1, ...) of the population `seed`.

    The result depends on the arguments only. significant: share of patients with clinically significant cancer (with
    45 %, 35 % have a non-significant lesion). Shares hold in every sequence of successive patients, because grades
    follow a Kronecker sequence, not independent draws.
    """
    generator = np.random.default_rng([seed, patient, 1])
    frame = _frame(generator, slices)
    gland = Gland(
        x=float(generator.normal(0, 1.2)),
        y=float(generator.normal(-4, 1.2)),
        a=_draw_bounded(generator, 23, 2.5),
        b=_draw_bounded(generator, 17.5, 2.0),
        c=_draw_bounded(generator, 23, 1.5),
    )
    within = parts(frame, gland)
    rectum = (
        gland.x + float(generator.normal(0, 1.5)),
        gland.y + gland.b + 7.0,
        _draw_bounded(generator, 13, 1.5),
        9.0,
    )
    gas = bool(generator.random() < 0.5)
    canvas, palette = np.zeros(within.gland.shape, np.uint8), [FAT]
    grade, group = np.zeros((2, *within.gland.shape), np.uint8)
    for where, tissue in surroundings(frame, gland, rectum, gas):
        _paint(canvas, palette, where, tissue)
    for where, tissue in inside(generator, frame, gland, within):
        _paint(canvas, palette, where & within.gland, tissue)
    for where, tissue, code, isup in lesions(generator, frame, gland, within, draw_grade(seed, patient, significant)):
        _paint(canvas, palette, where, tissue)
        grade[where], group[where] = code, isup
    tissues = np.array(palette, np.float32)[canvas]
    zone = np.where(within.stroma, STROMA, np.where(within.transition, TRANSITION, PERIPHERAL)) * within.gland
    return Anatomy(
        diffusivity=tissues[..., 1] * texture(generator, slices, fine=0.05, coarse=0.05),
        kurtosis=tissues[..., 2],
        density=tissues[..., 3] * texture(generator, slices, fine=0.06, coarse=0.05),
        perfusion=tissues[..., 4],
        kind=tissues[..., 0].astype(np.uint8),
        zone=zone.astype(np.uint8),
        grade=grade,
        group=group,
        rectum=rectum,
        gas=gas,
        affine=_affine(generator, slices),
    )


def draw_grade(seed: int, patient: int, significant: float) -> int:
    """The grade of a patient's cancer, or 0; see `draw_anatomy`."""
    position = (np.random.default_rng([seed, 2]).random() + patient * GOLDEN) % 1.0
    if position < significant:
        return SIGNIFICANT
    other_shares = SHARE_NON_SIGNIFICANT * ((1 - significant) / (1 - SHARE_SIGNIFICANT))
    return NON_SIGNIFICANT if position < significant + other_shares else 0


def _draw_bounded(generator: np.random.Generator, mean: float, deviation: float) -> float:
    return mean + deviation * float(np.clip(generator.normal(), -2.2, 2.2))


def _frame(generator: np.random.Generator, slices: int) -> Frame:
    line = (np.arange(GRID, dtype=np.float32) - (GRID - 1) / 2) * np.float32(PIXEL_MM)
    z = (np.arange(slices, dtype=np.float32) - (slices - 1) / 2) * np.float32(SLICE_SPACING_MM)
    bend = [_field(generator, slices, 6) * np.float32(0.9) for _ in range(2)]
    return Frame(line[None, None, :] + bend[0], line[None, :, None] + bend[1], z[:, None, None])


@lru_cache(maxsize=32)
def _spline(points: int, cells: int) -> Array:
    """(points, cells) cubic interpolation weights; every row has norm 1, so that white noise keeps its variance."""
    if cells == 1:
        return np.ones((points, 1), np.float32)
    from scipy import ndimage  # slow to import, and checks of settings paint no patient

    weights = ndimage.zoom(np.eye(cells), (points / cells, 1), order=3)
    unit: Array = (weights / np.linalg.norm(weights, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _field(generator: np.random.Generator, slices: int, cells: int) -> Array:
    """A smooth random field (slices, 96, 96) with mean 0 and variance 1, `cells` independent values across."""
    depth = 1 + slices // 3
    noise = generator.standard_normal((depth, cells, cells), np.float32)
    plane = _spline(GRID, cells)
    fine = plane @ noise @ plane.T
    return np.tensordot(_spline(slices, depth), fine, axes=1).astype(np.float32, copy=False)


def texture(generator: np.random.Generator, slices: int, *, fine: float, coarse: float) -> Array:
    """Factors (slices, 96, 96) about 1, in [0.7, 1.3]. fine, coarse: deviations of two smooth fields."""
    field: Array = (
        1 + np.float32(fine) * _field(generator, slices, 24) + np.float32(coarse) * _field(generator, slices, 8)
    )
    return field.clip(0.7, 1.3)


def _affine(generator: np.random.Generator, slices: int) -> Affine:
    """Slices perpendicular to the rectal wall: tilted about the left-right axis, as radiographers plan them."""
    tilt = np.deg2rad(generator.uniform(5, 18))
    axes = np.array([[-1, 0, 0], [0, -np.cos(tilt), -np.sin(tilt)], [0, -np.sin(tilt), np.cos(tilt)]])
    affine = np.eye(4)
    affine[:3, :3] = axes * (PIXEL_MM, PIXEL_MM, SLICE_SPACING_MM)
    centre = generator.normal([0, 25, -30], [4, 8, 15])
    affine[:3, 3] = centre - affine[:3, :3] @ [(GRID - 1) / 2, (GRID - 1) / 2, (slices - 1) / 2]
    return affine


def _paint(canvas: Mask, palette: list[Tissue], where: Where, tissue: Tissue) -> None:
    canvas[where] = len(palette)
    palette.append(tissue)
