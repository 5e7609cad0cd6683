"""What pages say of a number that is predicted."""

from __future__ import annotations

from evaluation.numbers import Number
from pipelines.data.label_numbers import LabelRange


def describe_number(labels: LabelRange) -> Number:
    """A range of labels as pages have it."""
    return Number(labels.what, labels.shown_unit, labels.low, labels.high, labels.band_names)
