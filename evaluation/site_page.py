"""A hospital's own page, in the federation or outside: its sections in their order. It stays at that hospital."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.adaptation import AdaptedLine
from evaluation.answers import build_answers, build_banners, site_answers
from evaluation.cases import build_cases_section
from evaluation.common_sections import build_commands_section, build_figures_section
from evaluation.drawing import Picture
from evaluation.grid import column_patients, list_leading_measures, list_whole_measures, rows_by_column
from evaluation.intervals import Estimate
from evaluation.leaving import compute_totals
from evaluation.notices import row_notes
from evaluation.overlap import HD95
from evaluation.page import (
    Block,
    Cell,
    Column,
    Drawing,
    Fields,
    Fold,
    Heading,
    Items,
    Page,
    Paragraph,
    Row,
    Section,
    SideBySide,
    Span,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.privacy_blocks import build_privacy_section
from evaluation.records import SitePage, SplitCount
from evaluation.rows import PRIVATE, ScoreRow, group_by
from evaluation.run_spaces import build_share_blocks, build_space_blocks
from evaluation.score_tables import (
    DASH,
    build_further_table,
    build_part_tables,
    build_score_notes,
    describe_adaptation,
    describe_withdrawal,
    estimate_texts,
    named_method,
    score_cell,
    spread_fields,
)
from evaluation.wording import (
    READABLE,
    format_count,
    format_estimate,
    format_figures,
    format_moment,
    format_number,
    format_size,
    format_whole,
)

NOTED = compose_text(
    "Recorded here, round by round, during training. Notes are not sent; the content of the methods' replies is under "
    "[what left](#left) (PGFed's contain its alpha)."
)
LEFT = compose_text(
    "What this hospital sent in response to each request. Bytes are those of the serialized replies; each of them is "
    "in `ledger.jsonl` in this hospital's folder."
)

TRANSLATED = (
    " It got the shared images too, and trained a translator of its own on them, without labels: [Image "
    "spaces](#spaces) shows what came of it. Lines of such a space use its translated images; where its quality "
    "control refused them, images as they were read."
)


@dataclass(frozen=True)
class OutsideDetails:
    """What an external site's page has in addition to a hospital's page. field: as in `RunPage`. outlines: of the
    lines' masks.
    """

    lines: tuple[AdaptedLine, ...]
    field: str = ""
    outlines: tuple[Picture, ...] = ()


def build_site_page(page: SitePage, details: OutsideDetails | None = None) -> Page:
    """One hospital's page. details: of an external site, whose scores are by line, of all patients, in one split."""
    answers, notes = site_answers(page), row_notes(page.scores, page.harmony, page.spaces, page.site)
    facts = compose_text(
        "{title} · run **{run}** · {moment}", title=page.title, run=page.run, moment=format_moment(page.date)
    )
    head, sections = _build_head(page), list[Section | SideBySide]()
    patients = build_patients_section(page, is_outside=details is not None)
    if details is None:
        head += build_banners(answers)
        sections.append(build_answers(answers, "this hospital", is_run=False))
        sections += [Section("In one figure", page.pictures[:1], "figure")] if page.pictures else []
    else:
        head.append(_build_outside_banner(page, details.field))
    sections += [
        SideBySide([_build_scores_section(page, notes, details), patients, _sum_left(page)]),
        *_build_parts_section(page),
        *_build_adaptation_section(page, details),
        *build_sizes_section(page),
        *build_withdrawn_section(page),
        *build_cases_section(page.cases, page.lookup),
        build_images_section(page, () if details is None else details.outlines),
        *_build_spaces_section(page, notes),
        build_quarantine_section(page),
        build_figures_section(page.pictures, has_first=details is None),
        *_build_noted_section(page),
        _build_left_section(page),
        build_privacy_section([] if page.statement is None else [page.statement], membership=page.membership),
        build_commands_section(page.commands),
    ]
    return Page(f"{page.site} – {page.title}", page.site, facts, sections, head)


def _build_head(page: SitePage) -> list[Block]:
    """That the page must not leave, and whether the hospital is simulated."""
    more = " Scores here are exact; the coordinator receives them with noise, and weights patients instead of examples."
    stays = compose_text(
        "**This page stays at this hospital.** It {shows}; it is not sent to the coordinator, and must not be.{noised}",
        shows="shows pictures of patients" if page.words.looked_at else "describes this hospital's patients",
        noised=more if page.noised else "",
    )
    many = " There are many, so this page has no pictures; `pages: all` in the settings draws them for each hospital."
    run = "; [the coordinator's page](../../report.html) is of all of them"  # where a simulation lays both
    simulation = (
        f"**Simulation.** One machine ran all hospitals, including this one{run}.{'' if page.pictured else many}"
    )
    head: list[Block] = [Paragraph(stays, "banner stays")]
    return [*head, Paragraph(compose_text(simulation), "banner")] if page.simulation else head


