"""Converts a matplotlib figure for a page: inline SVG that takes the page's text colour, or PNG in a data URI.

Lines and text that belong to the page, not to a curve, are drawn in INK and exported as `currentColor`, so that one
picture is readable in light and dark mode. What is drawn of a method carries its name and what its points say, as data
of the SVG: `templates/page.js` shows them, and leaves methods out. A print, or a browser without scripts, has it all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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
FONT = re.compile(r" font-family: '?DejaVu Sans'?(?:, [\w' -]+)*;")
UNTURNED = re.compile(r' transform="rotate\(-?0 [^"]*\)"')
PLACES = re.compile(r'\s(?:d|x|y)="[^"]*"')
LONG = re.compile(r"-?\d+\.\d{3,}")
"""Numbers in the places of lines and marks: matplotlib writes six decimals, and two are a hundredth of a point."""
MARK = "mark-"
"""Begins the id of what a reader may point at or leave out, until it is written."""
IDS = re.compile(r'(<\w+ id="|href="#|url\(#)')
TAG_ID = re.compile(r'(<\w+) id="([^"]*)"')


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

    with matplotlib.rc_context(STYLE):
        figure = _make_figure(size)
        draw(figure)
        drawing = _write_svg(figure, alt)
    wide = ' class="wide"' if _shown_width(size) > 560 else ""
    return f'<svg{wide} role="img" aria-label="{html.escape(alt, quote=True)}" {drawing}'


def render_panels(
    size: tuple[float, float], alt: str, draws: Mapping[str, Callable[[Axes], None]], *, share_y: bool = False
) -> str:
    """A small SVG for each panel, of (width, height) inches: as many side by side as the page has room for.

    draws: title -> what fills the panel. share_y: one scale of y for all. The panels are one picture, named `alt`.
    """
    import matplotlib  # slow to import

    with matplotlib.rc_context(STYLE):
        figures = [_make_figure(size) for _ in draws]
        cells = [figure.subplots() for figure in figures]
        for axes, draw in zip(cells, draws.values(), strict=True):
            draw(axes)
        if share_y and cells:
            limits = [axes.get_ylim() for axes in cells]
            for axes in cells:
                axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        drawings = [_write_svg(figure, f"{alt}{place}") for place, figure in enumerate(figures)]
    panels = "".join(
        f'<div class="panel">{f"<p>{html.escape(title)}</p>" if title else ""}<svg aria-hidden="true" {drawing}</div>'
        for title, drawing in zip(draws, drawings, strict=True)
    )
    return f'<div class="panels" role="img" aria-label="{html.escape(alt, quote=True)}">{panels}</div>'


def point_at(line: Line2D, method: str, texts: Sequence[str], *, lead: str = "", most: int | None = None) -> None:
    """Let a reader point at a line's points. The line is gone where the method is.

    texts: what each of its points says, after `lead`. most: about so many points answer, evenly spread, with the first
    and the last.
    """
    step = 1 if most is None else max(1, math.ceil((len(texts) - 1) / (most - 1)))
    answering = {*range(0, len(texts), step), len(texts) - 1}
    line.set_gid(MARK + json.dumps([method, lead, [text if i in answering else None for i, text in enumerate(texts)]]))


def belong_to(artists: Artist | Iterable[Artist], method: str) -> None:
    """Hide what is drawn where a reader leaves the method out."""
    from matplotlib.artist import Artist  # slow to import

    for artist in [artists] if isinstance(artists, Artist) else artists:
        artist.set_gid(MARK + json.dumps([method, "", []]))


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


def _make_figure(size: tuple[float, float]) -> Figure:
    """An empty figure whose text is measured as it will be written."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # slow to import
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=size, dpi=72, layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _shown_width(size: tuple[float, float]) -> int:
    """Pixels of a page."""
    return round(96 * size[0])


def _write_svg(figure: Figure, salt: str) -> str:
    """The rest of an `<svg>` element, from its size on, for use in a page with others. salt: makes ids differ."""
    if figure.axes and (engine := figure.get_layout_engine()) is not None:  # without axes it would warn
        engine.execute(figure)
    figure.set_layout_engine(None)  # with an engine savefig draws twice: to lay out, and to write
    marks, buffer = _collect_marks(figure), io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", dpi=100, transparent=True, metadata=nothing)
    body = buffer.getvalue().partition("<svg")[2]
    inner = body[body.index(">") + 1 :]
    inner = NAMESPACES.sub("", re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL))
    inner = inner.replace("xlink:href", "href").replace(INK, "currentColor")
    inner = FONT.sub("", inner)  # the page's own
    inner = re.sub(r"\n\s*", "\n", inner)
    inner = PLACES.sub(lambda match: LONG.sub(lambda number: f"{float(number[0]):.2f}", match[0]), inner)
    used = {*re.findall(r'(?:href="#|url\(#)([^")]+)', inner), *(f"{MARK}{number}" for number in range(len(marks)))}
    inner = TAG_ID.sub(lambda match: match[0] if match[2] in used else match[1], UNTURNED.sub("", inner))
    prefix = "f" + hashlib.blake2b((salt + inner).encode(), digest_size=4).hexdigest() + "-"
    inner = IDS.sub(lambda match: match[0] + prefix, inner)
    inner = re.sub(
        rf'<g id="{prefix}{MARK}(\d+)"\s*(/?)>', lambda match: _open_mark(marks[int(match[1])], match[2]), inner
    )
    size = figure.get_figwidth(), figure.get_figheight()
    width, height = (round(72 * side) for side in size)
    return f'viewBox="0 0 {width} {height}" width="{_shown_width(size)}">{inner}'


class _Mark(NamedTuple):
    """What is drawn of a method. lead, points: what points say; x and y in the figure's units, downwards, and text."""

    method: str
    lead: str
    points: list[tuple[float, float, str]]


def _collect_marks(figure: Figure) -> list[_Mark]:
    """What a reader may point at, or leave out; each gets its number as its id."""
    from matplotlib.lines import Line2D  # slow to import

    marks: list[_Mark] = []
    for artist in figure.findobj(lambda artist: str(artist.get_gid() or "").startswith(MARK)):
        method, lead, texts = json.loads(str(artist.get_gid()).removeprefix(MARK))
        points: list[tuple[float, float, str]] = []
        if isinstance(artist, Line2D) and texts:
            places = artist.get_transform().transform(artist.get_xydata())
            points = [
                (round(float(x), 1), round(float(figure.bbox.height - y), 1), text)
                for (x, y), text in zip(places, texts, strict=True)
                if text is not None and np.isfinite((x, y)).all()
            ]
        artist.set_gid(f"{MARK}{len(marks)}")
        marks.append(_Mark(method, lead, points))
    return marks


def _open_mark(mark: _Mark, is_closed: str) -> str:
    """The group of a mark. Its title is what a browser without scripts says of it."""
    method, lead = html.escape(mark.method, quote=True), html.escape(mark.lead, quote=True)
    texts = html.escape(json.dumps(mark.points, ensure_ascii=False, separators=(",", ":")), quote=False)
    quoted = texts.replace("'", "&#x27;")  # between single quotes, of which JSON has fewer
    points = f" data-lead=\"{lead}\" data-points='{quoted}'" if mark.points else ""
    title = f"<title>{lead}{html.escape(mark.points[-1][2])}</title>" if mark.points else ""
    return f'<g data-method="{method}"{points}>{title}{"</g>" if is_closed else ""}'
