"""The style sheet: contrast of text and curves in light, dark and print (WCAG 2.2, 1.4.3 and 1.4.11); focus; print."""

import re
from pathlib import Path

import pytest

from evaluation import report
from evaluation.drawing import COLOURS

CSS = (Path(report.__file__).parent / "templates" / "style.css").read_text()


def palettes():
    """Scheme -> name -> colour; dark and print override light."""
    light, dark, paper = ({}, {}, {})
    blocks = re.findall(r":root \{([^}]*)\}", CSS)
    for found, block in zip((light, dark, paper), blocks, strict=True):
        found.update(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))
    return {"light": light, "dark": light | dark, "print": light | paper}


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_the_standard_says():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_has_contrast_enough_in_every_scheme(scheme):
    colours = palettes()[scheme]
    pairs = [(text, ground) for text in ("ink", "quiet", "accent", "good", "bad") for ground in ("panel", "ground")]
    pairs += [("ink", "note"), ("ink", "site"), ("ink", "band")]
    weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert not {pair: value for pair, value in weak.items() if value < 4.5}


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_curves_and_focus_are_seen_in_every_scheme(scheme):
    panel = palettes()[scheme]["panel"]
    assert all(contrast(colour, panel) >= 3 for colour in COLOURS)
    assert contrast(palettes()[scheme]["accent"], panel) >= 3
    focus = re.search(r"([^\n]*):focus-visible \{ outline: 2px solid var\(--accent\)", CSS)[0]
    assert all(part in focus for part in ("a:", "summary:", ".scroll:", "pre:"))


def test_text_colours_come_from_the_palette_alone():
    """Otherwise the contrast above would say nothing of them."""
    rules = CSS.split("@media print")[0]
    outside = re.sub(r":root \{[^}]*\}", "", rules)
    assert set(re.findall(r"(?<![-\w])color: ([^;]+);", outside)) <= {
        "light dark",
        *(f"var(--{name})" for name in ("ink", "quiet", "accent", "good", "bad")),
    }


def test_print_opens_what_is_folded_and_keeps_figures_whole():
    paper = CSS[CSS.index("@media print") :]
    assert "details::details-content { content-visibility: visible" in paper
    assert re.search(r"figure[^{]*\{ break-inside: avoid", paper)
