"""Sections of a hospital's own page about its patients: splits, sizes of masks, images, and who is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluation.drawing import Picture
from evaluation.intervals import Estimate
from evaluation.page import (
    Block,
    Cell,
    Column,
    Drawing,
    Fields,
    Fold,
    Heading,
    Items,
    Paragraph,
    Row,
    Section,
    Span,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.records import Quarantined, SitePage, SplitCount
from evaluation.score_cells import DASH
from evaluation.score_notes import describe_withdrawal
from evaluation.wording import READABLE, format_count, format_figures, format_whole

EARLIER = (
    "Earlier runs that used these patients, according to this hospital's folder. Outside it only the names of these "
    "runs are known."
)
NOT_FORGOTTEN = compose_text(
    "A model does not forget. The models of this run were trained without these patients; those of the runs above were "
    "not: stop using them and copies of their `ready/` files, and remove them (`python -m pipelines.clean`). What left "
    "this hospital in those runs cannot be recalled."
)
SIZES = (
    "Of each patient's masks, in {unit}{over}; means over the test patients who have the structure in either mask, "
    "with 95 % intervals over patients. *bias*: predicted minus given. *ratio*: predicted by given, of the means; 1 is "
    "right. *by probability*: the same of the sum of the structure's probability over all pixels, before a mask is cut "
    "out of it. None of it leaves this hospital."
)
CODES = (
    "A code has no meaning outside. `linkage.json` in this hospital's folder says which {study} a code is, and what "
    "was found. It names patients and is a secret like `pseudonym.key`: neither must leave this hospital."
)


def build_patients_section(page: SitePage, *, is_outside: bool) -> Section:
    """Patients and examples by split."""
    examples = page.words.examples
    fields: Fields = [
        ("who" if is_outside else "split", lambda split: split.split),
        (number_column("patients"), lambda split: format_whole(split.patients)),
        (number_column(examples), lambda split: format_whole(split.images)),
    ]
    if page.bands:
        title = (f"{examples} by {page.counted_by}", make_subline(" · ".join(page.bands)))
        fields.append((number_column(title), lambda split: " · ".join(map(str, split.classes))))
    elif not page.structures:
        fields.append((number_column(f"positive {examples}"), lambda split: format_whole(split.positives)))
    patients, images, positives = (
        sum(getattr(split, name) for split in page.splits) for name in ("patients", "images", "positives")
    )
    total = SplitCount("all", patients, images, positives)
    foot = [Row([describe(total) for _, describe in fields])] if len(page.splits) > 1 else []
    caption = "All patients are scored; there is no training here." if is_outside else "No patient is in two splits."
    blocks: list[Block] = [make_table("Patients", caption, page.splits, fields, foot=foot)]
    note: Text = f"Every {page.words.study} could be used."
    if page.quarantine:
        studies = format_count(len(page.quarantine), page.words.study, page.words.studies)
        note = compose_text("{studies} could not be used; see [quarantine](#quarantine).", studies=studies)
    notes = [note, *([page.released] if page.released else [])]
    return Section("Patients", [*blocks, *(Paragraph(text, "note") for text in notes)], "whom", width="half")


def build_sizes_section(page: SitePage) -> list[Section]:
    """How large masks are beside the given ones, where models outline."""
    if not page.sizes.rows:
        return []
    words, title = page.sizes.words, f"{page.sizes.words.what.capitalize()} of masks"
    over = ", over all of the patient's slices" if page.words.examples == "slices" else ""
    fields: Fields = [
        ("method", lambda row: row.method),
        *([("structure", lambda row: row.structure)] if len(page.structures) > 1 else []),
        (number_column("patients"), lambda row: format_whole(row.patients)),
        (number_column("given"), lambda row: format_figures(row.true)),
        (number_column("predicted"), lambda row: format_figures(row.predicted)),
        (number_column("bias"), lambda row: _describe_estimate(row.bias)),
        (number_column("ratio"), lambda row: _describe_estimate(row.share)),
        (number_column("by probability"), lambda row: _describe_estimate(row.expected)),
    ]
    caption = compose_text(SIZES, unit=words.unit, over=over)
    table = make_table(title, caption, page.sizes.rows, fields, method=lambda row: row.method)
    return [Section(title, [table, *page.sizes.pictures], "sizes", "Size of masks")]


def _describe_estimate(estimate: Estimate | None) -> Text:
    """A value with its interval."""
    if estimate is None or math.isnan(estimate.value):
        return DASH
    value = Span(format_figures(estimate.value), "value")
    if math.isnan(estimate.low):
        return value
    return (value, " ", make_subline(f"{format_figures(estimate.low)} to {format_figures(estimate.high)}"))


def build_withdrawn_section(page: SitePage) -> list[Section]:
    """Who is left out by the settings, and which earlier runs knew them."""
    withdrawn = page.withdrawn
    if not withdrawn:
        return []
    unmatched = " Check the spelling: a name is the identifier as in the files, or the pseudonym."
    text = compose_text(
        "By `exclude` in this hospital's settings: {out}.{unmatched}",
        out=describe_withdrawal(withdrawn, page.words),
        unmatched=unmatched if withdrawn.unmatched else "",
    )
    fields: Fields = [("run", lambda known: Span(known.run, "code")), ("used for", lambda known: known.how)]
    rest: list[Block] = [Paragraph("No earlier run in this hospital's folder used these patients.", "note")]
    if withdrawn.knew:
        rest = [make_table("Withdrawn", EARLIER, withdrawn.knew, fields), Paragraph(NOT_FORGOTTEN, "note")]
    return [Section("Withdrawn", [Paragraph(text), *rest], "withdrawn", "Withdrawn")]


def build_images_section(page: SitePage, outlines: Sequence[Picture]) -> Section:
    """Images of each split, and what models look at. outlines: of an external site's lines, the last one open."""
    title, blocks = page.words.examples.capitalize(), list[Block]()
    if page.characteristics:
        fields: Fields = [
            ("feature", lambda each: each.name),
            (number_column(page.bands[0] if page.bands else "negative"), lambda each: each.negative),
            (number_column("all others" if page.bands else "positive"), lambda each: each.positive),
        ]
        caption = (
            f"Content of the {page.words.examples} by class: mean ± standard deviation, or how many; all splits "
            "together."
        )
        label = f"What the {page.words.examples} hold"
        blocks.append(make_table(label, caption, page.characteristics, fields, look="narrow"))
    blocks += page.images or [Paragraph("No examples were given.", "note")]
    blocks += _fold_pictures(outlines, len(outlines) - 1)
    blocks += _fold_pictures(page.maps, 0)
    return Section(title, blocks, "images", title)


