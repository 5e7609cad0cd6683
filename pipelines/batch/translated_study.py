"""Read, translate and write one study.

A study is written under a hidden name and renamed when it is complete, so that no partial study is ever read, and a
second run skips it.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipelines.batch.translated_values import Applied, apply_translator, depends_on_study
from pipelines.data.folder import read_steadily
from pipelines.data.grids.geometry import grid_of, mask_on_grid
from pipelines.data.images import Slices
from pipelines.data.index import Candidate, convert_read_errors
from pipelines.data.labels import Masks, find_mask
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.studies import MM2_PER_S_1E_3, convert_study_to_adc, find_moments, read_mask, standardize_values
from pipelines.data.study import Array, Rejected, Study, Unusable, Volume
from pipelines.data.writing.dicom_header import Maker
from pipelines.data.writing.dicom_series import series_files, series_folder
from pipelines.data.writing.nifti_image import nifti_bytes, nifti_place
from pipelines.models.translator_file import TranslatorFile
from pipelines.runs.store import UNFINISHED
from privacy.durable import flush_files, flush_folder, make_folder

RANKED = 100_000  # most voxels in a rank correlation
NOTHING = float("nan")


@dataclass(frozen=True)
class Waiting:
    """A study to translate. place: its path below OUT, a folder (DICOM) or a file (NIfTI)."""

    candidate: Candidate
    place: str
    slices: int


@dataclass(frozen=True)
class Job:
    """What a translation needs in addition to the study. visits: number of sessions of each patient. maker: None =
    NIfTI files keep their names.
    """

    source: DicomSource | NiftiSource
    file: TranslatorFile
    gland: Masks | None
    visits: Counter[str]
    maker: Maker | None
    out: Path

    @property
    def adc(self) -> bool:
        """Whether the translator was trained on ADC."""
        return isinstance(self.file.images, Slices) and self.file.images.values == "adc"

    @property
    def dicom_maker(self) -> Maker:
        """The maker of DICOM files. Raises: ValueError: there is no key."""
        if self.maker is None:
            raise ValueError("DICOM files are de-identified, which needs a key; give --key FILE")
        return self.maker

    def place(self, candidate: Candidate) -> str:
        """A study's path below OUT."""
        if isinstance(self.source, DicomSource):
            return series_folder(candidate, self.dicom_maker)
        return nifti_place(candidate, None if self.maker is None else self.maker.key, self.file.digest)


class TranslatedStudy(NamedTuple):
    """A finished study. existed: whether its result existed before; the figures are then NaN. mean, largest: change of
    the foreground's values, in the unit of the translator's images. limited: share that was clipped to the scale's
    range. order: rank correlation of the foreground's values before and after. gland_order: the same in the gland (NaN
    without a mask).
    """

    waiting: Waiting
    existed: bool
    mean: float = NOTHING
    largest: float = NOTHING
    limited: float = NOTHING
    order: float = NOTHING
    gland_order: float = NOTHING


def translate_study(waiting: Waiting, job: Job) -> TranslatedStudy | Rejected:
    """Read, translate and write one study. Errors in its data give a rejection.

    Raises:
        OSError: the result cannot be written.
    """
    place = job.out / waiting.place
    if place.exists():
        return TranslatedStudy(waiting, existed=True)
    try:
        study, values, step, least = _load_values(waiting.candidate, job)
        image, background = Volume(values, study.image.affine), np.asarray(study.image.values) == 0
        gland = _read_gland(waiting.candidate, job)
        with convert_read_errors(waiting.candidate.study):
            used_gland = gland if depends_on_study(job.file) else None
            translated = apply_translator(image, background, job.file, used_gland, least=least)
        done = _measure_translation(waiting, image, ~background, translated, gland)
        _write_study(waiting.candidate, study, translated.change / step, job, place)
    except Unusable as error:
        return Rejected(waiting.candidate.study, error.reason, error.detail)
    return done


