"""A run that predicts several findings, from the hospital's table to the report for its archive."""

from __future__ import annotations

import copy
import csv
import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
import yaml
from folder_archive import filled
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import roc_auc_score

from evaluation.findings import from_noised_tensors
from federation.findings import NO, UNKNOWN, YES, decode_findings, encode_findings
from pipelines.data.cohort import read_cohort
from pipelines.data.images import Features, Pictures, Slices, Volumes
from pipelines.data.label_findings import (
    MOST_BANDS,
    FindingNames,
    find_finding_bands,
    join_codes,
    name_finding_bands,
)
from pipelines.data.nifti.reader import read_volume
from pipelines.data.sources import NiftiSource, PictureSource, TableLabels, TableSource
from pipelines.data.study import Unusable
from pipelines.hospital import released_counts, released_scores, scoring
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.opening import parse_opening
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.file import read_ready
from pipelines.models.recommended import read_recommended
from pipelines.night import main as night
from pipelines.nights import night as nights
from pipelines.phantom.files import write
from pipelines.phantom.findings import PHANTOM_FINDINGS
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.dp.access import Rows
from privacy.dp.events import Gaussian, Part, compose_events
from privacy.dp.mechanisms import vote_histogram
from privacy.message import Call, from_file
from privacy.release.gate import Refused
from privacy.release.ledger import read_lines
from privacy.release.policy import Budget, Policy
from privacy.settings_error import SettingsError

NAMES = ("edema", "effusion", "nodule")
CHEST = FindingNames(NAMES)
TASK = {"kind": "findings", "findings": list(PHANTOM_FINDINGS)}
SHARES = {"train": 0.5, "validation": 0.2, "test": 0.3}
CELL = {NO: ("0", "0.0", "no"), YES: ("1", "1.0", "yes"), UNKNOWN: ("", "-1", "-1.0")}
VALUES = {"no": "no", "yes": "yes", "-1": "unknown"}
states_of = st.lists(st.sampled_from((NO, YES, UNKNOWN)), min_size=3, max_size=3)


def several(base: dict[str, Any] = BASE, **changes: Any) -> dict[str, Any]:
    """Settings of a run that predicts the phantom's findings."""
    said = copy.deepcopy(base)
    for site in said["sites"].values():
        site["source"] |= {"labels": "findings", "patients": 16, "unknown": 0.2}
    said["images"] = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    said["task"] = dict(TASK)
    said["model"] = {"name": "cnn", "widths": [8, 16], "norm": "group"}
    said["train"]["methods"] = {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}
    return said | changes


def find_problems(said: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)
    return "; ".join(f"{problem.path}: {problem.message}" for problem in caught.value.problems)


def decode(code: int) -> list[int]:
    return decode_findings(torch.tensor(code), len(NAMES)).tolist()


@given(states_of, st.data())
def test_a_line_says_of_each_finding_no_yes_or_nothing_however_it_is_written(states, data):
    cells = [data.draw(st.sampled_from(CELL[state])) for state in states]
    assert decode(CHEST.find_code([cells], "line 1", VALUES, needed=False)) == states


@given(st.lists(states_of, min_size=1, max_size=4))
def test_lines_about_one_study_complete_each_other_and_never_contradict(lines):
    known = [{line[k] for line in lines} - {UNKNOWN} for k in range(3)]
    cells = [[CELL[state][0] for state in line] for line in lines]
    if any(len(states) > 1 for states in known):
        with pytest.raises(Unusable, match="both yes and no"):
            CHEST.find_code(cells, "the table", {}, needed=False)
    else:
        expected = [min(states, default=UNKNOWN) for states in known]
        assert decode(CHEST.find_code(cells, "the table", {}, needed=False)) == expected


def test_all_problems_of_a_study_are_told_at_once():
    with pytest.raises(Unusable) as caught:
        CHEST.find_code([["2", "1", "maybe"], ["", "0", ""]], "P1", {})
    assert caught.value.reason == "bad_label"
    for told in ("edema is '2'", "effusion is both yes and no", "nodule is 'maybe'", "Correct the table"):
        assert told in caught.value.detail
    with pytest.raises(Unusable) as caught:
        CHEST.find_code([["", "", ""]], "P1", {})
    assert caught.value.reason == "no_label"


