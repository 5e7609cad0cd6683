"""What all pictures of a page share: colours, marks and dashes, and PNG in a data URI; and PNG by matplotlib for files.

Lines and text that belong to the page, not to a curve, are drawn in INK (`evaluation/axes.py` writes them as SVG).
"""

from __future__ import annotations

import base64
import io
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


@dataclass(frozen=True)
class Picture:
    """A picture for a page. html: an element with an accessible name; caption: what it shows, in a sentence. method:
    the one that all of it is of, whose switch hides it.
    """

    title: str
    caption: str
    html: str
    method: str = ""


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


def png_uri(pixels: NDArray[np.uint8], palette: NDArray[np.uint8] | None = None) -> str:
    """The data URI of a PNG, without loss.

    pixels: (H, W), or (H, W, 3), which are stored as (H, W) where nothing has a colour. palette: (n, 4), of which (H,
    W) are numbers: red, green, blue and alpha.
    """
    grey = pixels.ndim == 3 and bool((pixels == pixels[..., :1]).all())
    image, buffer = Image.fromarray(pixels[..., 0] if grey else pixels), io.BytesIO()
    if palette is None:
        image.save(buffer, "PNG", compress_level=LEVEL)
    else:
        image.putpalette(palette[:, :3].tobytes())
        image.save(buffer, "PNG", compress_level=LEVEL, transparency=palette[:, 3].tobytes())
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
