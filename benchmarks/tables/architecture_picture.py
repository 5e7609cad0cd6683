"""Draw the rooms of the code and who imports whom: docs/pictures/architecture.svg.

    python -m benchmarks.tables.architecture_picture

Each row is a floor: a room imports only rooms on floors below its own. An arrow that follows from two others is left
out (transitive reduction). A test holds the picture equal to the code.
"""

from __future__ import annotations

import ast
import html
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.shared.options import make_parser
from benchmarks.tables.structure import PACKAGES, Graph, components, imports, modules

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
COMMANDS = "commands"
WIDE, HIGH, GAP, SIDE = 1240, 58, 50, 24


def place(name: str, known: Mapping[str, Path]) -> str:
    """The room of a module: a top-level package, a folder of `pipelines`, or the commands together."""
    parts = name.split(".")
    if parts[0] != "pipelines" or len(parts) == 1:
        return parts[0]
    folder = known.get(f"pipelines.{parts[1]}")
    return parts[1] if folder is not None and folder.stem == "__init__" else COMMANDS


def between_rooms(known: Mapping[str, Path], graph: Graph) -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    arrows: dict[str, set[str]] = {}
    for name, others in graph.items():
        if name == "pipelines":
            continue
        room = place(name, known)
        arrows.setdefault(room, set()).update(place(other, known) for other in others if other != "pipelines")
    return {room: others - {room} for room, others in arrows.items()}


def floors(arrows: Graph) -> dict[str, int]:
    """Room -> its floor, 0 = the lowest. Raises: ValueError: rooms import each other."""
    found: dict[str, int] = {}
    for group in components(arrows):  # a component comes after all that it reaches
        if len(group) > 1:
            raise ValueError(f"rooms import each other: {sorted(group)}")
        (room,) = group
        found[room] = 1 + max((found[other] for other in arrows[room]), default=-1)
    return found


def reduced(arrows: Graph) -> list[tuple[str, str]]:
    """Arrows that do not follow from others."""

    def reached(room: str) -> set[str]:
        return set().union(*({other} | reached(other) for other in arrows[room]))

    below = {room: reached(room) for room in arrows}
    return sorted(
        (room, other)
        for room, others in arrows.items()
        for other in others
        if not any(other in below[between] for between in others if between != other)
    )


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    if room == COMMANDS:
        return "run, init, predict, translate, deidentify, study, ledger, clean, site"
    folder = ROOT / room if room in PACKAGES else ROOT / "pipelines" / room
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` letters; at most two."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:2] if len(lines) <= 2 else [lines[0], f"{lines[1]} ..."]


def svg(arrows: Graph) -> str:
    """The picture."""
    level = floors(arrows)
    rows = [sorted(room for room in level if level[room] == floor) for floor in range(max(level.values()), -1, -1)]
    boxes: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows):
        wide = min(380.0, (WIDE - SIDE * (len(row) + 1)) / len(row))
        left = (WIDE - len(row) * wide - (len(row) - 1) * SIDE) / 2
        for column, room in enumerate(row):
            boxes[room] = (left + column * (wide + SIDE), SIDE + number * (HIGH + GAP), wide)
    height = SIDE * 2 + len(rows) * (HIGH + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}" role="img" '
        'aria-label="Rooms of the code: each imports only rooms below it" font-family="sans-serif">',
        '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#56708a"/></marker></defs>',
        f'<rect width="{WIDE}" height="{height}" fill="#ffffff"/>',
    ]
    for room, other in reduced(arrows):
        (x, y, wide), (to_x, to_y, to_wide) = boxes[room], boxes[other]
        begin, end, middle = x + wide / 2, to_x + to_wide / 2, (y + HIGH + to_y) / 2
        parts.append(
            f'<path d="M{begin:.0f} {y + HIGH:.0f} C{begin:.0f} {middle:.0f} {end:.0f} {middle:.0f} '
            f'{end:.0f} {to_y:.0f}" fill="none" stroke="#56708a" stroke-width="1.4" marker-end="url(#to)"/>'
        )
    for room, (x, y, wide) in boxes.items():
        inside = room == COMMANDS or room not in PACKAGES
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{HIGH}" rx="6" '
            f'fill="{"#eef4fb" if inside else "#fdf3e3"}" stroke="#34495e"/>'
        )
        title = html.escape(f"{'pipelines/' if inside and room != COMMANDS else ''}{room}")
        parts.append(
            f'<text x="{x + 10:.0f}" y="{y + 19:.0f}" font-size="14" font-weight="bold" fill="#1d2b3a">{title}</text>'
        )
        for number, text in enumerate(wrapped(purpose(room), int(wide / 6.0))):
            parts.append(
                f'<text x="{x + 10:.0f}" y="{y + 35 + 14 * number:.0f}" font-size="11" fill="#34495e">'
                f"{html.escape(text)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


def picture() -> str:
    """The picture of the code as it is."""
    sys.setrecursionlimit(10_000)
    known = modules(ROOT)
    return svg(between_rooms(known, imports(known)))


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
