"""The index of a folder, made before any pixel is read: candidates for studies, and files that are already rejected.

Every reader has two steps. Its index reads headers only and computes each study's geometry; then each candidate is
loaded separately, once, so that a large cohort is never in memory as a whole and studies can be loaded in parallel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.data.folder import Stamp, explain_failure
from pipelines.data.grids.geometry import is_same_grid, spacing_of
from pipelines.data.headers import Stack
from pipelines.data.study import Affine, Item, Rejected, Study, Unusable
from privacy.deidentify.quiet import silence_warnings
from privacy.system_errors import of_machine

OBLIQUE = np.array([0.4817, 0.6311, 0.6080])  # a unit vector along which few different positions are equally far
NO_NUMBER = re.compile(r"(?:could not convert string to float|invalid literal for int\(\) with base \d+): (.*)")
NEAR_VOXELS = 0.02  # further apart than equal grids can be


@dataclass(frozen=True)
class Candidate:
    """A study with valid headers. `load` reads its values and raises `Unusable` if they are not valid.

    session: an identifier of the patient's visit (StudyInstanceUID in DICOM). affine, shape: its grid, RAS mm.
    stack: its sorted frames, if it consists of DICOM files. files: its files, with their stamps from when the headers
    were read; `load` refuses files that have changed since.
    """

    patient: str
    study: str
    session: str
    affine: Affine
    shape: tuple[int, ...]
    load: Callable[[], Study]
    stack: Stack | None = None
    files: Mapping[Path, Stamp] = field(default_factory=dict)


@dataclass(frozen=True)
class Index:
    """items: everything below the folder, each file once. unselected: the number of series that were not selected."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int


def folder_problems(name: str, folder: str) -> list[str]:
    """The problem with a folder of the settings: one sentence, or none."""
    if Path(folder).is_dir():
        return []
    state = "is a file" if Path(folder).exists() else "does not exist"
    return [f"{name}: {folder!r} {state}; give a folder that exists"]


def reject_ambiguous(candidates: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], list[Rejected]]:
    """Reject candidates with the same patient, session and grid: it is unknown which of them a label or mask is of.

    Not needed for series that are only scored.
    """
    groups: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.patient, candidate.session, candidate.shape), []).append(candidate)
    twins = dict(pair for group in groups.values() if len(group) > 1 for pair in _find_twins(group))
    rejected = [
        Rejected(
            study,
            "ambiguous",
            f"the same patient, session and grid as {other!r}; one is needed. Narrow the selection, or remove one.",
        )
        for study, other in sorted(twins.items())
    ]
    return tuple(candidate for candidate in candidates if candidate.study not in twins), rejected


def _find_twins(group: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
    """Each candidate whose grid another one has, with the last of these others. group: of one shape.

    A patient may have thousands of candidates, so only those are compared whose first voxels lie at about the same
    distance along an oblique direction, as those of equal grids do.
    """
    along = np.array([candidate.affine[:3, 3] for candidate in group]) @ OBLIQUE
    order = np.argsort(along)
    ranked = along[order]
    for place, candidate in enumerate(group):
        tolerance = NEAR_VOXELS * float(spacing_of(candidate.affine).min())
        low, high = np.searchsorted(ranked, (along[place] - tolerance, along[place] + tolerance), side="left")
        for number in np.sort(order[low:high])[::-1]:
            other = group[number]
            if number != place and is_same_grid((candidate.affine, candidate.shape), (other.affine, other.shape)):
                yield candidate.study, other.study
                break


def load_candidate(candidate: Candidate) -> Study | Rejected:
    """Read a candidate's values. Any error in its bytes becomes a rejection, never an exception."""
    try:
        with convert_read_errors(candidate.study):
            return candidate.load()
    except Unusable as error:
        return Rejected(candidate.study, error.reason, error.detail)


def load_all(index: Index) -> tuple[list[Study], list[Rejected]]:
    """Load every candidate: studies, and rejections of the index and of loading."""
    results = [load_candidate(candidate) for candidate in index.candidates]
    studies = [result for result in results if isinstance(result, Study)]
    return studies, [*index.rejected, *(result for result in results if isinstance(result, Rejected))]


@contextmanager
def convert_read_errors(what: str) -> Iterator[None]:
    """Turn any error while a file is parsed into `Unusable` (`unreadable`; or one of `OF_SYSTEM`, if the system cannot
    open or read the file), and suppress warnings. Errors of the machine are raised unchanged: a study must not be left
    out for good because memory was short once.

    On damaged files parsers raise exceptions of many types, and their warnings may quote a patient's header.
    """
    try:
        with silence_warnings():
            yield
    except Unusable:
        raise
    except Exception as error:
        if of_machine(error):  # too little memory, too many open files: the file may be a good one
            raise
        if isinstance(error, OSError) and error.errno is not None:  # from the system, not from a decoder
            raise explain_failure(what, error) from error
        raise Unusable(
            "unreadable", f"{what} cannot be read ({_describe_error(error)}). Copy or export it again."
        ) from error


def _describe_error(error: Exception) -> str:
    """A parser's error in words; plainer ones than Python's if a text is no number."""
    text = NO_NUMBER.search(str(error)) if isinstance(error, ValueError) else None
    if text is None:
        return f"{type(error).__name__}: {error}"
    comma = ", with a point and not a comma" if "," in text[1] else ""
    return f"it holds {text[1]} where a number is needed{comma}"