@given(st.lists(states_of, min_size=1, max_size=5))
def test_a_volume_has_what_one_slice_has_and_lacks_what_all_lack(slices):
    joined = decode(join_codes([int(encode_findings(torch.tensor(each))) for each in slices], 3))
    for k, state in enumerate(joined):
        column = [each[k] for each in slices]
        expected = YES if YES in column else NO if {*column} == {NO} else UNKNOWN
        assert state == expected


@given(st.lists(st.lists(st.sampled_from((NO, YES, UNKNOWN)), min_size=6, max_size=6), min_size=1))
def test_examples_are_counted_by_how_many_findings_they_have(examples):
    bands = find_finding_bands(encode_findings(torch.tensor(examples)), 6).tolist()
    assert bands == [min(each.count(YES), MOST_BANDS - 1) for each in examples]
    assert len(name_finding_bands(6)) == MOST_BANDS and len(name_finding_bands(2)) == 3


def lines_of(cells: list[tuple[str, ...]], path: Path, **how: Any):
    path.write_text("who,x,Edema,Effusion,nodule\n" + "".join(f"p{i},{i}," + ",".join(c) + "\n" for i, c in cells))
    columns = {"edema": "Edema", "effusion": "Effusion", "nodule": "nodule"}
    source = TableSource(file=str(path), patient="who", findings=columns, **how)
    images = Features(numbers=("x",))
    return read_cohort(source, None, images, findings=NAMES, fractions=SHARES, seed=0, key=b"k" * 32)


