"""Real and synthetic images as points in two dimensions: for a hospital's own page, because every point is an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evaluation.drawing import COLOURS, INK, Picture, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def point_map(real: NDArray[np.generic], made: NDArray[np.generic], *, title: str) -> Picture:
    """A scatter plot of two sets. real: (n, 2); made: (m, 2), in the same units, which have no meaning of their own.

    Raises:
        ValueError: points have another shape.
    """
    wrong = [f"{name} {points.shape}" for name, points in (("real", real), ("made", made)) if points.shape[1:] != (2,)]
    if wrong:
        raise ValueError(f"points must be (n, 2), found {', '.join(wrong)}")

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        kinds = ((real, "real", "o", COLOURS[0]), (made, "synthetic", "^", COLOURS[1]))
        for points, name, marker, colour in kinds:
            axes.scatter(points[:, 0], points[:, 1], s=9, marker=marker, color=colour, alpha=0.6, lw=0, label=name)
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_color(INK)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    alt = f"{len(real)} real and {len(made)} synthetic images as points; where the clouds overlap, they look alike"
    caption = (
        "Every point is an image; t-SNE of principal components, so only nearness is meaningful. Where the clouds "
        "overlap, synthetic and real images have similar features."
    )
    return Picture(title, caption, svg((4.6, 3.2), alt, draw))
