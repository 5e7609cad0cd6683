"""What every extractor of fixed features keeps: a row of finite numbers from each image alone."""

from __future__ import annotations

import numpy as np

from consilium.testing.held import hold
from federation.features import Extracting

INPUTS = (1, 32, 32)


def rows_are_finite_and_each_from_its_own_image(settings: Extracting, inputs: tuple[int, ...] = INPUTS) -> None:
    """The same image has the same features whoever comes with it, and however often it is asked."""
    said = settings.complaints(inputs)
    hold(said == [], f"it refuses images {inputs}: {'; '.join(said)}")
    images = np.random.default_rng(0).random((3, *inputs))
    found = settings.extract(images)
    hold(found.ndim == 2 and len(found) == 3 and bool(np.isfinite(found).all()), f"found {found.shape}, or not finite")
    alone = np.concatenate([settings.extract(one[None]) for one in images])
    hold(np.array_equal(found, alone), "features of an image depend on the other images")


LAWS = (rows_are_finite_and_each_from_its_own_image,)
"""Of extractors of features."""
