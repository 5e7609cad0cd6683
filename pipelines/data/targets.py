"""What a segmenting network learns: one of a cohort's masks, as a class of each pixel or voxel."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.data.images import Target
from pipelines.data.stored import Cohort


class NoMasks(ValueError):
    """A cohort does not have the masks that are to be learnt, or not of each patient."""


def targets(cohort: Cohort, target: Target) -> Tensor:
    """The class of each pixel or voxel, (n, *spatial) int64, 0 = background.

    `gland` and `lesion` are 0 or 1, `masks` are the classes of the cohort's label maps. In a cohort 0 also stands where
    nobody drew anything, which must not be learnt as background. Every patient has a gland, so one without any was not
    drawn; a patient may have no lesion, so a cohort without any must have been read with the target `lesion`, which
    admits only studies that have a mask, be it empty.

    Raises:
        NoMasks: the cohort has no such masks, or a patient has no gland.
    """
    found = cohort.mask if target == "masks" else cohort.gland if target == "gland" else cohort.lesion
    if found.shape[1:] != cohort.images.shape[2:] or found.dim() < 3:
        raise NoMasks(
            f"the cohort has no masks for the target {target}: theirs are of shape {tuple(found.shape)}, its images of "
            f"shape {tuple(cohort.images.shape)}. Choose another target, or say where the masks are and ingest again."
        )
    drawn = (found != 0).flatten(1).any(dim=1)
    known = cohort.recipe.get("target") == target
    if target == "lesion" and not known and len(found) and not drawn.any():
        raise NoMasks(
            "no lesion is drawn in this cohort, and it was not read with the target lesion, so that nobody knows "
            "whether its patients have none. Give lesion masks (labels of kind mask) and ingest again."
        )
    if target == "gland" and (undrawn := _without(cohort, drawn)):
        raise NoMasks(
            f"{undrawn} of {len(cohort.patients)} patients have no gland mask; each must have one, or the network "
            "learns that they have no gland. Give gland masks and ingest again with the target gland."
        )
    return found.long()


def _without(cohort: Cohort, drawn: Tensor) -> int:
    """How many patients have examples, and in none of them a mask."""
    return len(torch.unique(cohort.patient)) - len(torch.unique(cohort.patient[drawn]))
