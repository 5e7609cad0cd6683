"""The pages: the coordinator's, made from messages only, and each hospital's own, in the federation or outside, which
stays at the hospital.

All input is in the frozen records of `evaluation.records`; a page is one self-contained HTML text without script, and
without any reference to another document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.adaptation import AdaptedLine
from evaluation.answers import run_answers, site_answers
from evaluation.choice import primary_measure
from evaluation.classes import KINDS, class_measure_name, list_mean_classes
from evaluation.drawing import Picture
from evaluation.gap_figure import draw_gap_shares
from evaluation.grid import (
    column_name,
    column_patients,
    count_decided_gains,
    pairs_by_column,
    rows_by_column,
    weak_columns,
    weak_rows,
)
from evaluation.harmonized import find_unadapted_lines, select_overall_rows
from evaluation.leaving import compute_totals, list_patient_records
from evaluation.many import rank_hospitals
from evaluation.metrics import FURTHER
from evaluation.notices import row_notes
from evaluation.numbers import AGREEMENT
from evaluation.overlap import DICE, HD95
from evaluation.records import Quarantined, Reason, RunPage, SitePage
from evaluation.rendering import render_template
from evaluation.rows import FLOORS, OUTSIDE, OVERALL, PRIVATE, PRIVATE_MEAN, PUBLIC, GapRow, ScoreRow
from evaluation.wording import READABLE
from privacy.release.statement import Audit, Statement


def render_coordinator_page(page: RunPage) -> str:
    """The run in one page: scores, patients, what left."""
    sites = sorted({site for row in page.scores if row.protocol == PRIVATE for site in row.sites})
    return render_template(
        "coordinator.html",
        page=page,
        answers=run_answers(page),
        patients=list_patient_records(page.left),
        notes=row_notes(page.scores, page.harmony, page.spaces),
        measures=_whole_measures(page.scores, page.scored_parts),
        further=_further_measures(page.scores),
        leading=_leading_measures(page.scores, page.structures, page.scored_parts),
        over=list_mean_classes(page.scores, page.scored_parts, ordered=page.part_word != "class"),
        kinds=KINDS,
        floors=FLOORS,
        tested=sites,
        order=rank_hospitals(page.scores),
        many=max(len(sites), len(page.sites)) > READABLE,
        grid=rows_by_column(page.scores),
        by=primary_measure(page.scores),
        held=column_patients(page.scores),
        decided=count_decided_gains(page.scores, primary_measure(page.scores)),
        tables=_unique_in_order(row.method for row in page.scores),
        pairs=pairs_by_column(page.pairs),
        compared=_unique_in_order(name for row in page.pairs for name in (row.method, row.other)),
        weak=weak_rows(_whole_rows(page.scores, page.scored_parts)),
        trainings=max((row.trainings for row in page.scores), default=1),
        over_sites=[p for p in (PRIVATE_MEAN, OVERALL, PUBLIC) if any(row.protocol == p for row in page.scores)],
        totals=compute_totals(page.left, page.statements),
        noise=max((row.noise for row in page.scores), default=0.0),
        common=_collect_common_texts(page.statements, page.audits),
        divided={(site.site, s.split): s for site in page.sites for s in site.splits},
        splits=_unique_in_order(s.split for site in page.sites for s in site.splits),
        withdrawn=[site for site in (*page.sites, *page.external_sites) if site.withdrawn],
        requests=_unique_in_order(entry.request for entry in page.left),
        sent={(entry.site, entry.request): entry for entry in page.left},
        weak_columns=weak_columns(page.scores),
        beyond=rows_by_column(page.outside),
        beyond_held=column_patients(page.outside),
        lines=_unique_in_order(row.method for row in page.outside),
        unadapted=find_unadapted_lines(page.outside, page.untreated),
        external=sorted({row.sites[0] for row in page.outside if row.protocol == OUTSIDE}),
        unknown=[site.site for site in page.external_sites],
        **_share_tables(page.shares),
    )


def _share_tables(rows: Sequence[GapRow]) -> dict[str, object]:
    """The values of tables and the figure of shares of the oracle gap: those over all hospitals, and all by column."""
    return {
        "shares": {row.method: row for row in select_overall_rows(rows)},
        "share_picture": draw_gap_shares(rows),
        "share_grid": {(row.method, column_name(row)): row for row in rows},
        "share_columns": {column_name(row): row.sites[0] if row.protocol == PRIVATE else row.protocol for row in rows},
    }


def render_site_page(page: SitePage) -> str:
    """One hospital's page, with pictures of its patients: it is written to that hospital's disk only."""
    return render_template("site.html", **_site_values(page))


def _site_values(page: SitePage) -> dict[str, object]:
    """The values of a hospital page's template."""
    statements = () if page.statement is None else (page.statement,)
    return {
        "page": page,
        "answers": site_answers(page),
        "notes": row_notes(page.scores, page.harmony, page.spaces, page.site),
        "further": _further_measures(page.scores),
        "measures": _whole_measures(page.scores, page.scored_parts),
        "foreign": False,
        "leading_measures": _leading_measures(page.scores, page.structures, page.scored_parts),
        "over": list_mean_classes(page.scores, page.scored_parts, ordered=page.part_word != "class"),
        "kinds": KINDS,
        "floors": FLOORS,
        "grid": rows_by_column(page.scores),
        "held": column_patients(page.scores),
        "tables": _unique_in_order(row.method for row in page.scores),
        "tested": [page.site],
        "weak": weak_rows(_whole_rows(page.scores, page.scored_parts)),
        "totals": compute_totals(page.left, statements),
        "noise": max((row.noise for row in page.scores), default=0.0),
        "statements": statements,
        "common": _collect_common_texts(statements),
        "reasons": _group_by_reason(page.quarantine),
        **_share_tables(page.shares),
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
    return render_template(
        "outside.html", **{**_site_values(page), "foreign": True}, beyond=details, best=select_best_rows(page.scores)
    )


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


def _leading_measures(rows: Sequence[ScoreRow], structures: Sequence[str], parts: Sequence[str]) -> list[str]:
    """The measures of the first table: for several structures those over all of them; for labels not the further
    ones, nor those of single classes or cuts.
    """
    each = {f"{name} {structure}" for name in (DICE.name, HD95.name) for structure in structures}
    each |= {measure.name for measure in FURTHER} | {*AGREEMENT}
    return [name for name in _whole_measures(rows, parts) if name not in each]


def _whole_measures(rows: Sequence[ScoreRow], parts: Sequence[str]) -> list[str]:
    """All measures but those of single classes or cuts, which have tables of their own."""
    return _unique_in_order(row.measure for row in _whole_rows(rows, parts))


def _whole_rows(rows: Sequence[ScoreRow], parts: Sequence[str]) -> list[ScoreRow]:
    """All rows but those of single classes or cuts."""
    of_one = {class_measure_name(kind, name) for kind in KINDS for name in parts}
    return [row for row in rows if row.measure not in of_one]


def _further_measures(rows: Sequence[ScoreRow]) -> list[str]:
    """The measures of the second table."""
    further = {measure.name for measure in FURTHER} | {*AGREEMENT}
    return [name for name in _unique_in_order(row.measure for row in rows) if name in further]


def _group_by_reason(quarantine: Sequence[Quarantined]) -> list[Reason]:
    """The quarantine by reason and text, most frequent first."""
    studies_by_reason: dict[tuple[str, str], list[str]] = {}
    for study in quarantine:
        studies_by_reason.setdefault((study.reason, study.detail), []).append(study.study)
    reasons = [Reason(reason, detail, tuple(studies)) for (reason, detail), studies in studies_by_reason.items()]
    return sorted(reasons, key=lambda reason: (-len(reason.studies), reason.reason))


def _unique_in_order(names: Iterable[str]) -> list[str]:
    """The distinct names, in order of appearance."""
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class _CommonTexts:
    """What the statements of several hospitals have in common, to be printed once."""

    outside: tuple[str, ...]
    paragraphs: Mapping[str, tuple[str, ...]]
    audits: tuple[Audit, ...]


def _collect_common_texts(statements: Sequence[Statement], audits: Sequence[Audit] = ()) -> _CommonTexts:
    """All texts outside the guarantee, all paragraphs by title, and all audits (of the run and of its hospitals),
    each once.
    """
    statement_audits = [statement.audit for statement in statements if statement.audit is not None]
    paragraphs: dict[str, tuple[str, ...]] = {}
    for paragraph in dict.fromkeys(p for statement in statements for p in statement.paragraphs):
        paragraphs[paragraph.title] = (*paragraphs.get(paragraph.title, ()), paragraph.text)
    outside = dict.fromkeys(text for statement in statements for text in statement.outside)
    return _CommonTexts(tuple(outside), paragraphs, tuple(dict.fromkeys([*audits, *statement_audits])))
