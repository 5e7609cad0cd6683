"""A hospital's privacy statement as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privacy.release.bounds import escape_text
from privacy.release.meaning import NO_GUARANTEE, format_loss
from privacy.release.statement import Audit, Details, Row, Run, Statement


def render_markdown(statement: Statement) -> str:
    """The statement as a page of Markdown."""
    return (
        "\n".join(
            [
                *_head_lines(statement),
                *_mechanism_lines(statement),
                *_unbounded_lines(statement),
                *_rest_lines(statement),
            ]
        )
        + "\n"
    )


def _head_lines(statement: Statement) -> Iterator[str]:
    """The title, the meaning of ε, and the table of the main figures."""
    unit, budget = escape_text(statement.unit), statement.budget
    yield from (f"# Privacy statement: {escape_text(statement.site)}", "", escape_text(statement.meaning), "")
    yield from ("| | |", "| --- | --- |")
    yield f"| Unit | {unit} |"
    yield f"| Neighbouring data sets | {escape_text(statement.adjacency)} |"
    yield f"| ε, everything that left | {format_loss(statement.epsilon)} |"
    if statement.noised != statement.epsilon:
        yield f"| ε, replies with noise alone | {format_loss(statement.noised)} |"
    yield (
        f"| ε, replies with noise alone, where neighbours differ by replacing one {unit} |"
        f" {format_loss(statement.replaced)} |"
    )
    yield f"| δ | {statement.delta:g} |"
    yield f"| Accountant | {escape_text(statement.accountant)} |"
    if budget is None:
        yield "| Budget | none was set |"
    else:
        yield f"| Budget for each {unit} over the ledger's life | ε = {budget.epsilon:g} at δ = {budget.delta:g} |"
        if budget.release is not None and budget.run is not None:
            yield f"| At most, of one release and of one run | ε = {budget.release:g}; ε = {budget.run:g} |"
        yield f"| Spent, and remaining | {format_loss(budget.spent)}; {budget.remaining:g} |"
    torn = f", {statement.torn} of them cut off by a crash (their replies never left)" if statement.torn else ""
    yield (
        f"| Ledger | {statement.lines} lines{torn}; {escape_text(statement.first) or '–'} to"
        f" {escape_text(statement.last) or '–'} |"
    )
    yield f"| Refused | {statement.refused} times a code left instead of a reply |"


def _mechanism_lines(statement: Statement) -> Iterator[str]:
    """Mechanisms run by run, ε by split, and what was released."""
    yield from ("", "## What was done, run by run", "", escape_text(statement.legend))
    for run in statement.runs:
        yield from ("", f"### {escape_text(run.run)}", "", *_run_lines(run)) if run.rows else ()
    if idle := [escape_text(run.run) for run in statement.runs if not run.rows]:
        yield from ("", f"Runs without any noised release: {', '.join(idle)}.")
    if statement.splits:
        yield from (
            "",
            "## By split",
            "",
            f"The ε that a {escape_text(statement.unit)} of each split is charged for replies with noise.",
            "",
        )
        yield from _table_lines(
            ("division", "split", "ε"), [(s.cut, s.split, format_loss(s.epsilon)) for s in statement.splits], 1
        )
    if statement.released:
        yield from (
            "",
            "## What was released",
            "",
            "Replies with noise, and replies that follow from what had left before.",
            "",
        )
        rows = [(r.request, r.content or "–", f"{r.times}", f"{r.again}", f"{r.bytes}") for r in statement.released]
        yield from _table_lines(("request", "what it held", "times", "sent again", "bytes"), rows, 3)


def _run_lines(run: Run) -> Iterator[str]:
    """One run's ε, details and table of mechanisms."""
    alone = "" if run.noised == run.epsilon else f"; replies with noise alone: {format_loss(run.noised)}"
    yield f"ε of the run: {format_loss(run.epsilon)}{alone}.{_describe_details(run.details)}"
    names = ("request", "split", "mechanism", "q", "σ", "T", "ε alone")
    cells = [
        (row.request, row.split or "all", row.mechanism, f"{row.probability:g}", *_format_numbers(row))
        for row in run.rows
    ]
    yield from ("", *_table_lines(names, cells, 4))


def _format_numbers(row: Row) -> tuple[str, str, str]:
    """The cells σ, T and ε of a row."""
    return "–" if row.noise is None else f"{row.noise:.4g}", f"{row.times}", format_loss(row.epsilon)


def _describe_details(details: Details) -> str:
    """A run's clip, views and batch as a sentence; empty if none is known."""
    words = [f"clip C = {details.clip:g}"] if details.clip is not None else []
    words += [f"K = {details.views} views of a patient, averaged before the clip"] if details.views is not None else []
    words += [f"{details.batch:g} patients expected in a sample"] if details.batch is not None else []
    return f" Also: {', '.join(words)}." if words else ""


def _unbounded_lines(statement: Statement) -> Iterator[str]:
    """What left without noise, and what is outside the guarantee."""
    yield from ("", f"## {NO_GUARANTEE.capitalize()}", "")
    if statement.unprotected:
        yield from (f"What follows left without noise: for it there is {NO_GUARANTEE}, ε = ∞.", "")
        rows = [(u.request, u.content or "–", f"{u.times}", f"{u.bytes}") for u in statement.unprotected]
        yield from _table_lines(("request", "what it held", "times", "bytes"), rows, 2)
    else:
        yield "Nothing: everything that left is listed above or declared below."
    yield from ("", "## Outside the guarantee", "")
    if statement.stated:
        yield "Declared by the hospital: facts without noise, which ε does not cover:"
        yield from (
            "",
            *(
                f"* {escape_text(s.text)}: {s.times} × ({escape_text(', '.join(s.requests))})."
                for s in statement.stated
            ),
            "",
        )
    yield from ("Always:", "", *(f"* {escape_text(text)}" for text in statement.outside))


def _rest_lines(statement: Statement) -> Iterator[str]:
    """The statement's paragraphs, and its audit."""
    for paragraph in statement.paragraphs:
        yield from ("", f"## {escape_text(paragraph.title)}", "", escape_text(paragraph.text))
    yield from (
        "",
        "## Audit",
        "",
        (
            "This hospital did not audit its mechanisms. Attacks on its models, if any were run, are on its page."
            if statement.audit is None
            else describe_audit(statement.audit)
        ),
    )


def describe_audit(audit: Audit) -> str:
    """What an audit says, and what it does not."""
    share = f"{100 * audit.confidence:g} %"
    verdict_sentence = (
        "This refutes the claim." if audit.is_refuted else "The claim is not refuted; an audit cannot prove it."
    )
    return (
        f"The code was attacked at a setting of its own, not that of these runs: {audit.canaries} synthetic patients, "
        f"{audit.steps} steps, ε = {audit.claimed:g} at δ = {audit.delta:g} claimed. With {share} confidence ε is at "
        f"least {audit.bound:.3g}. {verdict_sentence}"
    )


def _table_lines(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """numbers: how many of the last columns stand to the right."""
    texts = len(names) - numbers
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' if place < texts else '---:' for place in range(len(names)))} |"
    yield from (f"| {' | '.join(map(escape_text, row))} |" for row in rows)
