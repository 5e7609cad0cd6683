"""A hospital's privacy statement as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privacy.release.bounds import inert
from privacy.release.meaning import NO_GUARANTEE, loss
from privacy.release.statement import Audit, Details, Row, Run, Statement


def markdown(statement: Statement) -> str:
    """The statement as a page of Markdown."""
    return "\n".join([*_head(statement), *_mechanisms(statement), *_unbounded(statement), *_rest(statement)]) + "\n"


def _head(said: Statement) -> Iterator[str]:
    unit, budget = inert(said.unit), said.budget
    yield from (f"# Privacy statement: {inert(said.site)}", "", inert(said.meaning), "")
    yield from ("| | |", "| --- | --- |")
    yield f"| Unit | {unit} |"
    yield f"| Neighbouring data sets | {inert(said.adjacency)} |"
    yield f"| ε, everything that left | {loss(said.epsilon)} |"
    if said.noised != said.epsilon:
        yield f"| ε, replies with noise alone | {loss(said.noised)} |"
    yield f"| ε, replies with noise alone, where neighbours differ by replacing one {unit} | {loss(said.replaced)} |"
    yield f"| δ | {said.delta:g} |"
    yield f"| Accountant | {inert(said.accountant)} |"
    if budget is None:
        yield "| Budget | none was set |"
    else:
        yield f"| Budget for each {unit} over the ledger's life | ε = {budget.epsilon:g} at δ = {budget.delta:g} |"
        if budget.release is not None and budget.run is not None:
            yield f"| At most, of one release and of one run | ε = {budget.release:g}; ε = {budget.run:g} |"
        yield f"| Spent, and remaining | {loss(budget.spent)}; {budget.remaining:g} |"
    torn = f", {said.torn} of them cut off by a crash (their replies never left)" if said.torn else ""
    yield f"| Ledger | {said.lines} lines{torn}; {inert(said.first) or '–'} to {inert(said.last) or '–'} |"
    yield f"| Refused | {said.refused} times a code left instead of a reply |"


def _mechanisms(said: Statement) -> Iterator[str]:
    yield from ("", "## What was done, run by run", "", inert(said.legend))
    for run in said.runs:
        yield from ("", f"### {inert(run.run)}", "", *_run(run)) if run.rows else ()
    if idle := [inert(run.run) for run in said.runs if not run.rows]:
        yield from ("", f"Runs without any noised release: {', '.join(idle)}.")
    if said.splits:
        yield from (
            "",
            "## By split",
            "",
            f"The ε that a {inert(said.unit)} of each split is charged for replies with noise.",
            "",
        )
        yield from _table(("division", "split", "ε"), [(s.cut, s.split, loss(s.epsilon)) for s in said.splits], 1)
    if said.released:
        yield from (
            "",
            "## What was released",
            "",
            "Replies with noise, and replies that follow from what had left before.",
            "",
        )
        rows = [(r.request, r.content or "–", f"{r.times}", f"{r.again}", f"{r.bytes}") for r in said.released]
        yield from _table(("request", "what it held", "times", "sent again", "bytes"), rows, 3)


def _run(run: Run) -> Iterator[str]:
    alone = "" if run.noised == run.epsilon else f"; replies with noise alone: {loss(run.noised)}"
    yield f"ε of the run: {loss(run.epsilon)}{alone}.{_details(run.details)}"
    names = ("request", "split", "mechanism", "q", "σ", "T", "ε alone")
    cells = [
        (row.request, row.split or "all", row.mechanism, f"{row.probability:g}", *_numbers(row)) for row in run.rows
    ]
    yield from ("", *_table(names, cells, 4))


def _numbers(row: Row) -> tuple[str, str, str]:
    return "–" if row.noise is None else f"{row.noise:.4g}", f"{row.times}", loss(row.epsilon)


def _details(details: Details) -> str:
    said = [f"clip C = {details.clip:g}"] if details.clip is not None else []
    said += [f"K = {details.views} views of a patient, averaged before the clip"] if details.views is not None else []
    said += [f"{details.batch:g} patients expected in a sample"] if details.batch is not None else []
    return f" Also: {', '.join(said)}." if said else ""


def _unbounded(said: Statement) -> Iterator[str]:
    yield from ("", f"## {NO_GUARANTEE.capitalize()}", "")
    if said.unprotected:
        yield from (f"What follows left without noise: for it there is {NO_GUARANTEE}, ε = ∞.", "")
        rows = [(u.request, u.content or "–", f"{u.times}", f"{u.bytes}") for u in said.unprotected]
        yield from _table(("request", "what it held", "times", "bytes"), rows, 2)
    else:
        yield "Nothing: everything that left is listed above or declared below."
    yield from ("", "## Outside the guarantee", "")
    if said.stated:
        yield "Declared by the hospital: facts without noise, which ε does not cover:"
        yield from ("", *(f"* {inert(s.text)}: {s.times} × ({inert(', '.join(s.requests))})." for s in said.stated), "")
    yield from ("Always:", "", *(f"* {inert(text)}" for text in said.outside))


def _rest(said: Statement) -> Iterator[str]:
    for paragraph in said.paragraphs:
        yield from ("", f"## {inert(paragraph.title)}", "", inert(paragraph.text))
    yield from (
        "",
        "## Audit",
        "",
        "This hospital did not audit its mechanisms. Attacks on its models, if any were run, are on its page."
        if said.audit is None
        else audited(said.audit),
    )


def audited(audit: Audit) -> str:
    """What an audit says, and what it does not."""
    share = f"{100 * audit.confidence:g} %"
    found = "This refutes the claim." if audit.refuted else "The claim is not refuted; an audit cannot prove it."
    return (
        f"The code was attacked at a setting of its own, not that of these runs: {audit.canaries} synthetic patients, "
        f"{audit.steps} steps, ε = {audit.claimed:g} at δ = {audit.delta:g} claimed. With {share} confidence ε is at "
        f"least {audit.bound:.3g}. {found}"
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """numbers: how many of the last columns stand to the right."""
    texts = len(names) - numbers
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' if place < texts else '---:' for place in range(len(names)))} |"
    yield from (f"| {' | '.join(map(inert, row))} |" for row in rows)