def test_a_table_of_findings_becomes_a_cohort_and_its_errors_a_quarantine(tmp_path: Path):
    good = [(i, (str(i % 2), str(i // 2 % 2), "" if i % 5 == 0 else str(i // 4 % 2))) for i in range(40)]
    bad = [(40, ("2", "0", "0")), (41, ("", "", "")), (42, ("NA", "", "?"))]
    reading = lines_of([*good, *bad], tmp_path / "t.csv")
    assert reading.facts["rejected_by_reason"] == {"bad_label": 1, "no_label": 2}
    assert len(reading.cohort.labels) == 40 and reading.cohort.recipe["findings"] == list(NAMES)
    given_states = sorted([{"0": NO, "1": YES, "": UNKNOWN}[text] for text in cells] for _, cells in good)
    assert sorted(decode_findings(reading.cohort.labels, 3).tolist()) == given_states
    for split in reading.facts["splits"].values():  # splits are balanced by how many findings
        assert len(split["classes"]) == 4 and min(split["classes"]) > 0
    again = lines_of([*good, *bad], tmp_path / "t.csv")
    assert again.cohort.split.equal(reading.cohort.split)


def test_pictures_have_a_column_for_each_finding(tmp_path: Path):
    for i in range(12):
        Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(tmp_path / f"{i}.png")
    rows = [f"{i}.png,p{i},{i % 2},{'' if i == 3 else i // 2 % 2},-1" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["image,patient,edema,effusion,Nodule", *rows]) + "\n")
    source = PictureSource(
        folder=str(tmp_path), table=str(tmp_path / "t.csv"), findings={"nodule": "Nodule"}, values={"-1": "unknown"}
    )
    how = {"findings": NAMES, "fractions": SHARES, "seed": 0, "key": b"k" * 32}
    cohort = read_cohort(source, None, Pictures(size=8), **how).cohort
    states = decode_findings(cohort.labels, 3)
    assert (states[:, 2] == UNKNOWN).all() and (states[:, 1] == UNKNOWN).sum() == 1
    (tmp_path / "t.csv").write_text("image,patient,edema\n0.png,p0,1\n")
    with pytest.raises(ValueError, match="no column effusion, Nodule"):
        read_cohort(source, None, Pictures(size=8), **how)


@pytest.mark.parametrize("images", [Slices(size=16, spacing_mm=4.0), Volumes(size=16, depth=4, spacing_mm=4.0)])
def test_a_phantoms_files_hold_its_findings_by_slice_and_volumes_join_them(tmp_path: Path, images):
    write(PhantomSource(scanner="P", patients=5, format="nifti", labels="findings", unknown=0.3), tmp_path / "p")
    table = list(csv.DictReader((tmp_path / "p" / "labels.csv").open()))
    assert [*table[0]] == ["patient", "slice", *PHANTOM_FINDINGS]
    labels = TableLabels(file=str(tmp_path / "p" / "labels.csv"), slice="slice")
    reading = read_cohort(
        NiftiSource(folder=str(tmp_path / "p" / "images")), labels, images, findings=PHANTOM_FINDINGS,
        fractions=SHARES, seed=0, key=b"k" * 32,
    )  # fmt: skip
    states = decode_findings(reading.cohort.labels, len(PHANTOM_FINDINGS))
    if isinstance(images, Slices):
        for name, column in zip(PHANTOM_FINDINGS, states.T, strict=True):
            for text, state in (("1", YES), ("0", NO), ("", UNKNOWN)):
                assert int((column == state).sum()) == sum(row[name] == text for row in table)
    else:
        for name, column in zip(PHANTOM_FINDINGS, states.T, strict=True):
            having = {row["patient"] for row in table if row[name] == "1"}
            assert int((column == YES).sum()) == len(having)


def test_settings_of_findings_are_read_and_written_again():
    config = validate_settings(read_yaml(yaml.safe_dump(several()), environment={}), Config)
    assert config.task_of("fedavg").kind == "findings" and config.task_of("fedavg").classes == 4
    again = validate_settings(read_yaml(yaml.safe_dump(to_plain(config)), environment={}), Config)
    assert again.task == config.task


def with_train(**changes: Any) -> dict[str, Any]:
    return several(train=copy.deepcopy(several()["train"]) | changes)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (with_train(methods={"m": {"name": "moments"}}), "needs classes, and the task is several findings"),
        (with_train(methods={"m": {"name": "fedrod"}}), "shares of classes"),
        (with_train(methods={"m": {"name": "fedsld"}}), "leave this method out"),
        (with_train(work={"balance": True}), "findings have none"),
        (several(model={"name": "cam"}), "gives no findings"),
        (several(harmonize={"translate": {"z": {"name": "z_score"}}}), "the task is several findings"),
        (several(audit={"inversion": {}}), "audit.inversion: reconstructs"),
        (several(outside=["b"]), "sure it is of classes"),
        (several(evaluate={"variants": {"c": {"of": "fedavg", "calibration": "centred"}}}), "is several findings"),
        (several(task=TASK | {"findings": ["large"]}), "2 to 30 different names"),
        (several(task=TASK | {"findings": ["large", "large"]}), "2 to 30 different names"),
        (several(task=TASK | {"findings": ["large", "Edema!"]}), "is not made of a-z"),
        (several(task=TASK | {"findings": ["large", "edema"]}), "the task names edema"),
        (several(task={"kind": "classification"}), "say task: {kind: findings, findings: [significant,"),
        (several(evaluate={"window": [8, 8]}), "it is for masks"),
    ],
)
def test_what_needs_one_class_refuses_findings_with_its_reason(said, told):
    assert told in find_problems(said)


def test_a_phantom_with_one_label_gives_no_findings():
    said = several()
    said["sites"]["a"]["source"] = BASE["sites"]["a"]["source"]
    assert "significant gives one label, and the task learns several findings" in find_problems(said)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"kind": "table", "file": "t.csv"}, "name the column of labels"),
        ({"kind": "table", "file": "t.csv", "label": "y", "findings": {"large": "y"}}, "findings name the columns"),
        ({"kind": "table", "file": "t.csv", "label": "y"}, "missing for significant"),
        ({"kind": "table", "file": "t.csv", "findings": {"gout": "y"}}, "gout are no findings of the task"),
        ({"kind": "picture", "folder": ".", "table": "t.csv", "findings": {"large": "x", "indolent": "x"}}, "column x"),
        ({"kind": "picture", "folder": ".", "table": "t.csv", "values": {"u": "maybe"}}, "say no, yes, unknown"),
    ],
)
def test_columns_that_fit_no_findings_are_told(source, told):
    said = several()
    said["sites"]["a"]["source"] = source
    assert told in find_problems(said)


