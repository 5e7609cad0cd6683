"""Image spaces, shares of the oracle gap, and synthetic images as sections and blocks of pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.axes import Label, Shape, find_limits
from evaluation.drawing import COLOURS, Picture
from evaluation.grid import column_name
from evaluation.harmony import Harmony, ScoreLine, SpaceRow
from evaluation.page import (
    Block,
    Column,
    Fields,
    Heading,
    Items,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.panels import DASHED, draw_row_panels, draw_span, draw_upright
from evaluation.records import AugmentedRow, RunPage
from evaluation.rows import PRIVATE, GapRow
from evaluation.score_tables import DASH, VETOED, change_span, named_method, range_line, share_text, spread_fields
from evaluation.wording import format_estimate, format_hundredths, format_number, format_signed, format_whole

SPACES = (
    "Effect of each translation on a hospital's images, measured by the hospital, if possible on patients it was not "
    "fitted on. Distance: sliced Wasserstein to the shared images, from −1 to 1. Edges, lesion and patient order: "
    "correlations before and after, 1 = kept. Lesion contrast: after over before. Class drift: AUC of a small "
    "classifier, after minus before. New dark spots: share of negative images that got one."
)
TARGET = (
    "This hospital is the target: the images of the others are translated to look like its own, and its own stay as "
    "they are."
)
WORTH = (
    "what a line gains over untranslated images, divided by what the oracle gains over them. The oracle has the same "
    "patients on the target's scanner, which only a simulation can. 0: as good as untranslated images; 1: as good as "
    "the oracle; below, the line's gain. Intervals (95 %) by the paired bootstrap over patients."
)
WORTH_NOTE = (
    "A share beside others' is fair only on the same patients and the same gap: where the gap is small, a share is "
    "wide, whatever the line does. The intervals show other patients of these hospitals, not another training."
)
RELEASES = {
    "exact": "the lowest complexity",
    "dp": "the lowest complexity, of noised numbers",
    "public": "named, or chosen by declared facts",
}
COMPLEXITY = "Complexity: how hard each hospital's images are to imitate; the lowest becomes the target."
STAYS = "Patients' images as they were read and in every space, side by side, are on each hospital's own page."
SYNTHETIC = (
    "Images that each hospital synthesized of its smaller class and added to its own training split; none of them "
    "left. Fréchet distance to held-back images of that class, beside that of training images, equally many: no "
    "generator is expected to be nearer. Near copies: less than half as far from a training image as from every "
    "held-back one."
)


def build_spaces_section(page: RunPage, notes: Mapping[str, str]) -> list[Section]:
    """What harmonization did, if there was any. notes: of methods."""
    harmony = page.harmony
    if harmony is None:
        return []
    text = compose_text(
        "Target: **{target}** ({release}). Imitated by: {synthesis}. Shared: {selected}.",
        target=harmony.target,
        release=RELEASES[harmony.release],
        synthesis=harmony.synthesis,
        selected=harmony.selected,
    )
    blocks: list[Block] = [
        Paragraph(text),
        *([_build_complexity_table(harmony)] if harmony.scores else []),
        *build_space_blocks(harmony, is_run=True),
        Paragraph(STAYS, "note"),
        *build_share_blocks(page.shares, notes),
        *harmony.shared,
        *harmony.maps,
    ]
    return [Section("Image spaces", blocks, "spaces", "Image spaces")]


def _build_complexity_table(harmony: Harmony) -> Table:
    """The complexity of each hospital's images."""

    def say_score(line: ScoreLine) -> Text:
        score = format_number(line.score)
        return score if math.isnan(line.deviation) else (score, make_subline(f"± {format_number(line.deviation)}"))

    fields: Fields = [("hospital", lambda line: line.site), (number_column("score"), say_score)]
    return make_table("Complexity", COMPLEXITY, harmony.scores, fields, look="narrow")


