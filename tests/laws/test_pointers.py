"""Figures in the prose of results are cells of committed tables, and words of claims hold of their intervals.

Figures whose cells nobody kept are counted in `BY_HAND`, page by page. No number there may grow.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tables import cells, pointers

ROOT = Path(__file__).parents[2]

BY_HAND: dict[str, int] = {
    "results": 10,
    "augmentation": 8,
    "customized": 4,
    "default-run": 16,
    "harmonization": 28,
    "harmonized-pictures": 31,
    "heart-disease": 6,
    "many-hospitals": 2,
    "masks": 97,
    "one-message": 10,
    "one-message-phantom": 12,
    "peers": 2,
    "privacy": 21,
    "public-start": 5,
    "skin-lesions": 14,
    "speed": 34,
    "structure": 1,
    "t2w": 4,
    "translation-quality": 2,
    "vafl-as-published": 4,
    "veto-calibration": 1,
}
"""Figures of a page that were measured, whose cells nobody kept."""
NAMES = ["results", *sorted(path.stem for path in pointers.PAGES.glob("*.md"))]
POINTED = [name for name in NAMES if (pointers.POINTERS / f"{name}.yaml").exists()]


def wrong(name: str, known: Any = cells.tables) -> list[str]:
    """What a page says otherwise than its cells."""
    said, text = pointers.pointers(name), pointers.prose(name)
    return [
        *(f"{one} is not {address}" for one, addresses in said.figures.items() for address in addresses
          if not cells.agrees(one, address, name, known)),
        *(f"{claim}, so not {words!r}" for words, claims in said.claims.items() for claim in claims
          if not cells.holds(claim, name, known)),
        *(f"{text[start:end]} is not {address}" for sentence in said.sentences
          for start, end, address in pointers.places(sentence, text, name)
          if not cells.agrees(text[start:end], address, name, known)),
        *(f"{one!r} is not on the page" for one in (*said.figures, *said.claims, *said.elsewhere, *said.by_hand)
          if not pointers.spans(one, text)),
        *(f"{one!r} is not on the page" for one in said.sentences if not pointers.places(one, text, name)),
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_points_somewhere(name: str) -> None:
    """Of a figure that is new: its sentence into benchmarks/tables/pointers/PAGE.yaml."""
    assert not pointers.unpointed(name)


@pytest.mark.parametrize("name", POINTED)
def test_no_more_figures_are_typed_by_hand(name: str) -> None:
    """And each says why, and what command tells it; what is elsewhere says what it is."""
    said = pointers.pointers(name)
    assert len(pointers.by_hand(name)) == BY_HAND.get(name, 0), pointers.by_hand(name)
    assert all(len(why.split()) > 2 for why in said.by_hand.values())
    assert all(re.search(r"(?<!\d)[^\W\d_]", words) for words in said.elsewhere), "words, not a figure alone"


@pytest.mark.parametrize("name", POINTED)
def test_figures_are_their_cells_and_words_hold_of_them(name: str) -> None:
    assert not wrong(name)


def test_every_file_of_pointers_has_its_page() -> None:
    assert {path.stem for path in pointers.POINTERS.glob("*.yaml")} <= {*NAMES}
    assert all(count > 0 for count in BY_HAND.values()) and {*BY_HAND} <= {*NAMES}


def moved(kept: Any, named: frozenset[str] = frozenset()) -> Any:
    """A table, or a file of measurements, with other figures; whole numbers too in columns that are named."""

    def other(column: str, text: str) -> str:
        figures = r"(?<![\w.])\d*\.?\d+" if column in named else r"(?<![\w.])\d*\.\d+"
        return re.sub(figures, lambda one: f"{3.7 * float(one[0]) ** 2 + 7.3:.3f}", text)

    if isinstance(kept, dict) and "rows" in kept:
        return {
            **kept,
            "rows": [[row[0], *map(other, kept["columns"][1:], row[1:])] for row in kept["rows"]],
        }
    if isinstance(kept, dict):
        return {key: moved(one) for key, one in kept.items()}
    if isinstance(kept, list):
        return [moved(one) for one in kept]
    return 3.7 * kept**2 + 7.3 if isinstance(kept, float) else kept


@pytest.mark.parametrize("name", POINTED)
def test_a_cell_that_changes_is_told(name: str) -> None:
    """Each table and file that a page points to, with every figure in it moved far."""
    said = pointers.pointers(name)
    addresses = [
        found
        for words in (*(one for several in said.figures.values() for one in several), *said.sentences)
        for found in cells.ADDRESS.findall(words)
    ]
    for page, key in {(found[0] or name, found[1]) for found in addresses}:
        columns = frozenset(
            column
            for found in addresses
            if (found[0] or name, found[1]) == (page, key)
            for column in found[2].split("; ")[-1].split(" & ")
        )
        changed = dict(cells.tables(page))
        changed[key] = moved(changed[key], columns)
        if changed[key] != cells.tables(page)[key]:
            assert wrong(
                name, lambda other, page=page, changed=changed: changed if other == page else cells.tables(other)
            )


TABLE = {"t": {"columns": ["line", "kind", "AUC"], "rows": [
    ["`a`", "x", "**.8 ± .1**"], ["`a`", "y", ".5 (.4 .6), 3 of 4"], ["b", "x", "−.2 ± .1 / +.3 (.1)"]]}}  # fmt: skip


def held(claim: str) -> bool:
    return cells.holds(claim, "p", lambda _: TABLE)


def test_addresses_and_relations_by_hand() -> None:
    found = lambda address: cells.cell(address, "p", lambda _: TABLE)  # noqa: E731
    assert [found("t[a; x; AUC]"), found("t[a; y; AUC]"), found("p.t[b; AUC]#2")] == [
        ".8 ± .1",
        ".5 (.4 .6)",
        "+.3 (.1)",
    ]
    for wrong_one in ("t[a; AUC]", "t[c; AUC]", "t[b; F1]", "u[b; AUC]", "t[b; AUC]#3", "b"):
        with pytest.raises(ValueError, match=re.escape(wrong_one)):
            found(wrong_one)
    assert held("t[a; x; AUC] above t[a; y; AUC]") and held("t[b; AUC] below 0") and held("t[a; x; AUC] holds .75")
    assert held("t[a; x; AUC] level .9") and held("t[a; x; AUC] excludes .95") and held("t[b; AUC]#2 more .2")
    for overlapping in ("t[a; x; AUC] above .75", "t[b; AUC] below −.15", "t[a; y; AUC] above t[a; y; AUC]"):
        assert not held(overlapping), "the intervals touch, whatever the figures say"
    assert not held("t[a; y; AUC] above t[a; x; AUC]") and not held("t[b; AUC] less t[b; AUC]")
    assert held("t[a; x; AUC] - t[a; y; AUC] more .29") and not held("t[a; x; AUC] - t[a; y; AUC] more .31")
    for vague in ("t[b; AUC]#2 above .1", "t[a; x; AUC] level t[b; AUC]#2", "t[b; AUC] better 0"):
        with pytest.raises(ValueError, match=r"say more or less|is no claim"):
            held(vague)


@given(st.integers(-999, 999), st.integers(0, 99), st.integers(-20, 20))
def test_a_figure_agrees_with_a_cell_exactly_if_it_is_its_rounding(value: int, half: int, off: int) -> None:
    table = {"t": {"columns": ["line", "AUC"], "rows": [["a", f"{value / 1000:.3f} ± {half / 1000:.3f}"]]}}
    said = f"{(value + off) / 1000:.3f}"
    for text in (said, said.replace("0.", "."), said.replace("-", "−"), f"{said} ± {half / 1000:.3f}"):
        assert cells.agrees(text, "t[a; AUC]", "p", lambda _: table) == (off == 0)
    assert not cells.agrees(f"{value / 1000:.3f} ± {(half + 1) / 1000:.3f}", "t[a; AUC]", "p", lambda _: table)


def test_an_interval_that_the_cell_does_not_hold_is_not_agreed_to() -> None:
    table = {"t": {"columns": ["line", "AUC"], "rows": [["a", ".5"]]}}
    assert cells.agrees(".5", "t[a; AUC]", "p", lambda _: table)
    assert not cells.agrees(".5 ± .1", "t[a; AUC]", "p", lambda _: table)


def test_a_small_figure_agrees_with_its_own_rounding_only() -> None:
    table = {"t": {"columns": ["line", "error"], "rows": [["a", "1.24e-07"], ["b", "−3.2e-05"]]}}
    for said, agrees in (("1.2e-07", True), ("1.3e-07", False), ("9.9e-06", False), ("1e-07", True)):
        assert cells.agrees(said, "t[a; error]", "p", lambda _: table) is agrees
    assert cells.agrees("−3.2e-05", "t[b; error]", "p", lambda _: table)


RAW = {"json": {"a": {"x": [0.1, 0.3], "y": 0.5}, "b": {"x": [0.2, 0.6], "y": 0.7}}, **TABLE}


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        ("t[a; x & y; AUC]", [0.8, 0.5]),
        ("t[*; x; AUC]", [0.8, -0.2]),
        ("t[*; *; AUC]", [0.8, 0.5, -0.2]),
        ("t[b; x; AUC]#*", [-0.2, 0.3]),
        ("t[a; x; AUC] - t[a & b; x; AUC]", [0, 1]),
        ("max(t[*; *; AUC])", [0.8]),
        ("100 * mean(p.json[a; x])", [20]),
        ("p.json[a & b; y]", [0.5, 0.7]),
        ("p.json[*; x; 1] - p.json[*; x; 0]", [0.2, 0.4]),
        ("abs(p.json[a; y] - 1)", [0.5]),
        ("interval(p.json[a; x])", [0.2, 1.2706]),
    ],
)
def test_arithmetic_by_hand(words: str, figures: list[float]) -> None:
    assert cells.compute(words, "p", lambda _: RAW) == pytest.approx(figures, abs=1e-4)


@pytest.mark.parametrize("words", ["p.json[c; y]", "p.json[a]", "p.json[a; y; z]", "t[c & a; x; AUC]", "t[a", "x + 1"])
def test_words_that_name_no_figure_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"p\.json|begin so|neither"):
        cells.compute(words, "p", lambda _: RAW)


def test_figures_of_a_sentence_are_found_where_it_stands_and_nowhere_else() -> None:
    text = "From .8 ± .1 to .50, by seed −.2 and +.3; and .8 elsewhere."
    found = pointers.places(
        "From {t[a; x; AUC]} to {t[a; y; AUC]}, by seed {t[b; x; AUC]#*};", text, "p", lambda _: RAW
    )
    assert [text[one.start : one.end] for one in found] == [".8 ± .1", ".50", "−.2 and +.3"]
    assert all(cells.agrees(text[one.start : one.end], one.address, "p", lambda _: RAW) for one in found)
    assert not cells.agrees("−.2 and +.4", found[2].address, "p", lambda _: RAW)
    assert not cells.agrees(".8 ± .2", found[0].address, "p", lambda _: RAW)
    assert not pointers.places("From {t[a; x; AUC]} up", text, "p", lambda _: RAW)


def test_every_commit_that_is_named_exists() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no history here, as in a source archive")
    asked = [git, "-C", str(ROOT)]
    shallow = subprocess.run([*asked, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.returncode or shallow.stdout.strip() != "false":
        pytest.skip("this history is cut off, or not to be read")
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    named = {one for path in files for one in re.findall(r"commits? `([0-9a-f]{7,40})`", path.read_text())}
    for path in (pointers.PAGES / "data").glob("*.json"):
        named |= {table["commit"] for table in json.loads(path.read_text()).values()}
    lines = "".join(f"{one}^{{commit}}\n" for one in sorted(named))
    told = subprocess.run(
        [*asked, "cat-file", "--batch-check"], input=lines, capture_output=True, text=True, check=True
    )
    assert named and not [line for line in told.stdout.splitlines() if line.endswith(("missing", "ambiguous"))]