def _build_scores_section(page: SitePage, notes: Mapping[str, str], details: OutsideDetails | None) -> Section:
    """The first table: each method on this hospital's patients."""
    grid, methods = rows_by_column(page.scores), list(dict.fromkeys(row.method for row in page.scores))
    first = next(iter(list_whole_measures(page.scores, page.scored_parts)), "")

    def say_score(measure: str, method: str) -> Cell:
        return score_cell(grid.get((measure, method, page.site)), page.reference, is_marked=False)

    def say_count(name: str, method: str) -> str:
        row = grid.get((first, method, page.site))
        return DASH if row is None else format_whole(getattr(row, name))

    leading = list_leading_measures(page.scores, page.structures, page.scored_parts)
    examples, counts = page.words.examples, {"patients": "patients"}
    if page.structures:
        counts["positives"] = "with the structure"
    elif not page.bands:
        counts |= {"positives": f"positive {examples}", "negatives": f"negative {examples}"}
    fields: Fields = [
        ("line" if details else "method", lambda method: named_method(method, notes)),
        *spread_fields(leading, number_column, say_score),
        *spread_fields(counts, lambda name: number_column(counts[name]), say_count),
    ]
    caption = f"Each {'line' if details else 'method'} on the same patients."
    none = "No model was scored at this hospital."
    table = make_table("How good, by method", caption, methods, fields, method=str, empty=none, look="lead")
    blocks: list[Block] = [_describe_best(page)] if details else []
    blocks += [table, *build_score_notes(page), *build_further_table(page, grid, page.site)]
    whose = "all of this hospital's" if details else "this hospital's test"
    return Section(f"How good, on {whose} patients", blocks, "scores", "Scores", width="wide")


def _sum_left(page: SitePage) -> Section:
    """What left in sum."""
    texts: list[Text] = []
    for total in compute_totals(page.left, () if page.statement is None else (page.statement,)):
        messages, size = (Span(text, "strong") for text in (format_whole(total.messages), format_size(total.bytes)))
        texts.append((messages, " messages, ", size, f". Privacy loss ε: {'; '.join(total.epsilons)}."))
    note = Paragraph(compose_text("From this hospital's ledger. [By request](#left)."), "note")
    blocks = [*map(Paragraph, texts or ["Nothing left this hospital."]), note]
    return Section("What left", blocks, "out", width="half")


def _build_parts_section(page: SitePage) -> list[Section]:
    """Scores of single classes, cuts or findings."""
    if not page.scored_parts or not page.scores:
        return []
    tables = build_part_tables(page, rows_by_column(page.scores), column_patients(page.scores), page.site)
    return [Section(f"By {page.part_word}", tables, "classes")]


def _build_spaces_section(page: SitePage, notes: Mapping[str, str]) -> list[Section]:
    """What harmonization did here, if there was any."""
    if page.harmony is None:
        return []
    blocks = build_space_blocks(page.harmony, is_run=False) + build_share_blocks(page.shares, notes)
    blocks += [*page.harmony.translations, *page.harmony.maps]
    return [Section("Image spaces", blocks, "spaces", "Image spaces")]


def _build_noted_section(page: SitePage) -> list[Section]:
    """What methods noted in training, if they did."""
    if not page.noted and not page.warnings:
        return []
    warnings = [Paragraph((Span("Warning.", "strong"), " ", warning), "banner") for warning in page.warnings]
    title = "What the methods noted"
    return [Section(title, [Paragraph(NOTED, "note"), *warnings, *page.noted], "noted", title)]


def _build_left_section(page: SitePage) -> Section:
    """What left by request."""
    fields: Fields = [
        ("request", lambda entry: entry.request),
        (Column("what it held", look="told"), lambda entry: entry.content or DASH),
        (number_column("messages"), lambda entry: format_whole(entry.messages)),
        (number_column("bytes"), lambda entry: format_size(entry.bytes)),
        ("privacy loss ε", lambda entry: entry.epsilon),
    ]
    title = "What left, by request"
    table = make_table(title, LEFT, page.left, fields)
    return Section(title, [table] if page.left else [Paragraph("Nothing left.", "note")], "left", "What left")


