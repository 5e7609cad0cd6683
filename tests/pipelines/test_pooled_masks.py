"""Pooled label maps keep what nobody knows, and such pixels are no class of an example."""

from __future__ import annotations

from pathlib import Path

import torch

from federation.task import IGNORED
from pipelines.coordinator.conversations import write_pooled_cohort
from pipelines.data.images import Pictures
from pipelines.hospital.kept import cohort_of
from pipelines.requests.pool import Pooled
from small_site import hospital as make_hospital


def test_ignored_pixels_stay_ignored_and_are_no_class_of_an_example(tmp_path: Path) -> None:
    hospital, _ = make_hospital(tmp_path)
    masks = torch.zeros(3, 8, 8, dtype=torch.int64)
    masks[0, 0, 0], masks[1, :4] = 1, IGNORED
    labels = {"train/y": masks, "validation/y": masks[:0]}
    patients = {"train/patient": torch.arange(3), "validation/patient": torch.arange(0)}
    images = {"train/x": torch.rand(3, 1, 8, 8), "validation/x": torch.zeros(0, 1, 8, 8)}
    pooled = {"a": Pooled(images=images, labels=labels | patients)}
    write_pooled_cohort(hospital, "pooled", pooled, Pictures(size=8))
    cohort = cohort_of(hospital, "pooled")
    assert torch.equal(cohort.mask.long(), masks) and cohort.labels.tolist() == [1, 0, 0]
