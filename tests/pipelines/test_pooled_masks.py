"""Pooled label maps keep what nobody knows, and such pixels are no class of an example."""

from __future__ import annotations

from pathlib import Path

import torch

from federation.task import IGNORED
from pipelines.coordinator.conversations import describe_regions, write_pooled_cohort
from pipelines.data.images import Pictures
from pipelines.data.stored import structures_of
from pipelines.hospital.kept import cohort_of
from pipelines.requests.pool import Pooled
from pipelines.settings.task import Segmentation
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
    assert structures_of(cohort, 3) == ((1,), (2,)) and [*cohort.recipe] == ["images"]
    regions = {"whole": ("rim", "core"), "core": ("core",)}
    task = Segmentation(kind="segmentation", target="masks", classes=("rim", "core"), regions=regions)
    write_pooled_cohort(hospital, "regions", pooled, Pictures(size=8), of_masks=describe_regions(task))
    assert structures_of(cohort_of(hospital, "regions"), 3) == ((1, 2), (2,))
