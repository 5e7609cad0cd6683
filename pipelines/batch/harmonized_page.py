"""The page of a harmonized folder: whether quality control accepts the translation, figures, values and pictures.

It shows patients and stays in the hospital.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from evaluation.axes import Axis, Panel, Shape
from evaluation.drawing import COLOURS, Picture
from evaluation.page import Block, Drawing, Fields, Items, Page, Paragraph, Section, compose_text, make_table
from evaluation.panels import draw_panels
from evaluation.pictures import contact_sheet
from evaluation.rendering import render_page
from evaluation.tiles import Tile
from evaluation.wording import format_count
from harmonize.own import BACKGROUND
from harmonize.quality import Quality
from harmonize.scale import Scale
from harmonize.veto import WORDS, Check, Limits, describe_vetoes, list_checks
from privacy.durable import write_whole

SHOWN = 6  # studies
BINS = 80


class Views(NamedTuple):
    """Slices (n, 1, s, s) in [-1, 1] before and after, and with the wanted look if there are such. patient: (n,)."""

    before: Tensor
    after: Tensor
    target: Tensor | None
    patient: Tensor


def write_page(
    path: Path, views: Views, *, by: str, unit: str, scale: Scale, quality: Quality | None, vetoed: tuple[str, ...]
) -> None:
    """Write the page.

    unit: of the values. quality: None = nothing to compare with was given. vetoed: names of the limits exceeded.

    Raises:
        OSError: the disk.
    """
    studies = format_count(len(set(views.patient.tolist())), "study", "studies")
    values = _draw_values(views, scale, unit)
    sections = [
        Section("Pictures", [Drawing(_build_sheet(views, scale))]),
        Section("Values", [Drawing(Picture("Distribution of values", "", values))]),
    ]
    head: list[Block] = [
        Paragraph(
            compose_text(
                "**This page shows patients.** It stays in the hospital, in this file: `{path}`", path=str(path)
            ),
            "banner danger",
        )
    ]
    if quality is not None:
        sections.append(_build_figures_section(quality, vetoed))
    if quality is not None and vetoed:
        sentences = describe_vetoes(quality, Limits())
        refused = compose_text("Without `--even-if-vetoed` nothing is written. Try another `--by`.")
        head += [Items(sentences), Paragraph(refused)]
    facts = compose_text("by **{by}**, judged on {studies}", by=by, studies=studies)
    page = Page("Studies with another look", _judge(quality, vetoed), facts, sections, head)
    write_whole(path, render_page(page).encode("utf-8"))


def _judge(quality: Quality | None, vetoed: tuple[str, ...]) -> str:
    """What came of the translation, in a sentence."""
    if vetoed:
        return "Refused: the translation would do harm"
    if quality is None:
        return "Translated; nothing was there to judge it by"
    if quality.sw_after >= quality.sw_before:
        return "Harmless, and of no use: the studies came no nearer to the wanted look"
    return "Accepted: the studies came nearer to the wanted look"


def _build_figures_section(quality: Quality, vetoed: tuple[str, ...]) -> Section:
    """The figures of quality control with their limits."""
    where = "inside gland masks" if quality.masked else "in the middle of each image, as there are no gland masks"
    distance = compose_text(
        "Distance to the wanted look (sliced Wasserstein, in [-1, 1]): **{before}** before, **{after}** after. "
        "Measured {where}. Figures of lesions and classes need masks and labels, which this command does not take.",
        before=f"{quality.sw_before:.3f}", after=f"{quality.sw_after:.3f}", where=where,
    )  # fmt: skip
    checks = [check for check in list_checks(quality, Limits()) if check.is_known]
    fields: Fields = [
        ("What goes wrong", lambda check: WORDS[check.name].split(":")[0]),
        ("Value", lambda check: f"{check.value:.3g}"),
        ("Allowed", _describe_bounds),
        ("Outcome", lambda check: _name_outcome(check, vetoed)),
    ]
    return Section("Figures", [Paragraph(distance), make_table("What goes wrong", "", checks, fields)])


def _describe_bounds(check: Check) -> str:
    """The limits of a figure, in words."""
    bounds = [f"at least {check.low:g}" if check.low is not None else ""]
    bounds += [f"at most {check.high:g}" if check.high is not None else ""]
    return " and ".join(filter(None, bounds))


def _name_outcome(check: Check, vetoed: tuple[str, ...]) -> str:
    """Whether a figure is within its limits."""
    return "outside" if check.name in vetoed else "within" if check.is_within_limits else "outside, harmless"


def _draw_values(views: Views, scale: Scale, unit: str) -> str:
    """Distributions of the foreground's values before, after and of the wanted look."""
    edges, lines = np.linspace(scale.low, scale.high, BINS + 1), list[Shape]()
    named = {"before": views.before, "after": views.after, "wanted look": views.target}
    looks: dict[str, dict[str, Any]] = {
        name: {"color": colour, "linestyle": "-", "linewidth": 1.4}
        for (name, images), colour in zip(named.items(), COLOURS, strict=False)
        if images is not None
    }
    for name, look in looks.items():
        images = named[name]
        values = np.zeros(0) if images is None else scale.back(images[images > BACKGROUND]).numpy()
        density, _ = np.histogram(values, edges, density=True)
        lines.append(Shape(x=(edges[1:] + edges[:-1]) / 2, y=density, **look))
    panel = Panel(shapes=lines, y=Axis(ticks=()))
    alt = "Distribution of values"
    return draw_panels({"": panel}, lambda _, drawn: drawn, alt=alt, labels=(unit, ""), looks=looks, size=(7.0, 2.6))


def _build_sheet(views: Views, scale: Scale) -> Picture:
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
    return Picture("", "", sheet.html)
