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
from federation.parameters import count, read
from pipelines.exports.network import preparation
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
    found = [] if len(folders) < 4 else [*(folders[3] / "report").glob("*/report.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def read_report(path: Path, ready: Ready) -> Report:
    """Read a run's report, and check that it reports this model's run.

    Raises:
        ValueError: it is none, or of another run, hospital, method or training.
        OSError: it cannot be read.
    """
    site, label, run = (str(ready.facts.get(name, "")) for name in ("site", "label", "run"))
    try:
        said = json.loads(path.read_bytes())
        known = {str(one["site"]) for one in said["sites"]}, {str(one["method"]) for one in said["models"]}
        about = str(said["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no report.json of a run ({error}); give runs/NAME/report/DIGEST/report.json"
        ) from error
    wrong = (
        [] if run.partition("/")[0] == about else [f"it is of the run {about}, the model of {run.partition('/')[0]}"]
    )
    wrong += [] if site in known[0] else [f"it knows no hospital {site}"]
    wrong += [] if label in known[1] else [f"it knows no method {label}"]
    verified = None if wrong else _same_training(path, said, ready)
    if verified is False:
        wrong.append("it reports another training of this method; make the report again")
    if wrong:
        raise ValueError(f"--report {path}: {'; '.join(wrong)}")
    return Report(said, verified)


def _same_training(path: Path, said: Mapping[str, Any], ready: Ready) -> bool | None:
    """Whether the stage `train` that the report names made this model; None if its artifact is not there."""
    run = path.resolve().parents[2]
    train = next((str(one["why"]) for one in said["stages"] if one["stage"] == "train"), "")
    results = [] if not train else sorted((run / train).glob("*.json"))
    runs = {json.loads(one.read_bytes()).get("train_run") for one in results if one.name != "manifest.json"}
    return str(ready.facts.get("run")) in runs if runs else None


def card(ready: Ready, report: Report | None, *, licence: str, leaves: str) -> dict[str, Json]:
    """The card as plain JSON. licence: of the model; empty = none was given. leaves: who may get it, in words."""
    facts = ready.facts
    site, label = str(facts.get("site", "")), str(facts.get("label", ""))
    found = None if report is None else report.said
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
            "parameters": count({**read(ready.module), **fixed_in(ready.module)}),
            "network": to_plain(ready.task.model),
        },
        "method": {"settings": facts.get("algorithm"), "what": _what(facts), "calibration": facts.get("calibration")},
        "training_data": None if found is None else _data(found, site),
        "scores": None if found is None else _scores(found, site, label),
        "privacy": {
            "training": facts.get("privacy"),
            "statement": None if found is None else _statement(found, site),
            "attack": None if found is None else _attack(found, site, label),
        },
        "settings": None if found is None else _settings(found),
        "preparation": preparation(ready),
        "unlike_studies": _likeness(ready),
        "intended_use": INTENDED,
        "limits": [*LIMITS, *_own_limits(ready, report)],
        "leaves": leaves,
        "licence": licence or "none was given: ask the hospital before any use",
        "report": None if found is None else {"run": found["run"], "date": found["date"]},
    }


def _what(facts: Mapping[str, Json]) -> str:
    """The first sentence on the method in the code."""
    method = ALGORITHM.validate_json(json.dumps(facts["algorithm"]), strict=True) if "algorithm" in facts else None
    lines = "" if method is None else (type(method).__doc__ or "").strip().split("\n\n")[0]
    return " ".join(lines.split())


def _data(said: Mapping[str, Any], site: str) -> Json:
    """This hospital's counts as it released them, and how many hospitals took part."""
    own = next(one for one in said["sites"] if one["site"] == site)
    return {
        "hospitals": len(said["sites"]),
        "site": site,
        "splits": own["splits"],
        "counted": own["released"] or "exact",
    }


def _scores(said: Mapping[str, Any], site: str, label: str) -> Json:
    """This hospital's scores of this model, with intervals."""
    rows = [
        {name: row[name] for name in FIGURES}
        for row in said["scores"]
        if row["method"] == label and row["protocol"] == PRIVATE and row["sites"] == [site]
    ]
    return list(rows)


def _statement(said: Mapping[str, Any], site: str) -> Json:
    """Of this hospital's privacy statement the claim itself; an ε that is null there is infinite."""
    own = next((one for one in said["statements"] if one["site"] == site), None)
    if own is None:
        return None
    found = {name: own[name] for name in STATED}
    return {**found, "epsilon": "Infinity" if found["epsilon"] is None else found["epsilon"]}


def _attack(said: Mapping[str, Any], site: str, label: str) -> Json:
    """How well the hospital's own membership attack tells training patients from others; None: it was not tried."""
    rows = (one for one in said["membership"] if one["site"] == site and one["method"] == label)
    found = next(rows, None)
    return None if found is None else {name: found[name] for name in ("auc", "low", "high", "note")}


def _settings(said: Mapping[str, Any]) -> Json:
    stages: dict[str, Json] = {one["stage"]: one["why"] for one in said["stages"]}
    return {"sha256": hashlib.sha256(str(said["settings"]).encode()).hexdigest(), "stages": stages}


def _likeness(ready: Ready) -> Json:
    if isinstance(ready.likeness, str):
        return f"Whether a study is like those that the model learnt from cannot be told: {ready.likeness}."
    return (
        "The hospital's own copy marks studies that are unlike its training studies. The statistics for that come from "
        "training patients without noise and stay there, so an exported file cannot mark them."
    )


def _own_limits(ready: Ready, report: Report | None) -> Sequence[str]:
    """Limits that follow from the figures."""
    found = []
    site, label = str(ready.facts.get("site", "")), str(ready.facts.get("label", ""))
    rows = [] if report is None else _scores(report.said, site, label)
    if report is None:
        found.append("No scores are stated: the card was written without the report of the run.")
    elif not rows:
        found.append("No scores are stated: the hospital released none of this model.")
    if isinstance(rows, list) and any(not as_mapping(row)["assessable"] for row in rows):
        found.append("Some scores rest on too few test patients to be judged; they are marked.")
    if report is not None and report.verified is None:
        found.append("Whether the report is of this very training could not be checked: its other artifacts are away.")
    if ready.facts.get("privacy") is None:
        found.append("It was trained without differential privacy: it may tell of single training patients.")
    if began := describe_beginnings({"": {START: ready.facts.get(START)}}):
        found.append(f"{began[0].upper()}{began[1:]}.")
    if ready.scale is not None:
        found.append("It holds mean and spread of the training patients' columns, without noise.")
    return found