def build_synthetic_section(page: RunPage) -> list[Section]:
    """Hospitals' synthetic images, if any were asked for."""
    if not page.augmented:
        return []
    title = "Synthetic training images"

    def say_label(row: AugmentedRow) -> Text:
        return (row.label or DASH, make_subline(row.why)) if row.why else row.label or DASH

    fields: Fields = [
        ("hospital", lambda row: row.site),
        ("class", say_label),
        (number_column("synthetic images"), lambda row: format_whole(row.made)),
        (number_column("distance"), lambda row: format_number(row.distance)),
        (number_column("of real images"), lambda row: format_number(row.real)),
        (number_column("images compared"), lambda row: format_whole(row.compared) if row.compared else DASH),
        (number_column("share of near copies"), lambda row: format_number(row.near_copies)),
    ]
    methods = [method for method, space in page.spaces.items() if space == page.augmented[0].space]
    note = f"{_describe_features(page)}Methods that learn with these images: {', '.join(methods)}."
    blocks: list[Block] = [make_table(title, SYNTHETIC, page.augmented, fields), Paragraph(note, "note")]
    return [Section(title, blocks, "synthetic", "Synthetic")]


def _describe_features(page: RunPage) -> str:
    """In which features distances are."""
    features = list(dict.fromkeys(row.features for row in page.augmented if row.features))
    if not features:
        return ""
    if features == ["inception"]:
        return "Features: Inception, so that the distance is the FID. "
    return f"Features: of the public prior {', '.join(features)}, the same at all hospitals; this is no FID. "


def build_space_blocks(harmony: Harmony, *, is_run: bool) -> list[Block]:
    """The effect of each translation, what could not be computed, and what is not used. is_run: whether rows are of
    several hospitals.
    """
    blocks: list[Block] = [_build_space_table(harmony, is_run=is_run)]
    if harmony.absent:
        where = " at any hospital" if is_run else ""
        text = (
            f"Could not be computed{where}, for lack of lesion masks, of enough patients, or of an inverse "
            f"translation: {', '.join(harmony.absent)}."
        )
        blocks.append(Paragraph(text, "note"))
    if reasons := [(Span(row.space, "b"), f": {' '.join(row.sentences)}") for row in harmony.rows if row.sentences]:
        blocks.append(Items(reasons))
    if any(row.vetoed for row in harmony.rows):
        whose, where = ("the", "there") if is_run else ("this", "here")
        text = f" {whose} hospital does not use its translation: {where} methods learn from images as they were read."
        blocks.append(Paragraph((VETOED, text), "note"))
    return blocks


def _build_space_table(harmony: Harmony, *, is_run: bool) -> Table:
    """The effect of each translation."""

    def name_space(row: SpaceRow) -> Text:
        return (row.space, make_subline(row.translator)) if row.translator not in ("", row.space) else row.space

    def say_figure(name: str, row: SpaceRow) -> str:
        return format_number(row.figure(name))

    fields: Fields = [
        ("space", name_space),
        *([("hospital", lambda row: row.site)] if is_run else []),
        ("used", _describe_use),
        *spread_fields(harmony.columns, lambda name: number_column(harmony.columns[name]), say_figure),
    ]
    empty = "No translation was asked for." if is_run or not harmony.target else TARGET
    return make_table("Image spaces", SPACES, harmony.rows, fields, empty=empty)


def _describe_use(row: SpaceRow) -> Text:
    """Whether a translation is used."""
    use: Text = (VETOED, make_subline(", ".join(row.reasons))) if row.vetoed else "yes"
    return (use, make_subline(row.note)) if row.note else use


def build_share_blocks(rows: Sequence[GapRow], notes: Mapping[str, str]) -> list[Block]:
    """Every line's share of the oracle gap, by hospital."""
    if not rows:
        return []
    title = "What harmonization is worth"
    grid = {(row.method, column_name(row)): row for row in rows}
    names = {column_name(row): row.sites[0] if row.protocol == PRIVATE else row.protocol for row in rows}
    table_rows = []
    for raw in dict.fromkeys(row.untranslated for row in rows):
        lines = [row for row in rows if row.untranslated == raw]
        oracle = (lines[0].oracle, make_subline(f"the oracle, over {raw}: the gap"))
        table_rows.append(Row([oracle, *(_gap_text(grid.get((lines[0].method, column))) for column in names)]))
        for method in dict.fromkeys(row.method for row in lines):
            worths = (_worth_text(grid.get((method, column))) for column in names)
            table_rows.append(Row([named_method(method, notes), *worths], method))
    columns = [Column("line"), *map(number_column, names.values())]
    picture = draw_gap_shares(rows)
    return [
        Heading(title, anchor="worth"),
        Table(title, f"Share of the oracle gap, in {rows[0].measure}: {WORTH}", columns, table_rows, look="grid"),
        *([picture] if picture else []),
        *(
            Paragraph(compose_text("*Not known*: {why}.", why=why), "note")
            for why in dict.fromkeys(row.why for row in rows if row.why)
        ),
        Paragraph(WORTH_NOTE, "note"),
    ]


