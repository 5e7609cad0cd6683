"""A panel with two axes as SVG: lines, marks, areas and words, in the units of what is drawn.

Colours that are `INK` take the page's, so that one picture is readable in light and dark mode, and letters are those of
the page. What is drawn of a method carries its name and what its points say, as data of the SVG: `templates/page.js`
shows them, and leaves methods out. A print, or a browser without scripts, has it all.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from evaluation.drawing import INK
from evaluation.histograms import Floats
from evaluation.wording import format_value

POINTS = 72  # to an inch; the unit of a drawing
FONT, SMALL = 9.0, 8.0  # points
LETTER, LINE = 0.6, 1.25  # of a font's size: the width of a letter, about, and the height of a line
TICK, PAD, EDGE = 3.5, 3.5, 3.0  # points: a tick, before a name, around a panel
MARGIN = 0.05  # of what is drawn, to either side of it
TURN = 60  # degrees
BAR = 9  # points; the width of a bar of colours
STEPS = (1, 2, 2.5, 5, 10, 20, 25, 50, 100)
DECIMALS, FIGURES = 14, 16  # of the name of a tick at most: a float64 has no more
LEAST = 1e-305  # a step between ticks

Across: TypeAlias = Literal["", "x", "y"]
Dashes: TypeAlias = str | tuple[float, tuple[float, ...]]
"""`-` is a whole line; else where dashes begin, and dashes and gaps in widths of the line, as matplotlib has it."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A line through points, marks at them, or the area between them.

    x, y: (n,); what is not finite interrupts. across: on this axis places are shares of the panel, from its left or its
    lower end. linewidth: 0 = no line. marker: of `MARKS`, "" = none. size: of a mark. hollow: marks are outlines.
    filled: an area. method: with whom it is left out, "" = never. texts: what each point says, after `lead`. most:
    about so many points answer, evenly spread, with the first and the last.
    """

    x: ArrayLike
    y: ArrayLike
    across: Across = ""
    color: str = INK
    linewidth: float = 0.0
    linestyle: Dashes = "-"
    alpha: float = 1.0
    marker: str = ""
    size: float = 6.0
    hollow: bool = False
    filled: bool = False
    method: str = ""
    lead: str = ""
    texts: Sequence[str] = ()
    most: int | None = None


@dataclass(frozen=True, kw_only=True)
class Label:
    """A word at a place. across: as of `Shape`. anchor: of an SVG's text."""

    x: float
    y: float
    text: str
    across: Across = ""
    color: str = INK
    size: float = SMALL
    anchor: str = "middle"


@dataclass(frozen=True, kw_only=True)
class Image:
    """Cells of colour from (0, 0) to its numbers of columns and rows, a unit each, around whole numbers. uri: of a
    picture with a pixel for each cell.
    """

    uri: str
    columns: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis. label: may have several lines. low, high: at the left or lower end, and at the other; None: from what
    is drawn. ticks: None = about `most` round numbers, which `whole` makes whole. names: of ticks. line: is drawn, with
    its ticks. turned: names are. methods: names are those of methods, and left out with them.
    """

    label: str = ""
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    most: int | None = None
    whole: bool = False
    grid: bool = False
    line: bool = True
    size: float = FONT
    turned: bool = False
    methods: bool = False


@dataclass(frozen=True, kw_only=True)
class Colours:
    """What colours of cells mean, beside a panel. uri: of a picture of them, the highest at the top. axis: from low to
    high, with a label.
    """

    uri: str
    axis: Axis


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What is drawn, from the bottom, and its axes. square: both axes are as long. method: that all of it is of."""

    shapes: Sequence[Shape | Label | Image]
    x: Axis = Axis()
    y: Axis = Axis()
    square: bool = False
    colours: Colours | None = None
    method: str = ""


class Frame(NamedTuple):
    """Where the axes lie, in points, downwards, and their ends in data's units: of x left and right, of y lower and
    upper.
    """

    left: float
    top: float
    right: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: ArrayLike, y: ArrayLike, across: Across = "") -> tuple[Floats, Floats]:
        """Places of data in the drawing."""
        shares = [
            np.asarray(values, np.float64)
            if axis == across
            else (np.asarray(values, np.float64) - ends[0]) / (ends[1] - ends[0])
            for axis, values, ends in (("x", x, self.x), ("y", y, self.y))
        ]
        return (
            self.left + np.atleast_1d(shares[0]) * (self.right - self.left),
            self.bottom - np.atleast_1d(shares[1]) * (self.bottom - self.top),
        )


