"""A model card, written by the machine: every figure is one that the coordinator's page of the run holds.

What a hospital did not release is not there: counts of patients, scores and ε are taken from `report.json` of the run,
which holds what left hospitals and nothing else, and of it this hospital's own lines alone. Figures of other hospitals
are theirs to hand on. Without a report the card says so and gives none.

The headings follow Mitchell et al., Model Cards for Model Reporting, FAT* 2019.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.rows import PRIVATE
from federation.models.adapted import fixed_in
from federation.parameters import count_values, read_parameters
from pipelines.exports.network import describe_preparation
from pipelines.hospital.beginnings import START, describe_beginnings
from pipelines.loader.validation import to_plain
from pipelines.models.file import ALGORITHM, Ready
from privacy.message import Json, as_mapping

INTENDED = "Research on images that are prepared as stated below. Not a medical device, not for diagnosis."
LIMITS = (
    "It was scored on test patients of the hospital named here; elsewhere it may be worse.",
    "Its probabilities are not calibrated for another hospital, unless the settings below say how.",
    "Images that were prepared in another way get a score as well, and it means nothing.",
)
STATED = ("unit", "adjacency", "epsilon", "delta", "accountant", "meaning", "outside", "first", "last", "lines")
"""Of a privacy statement, what the card quotes."""
FIGURES = ("measure", "value", "low", "high", "patients", "images", "positives", "assessable", "noise")
"""Of a row of scores, what the card quotes."""


class Report(NamedTuple):
    """The coordinator's `report.json`. verified: whether the training that it reports is the one that made the model;
    None if the run's other artifacts are not there to tell.
    """

    said: Mapping[str, Any]
    verified: bool | None


def find_report(model: Path) -> Path | None:
    """`report.json` of the run in whose folder a model lies, the newest; None if there is none."""
    folders = model.resolve().parents
    reports = [] if len(folders) < 4 else [*(folders[3] / "report").glob("*/report.json")]
    return max(reports, key=lambda path: path.stat().st_mtime, default=None)


def read_report(path: Path, ready: Ready) -> Report:
    """Read a run's report, and check that it reports this model's run.

    Raises:
        ValueError: it is none, or of another run, hospital, method or training.
        OSError: it cannot be read.
    """
    site, label, run = (str(ready.facts.get(name, "")) for name in ("site", "label", "run"))
    try:
        page = json.loads(path.read_bytes())
        known = {str(row["site"]) for row in page["sites"]}, {str(row["method"]) for row in page["models"]}
        about = str(page["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no report.json of a run ({error}); give runs/NAME/report/DIGEST/report.json"
        ) from error
    wrong = (
        [] if run.partition("/")[0] == about else [f"it is of the run {about}, the model of {run.partition('/')[0]}"]
    )
    wrong += [] if site in known[0] else [f"it knows no hospital {site}"]
    wrong += [] if label in known[1] else [f"it knows no method {label}"]
    verified = None if wrong else _same_training(path, page, ready)
    if verified is False:
        wrong.append("it reports another training of this method; make the report again")
    if wrong:
        raise ValueError(f"--report {path}: {'; '.join(wrong)}")
    return Report(page, verified)


def _same_training(path: Path, page: Mapping[str, Any], ready: Ready) -> bool | None:
    """Whether the stage `train` that the report names made this model; None if its artifact is not there."""
    run = path.resolve().parents[2]
    train = next((str(stage["why"]) for stage in page["stages"] if stage["stage"] == "train"), "")
    results = [] if not train else sorted((run / train).glob("*.json"))
    runs = {json.loads(path.read_bytes()).get("train_run") for path in results if path.name != "manifest.json"}
    return str(ready.facts.get("run")) in runs if runs else None


def build_card(ready: Ready, report: Report | None, *, licence: str, leaves: str) -> dict[str, Json]:
    """The card as plain JSON. licence: of the model; empty = none was given. leaves: who may get it, in words."""
    facts = ready.facts
    site, label = str(facts.get("site", "")), str(facts.get("label", ""))
    page = None if report is None else report.said
    return {
        "format": 1,
        "model": {
            "label": label,
            "digest": ready.digest,
            "site": site,
            "run": facts.get("run"),
            "round": facts.get("round"),
            "training": {name: facts.get(name) for name in ("rounds_trained", "rounds", "ended")},
            "program": facts.get("program"),
            "checkpoint": facts.get("checkpoint"),
            "parameters": count_values({**read_parameters(ready.module), **fixed_in(ready.module)}),
            "network": to_plain(ready.task.model),
        },
        "method": {
            "settings": facts.get("algorithm"),
            "what": _describe_method(facts),
            "calibration": facts.get("calibration"),
        },
        "training_data": None if page is None else _describe_data(page, site),
        "scores": None if page is None else _list_scores(page, site, label),
        "privacy": {
            "training": facts.get("privacy"),
            "statement": None if page is None else _select_statement(page, site),
            "attack": None if page is None else _select_attack(page, site, label),
        },
        "settings": None if page is None else _settings(page),
        "preparation": describe_preparation(ready),
        "unlike_studies": _describe_likeness(ready),
        "intended_use": INTENDED,
        "limits": [*LIMITS, *_own_limits(ready, report)],
        "leaves": leaves,
        "licence": licence or "none was given: ask the hospital before any use",
        "report": None if page is None else {"run": page["run"], "date": page["date"]},
    }


def _describe_method(facts: Mapping[str, Json]) -> str:
    """The first sentence on the method in the code."""
    method = ALGORITHM.validate_json(json.dumps(facts["algorithm"]), strict=True) if "algorithm" in facts else None
    lines = "" if method is None else (type(method).__doc__ or "").strip().split("\n\n")[0]
    return " ".join(lines.split())


def _describe_data(page: Mapping[str, Any], site: str) -> Json:
    """This hospital's counts as it released them, and how many hospitals took part."""
    site_counts = next(counts for counts in page["sites"] if counts["site"] == site)
    return {
        "hospitals": len(page["sites"]),
        "site": site,
        "splits": site_counts["splits"],
        "counted": site_counts["released"] or "exact",
    }


