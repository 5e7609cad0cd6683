"""A number as the task, from tables and phantoms to pages, predictions and reports; and what refuses it."""

from __future__ import annotations

import copy
import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from federation.task import STEPS
from pipelines.data.cohort import read_cohort
from pipelines.data.images import Features
from pipelines.data.label_numbers import BANDS, LabelRange, find_band, read_range
from pipelines.data.sources import TableSource
from pipelines.data.study import Unusable
from pipelines.hospital import released_scores
from pipelines.hospital.hospital import Hospital
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.file import read_ready
from pipelines.predict import main as predict
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.dp.access import Rows
from privacy.dp.events import Gaussian, Part, compose_events
from privacy.dp.mechanisms import vote_histogram
from privacy.message import from_file
from privacy.settings_error import SettingsError

TASK = {"kind": "regression", "what": "gland area", "unit": "cm2", "range": [0.0, 20.0]}
AGE = LabelRange(what="age", unit="a", low=20.0, high=120.0)
MEND = "Correct the table."


def numbered(base: dict[str, Any] = BASE, **changes: Any) -> dict[str, Any]:
    """Settings of a run that predicts the area of the phantom's gland."""
    said = copy.deepcopy(base)
    for site in said["sites"].values():
        site["source"] |= {"labels": "gland_area", "patients": 16}
    said["images"] = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    said["task"] = dict(TASK)
    said["model"] = {"name": "cnn", "widths": [8, 16], "norm": "group"}
    said["train"]["methods"] = {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}
    return said | changes


def find_problems(said: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)
    return "; ".join(f"{problem.path}: {problem.message}" for problem in caught.value.problems)


@given(st.floats(20, 120))
def test_a_label_is_the_nearest_step_of_its_range_and_comes_back_within_half_a_step(value):
    step = AGE.find_step(repr(value), "line 1", mend=MEND)
    assert 0 <= step <= STEPS and abs(AGE.value_at(step / STEPS) - value) <= 100 / STEPS / 2 + 1e-9


@given(st.floats(20, 120), st.floats(0.001, 1000), st.floats(-1000, 1000))
def test_a_change_of_unit_changes_no_step(value, factor, shift):
    """Within one step, where the product is rounded."""
    other = LabelRange(what="age", unit="d", low=factor * 20 + shift, high=factor * 120 + shift)
    moved = min(max(factor * value + shift, other.low), other.high)
    first, second = (r.find_step(repr(v), "", mend=MEND) for r, v in ((AGE, value), (other, moved)))
    assert abs(first - second) <= 1


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not 20 <= value <= 120))
def test_a_label_outside_is_no_label_unless_it_may_be_clipped(value):
    with pytest.raises(Unusable) as caught:
        AGE.find_step(repr(value), "line 1", mend=MEND)
    assert caught.value.reason == "outside_range" and "20 to 120 a" in caught.value.detail
    clipped = LabelRange(what="age", unit="a", low=20.0, high=120.0, clip=True)
    assert clipped.find_step(repr(value), "line 1", mend=MEND) == (0 if value < 20 else STEPS)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "no_label"), (" ", "no_label"), ("nan", "bad_label"), ("inf", "bad_label"), ("1e999", "bad_label"),
     ("12,5", "bad_label"), ("old", "bad_label"), ("0x20", "bad_label")],
)  # fmt: skip
def test_what_is_no_finite_number_is_never_a_label(text, reason, clip):
    labels = LabelRange(what="age", unit="a", low=20.0, high=120.0, clip=clip)
    with pytest.raises(Unusable) as caught:
        labels.find_step(text, "line 1", mend=MEND)
    assert caught.value.reason == reason


@given(st.integers(0, STEPS))
def test_bands_divide_the_range_evenly_and_survive_storage(step):
    band = find_band(step)
    assert 0 <= band < BANDS and band / BANDS <= step / STEPS <= (band + 1) / BANDS
    assert len(AGE.band_names) == BANDS and read_range({"number": AGE.to_json()}) == AGE


@pytest.mark.parametrize(
    "wrong",
    [{"low": 5.0, "high": 5.0}, {"low": 2.0, "high": 1.0}, {"high": math.inf}, {"unit": ""}, {"unit": "c m"},
     {"what": "<b>"}, {"what": ""}],
)  # fmt: skip
def test_a_range_that_is_none_is_refused(wrong):
    with pytest.raises(SettingsError):
        LabelRange(**{"what": "age", "unit": "a", "low": 0.0, "high": 1.0, **wrong})


def read_table(path: Path, rows: list[tuple[float, str]], number: LabelRange):
    path.write_text("x,age\n" + "".join(f"{x},{label}\n" for x, label in rows))
    source, shares = TableSource(file=str(path), label="age"), {"train": 0.5, "validation": 0.2, "test": 0.3}
    images = Features(numbers=("x",))
    return read_cohort(source, None, images, number=number, fractions=shares, seed=0, key=b"k" * 32)


