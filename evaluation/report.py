"""The pages: the coordinator's, made from messages only, and each hospital's own, in the federation or outside, which
stays at the hospital.

All input is in the frozen records of `evaluation.records`; a page is one self-contained HTML text without script, and
without any reference to another document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evaluation import answers_section, common_sections, privacy_blocks, score_cells, score_notes, score_tables
from evaluation.adaptation import AdaptedLine
from evaluation.answers import site_answers
from evaluation.classes import KINDS, list_mean_classes
from evaluation.drawing import Picture
from evaluation.grid import (
    column_patients,
    rows_by_column,
    weak_rows,
)
from evaluation.leaving import compute_totals
from evaluation.measures import list_further_measures, list_leading_measures, list_whole_measures, select_whole_rows
from evaluation.notices import row_notes
from evaluation.overlap import HD95
from evaluation.privacy_blocks import collect_common_texts
from evaluation.records import Quarantined, Reason, RunPage, SitePage
from evaluation.rendering import render_page, render_template, share_functions
from evaluation.rows import FLOORS, PRIVATE, ScoreRow
from evaluation.run_page import build_run_page

SHARED: Sequence[Callable[..., object]] = (
    *(answers_section.build_answers, answers_section.build_banner, common_sections.command_blocks),
    *(score_cells.named_method, score_cells.score_cell),
    *(score_notes.build_noise_note, score_notes.build_number_note, score_notes.build_masks_note),
    *(score_notes.build_weak_note, score_notes.build_parts_note),
    *(score_notes.describe_adaptation, score_notes.describe_withdrawal),
    *(score_tables.build_further_table, score_tables.build_part_tables),
    *(score_tables.build_space_blocks, score_tables.build_share_blocks),
    *(privacy_blocks.build_loss_table, privacy_blocks.build_mechanism_blocks, privacy_blocks.build_common_blocks),
    *(privacy_blocks.build_audit_blocks, privacy_blocks.build_membership_blocks, privacy_blocks.build_no_statement),
)
"""What the template of a hospital's own page calls, by `parts.html` and `statement.html`."""


def render_coordinator_page(page: RunPage) -> str:
    """The run in one page: scores, patients, what left."""
    return render_page(build_run_page(page))


def render_site_page(page: SitePage) -> str:
    """One hospital's page, with pictures of its patients: it is written to that hospital's disk only."""
    return _render_own_page("site.html", _site_values(page))


def _render_own_page(template: str, values: Mapping[str, object]) -> str:
    """A page from a template of its own, with the blocks that it shares with the coordinator's."""
    share_functions(SHARED)
    return render_template(template, **values)


def _site_values(page: SitePage) -> dict[str, object]:
    """The values of a hospital page's template."""
    statements = () if page.statement is None else (page.statement,)
    return {
        "page": page,
        "answers": site_answers(page),
        "notes": row_notes(page.scores, page.harmony, page.spaces, page.site),
        "further": list_further_measures(page.scores),
        "measures": list_whole_measures(page.scores, page.scored_parts),
        "foreign": False,
        "leading_measures": list_leading_measures(page.scores, page.structures, page.scored_parts),
        "over": list_mean_classes(page.scores, page.scored_parts, ordered=page.part_word != "class"),
        "kinds": KINDS,
        "floors": FLOORS,
        "grid": rows_by_column(page.scores),
        "held": column_patients(page.scores),
        "tables": list(dict.fromkeys(row.method for row in page.scores)),
        "tested": [page.site],
        "weak": weak_rows(select_whole_rows(page.scores, page.scored_parts)),
        "totals": compute_totals(page.left, statements),
        "noise": max((row.noise for row in page.scores), default=0.0),
        "statements": statements,
        "common": collect_common_texts(statements),
        "reasons": _group_by_reason(page.quarantine),
    }


@dataclass(frozen=True)
class OutsideDetails:
    """What an external site's page has in addition to a hospital's page. field: as in `RunPage`. pictures: of the
    lines' masks.
    """

    lines: tuple[AdaptedLine, ...]
    field: str = ""
    outlines: tuple[Picture, ...] = ()


def render_outside_page(page: SitePage, details: OutsideDetails) -> str:
    """An external site's page, for its disk only. page: with scores by line, of all of its patients, and one split."""
    values = {"foreign": True, "beyond": details, "best": select_best_rows(page.scores)}
    return _render_own_page("outside.html", {**_site_values(page), **values})


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


def _group_by_reason(quarantine: Sequence[Quarantined]) -> list[Reason]:
    """The quarantine by reason and text, most frequent first."""
    studies_by_reason: dict[tuple[str, str], list[str]] = {}
    for study in quarantine:
        studies_by_reason.setdefault((study.reason, study.detail), []).append(study.study)
    reasons = [Reason(reason, detail, tuple(studies)) for (reason, detail), studies in studies_by_reason.items()]
    return sorted(reasons, key=lambda reason: (-len(reason.studies), reason.reason))
