"""The coordinator's page, from messages only: its sections in their order, patients, what left and what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluation.answers import build_answers, build_banners, run_answers
from evaluation.common_sections import SIMULATION, build_commands_section, build_figures_section, settings_fold
from evaluation.grid import find_range
from evaluation.leaving import Left, Total, compute_totals, list_patient_records
from evaluation.page import (
    Block,
    Cell,
    Column,
    Fields,
    Heading,
    Items,
    Page,
    Paragraph,
    Row,
    Section,
    SideBySide,
    Span,
    Table,
    Text,
    compose_text,
    join_texts,
    make_subline,
    make_table,
    number_column,
)
from evaluation.privacy_blocks import build_privacy_section
from evaluation.records import Missing, OtherCode, RunPage, SiteCounts, SplitCount, StageState
from evaluation.run_scores import (
    RunScores,
    arrange_scores,
    build_further_section,
    build_leading_section,
    build_outside_section,
    build_pairs_section,
    build_parts_section,
    build_scores_section,
)
from evaluation.run_spaces import build_spaces_section, build_synthetic_section
from evaluation.score_tables import DASH, OUTSIDE_MARK, describe_withdrawal, spread_fields
from evaluation.wording import (
    format_count,
    format_duration,
    format_list,
    format_moment,
    format_number,
    format_size,
    format_span,
    format_whole,
)

NOTES_STAY = (
    "Notes of methods at a hospital during training, as APPLE's relationships to the other hospitals, are not sent: "
    "they are drawn on each hospital's own page."
)
SIZES_STAY = (
    "How large masks are, patient by patient, and the outlines of the worst cases are on each hospital's own page. "
    "Neither is sent."
)
TRACKING = "tracking"
"""Where the shell puts a warning in the page, see `pipelines/coordinator/tracking`."""


def build_run_page(page: RunPage) -> Page:
    """The run in one page: scores, patients, what left."""
    answers, scores = run_answers(page), arrange_scores(page)
    facts = compose_text(
        "Run **{run}** · {moment} · {what}", run=page.run, moment=format_moment(page.date), what=page.what
    )
    simulation = compose_text(
        f"**Simulation.** {SIMULATION} Where this page says that something left a hospital, it would have left a real "
        "one."
    )
    head: list[Block] = [Paragraph(simulation, "banner")] if page.simulation else []
    head += build_banners(answers)
    has_models = bool(page.methods or page.scores or not page.harmony)
    models = build_leading_section(scores) if has_models else []
    fold = settings_fold(page.settings, "The settings of this run, with every default", "The settings of this run")
    sections: list[Section | SideBySide] = [
        build_answers(answers, "each hospital", is_run=True),
        *([Section("The scores in one figure", page.pictures[:1], "figure")] if has_models and page.pictures else []),
        SideBySide(
            [*models, build_patients_section(page, is_many=scores.is_many), build_sent_section(page, scores.is_many)]
        ),
        *build_further_section(scores),
        *(_build_model_sections(scores) if has_models else []),
        *build_spaces_section(page, scores.notes),
        *build_synthetic_section(page),
        build_left_section(page, is_many=scores.is_many),
        build_privacy_section(page.statements, page.audits, page.membership, page.inversion, is_run=True),
        *(build_cost_section(page) if has_models else []),
        build_stages_section(page.stages),
        *build_code_section(page.others),
        Section("Settings", [fold], "settings", "Settings"),
        build_commands_section(page.commands),
    ]
    return Page(f"{page.title} – {page.run}", page.title, facts, sections, head, mark=TRACKING)


def _build_model_sections(scores: RunScores) -> list[Section]:
    """What is said of models only where there are some."""
    builders = (build_scores_section, build_pairs_section, build_parts_section, build_outside_section)
    page = scores.page
    notes = [*([NOTES_STAY] if page.methods else []), *([SIZES_STAY] if page.structures else [])]
    return [*(section for build in builders for section in build(scores)), build_figures_section(page.pictures, notes)]


STAGES = (
    "When the result of each stage was made, and its folder. Results from before this call were kept from an earlier "
    "one."
)
OTHER_CODE = (
    "What took part in this run and is not part of this program. Hospitals permitted each package by its digest; what "
    "is said here of privacy holds if this code keeps to what it is given."
)


def build_cost_section(page: RunPage) -> list[Section]:
    """Size and traffic of each method."""
    title = "Size of methods"
    fields: Fields = [
        ("method", lambda m: m.method),
        (number_column("parameters"), lambda m: format_whole(m.parameters)),
        (number_column("rounds"), lambda m: format_whole(m.rounds)),
        (number_column("work a round"), lambda m: m.gradients or DASH),
        (number_column("sent a round"), lambda m: format_size(round(m.sent / m.rounds))),
        (number_column("received a round"), lambda m: format_size(round(m.received / m.rounds))),
        (number_column("total, all hospitals"), lambda m: format_size(m.total)),
        (number_column("lowest validation loss"), lambda m: format_number(m.lowest)),
    ]
    if page.reference:
        reached = Column(f"rounds to reach {page.reference}", is_number=True, look="reached")
        fields.append((reached, lambda m: DASH if m.reached is None else str(m.reached)))
    table = make_table(title, _explain_cost(page), page.methods, fields, method=lambda m: m.method)
    blocks: list[Block] = [table, *([Paragraph(page.merging, "note")] if page.merging else [])]
    return [Section(title, blocks, "cost", title)]


def _explain_cost(page: RunPage) -> str:
    """What the sizes are of."""
    reached = ""
    if page.reference:
        reached = (
            " Rounds to reach: the first round whose validation loss over all hospitals is as low as the lowest that "
            f"{page.reference} ever reached; – if none is."
        )
    unequal = ""
    if len({method.gradients for method in page.methods if method.gradients}) > 1:
        unequal = " Methods do unequal work here: mind it when you compare their scores."
    return (
        "Parameters of one hospital's model; bytes of one hospital's traffic with the coordinator for each round, "
        f"and of all hospitals' both ways over the run.{reached} Work a round: of how many mini-batches, or how many "
        "times over its patients, a hospital takes gradients, by the run's settings; – where training "
        f"{page.words.examples} are pooled.{unequal} Lowest validation loss: over all hospitals, weighed by examples, "
        "in any round; this, never a test patient, is what the settings of a method are chosen by."
    )


def build_stages_section(stages: Sequence[StageState]) -> Section:
    """When each stage ended."""
    fields: Fields = [
        ("stage", lambda stage: stage.stage),
        ("finished", lambda stage: stage.state),
        (number_column("took"), lambda stage: format_duration(stage.seconds)),
        (Column("result", look="told"), lambda stage: stage.why),
    ]
    return Section("Stages", [make_table("Stages", STAGES, stages, fields)], "stages", "Stages")


def build_code_section(others: Sequence[OtherCode]) -> list[Section]:
    """Code from outside, if any took part."""
    title = "Code of other packages"
    fields: Fields = [
        ("what", lambda code: code.what),
        ("package", lambda code: code.source),
        (Column("SHA-256", look="told"), lambda code: code.digest or "not known"),
    ]
    return [Section(title, [make_table(title, OTHER_CODE, others, fields)], "others")] if others else []


SENT = "What hospitals sent in response to each request: "
EACH_SENT = (
    "What each hospital sent in response to each request: bytes of the serialized replies, and how many messages."
)
Sent = Mapping[tuple[str, str], Left]
"""(hospital, request) -> what left."""


def build_sent_section(page: RunPage, is_many: bool) -> Section:
    """The total of each hospital."""
    fields: Fields = [
        ("hospital", lambda total: _name_site(page, total.site)),
        (number_column("messages"), lambda total: format_whole(total.messages)),
        (number_column("bytes"), lambda total: format_size(total.bytes)),
        ("privacy loss ε", lambda total: "; ".join(total.epsilons)),
    ]
    totals = compute_totals(page.left, page.statements)
    table = make_table("What left", _describe_records(page), totals, fields, empty="Nothing left.", is_tall=is_many)
    blocks: list[Block] = [table]
    if page.missing:
        times = sum(reply.times for reply in page.missing)
        note = compose_text("{times} replies did not come; see [what left](#left).", times=times)
        blocks.append(Paragraph(note, "note"))
    return Section("What left", blocks, "out", width="smaller")


def _name_site(page: RunPage, site: str) -> Text:
    """A hospital, and whether it is outside."""
    return (site, OUTSIDE_MARK) if site in {outside.site for outside in page.external_sites} else site


def _describe_records(page: RunPage) -> Text:
    """Whether patients' own images, labels or records are among what left."""
    records = list_patient_records(page.left)
    if not records:
        return "All replies of each hospital; no patient's image, label or record is among them."
    parts: list[Text] = ["All replies of each hospital."]
    for record in records:
        text = "Whether patients' images are among them (*{request}*) cannot be told any more of {sites}."
        if record.records == "left":
            text = (
                "Among them (*{request}*) are **{what}**, of {sites}, as the settings and the hospital's policy allow."
            )
        what = record.what.replace("examples", page.words.examples)
        sites = " and ".join(record.sites)
        parts += [" ", compose_text(text, request=record.request, what=what, sites=sites)]
    return tuple(parts)