def _fold_pictures(pictures: Sequence[Picture], opened: int) -> Iterable[Fold]:
    """Pictures, of which one is open."""
    return (Fold(each.title, [Drawing(each)], is_open=place == opened) for place, each in enumerate(pictures))


def build_quarantine_section(page: SitePage) -> Section:
    """Studies that were not used, by reason, and their codes."""
    words, reasons = page.words, _group_by_reason(page.quarantine)
    if not reasons:
        none = Paragraph(f"Empty: every {words.study} could be used.", "note")
        return Section("Quarantine", [none], "quarantine", "Quarantine")
    caption = (
        f"{words.studies.capitalize()} that were not used, by reason. Outside this hospital only these numbers are "
        "known."
    )
    fields: Fields = [
        ("reason", lambda reason: Cell(Span(reason[0].reason, "code"), "code")),
        (number_column(words.studies), lambda reason: format_whole(len(reason))),
        (Column("what was found, what to do", look="told"), lambda reason: reason[0].detail),
    ]
    codes = [
        block
        for reason in reasons
        for block in (
            Heading(Span(reason[0].reason, "code")),
            Items([Span(study.study, "code") for study in reason], "codes"),
        )
    ]
    title = f"Which {words.studies}: {format_count(len(page.quarantine), 'code', 'codes')}"
    blocks: list[Block] = [
        make_table("Quarantine", caption, reasons, fields),
        Fold(title, codes, is_open=len(page.quarantine) <= READABLE, is_part=False),
        Paragraph(compose_text(CODES, study=words.study), "note"),
    ]
    return Section("Quarantine", blocks, "quarantine", "Quarantine")


def _group_by_reason(quarantine: Sequence[Quarantined]) -> list[list[Quarantined]]:
    """The quarantine by reason and text, most frequent first."""
    groups: dict[tuple[str, str], list[Quarantined]] = {}
    for study in quarantine:
        groups.setdefault((study.reason, study.detail), []).append(study)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].reason))
