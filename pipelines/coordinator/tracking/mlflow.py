"""Figures as a run of MLflow. The run carries the digest of its figures, so the same figures are one run there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelines.coordinator.tracking.figures import Figures
from pipelines.settings.track import MLflow

TAG = "consilium.digest"
AT_ONCE = 500  # numbers in a request; MLflow allows 1000
FEW = 100  # parameters in a request; MLflow allows 100
FINISHED = "FINISHED"


def send_to_mlflow(found: Figures, name: str, how: MLflow, folder: Path) -> bool:
    """Write the figures as a finished run of MLflow; False if they are there. What a broken call left is completed.

    Args:
        found: what the hospitals let go.
        name: of the run.
        how: where MLflow is.
        folder: for figures and pages, if no `uri` is said.

    Raises:
        ModuleNotFoundError: `pip install consilium[mlflow]`.
        Exception: whatever MLflow raises if the server is down or refuses.
    """
    with _quiet(how.patience_s):
        from mlflow.tracking import MlflowClient  # an optional package, and a slow import

        client = MlflowClient(tracking_uri=address(how, folder))
        experiment = _experiment(client, how.experiment)
        digest = found.digest
        run = _known(client, experiment, digest)
        if run is not None and run.info.status == FINISHED:
            return False
        if run is None:
            begun = int(found.made * 1000)
            tags = {TAG: digest, "mlflow.runName": name, "mlflow.user": "consilium"}
            run = client.create_run(experiment, start_time=begun, tags=tags, run_name=name)
        _complete(client, run.info.run_id, found)
        client.set_terminated(run.info.run_id, FINISHED, end_time=int(found.made * 1000))
    return True


def address(how: MLflow, folder: Path) -> str:
    """The URI of the tracking store: a folder becomes an absolute `file:` URI."""
    if how.uri is not None and urlsplit(how.uri).scheme:
        return how.uri
    place = folder if how.uri is None else Path(how.uri)
    place.mkdir(parents=True, exist_ok=True)
    return place.resolve().as_uri()


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _known(client: Any, experiment: str, digest: str) -> Any:
    """The run with these figures, if there is one."""
    found = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{digest}'", max_results=1)
    return found[0] if found else None


def _complete(client: Any, run: str, found: Figures) -> None:
    """Write what the run lacks. A number that is there is not written again: MLflow would draw it twice."""
    from mlflow.entities import Metric, Param

    known = client.get_run(run).data
    there = {(name, one.step, one.value) for name in known.metrics for one in client.get_metric_history(run, name)}
    when = int(found.made * 1000)
    metrics = [
        Metric(point.name, point.value, when, point.step)
        for point in found.points
        if (point.name, point.step, point.value) not in there
    ]
    settings = [Param(name, text) for name, text in found.settings.items() if name not in known.params]
    for at in range(0, len(settings), FEW):
        client.log_batch(run, params=settings[at : at + FEW])
    for at in range(0, len(metrics), AT_ONCE):
        client.log_batch(run, metrics=metrics[at : at + AT_ONCE])
    held = {one.path for one in client.list_artifacts(run)}
    for name, path in found.files.items():
        if name not in held:
            client.log_artifact(run, str(path))


@contextmanager
def _quiet(patience_s: int) -> Iterator[None]:
    """MLflow without telemetry, which would tell its makers of this machine, with one try and a limit of time."""
    said = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(patience_s),
    }
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
