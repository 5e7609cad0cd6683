"""The privacy statement and attacks as blocks of a page: the records as they are, without another word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evaluation.attacks import REMEDY, InversionRow, MembershipRow, find_strongest_attack, membership_outcome
from evaluation.page import (
    Block,
    Column,
    Fields,
    Fold,
    Group,
    Heading,
    Items,
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
from evaluation.rows import group_by
from evaluation.score_tables import DASH
from evaluation.wording import format_count, format_decibel, format_number, format_size, format_whole
from privacy.release.meaning import format_loss
from privacy.release.statement import Audit, Run, Statement

AUDITED = (
    "An attack on the code with synthetic patients, at a setting of its own (the claimed ε), which is not that of this "
    "run. A lower bound above the claim refutes it; one below does not prove it."
)
MEMBERSHIP = compose_text(
    "AUC of separating patients who took part from others: 0.5 is chance, 1 finds everybody; *succeeds*: its 95 % "
    "interval is above 0.5. The control is the same attack on a model that memorizes its patients: if its AUC is not "
    "near 1, the attack proves nothing."
)
NO_STATEMENT = compose_text(
    "No statement was made. What left has no formal guarantee, unless [what left](#left) names an ε for it."
)
NO_SUCCESS = (
    "None of these attacks is shown to succeed: an interval that contains 0.5 proves nothing, and a stronger attack "
    "may find more."
)
INVERSION = (
    "Means over a few single training images of each hospital. The attacker has the hospital's model and the gradient "
    "or the features of one image, which is more than a round reveals. A reconstruction that is no better than the "
    "mean image of the other patients reveals nothing about this one. Higher is more similar. The pictures never "
    "leave: they are on each hospital's own page."
)


def build_privacy_section(
    statements: Sequence[Statement],
    audits: Sequence[Audit] = (),
    membership: Sequence[MembershipRow] = (),
    inversion: Sequence[InversionRow] = (),
    *,
    is_run: bool = False,
) -> Section:
    """The statements, and attacks. is_run: whether statements are of several hospitals, each of which is folded."""
    blocks: list[Block] = [Paragraph(NO_STATEMENT)]
    if statements:
        each = _build_mechanism_blocks(statements[0], 3)
        if is_run:
            folds = [Fold(statement.site, _build_mechanism_blocks(statement, 4)) for statement in statements]
            each = [Group([replace(folds[0], is_open=True), *folds[1:]], "after")]
        blocks = [_build_loss_table(statements), *each, *_build_common_blocks(statements)]
    audits = [*audits, *(statement.audit for statement in statements if statement.audit is not None)]
    blocks += _build_audit_blocks([*dict.fromkeys(audits)])
    blocks += _build_membership_blocks(membership) + _build_inversion_blocks(inversion)
    return Section("Privacy statement", blocks, "privacy", "Privacy")


def _build_loss_table(statements: Sequence[Statement]) -> Table:
    """The privacy loss of a patient, by hospital."""
    caption = compose_text(
        "Privacy loss of one {unit} from everything that left, by each hospital's own ledger over the ledger's life. "
        "*noised alone*: from what left with noise, as if nothing else had left.",
        unit=statements[0].unit,
    )
    fields: Fields = [
        ("hospital", lambda s: s.site),
        (Column("ε", is_number=True, look="loss"), lambda s: format_loss(s.epsilon)),
        (number_column("noised alone"), _describe_noised_loss),
        (number_column("δ"), lambda s: f"{s.delta:g}"),
        (number_column("budget ε"), _describe_budget),
        (number_column("remaining"), lambda s: f"{s.budget.remaining:g}" if s.budget else DASH),
        (Column("accountant", look="told"), lambda s: s.accountant),
    ]
    return make_table("Privacy loss of a patient, by hospital", caption, statements, fields)


def _describe_noised_loss(statement: Statement) -> Text:
    """The loss of what left with noise, for both adjacencies; where nothing did, words: a zero would reassure."""
    if statement.noised == 0:
        return "nothing left with noise"
    replaced = f"one {statement.unit} replaced by another: {format_loss(statement.replaced)}"
    return (format_loss(statement.noised), make_subline(replaced))


def _describe_budget(statement: Statement) -> Text:
    """The budget, its δ where that is another one, and its caps."""
    budget = statement.budget
    if budget is None:
        return "none set"
    lines: list[Text] = [f"{budget.epsilon:g}"]
    if budget.delta != statement.delta:
        lines.append(make_subline(f"δ = {budget.delta:g}"))
    if budget.release is not None and budget.run is not None:
        lines.append(make_subline(f"at most {budget.release:g} in one release, {budget.run:g} in one run"))
    return tuple(lines)


def _build_mechanism_blocks(statement: Statement, level: int) -> list[Block]:
    """What left one hospital: mechanisms, what has no guarantee, and what was declared. level: of headings."""
    stated = [f"{each.text}: {format_whole(each.times)} × ({', '.join(each.requests)})" for each in statement.stated]
    torn = f", {statement.torn} of them cut off by a crash (their replies never left)" if statement.torn else ""
    lines, refused = format_count(statement.lines, "line", "lines"), format_count(statement.refused, "reply", "replies")
    blocks: list[Block] = [Paragraph(statement.meaning, "after"), _build_mechanism_table(statement)]
    if statement.splits:
        losses = ", ".join(f"{each.split} {format_loss(each.epsilon)}" for each in statement.splits)
        text = (
            f"A {statement.unit} is in one split, and is charged for that split only: {losses} (what left with noise)."
        )
        blocks.append(Paragraph(text))
    return [
        *blocks,
        Heading("No formal guarantee", level),
        _build_unprotected_block(statement),
        Heading("Outside the guarantee, by the hospital's declaration", level),
        Items(stated) if stated else Paragraph("Nothing was declared."),
        Paragraph(f"Ledger: {lines}{torn}; {refused} refused.", "note"),
    ]


def _build_mechanism_table(statement: Statement) -> Block:
    """The mechanisms of each run."""
    groups = [(_describe_run(statement, run), run.rows) for run in statement.runs if run.rows]
    if not groups:
        return Paragraph("Nothing left with noise.", "note")
    fields: Fields = [
        ("request", lambda row: row.request),
        ("split", lambda row: row.split or "all"),
        (Column("mechanism", look="told"), lambda row: row.mechanism),
        (number_column("q"), lambda row: f"{row.probability:g}"),
        (number_column("σ"), lambda row: DASH if row.noise is None else f"{row.noise:.4g}"),
        (number_column("T"), lambda row: format_whole(row.times)),
        (number_column("ε alone"), lambda row: format_loss(row.epsilon)),
    ]
    return make_table(f"Mechanisms at {statement.site}", statement.legend, (), fields, groups=groups)


def _describe_run(statement: Statement, run: Run) -> Text:
    """A run, its loss and its settings."""
    noised = f"; what left with noise alone: {format_loss(run.noised)}" if run.noised != run.epsilon else ""
    facts = [f"ε of this run: {format_loss(run.epsilon)}{noised}."]
    if run.details.clip is not None:
        facts.append(f"Clip C = {run.details.clip:g}.")
    if run.details.views is not None:
        views = format_count(run.details.views, "view", "views")
        facts.append(f"K = {views} of a {statement.unit}, averaged before the clip.")
    if run.details.batch is not None:
        facts.append(f"{run.details.batch:g} {statement.unit}s expected in a sample.")
    return (f"{run.run} ", make_subline(" ".join(facts)))


def _build_unprotected_block(statement: Statement) -> Block:
    """What left without noise."""
    if not statement.unprotected:
        return Paragraph("Nothing: everything that left is listed above or declared below.")
    caption = "What left without noise. For it there is no formal guarantee: ε = ∞."
    fields: Fields = [
        ("request", lambda reply: reply.request),
        (Column("what it held", look="told"), lambda reply: reply.content or DASH),
        (number_column("times"), lambda reply: format_whole(reply.times)),
        (number_column("bytes"), lambda reply: format_size(reply.bytes)),
    ]
    return make_table(f"What left {statement.site} without a guarantee", caption, statement.unprotected, fields)


def _build_common_blocks(statements: Sequence[Statement]) -> list[Block]:
    """What no statement covers, and what all of them compare; what several say is printed once."""
    blocks: list[Block] = [
        Heading("Always outside the guarantee"),
        Items([*dict.fromkeys(text for statement in statements for text in statement.outside)]),
        Heading("Neighbouring data sets"),
        Paragraph(f"The guarantee compares {statements[0].adjacency}."),
    ]
    paragraphs = list(dict.fromkeys(each for statement in statements for each in statement.paragraphs))
    for title in dict.fromkeys(each.title for each in paragraphs):
        blocks += [Heading(title), *(Paragraph(each.text) for each in paragraphs if each.title == title)]
    return blocks


def _build_audit_blocks(audits: Sequence[Audit]) -> list[Block]:
    """Audits of mechanisms."""
    title = "Audit of the mechanism"
    if not audits:
        return [Heading(title), Paragraph("None was run.", "note")]
    fields: Fields = [
        ("verdict", lambda audit: Span("refuted", "down") if audit.is_refuted else "not refuted"),
        (number_column("claimed ε"), lambda audit: f"{audit.claimed:g}"),
        (number_column("lower bound"), lambda audit: f"{audit.bound:.3g}"),
        (number_column("δ"), lambda audit: f"{audit.delta:g}"),
        (number_column("confidence"), lambda audit: f"{100 * audit.confidence:g} %"),
        (number_column("synthetic patients"), lambda audit: format_whole(audit.canaries)),
        (number_column("steps"), lambda audit: format_whole(audit.steps)),
    ]
    return [Heading(title), make_table(title, AUDITED, audits, fields)]


def _build_membership_blocks(attacks: Sequence[MembershipRow]) -> list[Block]:
    """Attacks that detect who took part, with those that have no result."""
    if not attacks:
        return []
    blocks: list[Block] = [Heading("Membership inference: attacks that detect who took part")]
    for note, group in sorted(group_by((a for a in attacks if not a.others), lambda a: a.note).items()):
        text = f"{len(group)} of {len(attacks)} attacks: {note or 'no result'} ({_name_attacks(group)})."
        blocks.append(Paragraph(text, "note"))
    judged, outcome = [attack for attack in attacks if attack.others], Column("verdict", look="told")
    if not judged:
        return blocks
    fields: Fields = [
        ("method", lambda row: row.method),
        ("hospital", lambda row: row.site),
        (number_column("AUC"), _describe_auc),
        (number_column("control"), lambda row: format_number(row.control_auc)),
        (number_column("took part"), lambda row: format_whole(row.members)),
        (number_column("others"), lambda row: format_whole(row.others)),
        (outcome, lambda row: (membership_outcome(row).word, Span(row.note, "sub why") if row.note else "")),
    ]
    blocks.append(make_table("Membership inference", MEMBERSHIP, judged, fields, method=lambda row: row.method))
    best = find_strongest_attack(judged)
    if best is None:
        return [*blocks, Paragraph(NO_SUCCESS)]
    name = Span(f"{best.method} at {best.site}.", "b")
    return [*blocks, Paragraph((name, f" {membership_outcome(best).sentence} {REMEDY}"))]


def _describe_auc(row: MembershipRow) -> Text:
    """The AUC of an attack with its interval."""
    interval = make_subline(f"{format_number(row.low)} – {format_number(row.high)}")
    return (Span(format_number(row.auc), "value"), " ", interval)


def _build_inversion_blocks(attacks: Sequence[InversionRow]) -> list[Block]:
    """Attacks that reconstruct training images, with those that have no result."""
    if not attacks:
        return []
    blocks: list[Block] = [Heading("Inversion: attacks that reconstruct training images")]
    for note, group in sorted(group_by((a for a in attacks if not a.images), lambda a: a.note).items()):
        blocks.append(Paragraph(f"{note or 'no result'}: {_name_attacks(group)}.", "note"))
    fields: Fields = [
        ("method", lambda row: row.method),
        ("hospital", lambda row: row.site),
        ("reconstructed from", lambda row: row.attack),
        (number_column("PSNR, dB"), lambda row: format_decibel(row.psnr)),
        (number_column("of the mean image"), lambda row: format_decibel(row.floor_psnr)),
        (number_column("SSIM"), lambda row: format_number(row.ssim)),
        (number_column("of the mean image"), lambda row: format_number(row.floor_ssim)),
        (number_column("better than the mean image"), lambda row: f"{row.better} of {row.images}"),
    ]
    judged = [attack for attack in attacks if attack.images]
    return (
        [*blocks, make_table("Inversion", INVERSION, judged, fields, method=lambda row: row.method)]
        if judged
        else blocks
    )


def _name_attacks(attacks: Sequence[MembershipRow | InversionRow]) -> str:
    """The model of each attack."""
    return ", ".join(f"{attack.method} at {attack.site}" for attack in attacks)