def test_a_hospital_refuses_to_balance_findings(tmp_path: Path):
    facts = {
        "label": "m", "algorithm": {"name": "fedavg"}, "model": {"name": "cnn", "widths": [8, 16], "norm": "group"},
        "inputs": [1, 16, 16], "classes": 4, "work": {}, "seed": 0, "cohort": "c", "privacy": None, "findings": True,
    }  # fmt: skip
    hospital = Hospital("a", tmp_path, None, lambda: "2026-01-01T00:00:00")
    assert parse_opening(hospital, facts).task.kind == "findings"
    for wrong in ({"work": {"balance": True}}, {"algorithm": {"name": "fedsld"}}, {"classes": 1}, {"classes": 31}):
        with pytest.raises(Refused, match="malformed_opening"):
            parse_opening(hospital, facts | wrong)


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    methods = {name: {"name": name} for name in ("local", "central", "fedavg", "fenda", "local_ridge", "local_svm")}
    few = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 8}
    floors = {"local_ridge": few, "local_svm": few}
    train = BASE["train"] | {"methods": methods, "method_model": floors, "schedule": {"rounds": 1}}
    return finished_run(several(train=train, name="several", evaluate={"copies": 20})) / "runs" / "several"


def artifact(root: Path, stage: str) -> Path:
    (folder,) = [path for path in (root / stage).iterdir() if (path / "manifest.json").exists()]
    return folder


def test_only_declared_counts_leave_and_every_method_has_its_rows(done: Path):
    for path in artifact(done, "evaluate").rglob("*.safetensors"):
        message = from_file(path)
        assert set(message.tensors) == {"finding_scores", "finding_columns", "finding_shape", "finding_numbers"}
        assert message.tensors["finding_shape"].tolist()[:3] == [21, 4, 2]
    rows = json.loads((artifact(done, "report") / "scores.json").read_text())
    assert {row["method"] for row in rows} >= {"local", "central", "fedavg", "fenda", "local_ridge", "majority guess"}
    assert {row["measure"] for row in rows} >= {"AUC", "AUC large", "sensitivity transition", "calibration error"}


def test_the_coordinator_has_the_scores_that_the_hospital_computes_from_its_patients(done: Path):
    """A second implementation, from what stays at the hospital."""
    rows = json.loads((artifact(done, "report") / "scores.json").read_text())
    checked = 0
    for site in ("a", "b"):
        for path in (done / "sites" / site / "scores").glob("*.safetensors"):
            kept = from_file(path).tensors
            if "probabilities" not in kept:
                continue
            states, p = decode_findings(kept["y"], 4).numpy(), kept["probabilities"].numpy()
            known = states[:, 3] != UNKNOWN
            if len({*states[known, 3]}) < 2:
                continue
            own = roc_auc_score(states[known, 3], p[known, 3])
            told = [r["value"] for r in rows if r["measure"] == "AUC large" and r["sites"] == [site]]
            assert min(abs(own - value) for value in told if value is not None) < 0.02
            checked += 1
    assert checked > 4


def test_a_model_is_recommended_by_gains_in_the_mean_auc_of_this_hospital_and_the_others(done: Path):
    """What each hospital told of its gains, over the models that it learns alone."""
    for site, other in (("a", "b"), ("b", "a")):
        decision = read_recommended(done / "sites" / site).decision
        assert decision.recommendation is not None and decision.recommendation.others == 1, other
        assert decision.recommendation.own in ("local", "local_ridge", "local_svm") and decision.recommendation.of > 3
        told = [line for line in read_lines(done / "sites" / site / "ledger.jsonl") if line["request"] == "compare"]
        assert told and told[0]["event"] == {"kind": "non_private"}


def test_pages_have_a_table_by_finding_and_count_examples_by_how_many_they_have(done: Path):
    for page in (artifact(done, "report") / "report.html", done / "sites" / "a" / "report.html"):
        text = page.read_text()
        assert "By finding" in text and "no finding · 1 finding · 2 findings · 3 findings or more" in text
        assert "where it is known" in text and "ROC curves by finding" in text
        assert "By class" not in text and "against the rest" not in text


def test_predictions_have_a_probability_of_each_finding_and_reports_what_reaches_the_threshold(
    done: Path, tmp_path: Path, capsys
):
    file = done / "sites" / "a" / "ready" / "fedavg.safetensors"
    assert read_ready(file).names == PHANTOM_FINDINGS
    (images,) = (done / "sites" / "a" / "phantom").glob("*/images")
    asked = [str(file), str(images), "--no-gland", "--reports", "--threshold", "0.4", "--out", str(tmp_path)]
    assert predict(asked) == 0
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert len(rows) == 16
    for row in rows:
        p = {name: float(row[f"p_{name}"]) for name in PHANTOM_FINDINGS}
        assert row["findings"].split() == [name for name, share in p.items() if share >= 0.4]
        report = str(pydicom.dcmread(tmp_path / row["report"]))
        assert all(f"Probability of {name}" in report for name in PHANTOM_FINDINGS)
    assert "studies scored" in "".join(capsys.readouterr())


