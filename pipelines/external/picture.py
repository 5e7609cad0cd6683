"""A plot of an adaptation: loss and predicted classes at every epoch, and which epoch is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evaluation.drawing import INK, render_png
from evaluation.panels import line_style
from personalize.adaptation import Adapted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (6.4, 3.0)  # inches
DPI = 150


def loss_curve(adapted: Adapted, names: Sequence[str]) -> bytes:
    """A PNG. names: of the classes, class 0 first."""
    from matplotlib.ticker import MaxNLocator  # slow to import

    def draw(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        left, right = figure.subplots(1, 2)
        epochs = range(len(adapted.losses))
        left.plot(epochs, adapted.losses, color=INK, marker=".", linewidth=1.2)
        left.set_ylabel("unsupervised loss")
        looks = {name: line_style(place) for place, name in enumerate(names)}
        for place, (name, look) in enumerate(looks.items()):
            right.plot(epochs, [shares[place] for shares in adapted.shares], marker=".", label=name, **look)
        right.set_ylabel("share of predictions")
        right.set_ylim(-0.02, 1.02)
        for axes in (left, right):
            if adapted.epoch is not None:
                axes.axvline(adapted.epoch, color=INK, linewidth=0.8, linestyle=":")
            which = "none serves" if adapted.epoch is None else "dotted: the one that serves"
            axes.set_xlabel(f"epoch (0 = before; {which})", fontsize=7.5)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=6, handlelength=2.6)

    return render_png(SIZE, DPI, draw)
