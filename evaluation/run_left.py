"""What left the hospitals, in sum and by request, as sections of the coordinator's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluation.leaving import Left, Total, compute_totals, list_patient_records
from evaluation.page import (
    Block,
    Column,
    Fields,
    Heading,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.records import Missing, RunPage
from evaluation.score_cells import DASH, OUTSIDE_MARK
from evaluation.wording import format_count, format_list, format_size, format_whole

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
        (number_column("bytes"), lambda name: _span_sizes([entry.bytes for entry in by_request[name]])),
        (number_column("messages"), lambda name: format_whole(sum(entry.messages for entry in by_request[name]))),
        ("privacy loss ε", lambda name: format_list(list(dict.fromkeys(e.epsilon for e in by_request[name])))),
    ]
    return make_table("What left, by request", caption, requests, fields)


def _span_sizes(sizes: Sequence[int]) -> str:
    """The least and the most of sizes."""
    least, most = format_size(min(sizes)), format_size(max(sizes))
    return least if min(sizes) == max(sizes) else f"{least} – {most}"


def _build_site_table(page: RunPage, requests: Sequence[str], totals: Sequence[Total], sent: Sent) -> Table:
    """A row for each of many hospitals, a column for each request."""

    def say_entry(site: str, request: str) -> Text:
        entry = sent.get((site, request))
        return (format_size(entry.bytes), make_subline(format_whole(entry.messages))) if entry else DASH

    fields: Fields = [
        ("hospital", lambda total: _name_site(page, total.site)),
        *((number_column(name), lambda total, name=name: say_entry(total.site, name)) for name in requests),
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
        *(
            (number_column(_name_site(page, total.site)), lambda name, site=total.site: say_entry(site, name))
            for total in totals
        ),
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
