"""De-identification: nothing of a person is left, whatever attribute held it, and the image is what it was."""

from __future__ import annotations

import io
import warnings
from datetime import datetime

import numpy as np
import pydicom
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.uid import UID_dictionary

from pipelines.cohort.pseudonym import pseudonym as cohort_pseudonym
from privacy.deidentify import NotDeidentifiable, Profile, as_bytes, deidentify
from privacy.keyed import new_uid, pseudonym
from privacy.leftovers import leftovers
from planted import HOMER, KEY, file_of, image, plant, planted


def cleaned(dataset: Dataset, **profile: object) -> Dataset:
    return pydicom.dcmread(io.BytesIO(as_bytes(deidentify(dataset, key=KEY, profile=Profile(**profile)))))


def holds(data: bytes, secret: str) -> bool:
    low, wanted = data.lower(), secret.lower()
    plain = wanted.replace("ü", "u"), wanted.replace("ü", "ue"), wanted
    return any(form.encode(code, "ignore") in low for form in plain for code in ("utf-8", "latin-1", "utf-16-le"))


@settings(max_examples=300, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(planted())
def test_nothing_of_a_person_is_left_and_the_image_is_what_it_was(dataset: Dataset) -> None:
    data = as_bytes(deidentify(dataset, key=KEY))
    assert leftovers(dataset, data) == []
    assert not [secret for secret in HOMER.secrets if holds(data, secret)]
    assert b"19290307" not in data and b"171923" not in data
    again = pydicom.dcmread(io.BytesIO(data))
    str(again)  # every value parses
    assert np.array_equal(again.pixel_array, np.arange(24).reshape(4, 6))
    for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "DiffusionBValue", "Rows"):
        assert again[keyword].value == dataset[keyword].value
    assert again[0x0019, 0x100C].value == 800
    assert again.PatientID == again.PatientName == cohort_pseudonym(KEY, HOMER.number)