def test_each_finding_has_a_map_of_its_own_and_the_most_probable_one_is_drawn(done: Path, tmp_path: Path):
    file, out = done / "sites" / "a" / "ready" / "fedavg.safetensors", tmp_path / "out"
    (images,) = (done / "sites" / "a" / "phantom").glob("*/images")
    asked = [str(file), str(images), "--no-gland", "--out", str(out)]
    assert predict([*asked, "--maps", "--captures"]) == 0
    rows = list(csv.DictReader((out / "predictions.csv").open()))
    for row in rows:
        maps = [read_volume(out / row[f"map_{name}"]).values for name in PHANTOM_FINDINGS]
        assert all(0.7 < float(values.max()) <= 1 for values in maps)  # less than 1 by its own grid
        assert all(not np.allclose(maps[0], other) for other in maps[1:])
        capture = pydicom.dcmread(out / row["capture"])
        assert capture.pixel_array.ndim == 3
    assert sorted(path.name for path in (out / "maps").iterdir()) == sorted(PHANTOM_FINDINGS)
    assert predict(asked) == 0
    assert not any(path.is_file() for path in (out / "maps").rglob("*"))


def test_the_hospitals_page_has_a_map_for_each_finding(done: Path):
    text = (done / "sites" / "a" / "report.html").read_text()
    assert "fenda: where its score of each finding is sensitive" in text
    assert "Then a map for each finding, with its probability" in text
    assert "where its score is sensitive" not in text


def test_a_night_stores_a_report_of_all_findings_once(done: Path, tmp_path: Path, monkeypatch):
    (images,) = (done / "sites/a/phantom").glob("*/images")
    archive = filled(tmp_path / "archive", sorted(images.rglob("*.dcm")))
    monkeypatch.setattr(nights, "open_archive", lambda settings: nullcontext(archive))
    settings = {
        "archive": {"kind": "dicomweb", "url": "https://archive.example"},
        "ask": {"modality": "MR", "days": 36_500},
        "model": str(done / "sites/a/ready/fedavg.safetensors"),
        "state": "state",
        "read": {"no_gland": True},
        "write": {"threshold": 0.4, "captures": True},
    }
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert night([str(tmp_path / "night.yaml")]) == Exit.OK
    taken = [pydicom.dcmread(path) for path in (archive.folder / "taken").rglob("*.dcm")]
    reports = [str(each) for each in taken if each.Modality == "SR"]
    assert len(reports) == 16 and len(taken) == 32
    assert all(f"Probability of {name}" in text for name in PHANTOM_FINDINGS for text in reports)
    first = min((tmp_path / "state/nights").iterdir())
    rows = list(csv.DictReader((first / "found.csv").open()))
    for row in rows:
        above = [name for name in PHANTOM_FINDINGS if float(row[f"p_{name}"]) >= 0.4]
        assert row["findings"].split() == above
    some = sum(bool(row["findings"]) for row in rows)
    week = (tmp_path / "state" / "night.html").read_text()
    assert f'<td class="num">{some}</td>' in week