def build_left_section(page: RunPage, *, is_many: bool) -> Section:
    """What left by request, and which replies did not come."""
    requests = list(dict.fromkeys(entry.request for entry in page.left))
    totals = compute_totals(page.left, page.statements)
    sent = {(entry.site, entry.request): entry for entry in page.left}
    blocks: list[Block] = [Paragraph("Nothing left.", "note")]
    if requests and is_many:
        blocks = [_build_request_table(page, requests), _build_site_table(page, requests, totals, sent)]
    elif requests:
        blocks = [_build_whole_table(page, requests, totals, sent)]
    title = "Replies that did not come"
    none = Paragraph("None: every hospital answered every request.", "note")
    missing = _build_missing_table(page.missing, title, is_many=is_many) if page.missing else none
    return Section("What left, by request", [*blocks, Heading(title), missing], "left", "What left")


def _build_request_table(page: RunPage, requests: Sequence[str]) -> Table:
    """A row for each request, over all of many hospitals."""
    by_request = {name: [entry for entry in page.left if entry.request == name] for name in requests}
    caption = f"{SENT}the least and the most bytes of a hospital's replies, and messages of all of them."
    fields: Fields = [
        ("request", str),
        (
            Column("what it held", look="told"),
            lambda name: "; ".join(dict.fromkeys(e.content for e in by_request[name] if e.content)) or DASH,
        ),
        (number_column("bytes"), lambda name: format_span(find_range(e.bytes for e in by_request[name]), format_size)),
        (number_column("messages"), lambda name: format_whole(sum(entry.messages for entry in by_request[name]))),
        ("privacy loss ε", lambda name: format_list(list(dict.fromkeys(e.epsilon for e in by_request[name])))),
    ]
    return make_table("What left, by request", caption, requests, fields)


