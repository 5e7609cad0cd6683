"""Reads the results of a finished run from its folder; files of other runs in that folder are ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from consilium.results import REPORT, Results, Score, Statement, digest_of, model_at
from evaluation.rows import AT_ONE
from pipelines.coordinator.artifacts import ANSWERS
from pipelines.ledger import FILE
from pipelines.models.recommended import read_recommended
from pipelines.runs.listing import list_paths
from pipelines.runs.runner import Results as Ended
from privacy.message import Json
from privacy.release import ledger as ledgers
from privacy.release.chain import Damaged


def read_results(
    ended: Ended, folder: Path, yaml: Path | None, not_guaranteed: tuple[str, ...], hospitals: Collection[str]
) -> Results:
    """The results of a finished run. folder: the run's. hospitals: of its settings."""
    report, train = ended.artifacts["report"], ended.artifacts["train"]
    rows = tuple(_parse_score(row) for row in json.loads((report / "scores.json").read_text(encoding="utf-8")))
    use = json.loads((report / ANSWERS).read_text(encoding="utf-8"))["use"]
    page = json.loads((report / REPORT).read_text(encoding="utf-8"))
    folder_of_site = {site: folder / "sites" / site for site in hospitals if page["simulation"]}
    recommendations = {
        entry["site"]: read_recommended(folder_of_site[entry["site"]]) if entry["site"] in folder_of_site else None
        for entry in use
    }
    losses, starts = {}, dict[str, Mapping[str, Json]]()
    for path in list_paths(train, "*.json"):
        method = json.loads(path.read_text(encoding="utf-8"))
        if "losses" in method:
            losses[str(method["label"])] = {
                site: {int(number): float(loss) for number, loss in site_losses.items()}
                for site, site_losses in method["losses"].items()
            }
            starts |= {str(method["label"]): method["start"]} if "start" in method else {}
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
            entry["site"]: (method.decision.method if (method := recommendations[entry["site"]]) else entry["method"])
            or None
            for entry in use
        },
        not_guaranteed,
        yaml,
        {path: digest_of(path) for path in own_files},
        {path: _ledger_head(path) for site_folder in folder_of_site.values() if (path := site_folder / FILE).is_file()},
    )


def _list_model_files(folder: Path, page: Mapping[str, Any]) -> Iterator[Path]:
    """The finished models that a run's report names, without those of hospitals on other machines."""
    for model in page["models"]:
        path = model_at(folder, str(model["method"]), str(model["site"]))
        if page["simulation"] and model["file"] and path.is_file():
            yield path


def _ledger_head(ledger: Path) -> tuple[int, str] | None:
    """The head of a ledger; None if it is damaged, which `Results.ledger` reports."""
    try:
        return ledgers.read_head(ledger)
    except Damaged:
        return None


def _parse_score(row: Mapping[str, Any]) -> Score:
    """One row of `scores.json` as a `Score`; null becomes NaN."""
    where = str(row["sites"][0]) if row["protocol"] in AT_ONE else str(row["protocol"])
    value, low, high = (math.nan if row[name] is None else float(row[name]) for name in ("value", "low", "high"))
    return Score(row["method"], where, row["measure"], value, low, high, bool(row["assessable"]), int(row["patients"]))


def _read_statements(report: Path) -> dict[str, Statement]:
    """The privacy statement of each hospital, from the report's folder."""
    text = (report / "statement.md").read_text(encoding="utf-8")
    statements = json.loads((report / "statement.json").read_text(encoding="utf-8"))
    return {
        site: Statement(
            site,
            statement["unit"],
            statement["adjacency"],
            float(statement["epsilon"]),
            float(statement["delta"]),
            statement["meaning"],
            tuple(statement["outside"]),
            text,
        )
        for site, statement in statements.items()
    }
