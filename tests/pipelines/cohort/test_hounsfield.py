"""Values of CT: one scale for all studies, and no other modality on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.images import IMAGES, Hounsfield, Slices, Volumes
from pipelines.data.studies import scale_hounsfield
from pipelines.data.study import Study, Unusable, Volume
from pipelines.loader.validation import to_plain
from privacy.settings_error import SettingsError

LIVER = Hounsfield(low=-20.0, high=200.0, mean=100.0, sd=40.0)


def study(values: np.ndarray, **facts: str) -> Study:
    return Study("p", "s", Volume(np.asarray(values, np.float32), np.eye(4)), None, facts)


@given(st.lists(st.floats(-3000, 3000, width=32), min_size=1, max_size=30))
def test_each_value_is_scaled_by_itself_whatever_the_study_holds(values) -> None:
    together = scale_hounsfield(study(np.array(values).reshape(-1, 1, 1), Modality="CT"), LIVER)
    alone = [scale_hounsfield(study(np.full((1, 1, 1), value)), LIVER).item() for value in values]
    assert together.ravel().tolist() == alone and together.dtype == np.float32
    slow = [(min(max(value, LIVER.low), LIVER.high) - LIVER.mean) / LIVER.sd for value in values]
    assert alone == pytest.approx(slow, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("values", "modality", "reason"), [([1.0], "MR", "not_ct"), ([np.nan], "CT", "not_finite")])
def test_other_studies_are_set_aside(values, modality, reason) -> None:
    with pytest.raises(Unusable) as told:
        scale_hounsfield(study(np.array(values).reshape(-1, 1, 1), Modality=modality), LIVER)
    assert told.value.reason == reason


@pytest.mark.parametrize("kind", [Slices, Volumes])
def test_two_units_at_once_are_refused_and_without_ct_nothing_is_said_of_it(kind) -> None:
    with pytest.raises(SettingsError, match="goes with values: standardized, found values: adc"):
        kind(values="adc", ct=LIVER)
    assert "ct" not in to_plain(kind()), "so that no digest of an older run changes"
    images = kind(values="standardized", ct=LIVER)
    assert IMAGES.validate_python(IMAGES.dump_python(images, mode="json")) == images


@pytest.mark.parametrize("wrong", [{"low": 300.0}, {"sd": 0.0}, {"mean": 1e9}])
def test_scales_that_are_none_are_refused(wrong) -> None:
    with pytest.raises(SettingsError):
        Hounsfield(**{"low": -20.0, "high": 200.0, "mean": 100.0, "sd": 40.0, **wrong})