def _build_site_table(page: RunPage, requests: Sequence[str], totals: Sequence[Total], sent: Sent) -> Table:
    """A row for each of many hospitals, a column for each request."""

    def say_entry(site: str, request: str) -> Text:
        entry = sent.get((site, request))
        return (format_size(entry.bytes), make_subline(format_whole(entry.messages))) if entry else DASH

    fields: Fields = [
        ("hospital", lambda total: _name_site(page, total.site)),
        *spread_fields(requests, number_column, lambda name, total: say_entry(total.site, name)),
    ]
    return make_table("What left, by hospital and request", EACH_SENT, totals, fields, is_tall=True)


def _build_whole_table(page: RunPage, requests: Sequence[str], totals: Sequence[Total], sent: Sent) -> Table:
    """A row for each request, a column for each hospital."""

    def list_entries(request: str) -> list[Left]:
        return [entry for total in totals if (entry := sent.get((total.site, request)))]

    def say_content(request: str) -> Text:
        entries = list_entries(request)
        if len({entry.content for entry in entries}) == 1:
            return entries[0].content or DASH
        return tuple(make_subline(f"{entry.site}: {entry.content or DASH}") for entry in entries)

    def say_entry(site: str, request: str) -> Text:
        entry = sent.get((site, request))
        if entry is None:
            return DASH
        return (format_size(entry.bytes), make_subline(format_count(entry.messages, "message", "messages")))

    fields: Fields = [
        ("request", str),
        (Column("what it held", look="told"), say_content),
        *spread_fields((total.site for total in totals), lambda site: number_column(_name_site(page, site)), say_entry),
        ("privacy loss ε", lambda name: "; ".join(dict.fromkeys(entry.epsilon for entry in list_entries(name)))),
    ]
    return make_table("What left, by request and hospital", EACH_SENT, requests, fields)


def _build_missing_table(missing: Sequence[Missing], title: str, *, is_many: bool) -> Table:
    """Replies that did not come, by code."""
    caption = "By the code that the hospital or the engine gave; the hospital's own log has the details."
    fields: Fields = [
        ("hospital", lambda reply: reply.site),
        ("request", lambda reply: reply.request),
        ("code", lambda reply: Span(reply.code, "code")),
        (number_column("times"), lambda reply: format_whole(reply.times)),
    ]
    return make_table(title, caption, missing, fields, is_tall=is_many)


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
    patients = "its patient" if site.withdrawn.studies == 1 else "these patients"
    runs = join_texts(Span(known.run, "code") for known in site.withdrawn.knew)
    return (text, f" Earlier models or scores used {patients}: ", runs, ".")
