"""What lies in a folder before any pixel is read: candidates for studies, and what was already found unusable.

Every reader has two steps. Its index reads headers only and knows each study's geometry; then each candidate is
loaded by itself, once, so that a large cohort is never in memory as a whole and studies can be loaded in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.data.folder import Stamp, failed
from pipelines.data.grids.geometry import same_grid
from pipelines.data.headers import Stack
from pipelines.data.study import Affine, Item, Rejected, Study, Unusable
from privacy.deidentify.quiet import quiet


@dataclass(frozen=True)
class Candidate:
    """A study whose headers are in order. `load` reads its values and raises `Unusable` when they are not.

    session: what tells two visits of one patient apart (StudyInstanceUID in DICOM). affine, shape: its grid, RAS mm.
    stack: its images in their places, where it is of DICOM files. files: those it is made of, as they were when their
    headers were read; `load` refuses them once they have changed.
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
    """items: what lies below the folder, each file once. unselected: series not asked for."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int


def folder_problems(name: str, folder: str) -> list[str]:
    """What is wrong with a folder of the settings: nothing, or one sentence."""
    if Path(folder).is_dir():
        return []
    found = "is a file" if Path(folder).exists() else "does not exist"
    return [f"{name}: {folder!r} {found}; give a folder that exists"]


def without_ambiguous(candidates: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], list[Rejected]]:
    """Set aside candidates of one patient and session that lie on one grid: nothing says which of them is meant."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.patient, candidate.session), []).append(candidate)
    twins = {
        one.study: other.study
        for group in groups.values()
        for one in group
        for other in group
        if one is not other and same_grid((one.affine, one.shape), (other.affine, other.shape))
    }
    rejected = [
        Rejected(
            study,
            "ambiguous",
            f"the same patient, session and grid as {other!r}; one is needed. Narrow the selection, or remove one.",
        )
        for study, other in sorted(twins.items())
    ]
    return tuple(candidate for candidate in candidates if candidate.study not in twins), rejected


def load(candidate: Candidate) -> Study | Rejected:
    """Read a candidate's values. Whatever is wrong with its bytes ends as a rejection, never as an exception."""
    try:
        with readable(candidate.study):
            return candidate.load()
    except Unusable as error:
        return Rejected(candidate.study, error.reason, error.detail)


def load_all(index: Index) -> tuple[list[Study], list[Rejected]]:
    """Load every candidate: studies, and rejections of the index and of loading."""
    results = [load(candidate) for candidate in index.candidates]
    studies = [result for result in results if isinstance(result, Study)]
    return studies, [*index.rejected, *(result for result in results if isinstance(result, Rejected))]


@contextmanager
def readable(what: str) -> Iterator[None]:
    """While a file is parsed: any error inside becomes `Unusable` (`unreadable`; or `vanished` or `no_permission`,
    where the system does not give the file), and warnings stay unprinted.

    Parsers of damaged files fail in every way there is, and their warnings may quote a patient's header.
    """
    try:
        with quiet():
            yield
    except Unusable:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, and not of a decoder
            raise failed(what, error) from error
        raise Unusable(
            "unreadable", f"{what} cannot be read ({type(error).__name__}: {error}). Copy or export it again."
        ) from error
