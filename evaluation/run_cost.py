"""What a run took: sizes of methods, stages, and code of other packages, as sections of the coordinator's page."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.page import Block, Column, Fields, Paragraph, Section, make_table, number_column
from evaluation.records import OtherCode, RunPage, StageState
from evaluation.score_cells import DASH
from evaluation.wording import format_duration, format_number, format_size, format_whole

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