def test_exports_give_the_probability_of_each_finding_that_predict_gives(done: Path, tmp_path: Path):
    """ONNX and TorchScript, on the hospital's own images; and the card says what they are."""
    from pipelines.export import main as export

    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install consilium[onnx]")
    file = done / "sites" / "a" / "ready" / "fedavg.safetensors"
    (images,) = (done / "sites" / "a" / "phantom").glob("*/images")
    asked = [str(file), "--onnx", "--bundle", "--card", "--no-gland", "--examples", str(images), "--out", str(tmp_path)]
    assert export(asked) == 0
    session = onnxruntime.InferenceSession((tmp_path / "fedavg.onnx").read_bytes())
    network = torch.jit.load(tmp_path / "fedavg/models/model.ts")
    rows = list(csv.DictReader((tmp_path / "examples.csv").open()))
    x = np.stack([np.load(tmp_path / "examples" / row["file"]) for row in rows])
    said = np.array([[float(row[f"p_{name}"]) for name in PHANTOM_FINDINGS] for row in rows])
    assert len(said) > 30 and said.shape[1] == 4 and not np.allclose(said.sum(axis=1), 1, atol=1e-3)
    assert np.allclose(session.run(None, {"examples": x})[0], said, atol=1e-5)
    assert np.allclose(network(torch.from_numpy(x)).detach(), said, atol=1e-5)
    card = (tmp_path / "fedavg.card.md").read_text()
    assert f"several findings, each for itself: {', '.join(PHANTOM_FINDINGS)}" in card and "do not sum to 1" in card
    assert "AUC significant" in card
    metadata = json.loads((tmp_path / "fedavg/configs/metadata.json").read_text())
    assert [*metadata["network_data_format"]["outputs"]["pred"]["channel_def"].values()] == [*PHANTOM_FINDINGS]


def test_each_finding_has_the_noise_that_is_told_and_booked_and_nothing_else_leaves(tmp_path, monkeypatch):
    """Each histogram's event is of the noise that it got, for the cut's test patients; together they cost one."""
    seen = []

    def record(votes, *, noise_multiplier):
        seen.append((votes, noise_multiplier))
        return vote_histogram(votes, noise_multiplier=noise_multiplier)

    monkeypatch.setattr(released_scores, "vote_histogram", record)
    hospital = Hospital("a", tmp_path, None, lambda: "2026-01-01T00:00:00")
    states = torch.tensor([[NO, YES], [YES, UNKNOWN], [NO, NO], [YES, YES], [NO, UNKNOWN], [YES, NO]])
    rows = Rows(torch.zeros(6, 1), encode_findings(states), torch.tensor([0, 0, 1, 1, 2, 2]))
    noise = released_scores.ScoreNoise(3.0, "cut")
    scores = released_scores.score_findings(hospital, rows, torch.full((6, 2), 0.4), 20, noise)
    assert sum(deviation**-2 for _, deviation in seen) == pytest.approx(3.0**-2)
    events = compose_events([Gaussian(deviation) for _, deviation in seen])
    assert scores.event == compose_events([hospital.counts, Part("cut", "test", events)])
    assert set(scores.tensors) == {"finding_scale", "finding_noised"}
    assert set(scores.facts) == {"noise", "patients", "images", "finding_patients"}
    assert scores.facts["finding_patients"] == [3, 6, 3, 3, 3, 4, 2, 2]
    votes = [each for each, deviation in seen if deviation == pytest.approx(3.0 * math.sqrt(2 / 0.9))]
    assert [each.sum(dim=1).tolist() for each in votes] == [[2, 2, 2], [1, 2, 1]]


