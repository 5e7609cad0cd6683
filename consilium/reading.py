"""Reads the results of a finished run from its folder; files of other runs in that folder are ignored."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from consilium.results import REPORT, Difference, Results, Round, Score, Statement, digest_of, model_at
from evaluation.records import RunPage
from evaluation.rows import AT_ONE, PairRow, ScoreRow
from pipelines.coordinator.artifacts import (
    RoundFigures,
    read_answers,
    read_page,
    read_round_figures,
    read_scores,
    read_statements,
)
from pipelines.coordinator.trained import read_trainings
from pipelines.ledger import FILE
from pipelines.models.recommended import read_recommended
from pipelines.runs.runner import Results as Ended
from privacy.release import ledger as ledgers
from privacy.release.chain import Damaged


def read_results(
    ended: Ended, folder: Path, yaml: Path | None, not_guaranteed: tuple[str, ...], hospitals: Collection[str]
) -> Results:
    """The results of a finished run. folder: the run's. hospitals: of its settings."""
    report = ended.artifacts["report"]
    rows = tuple(_build_score(row) for row in read_scores(report))
    use, page = read_answers(report).use, read_page(report)
    folder_of_site = {site: folder / "sites" / site for site in hospitals if page.simulation}
    recommendations = {
        choice.site: read_recommended(folder_of_site[choice.site]) if choice.site in folder_of_site else None
        for choice in use
    }
    trained = read_trainings(ended.artifacts["train"]) if "train" in ended.artifacts else {}
    losses = {
        name: {
            site: {int(number): math.nan if loss is None else loss for number, loss in site_losses.items()}
            for site, site_losses in method.losses.items()
        }
        for name, method in trained.items()
    }
    starts = {method.label: method.start for method in trained.values() if method.start is not None}
    own_files = [*_list_model_files(folder, page), report / REPORT, *([] if yaml is None else [yaml])]
    return Results(
        folder,
        report,
        ended.ran,
        ended.kept,
        rows,
        losses,
        starts,
        _read_statements(report),
        {
            choice.site: (record.decision.method if (record := recommendations[choice.site]) else choice.method) or None
            for choice in use
        },
        not_guaranteed,
        yaml,
        {path: digest_of(path) for path in own_files},
        {path: _ledger_head(path) for site_folder in folder_of_site.values() if (path := site_folder / FILE).is_file()},
        tuple(_build_round(each, losses) for each in read_round_figures(ended.artifacts.get("figures"))),
        tuple(_build_difference(row) for row in sorted(page.pairs, key=lambda row: row.protocol in AT_ONE)),
    )


def _build_round(figures: RoundFigures, losses: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Round:
    """What a hospital told of a round, with its loss. losses: by method, hospital and round."""
    scores = {name: math.nan if value is None else value for name, value in figures.scores.items()}
    measure = next(iter(scores), "")
    return Round(
        method=figures.training,
        hospital=figures.site,
        round=figures.round,
        loss=losses.get(figures.training, {}).get(figures.site, {}).get(figures.round, math.nan),
        measure=measure,
        score=scores.get(measure, math.nan),
        scores=scores,
        confusion=tuple(tuple(tuple(row) for row in table) for table in figures.confusion),
        seconds=math.nan if figures.seconds is None else figures.seconds,
    )


def _list_model_files(folder: Path, page: RunPage) -> Iterator[Path]:
    """The finished models that a run's report names, without those of hospitals on other machines."""
    for model in page.models:
        path = model_at(folder, model.method, model.site)
        if page.simulation and model.file and path.is_file():
            yield path


def _ledger_head(ledger: Path) -> tuple[int, str] | None:
    """The head of a ledger; None if it is damaged, which `Results.ledger` reports."""
    try:
        return ledgers.read_head(ledger)
    except Damaged:
        return None


def _build_score(row: ScoreRow) -> Score:
    """One row of the report as a `Score`."""
    where = row.sites[0] if row.protocol in AT_ONE else row.protocol
    return Score(row.method, where, row.measure, row.value, *row.widest, row.assessable, row.patients)


def _build_difference(row: PairRow) -> Difference:
    """A pair of the report as a `Difference`."""
    where = row.sites[0] if row.protocol in AT_ONE else row.protocol
    return Difference(row.method, row.other, where, row.measure, row.gain, row.low, row.high, row.assessable)


def _read_statements(report: Path) -> dict[str, Statement]:
    """The privacy statement of each hospital, from the report's folder."""
    text = (report / "statement.md").read_text(encoding="utf-8")
    return {
        site: Statement(
            site,
            statement.unit,
            statement.adjacency,
            statement.epsilon,
            statement.delta,
            statement.meaning,
            statement.outside,
            text,
        )
        for site, statement in read_statements(report).items()
    }
