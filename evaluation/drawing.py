"""Converts a matplotlib figure for a page: inline SVG that takes the page's text colour, or PNG in a data URI.

Lines and text that belong to the page, not to a curve, are drawn in INK and exported as `currentColor`, so that one
picture is readable in light and dark mode.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 3  # of compression; from here on a photograph grows smaller by some percent and takes several times as long
INK = "#010203"  # an unlikely colour, to be replaced by the page's colour

# After Paul Tol's "vibrant" scheme (Technical note SRON/EPS/TN/09-002), distinguishable with any colour vision. Its
# orange is darker here and its cyan a violet, so that each has 3 : 1 against white and against the page's dark panel
# (WCAG 1.4.11). Marker and dash distinguish them as well.
COLOURS = ("#0077bb", "#dd6611", "#009988", "#cc3311", "#ee3377", "#a860c8", "#8c8c8c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (10, 2)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (3, 3)),
)

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "consilium",
    "text.parse_math": False,  # a site named $x$ is a name
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}
NAMESPACES = re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"')
IDS = re.compile(r'(\sid="|href="#|url\(#)')


@dataclass(frozen=True)
class Picture:
    """A picture for a page. html: an element with an accessible name; caption: what it shows, in a sentence."""

    title: str
    caption: str
    html: str


def render_svg(size: tuple[float, float], alt: str, draw: Callable[[Figure], None]) -> str:
    """Let `draw` fill a figure of (width, height) inches; return it as an inline `<svg>` named `alt`.

    Equal figures give equal text; ids differ from those of other figures, and nothing refers to another document.
    """
    import matplotlib  # slow to import
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # slow to import
    from matplotlib.figure import Figure  # slow to import

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=72, layout="constrained")
        FigureCanvasSVG(figure)  # text is measured as it will be written
        draw(figure)
        if figure.axes and (engine := figure.get_layout_engine()) is not None:  # without axes it would warn
            engine.execute(figure)
        figure.set_layout_engine(None)  # with an engine savefig draws twice: to lay out, and to write
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", dpi=100, transparent=True, metadata=nothing)
    return _extract_svg_element(buffer.getvalue(), size, alt)


def render_png(size: tuple[float, float], dpi: int, draw: Callable[[Figure], None]) -> bytes:
    """Let `draw` fill a figure of (width, height) inches; return it as a PNG."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure  # slow to import

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=dpi)
        draw(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def png_uri(pixels: NDArray[np.uint8]) -> str:
    """The data URI of a PNG. pixels: (H, W), or (H, W, 3), which are stored as (H, W) where nothing has a colour."""
    grey = pixels.ndim == 3 and bool((pixels == pixels[..., :1]).all())
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if grey else pixels).save(buffer, "PNG", compress_level=LEVEL)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _extract_svg_element(text: str, size: tuple[float, float], alt: str) -> str:
    """The `<svg>` element of an SVG document, for use in a page with others."""
    body = text[text.index("<svg") :]
    inner = body[body.index(">") + 1 :]
    inner = NAMESPACES.sub("", re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL))
    inner = inner.replace("xlink:href", "href").replace(INK, "currentColor")
    inner = re.sub(r"'?DejaVu Sans'?(?:, [\w' -]+)*", "system-ui, sans-serif", inner)
    inner = re.sub(r"\n\s*", "\n", inner)
    prefix = "f" + hashlib.blake2b((alt + inner).encode(), digest_size=4).hexdigest() + "-"
    inner = IDS.sub(lambda match: match[0] + prefix, inner)
    width, height = (round(72 * side) for side in size)
    name = html.escape(alt, quote=True)
    shown = round(96 * size[0])
    wide = ' class="wide"' if shown > 560 else ""
    return f'<svg{wide} role="img" aria-label="{name}" viewBox="0 0 {width} {height}" width="{shown}">{inner}'
