"""What every extractor of fixed features keeps: a row of finite numbers from each image alone."""

from __future__ import annotations

import numpy as np

from consilium.testing.held import hold
from federation.features import Extracting

INPUTS = (1, 32, 32)


def rows_are_finite_and_each_from_its_own_image(settings: Extracting, inputs: tuple[int, ...] = INPUTS) -> None:
    """The same image has the same features whatever images come with it, and however often it is asked."""
    complaints = settings.complaints(inputs)
    hold(complaints == [], f"it refuses images {inputs}: {'; '.join(complaints)}")
    images = np.random.default_rng(0).random((3, *inputs))
    features = settings.extract(images)
    hold(
        features.ndim == 2 and len(features) == 3 and bool(np.isfinite(features).all()),
        f"found {features.shape}, or not finite",
    )
    alone = np.concatenate([settings.extract(image[None]) for image in images])
    hold(np.array_equal(features, alone), "features of an image depend on the other images")


LAWS = (rows_are_finite_and_each_from_its_own_image,)
"""Of extractors of features."""