MARKS = {
    "o": (),
    "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "^": ((0, -1.2), (1.2, 1), (-1.2, 1)),
    "D": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    "v": ((0, 1.2), (1.2, -1), (-1.2, -1)),
    "P": (
        *((-0.43, -1.3), (0.43, -1.3), (0.43, -0.43), (1.3, -0.43), (1.3, 0.43), (0.43, 0.43)),
        *((0.43, 1.3), (-0.43, 1.3), (-0.43, 0.43), (-1.3, 0.43), (-1.3, -0.43), (-0.43, -0.43)),
    ),
    "X": (
        *((-0.67, -1.3), (0, -0.67), (0.67, -1.3), (1.3, -0.67), (0.67, 0), (1.3, 0.67)),
        *((0.67, 1.3), (0, 0.67), (-0.67, 1.3), (-1.3, 0.67), (-0.67, 0), (-1.3, -0.67)),
    ),
}
"""Corners of marks around 0, in halves of their size; none is a circle."""


def name_method(method: str) -> str:
    """The attribute of an element that is of one method: `templates/page.js` hides it with that method."""
    return f' data-method="{html.escape(method, quote=True)}"' if method else ""


def write_panel(panel: Panel, size: tuple[float, float], salt: str = "") -> str:
    """The rest of an `<svg>` element from its size on, of (width, height) inches. salt: makes ids differ from those of
    other panels of a page.
    """
    panel = settle_axes(panel, size)
    frame = _make_frame(panel, size)
    drawn = "".join(_write_item(item, frame) for item in panel.shapes)
    if any(_is_outside(item, frame) for item in panel.shapes):
        name = "c" + hashlib.blake2b((salt + drawn).encode(), digest_size=5).hexdigest()
        width, height = frame.right - frame.left, frame.bottom - frame.top
        area = f'<rect x="{frame.left:.2f}" y="{frame.top:.2f}" width="{width:.2f}" height="{height:.2f}"/>'
        drawn = f'<clipPath id="{name}">{area}</clipPath><g clip-path="url(#{name})">{drawn}</g>'
    text = f"{_write_axis(panel.x, frame, is_x=True)}{_write_axis(panel.y, frame, is_x=False)}{drawn}"
    text += "" if panel.colours is None else _write_colours(panel.colours, frame, size)
    return f"{open_drawing(size)}{text}".replace(INK, "currentColor")


def open_drawing(size: tuple[float, float]) -> str:
    """The attributes of an `<svg>` element of (width, height) inches, and the end of its tag."""
    width, height = (POINTS * side for side in size)
    return (
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{96 * size[0]:.0f}" font-size="{FONT:g}" fill="{INK}" '
        'stroke-linejoin="round">'
    )


def settle_axes(panel: Panel, size: tuple[float, float]) -> Panel:
    """The panel with ends, ticks and names on both axes. size: in inches."""
    rooms = max(2, int(POINTS * size[0] / 45)), max(2, int(POINTS * size[1] / 28))
    x, y = (
        _settle_axis(axis, [getattr(item, name) for item in _list_placed(panel, name)], room)
        for name, axis, room in zip(("x", "y"), (panel.x, panel.y), rooms, strict=True)
    )
    if panel.colours is None:
        return replace(panel, x=x, y=y)
    return replace(panel, x=x, y=y, colours=replace(panel.colours, axis=_settle_axis(panel.colours.axis, (), rooms[1])))


def find_limits(values: Sequence[ArrayLike]) -> tuple[float, float]:
    """The least and the greatest finite value, and a margin to either side; 0 and 1 without values."""
    flat = np.concatenate([np.zeros(0), *(np.asarray(each, np.float64).ravel() for each in values)])
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return 0.0, 1.0
    low, high = float(flat.min()), float(flat.max())
    room = MARGIN * ((high - low) or abs(low) or 1.0)
    return low - room, high + room


