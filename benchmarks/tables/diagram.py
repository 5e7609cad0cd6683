"""Draw the README's diagram, docs/pictures/federation.svg: hospitals, the coordinator, and what crosses.

python -m benchmarks.tables.diagram
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.options import make_parser

PICTURE = Path(__file__).parents[2] / "docs/pictures/federation.svg"
WIDTH, HEIGHT = 960, 470
HOSPITALS = ("Hospital north", "Hospital south", "Hospital west")
STAYS = ("patients' images, labels, names", "keys, quarantine, each score", "its own page")
INK, LINE, PALE, WALL, GO, COME = "#1a2530", "#5b6b79", "#f3f7f8", "#b3541e", "#00695c", "#305f9e"


def text(x: float, y: float, words: str, *, size: int = 14, colour: str = INK, bold: bool = False) -> str:
    """One line of words. x, y: pixels, of its left end and baseline."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>{words}</text>'


def box(x: float, y: float, width: float, height: float, *, fill: str = PALE, line: str = LINE) -> str:
    """A rectangle with round corners, in pixels."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{line}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, colour: str, head: str) -> str:
    """A line with a head at its end, in pixels."""
    ends = f'x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"'
    return f'<line {ends} stroke="{colour}" stroke-width="2.5" marker-end="url(#{head})"/>'


def marker(name: str, colour: str) -> str:
    """The head of an arrow."""
    shape = f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/>'
    return f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">{shape}</marker>'


def hospital(y: float, name: str, stays: Sequence[str]) -> list[str]:
    """A hospital with what stays in it, and its gate. y: pixels, of its upper edge."""
    lines = [box(20, y, 300, 120), text(36, y + 26, name, size=16, bold=True)]
    lines += [text(36, y + 50 + 20 * number, f"· {words}") for number, words in enumerate(stays)]
    gate = [box(286, y + 24, 76, 72, fill="#fff", line=WALL), text(306, y + 50, "gate", colour=WALL, bold=True)]
    return [*lines, *gate, text(297, y + 68, "policy,", size=12), text(303, y + 84, "ledger", size=12)]


def drawn() -> str:
    """The picture as SVG."""
    told = "Patients and keys stay in each hospital. Parameters, counts and scores pass its gate to the coordinator"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif">',
        f"<title>What crosses a hospital's wall</title><desc>{told}; merged models come back.</desc>",
        f"<defs>{marker('go', GO)}{marker('come', COME)}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for number, name in enumerate(HOSPITALS):
        y = 25 + 145 * number
        parts += hospital(y, name, STAYS)
        parts += [arrow(364, y + 48, 668, 190 + 26 * number, GO, "go")]
        parts += [arrow(668, 206 + 26 * number, 366, y + 74, COME, "come")]
    parts += [
        box(676, 150, 264, 150),
        text(694, 178, "Coordinator", size=16, bold=True),
        text(694, 204, "· asks, merges, reports"),
        text(694, 224, "· holds no patient"),
        text(694, 262, "its page: which model,"),
        text(694, 280, "what left, what to look at"),
        text(420, 34, "crosses to the coordinator", colour=GO, bold=True),
        text(420, 54, "parameters or gradients, counts, histograms of scores;", size=13),
        text(420, 72, "with noise where the run is private (ε, δ)", size=13),
        text(420, 408, "comes back", colour=COME, bold=True),
        text(420, 428, "merged models, the next question", size=13),
        text(420, 452, "each answer is a line of the hospital's ledger before it leaves", size=13, colour=WALL),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    PICTURE.write_text(drawn())
    sys.stdout.write(f"{PICTURE}\n")