def test_a_table_of_numbers_becomes_a_cohort_and_its_errors_a_quarantine(tmp_path: Path):
    good = [(float(i), f"{20 + 100 * i / 39:.3f}") for i in range(40)]
    bad = [(1.0, "130"), (2.0, "x"), (3.0, "")]
    reading = read_table(tmp_path / "t.csv", [*good, *bad], AGE)
    assert len(reading.cohort.labels) == 40
    assert reading.facts["rejected_by_reason"] == {"bad_label": 1, "missing_value": 1, "outside_range": 1}
    given = {float(label) for _, label in good}
    kept = [AGE.value_at(step / STEPS) for step in reading.cohort.labels.tolist()]
    assert max(min(abs(value - label) for label in given) for value in kept) < 100 / STEPS
    assert reading.facts["classes"] == [10, 10, 10, 10] and reading.cohort.recipe["number"] == AGE.to_json()
    for split in reading.facts["splits"].values():  # splits are balanced by bands
        assert max(split["classes"]) - min(split["classes"]) <= 2


def test_settings_of_a_number_are_read_and_written_again():
    config = validate_settings(read_yaml(yaml.safe_dump(numbered()), environment={}), Config)
    assert config.task_of("fedavg").kind == "regression" and config.task_of("fedavg").classes == 1
    again = validate_settings(read_yaml(yaml.safe_dump(to_plain(config)), environment={}), Config)
    assert again.task == config.task


def with_train(**changes: Any) -> dict[str, Any]:
    return numbered(train=copy.deepcopy(numbered()["train"]) | changes)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (with_train(methods={"m": {"name": "moments"}}), "needs classes, and the task is a number"),
        (with_train(methods={"m": {"name": "fedrod"}}), "shares of classes"),
        (with_train(methods={"m": {"name": "moe"}}), "leave this method out"),
        (with_train(work={"balance": True}), "a number has none"),
        (numbered(model={"name": "cam"}), "gives no number"),
        (numbered(model={"name": "unet", "levels": 2}), "gives no number"),
        (numbered(harmonize={"translate": {"z": {"name": "z_score"}}}), "harmonize: its veto asks"),
        (numbered(audit={"inversion": {}}), "audit.inversion: reconstructs"),
        (numbered(outside=["b"]), "sure it is of classes"),
        (numbered(evaluate={"variants": {"c": {"of": "fedavg", "calibration": "centred"}}}), "the task is a number"),
        (numbered(task=TASK | {"unit": "mL"}), "gland_area is in cm2, and task.unit is mL"),
        (numbered(task=TASK | {"range": [3.0, 3.0]}), "task.range"),
        (numbered(task=TASK | {"outside": "keep"}), "task.outside"),
        (numbered(task={"kind": "classification"}), "gland_area gives a number"),
        (numbered(evaluate={"window": [8, 8]}), "it is for masks"),
    ],
)
def test_what_needs_classes_refuses_a_number_with_its_reason(said, told):
    assert told in find_problems(said)


def test_a_phantom_with_classes_is_no_source_of_numbers():
    said = numbered()
    said["sites"]["a"]["source"]["labels"] = "significant"
    assert "significant gives classes, and the task is a number; say gland_area" in find_problems(said)


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    methods = {name: {"name": name} for name in ("local", "central", "fedavg", "fenda", "local_ridge", "local_svm")}
    few = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 8}
    floors = {"local_ridge": few, "local_svm": few}
    train = BASE["train"] | {"methods": methods, "method_model": floors, "schedule": {"rounds": 1}}
    return (
        finished_run(numbered(train=train, name="area", evaluate={"copies": 20}, audit={"membership": False}))
        / "runs"
        / "area"
    )


def artifact(root: Path, stage: str) -> Path:
    (folder,) = [path for path in (root / stage).iterdir() if (path / "manifest.json").exists()]
    return folder


def test_only_declared_sums_leave_and_every_method_has_its_rows(done: Path):
    for path in artifact(done, "evaluate").rglob("*.safetensors"):
        message = from_file(path)
        assert {name.removeprefix("floor/") for name in message.tensors} == {"errors", "tested"}
        assert message.tensors["errors"].shape == (21, 9)
    rows = json.loads((artifact(done, "report") / "scores.json").read_text())
    assert {row["method"] for row in rows} >= {"local", "central", "fedavg", "fenda", "local_ridge", "median guess"}
    assert {row["measure"] for row in rows} == {"MAE", "RMSE", "correlation", "bias", "lower limit", "upper limit"}


def test_the_coordinator_has_the_error_that_the_hospital_computes_from_its_patients(done: Path):
    """A second implementation, from what stays at the hospital, in the label's unit."""
    rows = json.loads((artifact(done, "report") / "scores.json").read_text())
    for site in ("a", "b"):
        for path in (done / "sites" / site / "scores").glob("*.safetensors"):
            kept = from_file(path).tensors
            if "floor/probabilities" not in kept:
                continue
            off = 20 * (kept["probabilities"][:, 0].double() - kept["y"].double() / STEPS).numpy()
            guess = 20 * (kept["floor/probabilities"][:, 0].double() - kept["y"].double() / STEPS).numpy()
            found = {
                (row["method"], row["measure"]): row["value"]
                for row in rows
                if row["protocol"] == "private" and row["sites"] == [site]
            }
            assert np.abs(guess).mean() == pytest.approx(found["median guess", "MAE"], abs=1e-3)
            errors = {value for (_, measure), value in found.items() if measure == "MAE"}
            assert min(abs(np.abs(off).mean() - error) for error in errors) < 1e-3


