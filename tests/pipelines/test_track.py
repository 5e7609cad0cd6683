"""Tracking: nothing goes out that the coordinator's artifacts do not hold, nothing twice, nothing against a policy."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from embedded import texts_of

from pipelines.coordinator.summary import add_links
from pipelines.coordinator.tracking import mlflow as to_mlflow
from pipelines.coordinator.tracking import sending
from pipelines.coordinator.tracking.figures import FILES, Figures, collect_figures, select_allowed
from pipelines.coordinator.tracking.tensorboard import build_event_files, read_scalars
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines.settings.track import MLflow
from pipelines_settings import BASE
from privacy.release import ledger as ledgers

SITES = ("a", "b")
pytest.importorskip("tensorboard", reason="pip install consilium[tensorboard]")
pytest.importorskip("mlflow", reason="pip install consilium[mlflow]")


def settings(**track) -> dict[str, Any]:
    """The smallest run with curves, on smaller images."""
    made = copy.deepcopy(BASE) | {"track": track or {"tensorboard": {}, "mlflow": {}}}
    made["images"] = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    made["model"] = {"name": "cnn", "widths": [8, 8], "norm": "group"}
    made["train"]["schedule"] = {"rounds": 2}
    made["train"]["methods"] = {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}
    made["evaluate"] = {"copies": 5, "reference": "local", "rounds": True}
    made["audit"] = {"membership": False}
    return made


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    """A finished run that was tracked. Not to be changed."""
    return finished_run(settings())


@pytest.fixture
def run(done, tmp_path, monkeypatch) -> Path:
    """A copy of it, which is the current folder; the run's own."""
    shutil.copytree(done, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("runs/tiny")


def artifacts(root: Path) -> dict[str, Path]:
    stages = ("ingest", "train", "figures", "evaluate", "audit", "track", "report")
    return {stage: next((root / stage).iterdir()) for stage in stages}


def told(root: Path) -> Figures:
    return collect_figures(artifacts(root), SITES, pages=True)


def leaves(value: Any) -> Iterator[Any]:
    """Every single number and text of a JSON."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def in_artifacts(root: Path) -> set[Any]:
    """Every number and text in the coordinator's JSON files; no booleans, of which False would be 0 in a set."""
    found: set[Any] = set()
    for folder in artifacts(root).values():
        found.add(folder.name)
        for path in folder.glob("*.json"):
            found |= {one for one in leaves(json.loads(path.read_text())) if not isinstance(one, bool | list | dict)}
    return found


def board(root: Path) -> dict[str, bytes]:
    """Place -> bytes of each file of TensorBoard."""
    folder = root / "tracking/tensorboard/tiny"
    return {str(path.parent.relative_to(folder)).strip("."): path.read_bytes() for path in folder.rglob("*tfevents*")}


def mlflow_runs(root: Path) -> list[tuple[Any, dict[str, list[tuple[int, float]]]]]:
    """Every run in the file store, with the history of each number."""
    with to_mlflow._silence_mlflow(5):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=to_mlflow.tracking_uri(MLflow(), root / "tracking/mlflow"))
        (experiment,) = [one for one in client.search_experiments() if one.name == "consilium"]
        found = client.search_runs([experiment.experiment_id])
        return [
            (
                one,
                {
                    name: [(point.step, point.value) for point in client.get_metric_history(one.info.run_id, name)]
                    for name in one.data.metrics
                },
            )
            for one in found
        ]


def test_every_number_that_goes_out_stands_in_an_artifact_of_the_coordinator(done):
    root = done / "runs/tiny"
    known = in_artifacts(root)
    numbers = {one for one in known if isinstance(one, int | float) and not isinstance(one, bool)}
    found = told(root)
    assert len(found.points) > 100 and {
        "loss/fedavg/a",
        "loss/fedavg/all",
        "validation AUC/fedavg/a",
        "seconds/fedavg/b",
    } <= {one.name for one in found.points}
    assert {one.value for one in found.points} <= numbers
    ((sent, histories),) = mlflow_runs(root)
    assert {value for series in histories.values() for _, value in series} <= numbers
    single = {float(np.float32(one)) for one in numbers if math.isfinite(one)}
    drawn = [(place, *one) for place, data in board(root).items() for one in read_scalars(data)]
    assert {value for *_, value in drawn} <= single and len(drawn) == len(found.points)
    chosen = json.loads(json.loads((artifacts(root)["report"] / "report.json").read_text())["settings"])
    texts = {json.dumps(one, sort_keys=True) for one in (*chosen.values(), *chosen["train"].values())}
    texts |= {json.dumps(one, sort_keys=True) for one in chosen["train"]["methods"].values()}
    assert set(sent.data.params.values()) == set(found.settings.values())
    assert set(found.settings.values()) <= texts | {str(one) for one in known} | {str(one) for one in chosen.values()}
    report = artifacts(root)["report"]
    for path in (root / "tracking/mlflow").rglob("artifacts/*"):
        assert path.name in FILES and path.read_bytes() == (report / path.name).read_bytes()


