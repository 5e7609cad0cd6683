"""Keep of a structure only its largest component: nnU-Net's rule (Isensee et al. 2021, postprocessing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluation.masks import is_any_of

Whole = TypeVar("Whole", bound=np.integer)


def keep_largest(class_map: NDArray[Whole], structures: Sequence[Sequence[int]]) -> NDArray[Whole]:
    """A copy of a map of classes (*spatial) in which each of these structures has its largest component only, one after
    the other. structures: the classes of each, of a region several.

    What is left out becomes background. Voxels are neighbours where they share a face, an edge or a corner, as in
    nnU-Net. Of components of one size the first in array order stays.
    """
    from scipy import ndimage  # slow to import

    cleaned = class_map.copy()
    everywhere = ndimage.generate_binary_structure(class_map.ndim, class_map.ndim)
    for numbers in structures:
        components, count = ndimage.label(is_any_of(cleaned, numbers), structure=everywhere)
        if count > 1:
            sizes = np.bincount(components.ravel())[1:]
            cleaned[(components > 0) & (components != 1 + int(sizes.argmax()))] = 0
    return cleaned
