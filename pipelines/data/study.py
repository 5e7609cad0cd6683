"""The results of a reader: a study with its geometry, or the reason why a file or a study cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Affine = NDArray[np.float64]


@dataclass(frozen=True)
class Volume:
    """An image on a regular grid.

    values: (I, J, K) float32, or an integer mask; K counts slices.
    affine: (4, 4) float64, voxel index -> millimetres, axes to the patient's Right, Anterior, Superior (as in NIfTI).
    """

    values: NDArray[np.generic]
    affine: Affine


@dataclass(frozen=True)
class Study:
    """One readable image of one patient. `patient` is the identifier in the files: it stays inside ingest and is
    never written.

    evidence: how the kind of values and their unit are known, a short sentence that only the hospital sees; "" if
    this was not checked. percentiles: of ADC, the 1st, 50th and 99th of the nonzero values, 1e-6 mm²/s; None for
    other images.
    """

    patient: str
    study: str  # its path below the source folder; site-only
    image: Volume
    unit: str | None  # of the values, according to the file; None = not stated
    facts: Mapping[str, str | float] = field(default_factory=dict)  # from the header allow-list
    evidence: str = ""
    percentiles: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class WholeStudy:
    """A study on its own grid, with the masks that are learnt. Like `Study` it stays inside the hospital.

    image: ADC in 1e-6 mm²/s, other values as in the file. classes: the same grid, uint8, 0 = background, 1 = the first
    class, 255 = nobody says. modality: of DICOM headers; empty if unknown.
    """

    image: Volume
    classes: Volume
    modality: str = ""


@dataclass(frozen=True)
class WholePicture:
    """A picture as it is, upright, with the masks that are learnt. Like `Study` it stays inside the hospital.

    pixels: (rows, columns), or (rows, columns, 3) of colours; uint8, or uint16 of grey. classes: (rows, columns), as of
    `WholeStudy`.
    """

    pixels: NDArray[np.uint8] | NDArray[np.uint16]
    classes: NDArray[np.uint8]


@dataclass(frozen=True)
class Rejected:
    """A study that is not used. Stays at the site; only the count by `reason` leaves."""

    study: str
    reason: str  # a short code: gap, duplicate_slice, mixed_orientation, unit_unknown, no_label, unreadable, ...
    detail: str  # a sentence: what was found, what is allowed, what to do


class Unusable(ValueError):
    """One study's data cannot be used; this never ends a run.

    reason: a short code, of which only the count is sent. detail: a sentence with what was found, what is allowed and
    what to do; it may quote a header, so it stays at the site.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[Unusable], tuple[str, str], dict[str, object]]:
        """For pickling: the error is raised in one process and reported in another."""
        return type(self), (self.reason, self.detail), dict(vars(self))


@dataclass(frozen=True)
class Item:
    """A file below the folder, or a line of a table, before its study is read.

    state: `part` of the named studies, or the class of a file that belongs to none, with a reason. patient: as in the
    file, "" if missing or not read. series: its description.
    """

    name: str
    state: Literal["part", "not_selected", "not_imaging"]
    studies: tuple[str, ...] = ()
    patient: str = ""
    series: str = ""
    reason: str = ""
    detail: str = ""