def choose_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers from the lower to the upper end, at most `most` + 1; `whole` ones where that is wanted."""
    low, high = min(low, high), max(low, high)
    if not LEAST < (high - low) / most < math.inf:
        return []  # no power of ten divides it
    power = math.floor(math.log10((high - low) / most))
    tenth = 10.0 ** (max(0, power) if whole else power)
    for step in (factor * tenth for factor in STEPS if not whole or (factor * tenth).is_integer()):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first <= most:
            return [number * step for number in range(first, last + 1)]
    return []


def name_ticks(ticks: Sequence[float]) -> list[str]:
    """Numbers with as many decimals, or figures of large and small ones, as tell one from the next."""
    largest = max(map(abs, ticks), default=0.0)
    close = 1e-3 * min((abs(after - tick) for tick, after in pairwise(ticks) if after != tick), default=1e-3 * largest)
    forms = [f".{decimals}f" for decimals in range(DECIMALS + 1)]
    if largest and not 1e-3 <= largest < 1e5:
        forms = [f".{figures}g" for figures in range(4, FIGURES + 1)]
    form = next(
        (form for form in forms if all(abs(float(f"{tick:{form}}") - tick) <= close for tick in ticks)), forms[-1]
    )
    return [format_value(tick, form) for tick in ticks]


def _list_placed(panel: Panel, name: str) -> Iterator[Shape]:
    """The shapes that count for the ends of an axis."""
    return (item for item in panel.shapes if isinstance(item, Shape) and item.across != name)


def _settle_axis(axis: Axis, values: Sequence[ArrayLike], room: int) -> Axis:
    """The axis with its ends, ticks and names. values: of what is drawn. room: for how many ticks there is room."""
    low, high = find_limits(values)
    low, high = low if axis.low is None else axis.low, high if axis.high is None else axis.high
    high = high if high != low else low + 1.0
    ticks = axis.ticks
    if ticks is None:
        ticks = choose_ticks(low, high, axis.most or min(room, 9), whole=axis.whole)
    return replace(axis, low=low, high=high, ticks=ticks, names=name_ticks(ticks) if axis.names is None else axis.names)


def _make_frame(panel: Panel, size: tuple[float, float]) -> Frame:
    """Where the axes lie, so that names and labels have room."""
    (x, y), (width, height) = (panel.x, panel.y), (POINTS * side for side in size)
    left = EDGE + _label_height(y) + _names_width(y) + PAD + (TICK if y.line else 0)
    lowest = height - EDGE - _label_height(x) - _names_height(x) - PAD - (TICK if x.line else 0)
    over = 0.5 * measure_text((x.names or ("",))[-1], x.size) if x.names and not x.turned else 0.0
    top, right = EDGE + y.size / 2, width - EDGE - (over if panel.colours is None else _colours_width(panel.colours))
    if panel.square:
        side = min(right - left, lowest - top)
        left, top = left + (right - left - side) / 2, top + (lowest - top - side) / 2
        right, lowest = left + side, top + side
    return Frame(left, top, max(right, left + 1), max(lowest, top + 1), _find_ends(x), _find_ends(y))


def _find_ends(axis: Axis) -> tuple[float, float]:
    """Both ends of a settled axis."""
    return (0.0 if axis.low is None else axis.low), (1.0 if axis.high is None else axis.high)


def measure_text(text: str, size: float = FONT) -> float:
    """About how wide a text is: the page's letters are not known."""
    return LETTER * size * len(text)


def _label_height(axis: Axis) -> float:
    """Points for the label of an axis."""
    return (axis.label.count("\n") + 1) * LINE * FONT if axis.label else 0.0


def _names_width(axis: Axis) -> float:
    """Points for the names of ticks, side by side with an axis."""
    return max((measure_text(name, axis.size) for name in axis.names or ()), default=0.0)


def _names_height(axis: Axis) -> float:
    """Points for the names of ticks below an axis."""
    if not axis.names:
        return 0.0
    return math.sin(math.radians(TURN)) * _names_width(axis) + axis.size / 2 if axis.turned else LINE * axis.size