def test_pages_say_what_is_predicted_and_nothing_of_positives(done: Path):
    for page in (artifact(done, "report") / "report.html", done / "sites" / "a" / "report.html"):
        text = page.read_text()
        assert "gland area, in cm2" in text and "between 0 and 20" in text and "0 to 5 cm2" in text
        heads = {head.strip() for head in re.findall(r"<th[^>]*>([^<]*)", text)}
        assert {"MAE", "bias", "correlation"} <= heads
        assert not heads & {"AUC", "sensitivity", "Dice", "positive slices", "negative slices"}
        assert "limits of agreement" in text
    assert ">Agreement</h3>" in text and ">Agreement</h3>" not in (artifact(done, "report") / "report.html").read_text()


def test_predictions_have_numbers_with_their_unit_and_reports_the_code_of_ucum(done: Path, tmp_path: Path, capsys):
    file = done / "sites" / "a" / "ready" / "fedavg.safetensors"
    ready = read_ready(file)
    assert ready.number == LabelRange(what="gland area", unit="cm2", low=0.0, high=20.0)
    (images,) = (done / "sites" / "a" / "phantom").glob("*/images")
    assert predict([str(file), str(images), "--no-gland", "--reports", "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert len(rows) == 16
    for row in rows:
        low, mean, high = (float(row[name]) for name in ("smallest", "predicted", "largest"))
        assert 0 <= low <= mean <= high <= 20 and row["unit"] == "cm2"
        report = pydicom.dcmread(tmp_path / row["report"])
        text = str(report)
        assert "gland area, predicted by the model" in text and "cm2" in text and "UCUM" in text
        assert row["predicted"][:4] in text
    assert "gland area in cm2" in "".join(capsys.readouterr())
    assert predict([str(file), str(images), "--threshold", "0.3", "--out", str(tmp_path)]) == 2
    assert "predicts a number" in "".join(capsys.readouterr())


def test_commands_that_know_no_numbers_refuse_the_model(done: Path, tmp_path: Path, capsys):
    from pipelines.export import main as export

    file = done / "sites" / "a" / "ready" / "fedavg.safetensors"
    assert export([str(file), "--onnx", "--out", str(tmp_path)]) != 0
    assert "predicts a number" in "".join(capsys.readouterr())


def test_the_histogram_of_errors_has_the_noise_that_is_told_and_booked_and_nothing_else_leaves(tmp_path, monkeypatch):
    """One histogram, one Gaussian event of its noise for the cut's test patients, and no sum beside it."""
    seen = []

    def record(votes, *, noise_multiplier):
        seen.append((votes, noise_multiplier))
        return vote_histogram(votes, noise_multiplier=noise_multiplier)

    monkeypatch.setattr(released_scores, "vote_histogram", record)
    hospital = Hospital("a", tmp_path, None, lambda: "2026-01-01T00:00:00")
    rows = Rows(torch.zeros(6, 1), torch.arange(6) * 1000, torch.tensor([0, 0, 1, 1, 2, 2]))
    scores = released_scores.score_numbers(
        hospital, rows, torch.full((6, 1), 0.5), 20, released_scores.ScoreNoise(3.0, "cut"), guess=0.5
    )
    ((votes, noise),) = seen
    assert noise == scores.facts["noise"] == 3.0 and votes.sum(dim=1).tolist() == [2, 2, 2]
    assert set(scores.tensors) == {"error_bins"} and set(scores.facts) == {"noise", "patients", "images"}
    assert scores.event == compose_events([hospital.counts, Part("cut", "test", Gaussian(3.0))])
    assert not torch.equal(scores.tensors["error_bins"], (votes / votes.sum(dim=1, keepdim=True)).sum(dim=0).float())


def test_a_private_run_releases_one_noised_histogram_of_errors(finished_run):
    said = numbered(name="private", privacy={"epsilon": 8.0, "delta": 1e-4}, pooling="refused")
    for site in said["sites"].values():
        site["policy"] = {"public": ["counts"]}
        site["source"]["patients"] = 24
    said["train"] = BASE["train"] | {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 1}}
    said["evaluate"] = {"checkpoint": "latest", "copies": 5, "public": False, "reference": None}
    root = finished_run(said) / "runs" / "private"
    for path in artifact(root, "evaluate").rglob("*.safetensors"):
        message = from_file(path)
        assert set(message.tensors) == {"error_bins"} and float(str(message.facts["noise"])) > 0
    rows = json.loads((artifact(root, "report") / "scores.json").read_text())
    assert {row["measure"] for row in rows if row["value"] is not None} >= {"MAE", "RMSE", "bias"}
    assert all(row["noise"] > 0 for row in rows)