def test_what_goes_out_is_the_same_with_the_hospitals_folders_taken_away(run):
    """So nothing of it comes from a hospital's disk, on which alone single patients are."""
    before = build_event_files(told(run))
    for place in ("sites", "pooled", "federation"):
        shutil.rmtree(run / place, ignore_errors=True)
    assert build_event_files(told(run)) == before
    assert before == board(run)


def test_no_patient_is_named_in_what_goes_out(done):
    root = done / "runs/tiny"
    files = [path.read_bytes() for path in (root / "tracking").rglob("*") if path.is_file()]
    sent = b"\n".join(text for data in files for text in texts_of(data)).decode(errors="replace")
    linkages = [json.loads(path.read_text()) for path in root.glob("sites/*/linkage.json")]
    names = {one for said in linkages for one in leaves(said) if isinstance(one, str) and any(map(str.isdigit, one))}
    assert len(names) > 20
    assert not [name for name in names if name in sent]


def test_a_run_that_is_run_again_or_whose_page_is_made_again_is_tracked_once(run, capsys):
    before = board(run)
    assert main(["tiny.yaml"]) == Exit.OK
    assert "tensorboard: has it already, mlflow: has it already" in capsys.readouterr().err.replace("\n", " ")
    assert board(run) == before
    assert main(["tiny.yaml", "--from", "report", "--fresh"]) == Exit.OK
    assert "mlflow: has it already" in capsys.readouterr().err
    ((_, histories),) = mlflow_runs(run)
    points = Counter((one.name, one.step) for one in told(run).points)
    assert Counter((name, step) for name, series in histories.items() for step, _ in series) == points
    assert set(points.values()) == {1}