def _list_scores(page: Mapping[str, Any], site: str, label: str) -> Json:
    """This hospital's scores of this model, with intervals."""
    rows = [
        {name: row[name] for name in FIGURES}
        for row in page["scores"]
        if row["method"] == label and row["protocol"] == PRIVATE and row["sites"] == [site]
    ]
    return list(rows)


def _select_statement(page: Mapping[str, Any], site: str) -> Json:
    """Of this hospital's privacy statement the claim itself; an ε that is null there is infinite."""
    statement = next((row for row in page["statements"] if row["site"] == site), None)
    if statement is None:
        return None
    claim = {name: statement[name] for name in STATED}
    return {**claim, "epsilon": "Infinity" if claim["epsilon"] is None else claim["epsilon"]}


def _select_attack(page: Mapping[str, Any], site: str, label: str) -> Json:
    """How well the hospital's own membership attack tells training patients from others; None: it was not tried."""
    rows = (row for row in page["membership"] if row["site"] == site and row["method"] == label)
    attack = next(rows, None)
    return None if attack is None else {name: attack[name] for name in ("auc", "low", "high", "note")}


def _settings(page: Mapping[str, Any]) -> Json:
    """Digest of the run's settings, and why each stage ran."""
    stages: dict[str, Json] = {stage["stage"]: stage["why"] for stage in page["stages"]}
    return {"sha256": hashlib.sha256(str(page["settings"]).encode()).hexdigest(), "stages": stages}


def _describe_likeness(ready: Ready) -> Json:
    """How the model tells studies unlike those that it learnt from."""
    if isinstance(ready.likeness, str):
        return f"Whether a study is like those that the model learnt from cannot be told: {ready.likeness}."
    return (
        "The hospital's own copy marks studies that are unlike its training studies. The statistics for that come from "
        "training patients without noise and stay there, so an exported file cannot mark them."
    )


def _own_limits(ready: Ready, report: Report | None) -> Sequence[str]:
    """Limits that follow from the figures."""
    limits = []
    site, label = str(ready.facts.get("site", "")), str(ready.facts.get("label", ""))
    rows = [] if report is None else _list_scores(report.said, site, label)
    if report is None:
        limits.append("No scores are stated: the card was written without the report of the run.")
    elif not rows:
        limits.append("No scores are stated: the hospital released none of this model.")
    if isinstance(rows, list) and any(not as_mapping(row)["assessable"] for row in rows):
        limits.append("Some scores rest on too few test patients to be judged; they are marked.")
    if report is not None and report.verified is None:
        limits.append("Whether the report is of this very training could not be checked: its other artifacts are away.")
    if ready.facts.get("privacy") is None:
        limits.append("It was trained without differential privacy: it may tell of single training patients.")
    if began := describe_beginnings({"": {START: ready.facts.get(START)}}):
        limits.append(f"{began[0].upper()}{began[1:]}.")
    if ready.scale is not None:
        limits.append("It holds mean and spread of the training patients' columns, without noise.")
    return limits