def count_findings_slowly(cohort) -> list[int]:
    """Of each finding: patients of whom it is known, those without it and with it in sum, and each of these."""
    numbers = []
    for k in range(len(PHANTOM_FINDINGS)):
        states_by_patient = dict[int, set[int]]()
        for patient, code in zip(cohort.patient.tolist(), cohort.labels.tolist(), strict=True):
            states_by_patient.setdefault(patient, set()).add(code // 3**k % 3)
        known = [states for states in states_by_patient.values() if states & {NO, YES}]
        without, having = (sum(state in states for states in known) for state in (NO, YES))
        numbers += [len(known), without + having, without, having]
    return numbers


def read_phantom(folder: Path, patients: int = 30):
    write(PhantomSource(scanner="P", patients=patients, format="nifti", labels="findings", unknown=0.8), folder)
    return read_cohort(
        NiftiSource(folder=str(folder / "images")), TableLabels(file=str(folder / "labels.csv"), slice="slice"),
        Slices(size=16, spacing_mm=4.0), findings=PHANTOM_FINDINGS, fractions=SHARES, seed=0, key=b"k" * 32,
        independent=True,
    ).cohort  # fmt: skip


def test_a_hospital_with_a_budget_counts_its_findings_once_for_what_one_histogram_costs(tmp_path, monkeypatch):
    """Each histogram has its own event's noise; together they cost what counting one label costs."""
    cohort, budget = read_phantom(tmp_path / "p"), Budget(epsilon=8.0, delta=1e-4)
    asked: list[tuple[torch.Tensor, float]] = []

    def record(votes, *, noise_multiplier):
        asked.append((votes, noise_multiplier))
        return vote_histogram(votes, noise_multiplier=0.0)

    monkeypatch.setattr(released_counts, "vote_histogram", record)
    hospital = Hospital("a", tmp_path / "a", None, lambda: "2026-01-01", pooled=Policy(budget=budget, min_patients=1))
    counted, event = released_counts.count_once(hospital, Call("r/ingest", 0, "ingest", {}), cohort, {})
    assert sum(deviation**-2 for _, deviation in asked) == pytest.approx(released_counts.noise_of(budget) ** -2)
    assert event == Gaussian(counted.multiplier) and counted.multiplier == pytest.approx(
        released_counts.noise_of(budget)
    )
    assert counted.noise == asked[0][1] and len({deviation for _, deviation in asked}) == 1
    assert all((votes.sum(dim=1) <= 1).all() for votes, _ in asked) and len(asked) == 1 + len(PHANTOM_FINDINGS)
    assert counted.of_findings(SPLITS) == count_findings_slowly(cohort)
    assert counted.histogram_cells == sum(votes.shape[1] for votes, _ in asked) == 3 * (4 + 3 * 4)
    for place, split in enumerate(SPLITS):
        chosen = cohort.split == place
        of_split = replace(cohort, **{name: getattr(cohort, name)[chosen] for name in ("patient", "labels")})
        assert counted.of_findings([split]) == count_findings_slowly(of_split)
    again, later = released_counts.count_once(hospital, Call("r/ingest", 1, "ingest", {}), cohort, {})
    assert again == counted and len(asked) == 5, "counted once"
    assert later == event, "and not paid, as no ledger says that it left"
    file = hospital.vault / released_counts.COUNTED_FILE
    content = json.loads(file.read_text())
    del content["counted"]["findings"]  # as versions wrote that counted no findings
    file.write_text(json.dumps(content))
    with pytest.raises(Refused, match="another_cohort") as caught:
        released_counts.count_once(hospital, Call("r/ingest", 2, "ingest", {}), cohort, {})
    assert "counts 0 findings" in str(caught.value.__cause__)


def test_scores_under_a_budget_say_released_numbers_alone(tmp_path, monkeypatch):
    """Whoever is there today: of a cohort without patients too, where a finding that nobody knows is told as it was."""
    numbers = (3, 2, 1)
    known = released_counts.Counted(
        cells=dict.fromkeys(SPLITS, (9, 2, 1)), noise=2.0, date="d", run="r", round=0, since=0, classes=3,
        findings=dict.fromkeys(SPLITS, (*numbers, 0, 0, 0)),
    )  # fmt: skip
    monkeypatch.setattr(released_scores, "need_counts", lambda hospital: known)
    hospital = Hospital("a", tmp_path, None, lambda: "2026-01-01T00:00:00")
    states = torch.tensor([[UNKNOWN, YES], [UNKNOWN, NO], [UNKNOWN, YES]])
    for cut, splits in (("cut", 1), (None, 3)):
        for patients in (3, 0):
            rows = Rows(torch.zeros(patients, 1), encode_findings(states[:patients]), torch.arange(patients))
            noise = released_scores.ScoreNoise(3.0, cut)
            scores = released_scores.score_findings(hospital, rows, torch.full((patients, 2), 0.4), 20, noise)
            told = [splits * n for n in (6, 7, 4, 3)]
            assert scores.facts["finding_patients"] == [*told, 0, 0, 0, 0]
            assert scores.facts["patients"] == scores.facts["images"] == 12 * splits
            assert (scores.tensors["finding_noised"][:2] != 0).all() and not scores.tensors["finding_noised"][2:].any()
            findings = from_noised_tensors(scores.tensors, scores.facts, copies=5, seed=0)
            assert [counts.patients for counts in findings.each] == [6 * splits, 0]


@pytest.mark.chance(1e-9, "noise leaves none of 40 training patients in four cells")
def test_hospitals_with_a_budget_learn_findings_and_book_one_count(finished_run):
    said = several(name="private", privacy={"epsilon": 8.0, "delta": 1e-4}, pooling="refused")
    for site in said["sites"].values():
        site["policy"] = {"budget": {"epsilon": 100.0, "delta": 1e-4}, "min_patients": 1}
        site["source"]["patients"] = 80
    said["train"] = BASE["train"] | {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 1}}
    said["evaluate"] = {"checkpoint": "latest", "copies": 5, "public": False, "reference": None}
    root = finished_run(said) / "runs" / "private"
    told = json.loads((artifact(root, "ingest") / "sites.json").read_text())
    for site, facts in told.items():
        counted = json.loads((root / "sites" / site / "asked.json").read_text())["counted"]
        assert counted["classes"] == 4 and counted["noise"] >= math.sqrt(5)
        assert {split: len(cells) for split, cells in counted["findings"].items()} == dict.fromkeys(SPLITS, 12)
        for split, cells in counted["cells"].items():
            assert facts["splits"][split]["patients"] == sum(cells)
        lines = list(read_lines(root / "sites" / site / "ledger.jsonl"))
        (line,) = [line for line in lines if line["request"] == "ingest"]
        assert json.dumps(line["event"]).count("gaussian") == 1
        assert f"in each of {3 * (4 + 12)} cells" in (root / "sites" / site / "report.html").read_text()
        for path in artifact(root, "evaluate").rglob(f"*.{site}.safetensors"):
            test = counted["findings"]["test"]
            sums = [
                (w + h + b, w + h + 2 * b, w + b, h + b)
                for w, h, b in zip(test[::3], test[1::3], test[2::3], strict=True)
            ]
            assert from_file(path).facts["finding_patients"] == [n for each in sums for n in each]


