"""Real files: known figures of ProstateX."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipelines.data.cohort import read_cohort
from pipelines.data.dicom.reader import index_dicom, read_dicom
from pipelines.data.grids.geometry import resample_volume
from pipelines.data.images import Slices
from pipelines.data.labels import find_mask, open_masks
from pipelines.data.nifti.reader import read_volume
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels
from pipelines.data.study import Study

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
PROSTATEX = DATA / "prostatex"
NAMES = str(PROSTATEX / "labels" / "ProstateX-mapping.json")
SOURCE = DicomSource(folder=str(PROSTATEX / "dicom"), select={"ImageType": "ADC"})
LESION = MaskLabels(folder=str(PROSTATEX / "labels" / "lesion_expert"), names=NAMES)
GLAND = GlandMask(folder=str(PROSTATEX / "labels" / "whole_gland_Bosma22b"), names=NAMES)

needs_prostatex = pytest.mark.skipif(not PROSTATEX.is_dir(), reason="shared/data/prostatex is not here")


def mean_adc(study: Study, settings: MaskLabels | GlandMask) -> float:
    path = find_mask(open_masks(settings, "masks"), study.patient, missing="no_mask")
    columns, rows, slices = study.image.values.shape
    inside = resample_volume(read_volume(path), study.image.affine, (columns, rows, slices), 0)
    return float(np.mean(study.image.values[np.asarray(inside) > 0]))


@needs_prostatex
def test_prostatex_means_come_out() -> None:
    studies, rejected = read_dicom(SOURCE)
    assert not rejected
    first, second = sorted(studies, key=lambda study: study.patient)
    assert mean_adc(first, GLAND) == pytest.approx(1454, rel=0.01)
    assert mean_adc(second, GLAND) == pytest.approx(1290, rel=0.01)
    assert mean_adc(first, LESION) == pytest.approx(1131, rel=0.01)
    assert first.image.values.shape == (84, 128, 19)


@needs_prostatex
def test_prostatex_becomes_a_cohort() -> None:
    cohort, rejected, facts, *_ = read_cohort(
        SOURCE,
        LESION,
        Slices(slices="gland"),
        gland=GLAND,
        fractions={"train": 0.5, "validation": 0.15, "test": 0.35},
        seed=0,
        key=b"a secret of 16 b",
    )
    assert not rejected
    assert facts["scanners"] == {"Siemens 3 T": 2}
    assert (facts["studies"], facts["patients"], facts["unselected_series"]) == (2, 2, 4)
    assert facts["positives"] == 2
    gland = [
        float(cohort.images[:, 0][(cohort.gland == 1) & (cohort.patient == p)[:, None, None]].mean()) for p in (0, 1)
    ]
    assert sorted(gland) == pytest.approx([1.290, 1.454], rel=0.02)
    assert float(cohort.images[:, 0][cohort.lesion == 1].mean()) == pytest.approx(1.131, rel=0.03)
    assert cohort.lesion[cohort.gland == 0].sum() <= 0.2 * cohort.lesion.sum()


@needs_prostatex
def test_prostatex_diffusion_series_are_refused_as_several_volumes() -> None:
    index = index_dicom(DicomSource(folder=str(PROSTATEX / "dicom")))
    assert Counter(found.reason for found in index.rejected) == {"several_volumes": 2}
    assert len(index.candidates) == 4


@needs_prostatex
def test_a_t2_weighted_series_is_not_taken_for_adc_by_its_values() -> None:
    cohort, rejected, facts, *_ = read_cohort(
        DicomSource(folder=str(PROSTATEX / "dicom")),
        LESION,
        Slices(),
        fractions={"train": 0.5, "validation": 0.0, "test": 0.5},
        seed=0,
        key=b"a secret of 16 b",
    )
    assert facts["studies"] == 2
    assert Counter(found.reason for found in rejected) == {"not_adc": 4}
    assert float(cohort.images.max()) < 5
