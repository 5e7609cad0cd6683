"""Image spaces and synthetic images as sections of the coordinator's page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evaluation.augmented import AugmentedRow
from evaluation.harmony import Harmony, ScoreLine
from evaluation.page import (
    Block,
    Fields,
    Paragraph,
    Section,
    Table,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.records import RunPage
from evaluation.score_cells import DASH
from evaluation.score_tables import build_share_blocks, build_space_blocks
from evaluation.wording import format_number, format_whole

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