def _write_axis(axis: Axis, frame: Frame, *, is_x: bool) -> str:
    """Grid, line, ticks, names and label of one axis."""
    ticks = list(axis.ticks or ())
    at = frame.place(ticks, [0] * len(ticks), "y")[0] if is_x else frame.place([0] * len(ticks), ticks, "x")[1]
    left, top, right, bottom = frame[:4]
    parts = []
    if axis.grid and len(at):
        lines = (f"M{p:.2f} {bottom:.2f}V{top:.2f}" if is_x else f"M{left:.2f} {p:.2f}H{right:.2f}" for p in at)
        parts.append(f'<path d="{"".join(lines)}" stroke="{INK}" stroke-width=".6" stroke-opacity=".14"/>')
    if axis.line:
        line = f"M{left:.2f} {bottom:.2f}H{right:.2f}" if is_x else f"M{left:.2f} {bottom:.2f}V{top:.2f}"
        line += "".join(f"M{p:.2f} {bottom:.2f}v{TICK}" if is_x else f"M{left:.2f} {p:.2f}h-{TICK}" for p in at)
        parts.append(f'<path d="{line}" stroke="{INK}" stroke-width=".6" fill="none"/>')
    begin = PAD + (TICK if axis.line else 0)
    for p, name in zip(at, axis.names or (), strict=True):
        if not is_x:
            text = write_text(left - begin, p, name, size=axis.size, anchor="end")
        elif axis.turned:
            text = write_text(p, bottom + begin + axis.size / 2, name, size=axis.size, anchor="end", turn=-TURN)
        else:
            text = write_text(p, bottom + begin + axis.size / 2, name, size=axis.size)
        parts.append(f"<g{name_method(name)}>{text}</g>" if axis.methods else text)
    begin += _names_height(axis) if is_x else _names_width(axis)
    for place, line in enumerate(axis.label.split("\n") if axis.label else ()):
        if is_x:
            parts.append(write_text((left + right) / 2, bottom + begin + (place + 0.5) * LINE * FONT, line))
        else:
            back = EDGE + (place + 0.5) * LINE * FONT
            parts.append(write_text(back, (top + bottom) / 2, line, turn=-90))
    return "".join(parts)


def _colours_width(colours: Colours) -> float:
    """Points for colours and what they mean, beside a panel."""
    return 2.5 * BAR + TICK + PAD + _names_width(colours.axis) + _label_height(colours.axis)


def _write_colours(colours: Colours, frame: Frame, size: tuple[float, float]) -> str:
    """A bar of colours beside the frame, with its names and its label."""
    axis, height = colours.axis, frame.bottom - frame.top
    bar = frame._replace(left=frame.right + 1.5 * BAR, right=frame.right + 2.5 * BAR, y=_find_ends(axis))
    sides = f'x="{bar.left:.2f}" y="{bar.top:.2f}" width="{BAR}" height="{height:.2f}"'
    parts = [f'<image href="{colours.uri}" {sides} preserveAspectRatio="none"/>']
    ticks = list(axis.ticks or ())
    for y, name in zip(bar.place([0] * len(ticks), ticks, "x")[1], axis.names or (), strict=True):
        parts.append(f'<path d="M{bar.right:.2f} {y:.2f}h{TICK}" stroke="{INK}" stroke-width=".6"/>')
        parts.append(write_text(bar.right + TICK + PAD, y, name, anchor="start"))
    x = POINTS * size[0] - EDGE - LINE * FONT / 2
    return "".join([*parts, write_text(x, (bar.top + bar.bottom) / 2, axis.label, turn=-90)])


def write_text(
    x: float, y: float, text: str, *, size: float = FONT, anchor: str = "middle", color: str = INK, turn: float = 0
) -> str:
    """A text whose middle is at the height y. turn: in degrees, around (x, y)."""
    look = "" if size == FONT else f' font-size="{size:g}"'
    look += "" if color == INK else f' fill="{color}"'
    look += f' transform="rotate({turn:g} {x:.2f} {y:.2f})"' if turn else ""
    return f'<text x="{x:.2f}" y="{y + 0.37 * size:.2f}" text-anchor="{anchor}"{look}>{html.escape(text)}</text>'


