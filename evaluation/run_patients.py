"""The patients of each hospital as a section of the coordinator's page."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.page import (
    Block,
    Cell,
    Column,
    Heading,
    Items,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Text,
    join_texts,
    make_subline,
    number_column,
)
from evaluation.records import RunPage, SiteCounts, SplitCount
from evaluation.score_cells import DASH, OUTSIDE_MARK
from evaluation.score_notes import describe_withdrawal
from evaluation.wording import format_count, format_whole

NOT_FORGOTTEN = (
    "A model does not forget: stop using those runs' models, and remove them. The models of this run were trained "
    "without these patients."
)


def build_patients_section(page: RunPage, *, is_many: bool) -> Section:
    """Patients by split, what was rejected, and who was withdrawn."""
    if page.structures:
        below = page.words.examples
    elif page.bands:
        below = f"{page.words.examples} by {page.counted_by} ({' · '.join(page.bands)})"
    else:
        below = f"positive (+) and negative (−) {page.words.examples}"
    caption = (
        f"Patients by hospital; below, their {below}. Rejected {page.words.studies} are quarantined at the hospital."
    )
    splits = list(dict.fromkeys(split.split for site in page.sites for split in site.splits))
    columns = [Column("hospital"), *map(number_column, splits), Column("rejected", look="reasons")]
    rows = [_build_row(page, site, splits) for site in page.sites]
    rows += [_build_outside_row(page, site, splits) for site in page.external_sites]
    table = Table("Patients", caption, columns, rows, is_tall=is_many)
    withdrawn = [site for site in (*page.sites, *page.external_sites) if site.withdrawn]
    blocks: list[Block] = [table]
    if withdrawn:
        items = [_describe_withdrawn(page, site) for site in withdrawn]
        blocks += [Heading("Withdrawn", anchor="withdrawn"), Items(items)]
    if any(site.withdrawn.knew for site in withdrawn):
        blocks.append(Paragraph(NOT_FORGOTTEN, "note"))
    return Section("Patients", blocks, "whom", width="larger")


def _build_row(page: RunPage, site: SiteCounts, splits: Sequence[str]) -> Row:
    """A hospital of the federation."""
    counts = {split.split: split for split in site.splits}
    cells: list[Text | Cell] = [site.site]
    for name in splits:
        split = counts.get(name)
        cells.append((format_whole(split.patients), make_subline(_describe_examples(page, split))) if split else DASH)
    released = [make_subline(site.released)] if site.released else []
    return Row([*cells, (*released, _describe_rejected(site, "not reported" if site.released else "none"))])


def _build_outside_row(page: RunPage, site: SiteCounts, splits: Sequence[str]) -> Row:
    """A hospital outside, all of whose patients are scored."""
    split = site.splits[0]
    examples = make_subline(f"{_describe_examples(page, split)}; all scored")
    patients = Cell((format_whole(split.patients), examples), "" if splits else "num", len(splits))
    return Row([(site.site, OUTSIDE_MARK), patients, _describe_rejected(site, "none")])


def _describe_examples(page: RunPage, split: SplitCount) -> str:
    """The examples of a split."""
    if page.structures:
        return format_count(split.images, page.words.example, page.words.examples)
    if len(split.classes) > 2:
        return " · ".join(map(str, split.classes))
    return f"{format_whole(split.positives)} +, {format_whole(split.images - split.positives)} −"


def _describe_rejected(site: SiteCounts, none: str) -> Text:
    """Why studies were rejected. none: what is said if none was."""
    reasons = tuple(make_subline(f"{times}\u00a0×\u00a0{reason}") for reason, times in sorted(site.rejected.items()))
    return reasons or Span(none, "note")


def _describe_withdrawn(page: RunPage, site: SiteCounts) -> Text:
    """Whom a hospital withdrew, and which earlier runs knew them."""
    text: Text = (Span(site.site, "b"), f": {describe_withdrawal(site.withdrawn, page.words)}.")
    if not site.withdrawn.knew:
        return text
    whom = "its patient" if site.withdrawn.studies == 1 else "these patients"
    runs = join_texts(Span(known.run, "code") for known in site.withdrawn.knew)
    return (text, f" Earlier models or scores used {whom}: ", runs, ".")
