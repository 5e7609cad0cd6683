"""Images as points in two dimensions. Every point is an image, so real ones are for a hospital's own page alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evaluation.axes import Axis, Panel, Shape
from evaluation.drawing import Picture
from evaluation.panels import draw_panels, mark_style

Points = NDArray[np.generic]
SIZE = (3.4, 3.2)  # inches
READ = "Every point is an image; t-SNE of principal components, so only nearness is meaningful."


def point_map(real: Points, made: Points, *, title: str) -> Picture:
    """A scatter plot of two sets. real: (n, 2); made: (m, 2), in the same units, which have no meaning of their own.

    Raises:
        ValueError: points have another shape.
    """
    alt = f"{len(real)} real and {len(made)} synthetic images as points; where the clouds overlap, they look alike"
    caption = f"{READ} Where the clouds overlap, synthetic and real images have similar features."
    return Picture(title, caption, draw_scatter({"real": real, "synthetic": made}, alt))


def shared_map(groups: Mapping[str, Points], *, title: str) -> Picture:
    """Shared synthetic images and public images, which may be on the coordinator's page. groups: (n, 2) by name.

    Raises:
        ValueError: points have another shape.
    """
    caption = (
        f"{READ} No hospital's own images are among them: these stay there, and its own page shows them. Shared images "
        "far from all public ones have what the prior does not draw; such as lie in one heap are hardly different."
    )
    return Picture(title, caption, draw_scatter(groups, _describe_groups(groups)))


def space_map(groups: Mapping[str, Points], *, title: str) -> Picture:
    """A hospital's images as read and translated, with the shared images, for its own page. groups: (n, 2) by name.

    Raises:
        ValueError: points have another shape.
    """
    caption = f"{READ} A translation that works moves this hospital's images among the shared ones."
    return Picture(title, caption, draw_scatter(groups, _describe_groups(groups)))


def _describe_groups(groups: Mapping[str, Points]) -> str:
    """The number of points of each group, for the alternative text."""
    return f"{', '.join(f'{len(points)} {name}' for name, points in groups.items())} images as points"


def draw_scatter(groups: Mapping[str, Points], alt: str) -> str:
    """A panel with sets of points, each with a colour and a shape.

    Raises:
        ValueError: points have another shape than (n, 2).
    """
    wrong = [f"{name} {points.shape}" for name, points in groups.items() if points.shape[1:] != (2,)]
    if wrong:
        raise ValueError(f"points must be (n, 2), found {', '.join(wrong)}")

    looks = {name: mark_style(place) for place, name in enumerate(groups)}
    shapes = [
        Shape(x=points[:, 0], y=points[:, 1], size=3, alpha=0.6, **looks[name]) for name, points in groups.items()
    ]
    nothing = Axis(ticks=())  # places have no meaning of their own
    panel = Panel(shapes=shapes, x=nothing, y=nothing)
    return draw_panels({"": panel}, lambda _, drawn: drawn, alt=alt, looks=looks, size=SIZE)