def test_what_broke_in_the_middle_is_completed_and_nothing_is_doubled(run, monkeypatch):
    """A tool that goes away after the first numbers; then one that goes away after all of them, before the end."""
    from mlflow.tracking import MlflowClient

    shutil.rmtree(run / "tracking")
    monkeypatch.setattr(to_mlflow, "AT_ONCE", 40)
    real, calls = MlflowClient.log_batch, []

    def breaks(self: Any, *arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise ConnectionError("it went away")
        real(self, *arguments, **named)

    found, folder = told(run), run / "tracking/mlflow"
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", breaks)
        with pytest.raises(ConnectionError):
            to_mlflow.send_to_mlflow(found, "tiny", MLflow(), folder)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", lambda *_, **__: (_ for _ in ()).throw(ConnectionError()))
        with pytest.raises(ConnectionError):
            to_mlflow.send_to_mlflow(found, "tiny", MLflow(), folder)
    assert to_mlflow.send_to_mlflow(found, "tiny", MLflow(), folder)
    assert not to_mlflow.send_to_mlflow(found, "tiny", MLflow(), folder)
    ((sent, histories),) = mlflow_runs(run)
    assert sent.info.status == "FINISHED"
    assert sum(map(len, histories.values())) == len(found.points)


def test_a_tool_that_is_down_is_told_on_page_and_console_and_gets_it_the_next_time(run, monkeypatch, capsys):
    shutil.rmtree(run / "tracking")
    with monkeypatch.context() as patch:
        down = ConnectionError("nobody <listens>\nat mlflow.example")
        patch.setattr(to_mlflow, "send_to_mlflow", lambda *_: (_ for _ in ()).throw(down))
        assert main(["tiny.yaml"]) == Exit.OK, "the run itself has succeeded"
    said = " ".join(capsys.readouterr().err.split())
    assert "! Not tracked: mlflow did not take this run's figures (ConnectionError: nobody <listens> at" in said
    page = (run / "report.html").read_text()
    assert "Not tracked: mlflow did not take this run&#x27;s figures" in page and "&lt;listens&gt;" in page
    assert json.loads((run / "tracking/last.json").read_text())["unsent"].keys() == {"mlflow"}
    assert main(["tiny.yaml"]) == Exit.OK
    assert "mlflow: sent" in capsys.readouterr().err
    assert "Not tracked" not in (run / "report.html").read_text()
    assert len(mlflow_runs(run)) == 1


def test_a_server_that_does_not_answer_ends_no_run_and_is_not_waited_for(done, tmp_path):
    how = MLflow(uri="http://127.0.0.1:9", patience_s=1)
    with pytest.raises(Exception, match=r"(?i)connection|max retries"):
        to_mlflow.send_to_mlflow(told(done / "runs/tiny"), "tiny", how, tmp_path)


def without(request: str, policy: dict[str, Any]) -> dict[str, Any]:
    from privacy.release.policy import REQUESTS

    return policy | {"requests": [name for name in REQUESTS if name not in (request, "pool")]}


def test_a_hospital_that_leaves_track_out_is_left_out_and_so_is_all_that_rests_on_it(run, capsys):
    made = yaml.safe_load(Path("tiny.yaml").read_text())
    made["sites"]["b"]["policy"] = without("track", made["sites"]["b"]["policy"])
    Path("tiny.yaml").write_text(yaml.safe_dump(made))
    assert main(["tiny.yaml", "--from", "track", "--fresh"]) == Exit.OK
    assert "! Not tracked: figures of b, and all that rest on them" in " ".join(capsys.readouterr().err.split())
    assert {place.rpartition("/")[2] for place, data in board(run).items() if read_scalars(data)} == {"a"}
    newest = min(mlflow_runs(run), key=lambda one: len(one[1]))[0]
    store = next((run / "tracking/mlflow").rglob(newest.info.run_id))
    assert not [*(store / "artifacts").rglob("*")], "pages rest on all hospitals"


def test_a_server_is_a_recipient_that_the_policy_must_name_and_the_ledger_has_it(run, monkeypatch, capsys):
    sent: list[Figures] = []
    monkeypatch.setattr(to_mlflow, "send_to_mlflow", lambda found, *_: not sent.append(found))
    made = yaml.safe_load(Path("tiny.yaml").read_text())
    made["track"] = {"mlflow": {"uri": "https://mlflow.example"}}
    made["sites"]["a"]["policy"]["recipients"] = ["coordinator", "tracking"]
    Path("tiny.yaml").write_text(yaml.safe_dump(made))
    assert main(["tiny.yaml"]) == Exit.OK
    assert "figures of b" in " ".join(capsys.readouterr().err.split())
    (found,) = sent
    assert {site for point in found.points for site in point.sites} == {"a"} and not found.files
    asked = {
        site: [line for line in ledgers.read_lines(run / f"sites/{site}/ledger.jsonl") if line["request"] == "track"][
            -1
        ]
        for site in SITES
    }
    assert (asked["a"]["recipient"], asked["a"]["refused"]) == ("tracking", None)
    assert asked["b"]["refused"] == "policy_recipient"
    assert asked["a"]["event"] == {"kind": "nothing"}, "what had left costs nothing again"
    statement = (run / "statement.md").read_text()
    assert "may be copied to a tracking server (recipient tracking)" in statement
    assert main(["tiny.yaml"]) == Exit.OK
    assert len(sent) == 1, "a server that has it need not be up"


def test_what_is_allowed_rests_on_hospitals_that_agreed_alone(done):
    found = told(done / "runs/tiny")
    assert select_allowed(found, SITES) == found
    one = select_allowed(found, ["a"])
    assert one.points and not one.files and all(point.sites == {"a"} for point in one.points)
    assert not select_allowed(found, []).points


@pytest.mark.parametrize(
    ("track", "words"),
    [
        ({}, "names no tool"),
        ({"mlflow": {"uri": "https://me:secret@mlflow.example"}}, "MLFLOW_TRACKING_TOKEN"),
        ({"mlflow": {"uri": "ftp://x"}}, "found 'ftp'"),
        ({"mlflow": {"experiment": "a/b", "patience_s": 0}}, "patience_s"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_do(track, words):
    text = yaml.safe_dump(settings() | {"track": track})
    with pytest.raises(ConfigError, match=words) as caught:
        validate_settings(read_yaml(text, environment={}), Config)
    assert "secret" not in str(caught.value)


def test_a_tool_that_is_not_installed_is_told_before_the_run(monkeypatch):
    monkeypatch.setattr("pipelines.settings.checks.track.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"consilium\[mlflow\]"):
        validate_settings(read_yaml(yaml.safe_dump(settings()), environment={}), Config)


def test_a_page_without_warnings_is_the_artifacts_with_links(done):
    root = done / "runs/tiny"
    artifact = (artifacts(root)["report"] / "report.html").read_bytes()
    assert (root / "report.html").read_bytes() == add_links(artifact, root, ["a", "b"]) != artifact
    assert sending.MARK.encode() in (root / "report.html").read_bytes()