def _write_item(item: Shape | Label | Image, frame: Frame) -> str:
    """A shape, a word, or cells."""
    if isinstance(item, Image):
        x, y = frame.place((-0.5, item.columns - 0.5), (-0.5, item.rows - 0.5))
        sides = f'x="{x[0]:.2f}" y="{min(y):.2f}" width="{x[1] - x[0]:.2f}" height="{abs(y[1] - y[0]):.2f}"'
        return f'<image href="{item.uri}" {sides} preserveAspectRatio="none" style="image-rendering:pixelated"/>'
    x, y = frame.place(item.x, item.y, item.across)
    if isinstance(item, Label):
        return write_text(float(x[0]), float(y[0]), item.text, size=item.size, anchor=item.anchor, color=item.color)
    drawn, method = _write_shape(item, x, y), name_method(item.method)
    points = _list_points(item, x, y)
    if not points:
        return f"<g{method}>{drawn}</g>" if method else drawn
    lead = html.escape(item.lead, quote=True)
    texts = html.escape(json.dumps(points, ensure_ascii=False, separators=(",", ":")), quote=False)
    quoted = texts.replace("'", "&#x27;")  # between single quotes, of which JSON has fewer
    title = f"<title>{lead}{html.escape(points[-1][2])}</title>"  # what a browser without scripts says
    return f"<g{method} data-lead=\"{lead}\" data-points='{quoted}'>{title}{drawn}</g>"


def _list_points(shape: Shape, x: Floats, y: Floats) -> list[tuple[float, float, str]]:
    """The points that answer: their places, and what they say."""
    count = len(shape.texts)
    step = 1 if shape.most is None else max(1, math.ceil((count - 1) / (shape.most - 1)))
    answering = {*range(0, count, step), count - 1}
    return [
        (round(float(across), 1), round(float(down), 1), text)
        for place, (across, down, text) in enumerate(zip(x, y, shape.texts, strict=False))
        if place in answering and math.isfinite(across) and math.isfinite(down)
    ]


def _write_shape(shape: Shape, x: Floats, y: Floats) -> str:
    """Paths of the line, the area and the marks of a shape."""
    opacity = "" if shape.alpha == 1 else f' opacity="{shape.alpha:g}"'
    parts = []
    if shape.filled or shape.linewidth:
        path = _write_line(x, y) + ("z" if shape.filled else "")
        look = f'fill="{shape.color}"' if shape.filled else f'fill="none" {_write_stroke(shape)}'
        parts.append(f'<path d="{path}" {look}{opacity}/>' if len(path) > 1 else "")
    if shape.marker:
        marks = "".join(
            write_mark(shape.marker, across, down, shape.size)
            for across, down in zip(x.tolist(), y.tolist(), strict=True)
            if math.isfinite(across) and math.isfinite(down)
        )
        fill = "none" if shape.hollow else shape.color
        parts.append(f'<path d="{marks}" fill="{fill}" stroke="{shape.color}"{opacity}/>' if marks else "")
    return "".join(parts)


def _write_line(x: Floats, y: Floats) -> str:
    """A path through points, interrupted where one is not finite."""
    text, command = [], "M"
    for across, down in zip(x.tolist(), y.tolist(), strict=True):
        if math.isfinite(across) and math.isfinite(down):
            text.append(f"{command}{across:.2f} {down:.2f}")
            command = "L"
        else:
            command = "M"
    return "".join(text)


def _write_stroke(shape: Shape) -> str:
    """Colour, width and dashes of a line."""
    dashes = (
        "" if isinstance(shape.linestyle, str) else " ".join(f"{shape.linewidth * d:g}" for d in shape.linestyle[1])
    )
    return f'stroke="{shape.color}" stroke-width="{shape.linewidth:g}"' + (
        f' stroke-dasharray="{dashes}"' if dashes else ""
    )


def write_mark(marker: str, x: float = 0.0, y: float = 0.0, size: float = 6.0) -> str:
    """The path of a mark at a place. size: its width."""
    half, corners = size / 2, MARKS[marker]
    if not corners:
        return f"M{x - half:.2f} {y:.2f}a{half:g} {half:g} 0 1 0 {size:g} 0a{half:g} {half:g} 0 1 0 {-size:g} 0"
    return "M" + "L".join(f"{x + half * across:.2f} {y + half * down:.2f}" for across, down in corners) + "z"


def _is_outside(item: Shape | Label | Image, frame: Frame) -> bool:
    """Whether a shape leaves the frame."""
    if not isinstance(item, Shape):
        return False
    x, y = frame.place(item.x, item.y, item.across)
    near = 0.5  # points
    over = (x < frame.left - near) | (x > frame.right + near) | (y < frame.top - near) | (y > frame.bottom + near)
    return bool(np.any(over & np.isfinite(x) & np.isfinite(y)))