def _load_values(candidate: Candidate, job: Job) -> tuple[Study, Array, np.float32, float]:
    """The study; its values in the unit of the translator's images; the size of the file's unit in that unit; and the
    least value that may be written.
    """
    with convert_read_errors(candidate.study):
        study = candidate.load()
    raw_values = np.asarray(study.image.values, np.float32)
    images = job.file.images
    if not isinstance(images, Slices):
        raise TypeError(f"translators of slices are applied here, found images of kind {images.kind}")
    if images.values == "standardized":
        values = standardize_values(raw_values, nonzero=images.nonzero)
        least = float(values[raw_values != 0].min()) if raw_values.min() >= 0 else -math.inf
        return study, values, np.float32(1 / find_moments(raw_values, nonzero=images.nonzero).sd), least
    adc, scale = convert_study_to_adc(study, job.source)
    values = np.asarray(adc.image.values, np.float32) * MM2_PER_S_1E_3
    return study, values, np.float32(scale) * MM2_PER_S_1E_3, -math.inf


def _read_gland(candidate: Candidate, job: Job) -> Volume | None:
    """The patient's gland mask. A missing or damaged one rejects the study only if the translation needs it."""
    if job.gland is None:
        return None
    try:
        visits = job.visits[candidate.patient]
        path = find_mask(job.gland, candidate.patient, missing="no_gland", session=candidate.session, visits=visits)
        return read_mask(path, job.gland.segment)
    except Unusable as error:
        if depends_on_study(job.file):
            raise Unusable(
                "no_gland" if error.reason == "no_gland" else "bad_mask", f"{error.detail} ({error.reason})"
            ) from error
        return None


def _measure_translation(
    waiting: Waiting, image: Volume, foreground: NDArray[np.bool_], applied_change: Applied, gland: Volume | None
) -> TranslatedStudy:
    """The study as finished, with the figures of its change."""
    change = np.abs(applied_change.change[foreground])
    before = np.asarray(image.values)
    after = before + applied_change.change
    inside = None if gland is None else foreground & (mask_on_grid(gland, grid_of(image)) > 0)
    return TranslatedStudy(
        waiting,
        existed=False,
        mean=float(change.mean()) if change.size else 0.0,
        largest=float(change.max()) if change.size else 0.0,
        limited=applied_change.limited,
        order=_rank_correlation(before[foreground], after[foreground]),
        gland_order=NOTHING if inside is None else _rank_correlation(before[inside], after[inside]),
    )


def _rank_correlation(before: Array, after: Array) -> float:
    """Spearman's rank correlation; NaN if all values are equal, or there are fewer than three."""
    step = max(1, before.size // RANKED)
    earlier_values, later_values = before[::step], after[::step]
    if earlier_values.size < 3 or np.ptp(earlier_values) == 0 or np.ptp(later_values) == 0:
        return NOTHING
    return float(stats.spearmanr(earlier_values, later_values).statistic)


def _write_study(candidate: Candidate, study: Study, change: Array, job: Job, place: Path) -> None:
    """Write a study's files under a hidden name, flush them to disk, and rename them."""
    make_folder(place.parent)
    part = place.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
    try:
        read_steadily(candidate.files, lambda: _write_new_files(candidate, study, change, job, part))
        flush_files(sorted(part.iterdir()) if part.is_dir() else [part])
        os.rename(part, place)
        flush_folder(place.parent)
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def _write_new_files(candidate: Candidate, study: Study, change: Array, job: Job, part: Path) -> None:
    """Write the new files from the old ones, which are read again."""
    if isinstance(job.source, DicomSource):
        part.mkdir()
        for name, data in series_files(candidate, study, change, job.dicom_maker):
            (part / name).write_bytes(data)
    else:
        old = Path(job.source.folder).resolve() / candidate.study
        part.write_bytes(nifti_bytes(old, change, label=job.file.label, adc=job.adc))
