"""The page of a harmonized folder: whether quality control accepts the translation, figures, values and pictures.

It shows patients and stays in the hospital.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from evaluation.drawing import COLOURS, render_svg
from evaluation.pictures import contact_sheet
from evaluation.rendering import render_template
from evaluation.tiles import Tile
from harmonize.own import BACKGROUND
from harmonize.quality import Quality
from harmonize.scale import Scale
from harmonize.veto import WORDS, Check, Limits, describe_vetoes, list_checks
from privacy.durable import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6  # studies
BINS = 80


class Views(NamedTuple):
    """Slices (n, 1, s, s) in [-1, 1] before and after, and with the wanted look if there are such. patient: (n,)."""

    before: Tensor
    after: Tensor
    target: Tensor | None
    patient: Tensor


class Row(NamedTuple):
    """A line of the table of figures. outcome: within its limits, outside, or without a limit or a figure."""

    name: str
    value: str
    allowed: str
    outcome: str


def write_page(
    path: Path, views: Views, *, by: str, unit: str, scale: Scale, quality: Quality | None, vetoed: tuple[str, ...]
) -> None:
    """Write the page.

    unit: of the values. quality: None = nothing to compare with was given. vetoed: names of the limits exceeded.

    Raises:
        OSError: the disk.
    """
    limits = Limits()
    page = render_template(
        "harmonize.html",
        by=by,
        path=str(path),
        vetoed=vetoed,
        sentences=() if quality is None else describe_vetoes(quality, limits),
        quality=quality,
        rows=[] if quality is None else [_build_row(check, vetoed) for check in list_checks(quality, limits)],
        values=render_svg(
            (7.0, 2.6), "Distribution of values", lambda figure: _draw_values(figure, views, scale, unit)
        ),
        sheet=_build_sheet(views, scale),
        studies=len(set(views.patient.tolist())),
    )
    write_whole(path, page.encode("utf-8"))


def _build_row(check: Check, vetoed: tuple[str, ...]) -> Row:
    """A figure with its limits, in words."""
    if not check.is_known:
        return Row(WORDS[check.name].format(value="not known"), "", "", "not known")
    bounds = [f"at least {check.low:g}" if check.low is not None else ""]
    bounds += [f"at most {check.high:g}" if check.high is not None else ""]
    outcome = "outside" if check.name in vetoed else "within" if check.is_within_limits else "outside, harmless"
    sentence = WORDS[check.name].split(":")[0]
    return Row(sentence, f"{check.value:.3g}", " and ".join(filter(None, bounds)), outcome)


def _draw_values(figure: Figure, views: Views, scale: Scale, unit: str) -> None:
    """Distributions of the foreground's values before, after and of the wanted look."""
    axes = figure.add_subplot()
    edges = np.linspace(scale.low, scale.high, BINS + 1)
    named = {"before": views.before, "after": views.after, "wanted look": views.target}
    for (name, images), colour in zip(named.items(), COLOURS, strict=False):
        if images is None:
            continue
        values = scale.back(images[images > BACKGROUND]).numpy()
        density, _ = np.histogram(values, edges, density=True)
        axes.plot((edges[1:] + edges[:-1]) / 2, density, color=colour, label=name, lw=1.4)
    axes.set_xlabel(unit)
    axes.set_yticks([])
    axes.legend(frameon=False)


def _build_sheet(views: Views, scale: Scale) -> str:
    """The middle slice of some studies before and after, and below them slices with the wanted look."""
    patients = sorted(set(views.patient.tolist()))
    shown = patients[:: max(1, -(-len(patients) // SHOWN))][:SHOWN]
    middle = [(views.patient == patient).nonzero()[:, 0] for patient in shown]
    rows = [int(of[len(of) // 2]) for of in middle]
    tiles = [
        Tile(scale.back(images[row, 0]).numpy(), f"{name}, study {number}")
        for name, images in (("before", views.before), ("after", views.after))
        for number, row in enumerate(rows, start=1)
    ]
    if views.target is not None:
        places = np.linspace(0, len(views.target) - 1, len(rows)).round().astype(int)
        tiles += [Tile(scale.back(views.target[place, 0]).numpy(), "wanted look") for place in places]
    sheet = contact_sheet(tiles, title="", window=(scale.low, scale.high), columns=len(rows))
    return sheet.html
