"""What a reader returns: a study with its geometry, or why a file or a study cannot be used."""

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
    """One readable image of one patient. `patient` is the identifier in the files: it stays inside ingest,
    unwritten.

    evidence: how it is known what the values are and in which unit, a short sentence for the hospital's own eyes; ""
    where nobody asked. percentiles: of ADC, the 1st, 50th and 99th of the values that are not 0, 1e-6 mm²/s; None of
    other images.
    """

    patient: str
    study: str  # where it lies below the source folder; site-only
    image: Volume
    unit: str | None  # what the file says its values are; None = it does not say
    facts: Mapping[str, str | float] = field(default_factory=dict)  # from the header allow-list
    evidence: str = ""
    percentiles: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Rejected:
    """A study that is not used. Stays at the site; only the count by `reason` leaves."""

    study: str
    reason: str  # a short code: gap, duplicate_slice, mixed_orientation, unit_unknown, no_label, unreadable, ...
    detail: str  # a sentence: what was found, what is allowed, what to do


class Unusable(ValueError):
    """One study's data are not fit for use; never a reason to end a run.

    reason: a short code, counted and sent as a number. detail: a sentence with what was found, what is allowed and
    what to do; it may quote a header, so it stays at the site.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Item:
    """A file below the folder, or a line of a table, before its study is read.

    state: `part` of the studies that are named; else why it is of none, with a reason. patient: as in the file,
    "" where it does not, or where nobody looked. series: its description.
    """

    name: str
    state: Literal["part", "not_selected", "not_imaging"]
    studies: tuple[str, ...] = ()
    patient: str = ""
    series: str = ""
    reason: str = ""
    detail: str = ""