@pytest.mark.chance(1e-9, "noise leaves none of 40 training patients in four cells")
@pytest.mark.parametrize("kind", ["findings", "classes"])
def test_a_hospital_with_a_budget_whose_test_patients_are_gone_answers_as_any_other(kind, tmp_path, monkeypatch):
    """An error would tell what its released counts hide."""
    said = several() if kind == "findings" else copy.deepcopy(BASE) | {"model": several()["model"]}
    said |= {"name": "private", "privacy": {"epsilon": 8.0, "delta": 1e-4}, "pooling": "refused"}
    for site in said["sites"].values():
        site["policy"] = {"budget": {"epsilon": 100.0, "delta": 1e-4}, "min_patients": 1}
        site["source"]["patients"] = 80
    said["train"] = BASE["train"] | {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 1}}
    said["evaluate"] = {"checkpoint": "latest", "copies": 5, "public": False, "reference": None}
    said["audit"] = {"membership": False}
    rows_of = scoring.rows_of

    def leave_no_test_patient(*arguments, **options):
        splits = rows_of(*arguments, **options)
        gone = splits["test"]
        return {**splits, "test": Rows(gone.x[:0], gone.y[:0], gone.patient[:0])}

    monkeypatch.setattr(scoring, "rows_of", leave_no_test_patient)
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(said))
    assert run(["tiny.yaml"]) == Exit.OK
    ledgers = [*read_lines(tmp_path / "runs" / "private" / "sites" / "a" / "ledger.jsonl")]
    assert [line["refused"] for line in ledgers if line["request"] == "evaluate"] == [None]


def test_a_private_run_releases_noised_histograms_of_each_finding(finished_run):
    said = several(name="private", privacy={"epsilon": 8.0, "delta": 1e-4}, pooling="refused")
    for site in said["sites"].values():
        site["source"]["patients"] = 24
    said["train"] = BASE["train"] | {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 1}}
    said["evaluate"] = {"checkpoint": "latest", "copies": 5, "public": False, "reference": None}
    root = finished_run(said) / "runs" / "private"
    for path in artifact(root, "evaluate").rglob("*.safetensors"):
        message = from_file(path)
        assert set(message.tensors) == {"finding_scale", "finding_noised"} and float(str(message.facts["noise"])) > 0
    rows = json.loads((artifact(root, "report") / "scores.json").read_text())
    assert {"AUC", "AUC large", "balanced accuracy"} <= {row["measure"] for row in rows}
    assert not {"Brier score", "calibration error"} & {row["measure"] for row in rows}
    assert all(row["noise"] > 0 and math.isfinite(row["noise"]) for row in rows)


def test_a_name_is_one_that_columns_of_a_table_and_of_predictions_can_have():
    from pipelines.settings.task import SeveralFindings

    with pytest.raises(SettingsError):
        SeveralFindings(kind="findings", findings=("a b", "c"))