def _build_outside_banner(page: SitePage, field: str) -> Paragraph:
    """That the hospital took no part, and what adaptation sees. field: as in `OutsideDetails`."""
    start = "**Outside the federation.** This hospital took no part in training and got the hospitals' models."
    translated = TRANSLATED if page.harmony and page.harmony.rows else ""
    text = compose_text(f"{start}{translated} {{sees}}", sees=describe_adaptation(page.structures, field))
    return Paragraph(text, "banner")


def _describe_best(page: SitePage) -> Paragraph:
    """Which line is best by the first measure, and why nobody may choose by it."""
    best = select_best_rows(page.scores)
    if not best:
        return Paragraph("No line has a value, so none is the best.")
    value, low, high = best[0].value, best[0].low, best[0].high
    text = compose_text(
        "Best by {measure}: **{lines}**, {value}. Only the {labels} show this: a hospital without them must choose its "
        "line in advance, and the best of several lines looks better than it is.",
        measure=best[0].measure,
        lines=" and ".join(row.method for row in best),
        value=format_number(value) if math.isnan(low) else format_estimate(value, low, high),
        labels="masks" if page.structures else "labels",
    )
    return Paragraph(text)


def select_best_rows(rows: Sequence[ScoreRow]) -> tuple[ScoreRow, ...]:
    """The rows of the first measure with the best value, several if they are equal; none without values.

    Raises:
        ValueError: that measure is better where it is lower, and another should come first.
    """
    private_rows = [row for row in rows if row.protocol == PRIVATE and math.isfinite(row.value)]
    first = [row for row in private_rows if row.measure == rows[0].measure] if rows else []
    if any(row.measure.startswith(HD95.name) for row in first):
        raise ValueError(f"the first measure is {first[0].measure}, which is better where it is lower; put Dice first")
    return tuple(row for row in first if row.value == max(candidate.value for candidate in first))


def _build_adaptation_section(page: SitePage, details: OutsideDetails | None) -> list[Section]:
    """How each line got its model; nothing at a hospital of the federation."""
    if details is None:
        return []
    title = "How each line got its model"
    caption = (
        "Loss and share: of the network before, and of the state that is used. Share: of all "
        f"{'pixels' if page.structures else page.words.examples} that it predicts as "
        f"{' or '.join(page.structures) or 'positive'}. Losses of different lines are different sums and cannot be "
        "compared. (shared): the federation's one model; the others are hospitals' own."
    )
    fields: Fields = [
        ("line", lambda line: line.label),
        ("way", lambda line: line.way),
        ("models", lambda line: ", ".join(line.experts)),
        (number_column("loss"), _describe_loss),
        (number_column("share"), _describe_share),
        (number_column("epoch"), lambda line: f"{line.epoch} of {len(line.losses) - 1}" if line.chosen else DASH),
        (Column("why", look="told"), lambda line: line.why or "nothing was adapted"),
    ]
    pictures = [picture for line in details.lines for picture in line.pictures]
    table = make_table(title, caption, details.lines, fields, method=lambda line: line.label)
    return [Section(title, [table, *pictures], "adaptation", "Adaptation")]


def _describe_loss(line: AdaptedLine) -> str:
    """The loss before, and of the state that is used."""
    before = format_figures(line.losses[0]) if line.losses else DASH
    return f"{before} → {format_figures(line.losses[line.epoch or 0])}" if line.chosen else before


def _describe_share(line: AdaptedLine) -> str:
    """The share that is predicted, as `_describe_loss`."""
    before, after = map(format_number, line.foreground_shares)
    return f"{before} → {after}" if line.chosen else after if line.losses else DASH


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
    "A code has no meaning outside. Which {study} it is, and what was found, says, with a code in the place of CODE: "
    "`{lookup}`. That file names patients and is a secret like `pseudonym.key`: neither must leave this hospital. This "
    "page does not repeat it, because pages are printed and shown to others."
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
    return tuple(estimate_texts(*estimate.numbers, format_figures, " to "))


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
    return (
        Fold(each.title, [Drawing(each)], place == opened, method=each.method) for place, each in enumerate(pictures)
    )


def build_quarantine_section(page: SitePage) -> Section:
    """Studies that were not used, by reason, and their codes."""
    words, by_reason = page.words, group_by(page.quarantine, lambda study: (study.reason, study.detail))
    reasons = sorted(by_reason.values(), key=lambda group: (-len(group), group[0].reason))
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
        Paragraph(compose_text(CODES, study=words.study, lookup=page.lookup), "note"),
    ]
    return Section("Quarantine", blocks, "quarantine", "Quarantine")
