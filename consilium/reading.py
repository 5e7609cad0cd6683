"""Reads the results of a run that went to its end from its folder: what is its own, whatever else lies there."""

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
    """The results of a run that went to its end. folder: the run's. hospitals: of its settings."""
    report, train = ended.artifacts["report"], ended.artifacts["train"]
    rows = tuple(_score(row) for row in json.loads((report / "scores.json").read_text(encoding="utf-8")))
    use = json.loads((report / ANSWERS).read_text(encoding="utf-8"))["use"]
    told = json.loads((report / REPORT).read_text(encoding="utf-8"))
    here = {one: folder / "sites" / one for one in hospitals if told["simulation"]}
    kept = {one["site"]: read_recommended(here[one["site"]]) if one["site"] in here else None for one in use}
    losses, starts = {}, dict[str, Mapping[str, Json]]()
    for path in list_paths(train, "*.json"):
        said = json.loads(path.read_text(encoding="utf-8"))
        if "losses" in said:
            losses[str(said["label"])] = {
                site: {int(number): float(loss) for number, loss in own.items()} for site, own in said["losses"].items()
            }
            starts |= {str(said["label"]): said["start"]} if "start" in said else {}
    own_files = [*_models(folder, told), report / REPORT, *([] if yaml is None else [yaml])]
    return Results(
        folder,
        report,
        ended.ran,
        ended.kept,
        rows,
        losses,
        starts,
        _statements(report),
        {one["site"]: (said.decision.method if (said := kept[one["site"]]) else one["method"]) or None for one in use},
        not_guaranteed,
        yaml,
        {path: digest_of(path) for path in own_files},
        {path: _head(path) for home in here.values() if (path := home / FILE).is_file()},
    )


def _models(folder: Path, told: Mapping[str, Any]) -> Iterator[Path]:
    """The finished models of a run, by its report: others' lie beside them. None of hospitals elsewhere."""
    for one in told["models"]:
        path = model_at(folder, str(one["method"]), str(one["site"]))
        if told["simulation"] and one["file"] and path.is_file():
            yield path


def _head(ledger: Path) -> tuple[int, str] | None:
    """None of one that is damaged, which is told to whoever reads it."""
    try:
        return ledgers.head(ledger)
    except Damaged:
        return None


def _score(row: Mapping[str, Any]) -> Score:
    where = str(row["sites"][0]) if row["protocol"] in AT_ONE else str(row["protocol"])
    value, low, high = (math.nan if row[name] is None else float(row[name]) for name in ("value", "low", "high"))
    return Score(row["method"], where, row["measure"], value, low, high, bool(row["assessable"]), int(row["patients"]))


def _statements(report: Path) -> dict[str, Statement]:
    text = (report / "statement.md").read_text(encoding="utf-8")
    said = json.loads((report / "statement.json").read_text(encoding="utf-8"))
    return {
        site: Statement(
            site,
            own["unit"],
            own["adjacency"],
            float(own["epsilon"]),
            float(own["delta"]),
            own["meaning"],
            tuple(own["outside"]),
            text,
        )
        for site, own in said.items()
    }
