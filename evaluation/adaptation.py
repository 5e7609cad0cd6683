"""How networks were adapted to an external site, for that hospital's own page: table entries and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.axes import Axis, Panel, Shape
from evaluation.drawing import INK, Picture
from evaluation.panels import FINE, draw_panels, draw_upright, line_style
from evaluation.wording import format_number

SIZE = (3.7, 2.6)  # inches; of a panel


@dataclass(frozen=True)
class AdaptedLine:
    """A line of `route` at a hospital.

    way: its name. experts: the models, in words. losses, shares: before and after each epoch, shares (classes,) of all
    predicted pixels or images; one entry where nothing was trained or each image was predicted before the step on it,
    none where nothing was adapted. epoch: the chosen one, 0 = before, None = no state is used. why: in words.
    pictures: the curves, and how the models were mixed.
    """

    label: str
    way: str
    experts: tuple[str, ...]
    losses: tuple[float, ...] = ()
    shares: tuple[tuple[float, ...], ...] = ()
    epoch: int | None = 0
    why: str = ""
    pictures: tuple[Picture, ...] = ()

    @property
    def chosen(self) -> bool:
        """Whether a state was chosen out of several."""
        return len(self.losses) > 1 and self.epoch is not None

    @property
    def foreground_shares(self) -> tuple[float, float]:
        """The predicted share of all classes but 0, before and in the chosen state; NaN without predictions."""
        fronts = [1 - class_shares[0] for class_shares in self.shares] or [math.nan]
        return fronts[0], fronts[self.epoch or 0]


def adaptation_curves(
    label: str,
    losses: Sequence[float],
    shares: Sequence[Sequence[float]],
    epoch: int | None,
    names: Sequence[str],
    true_shares: Sequence[float],
) -> Picture:
    """Loss and predicted shares of the network before (0) and after each epoch; a dotted line marks the state that is
    used.

    Args:
        label: of the line.
        losses, shares, epoch: as in `AdaptedLine`.
        names: of the classes but 0.
        true_shares: the share of each class but 0 in the given masks or labels.
    """
    epochs = range(len(losses))
    looks = {name: line_style(place) for place, name in enumerate(names)}

    lines = {
        "unsupervised loss": {"loss": (list(losses), {"color": INK, "linewidth": 1.2})},
        "share of predictions": {
            name: ([class_shares[c] for class_shares in shares], look)
            for c, (name, look) in enumerate(looks.items(), 1)
        },
    }

    def draw(title: str, lines: Mapping[str, tuple[list[float], dict[str, Any]]]) -> Panel:
        shapes, y = list[Shape](), Axis(grid=True)
        for name, (values, look) in lines.items():
            texts = [f"{name}, epoch {at}: {format_number(v)}" for at, v in enumerate(values)]
            shapes.append(Shape(x=epochs, y=values, marker="o", size=3, texts=texts, **look))
        if title == "share of predictions":
            y = replace(y, low=0.0, high=1.1 * max(max(class_shares[1:]) for class_shares in shares) or 1.0)
        shapes += [] if epoch is None else [draw_upright(epoch, FINE)]
        return Panel(shapes=shapes, x=Axis(whole=True, most=6), y=y)

    last, which = (len(losses) - 1, "and no state is used") if epoch is None else (epoch, "which is used")
    ends = [
        f"{name} {format_number(shares[0][c])} before, {format_number(shares[last][c])} after"
        for c, name in enumerate(names, 1)
    ]
    alt = (
        f"{label}: loss {format_number(losses[0])} before, {format_number(losses[last])} after epoch {last}, {which}. "
        f"Share of predictions: {'; '.join(ends)}."
    )
    truth = ", ".join(f"{name} {format_number(share)}" for name, share in zip(names, true_shares, strict=True))
    caption = (
        "Of the network before (epoch 0) and after each epoch, on all of this hospital's images; "
        f"{'no state is used' if epoch is None else 'dotted: the state that is used'}. "
        f"True shares, which adaptation does not see: {truth}."
    )
    drawing = draw_panels(lines, draw, alt=alt, labels=("epoch", ""), looks=looks, size=SIZE)
    return Picture(f"{label}: how adaptation went", caption, drawing, label)