def _gap_text(row: GapRow | None) -> Text:
    """The oracle gap with its interval."""
    if row is None:
        return DASH
    return (change_span(row.gap, row.gap_low, row.gap_high), range_line(row.gap_low, row.gap_high))


def _worth_text(row: GapRow | None) -> Text:
    """A share of the gap, and the gain behind it."""
    if row is None:
        return DASH
    change = Span(change_span(row.gain, row.gain_low, row.gain_high), "sub gain")
    return (share_text(row), " ", change, " ", range_line(row.gain_low, row.gain_high))


SHOWN = (-1.0, 2.0)
"""Shares farther out are cut off: where the gap is small, an interval may reach far."""


def draw_gap_shares(rows: Sequence[GapRow]) -> Picture | None:
    """Shares with their intervals, between untranslated images (0) and the oracle (1); None where no share is known."""
    known = [row for row in rows if math.isfinite(row.share)]
    if not known:
        return None
    methods = list(dict.fromkeys(row.method for row in known))
    groups = list(dict.fromkeys(_panel_title(row) for row in known))

    by_group = {group: [row for row in known if _panel_title(row) == group] for group in groups}

    def draw(group: str) -> list[Shape | Label]:
        shapes: list[Shape | Label] = [draw_upright(0), draw_upright(1, DASHED)]
        for row in by_group[group]:
            y, look = methods.index(row.method), {"color": COLOURS[0], "method": row.method}
            shapes.append(draw_span(_cut_interval(row), y, linewidth=1.6, **look))
            texts = [f"{group}, {_describe_share(row)}"]
            shapes.append(Shape(x=row.share, y=y, marker="o", texts=texts, color=COLOURS[0], method=row.method))
        return shapes

    alt = f"Share of the oracle gap in {known[0].measure}. " + "; ".join(
        f"{_panel_title(row)}, {_describe_share(row)}" for row in known
    )
    caption = (
        "Line at 0: as good as untranslated images; dashed line at 1: as good as the oracle. Bars are 95 % intervals "
        f"over patients; they are cut off at {SHOWN[0]:g} and {SHOWN[1]:g}."
    )
    label = f"share of the oracle gap in {known[0].measure}"
    ends = {group: _find_ends(group_rows) for group, group_rows in by_group.items()}
    drawing = draw_row_panels(groups, methods, draw, alt=f"{alt}.", label=label, ends=ends)
    return Picture("Share of the oracle gap", caption, drawing)


def _cut_interval(row: GapRow) -> tuple[float, float]:
    """The interval of a share, without what lies farther out than `SHOWN`."""
    low, high = np.clip((row.share_low, row.share_high), *SHOWN)
    return float(low), float(high)


def _find_ends(rows: Sequence[GapRow]) -> tuple[float, float]:
    """The ends of a panel's scale: 0 and 1 are on it, and nothing farther out than `SHOWN`."""
    low, high = find_limits([(0, 1, row.share, *_cut_interval(row)) for row in rows])
    return max(SHOWN[0], min(low, -0.1)), min(SHOWN[1], max(high, 1.1))


def _panel_title(row: GapRow) -> str:
    """The hospital, or the kind of mean."""
    return row.sites[0] if row.protocol == PRIVATE else row.protocol


def _describe_share(row: GapRow) -> str:
    """A line's share and gain in words."""
    share = format_estimate(row.share, row.share_low, row.share_high, format_hundredths)
    gain = format_estimate(row.gain, row.gain_low, row.gain_high, format_signed)
    return f"{row.method}: {share} of the gap between {row.untranslated} and {row.oracle}; gain {gain}"
