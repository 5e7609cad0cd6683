"""Whether adapting is tried at all: a hospital's unlabelled images decide, by a rule that is fixed before.

Test-time adaptation lowers a loss without labels, and where models are good already that takes from them: on optic
discs and on phantom glands the test images' statistics alone gain what routing gains, and adapting gains more only
where models are bad (docs/results/routing.md). What tells the two apart without a label is how far models disagree: if
their predictions for these images are nearly the same, nothing is left for a mixture of them to choose. Below a limit
of agreement adapting is tried; else the network before adaptation serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def agreement(predictions: Sequence[Tensor], *, masks: bool) -> float:
    """How much models agree on images, in [0, 1]: the mean over images and pairs of models. One model agrees with
    itself.

    Args:
        predictions: of each model, the classes (n, *spatial) of masks, or labels (n,).
        masks: whether they are masks: then the agreement of a pair on an image is the Dice score of all classes but 0
            (places where both say the same class, twice, over the places of both), and 1 if neither has any; of labels
            it is 1 or 0.
    """
    pairs = [_image_agreement(first, second, masks=masks) for first, second in itertools.combinations(predictions, 2)]
    return float(torch.stack(pairs).mean()) if pairs else 1.0


def _image_agreement(left: Tensor, right: Tensor, *, masks: bool) -> Tensor:
    """Agreement on each image, (n,) float64."""
    if not masks:
        return (left == right).double()
    first, second = left.flatten(1), right.flatten(1)
    both = ((first == second) & (first > 0)).sum(dim=1)
    total = (first > 0).sum(dim=1) + (second > 0).sum(dim=1)
    return torch.where(total > 0, 2 * both / total.clamp(min=1), 1.0).double()


def describe_distrust(share: float, limit: float | None) -> str:
    """Why adapting is not tried, in words; empty if it is. limit: None = it is always tried."""
    if limit is None or share < limit:
        return ""
    return f"models agree on these images by {share:.3f}, not less than {limit:g}: adapting was not tried"
