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
MOST_PARAMETERS = 100  # parameters in a request; MLflow allows 100
FINISHED = "FINISHED"


def send_to_mlflow(figures: Figures, name: str, how: MLflow, folder: Path) -> bool:
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
    with _silence_mlflow(how.patience_s):
        from mlflow.tracking import MlflowClient  # an optional package, and a slow import

        client = MlflowClient(tracking_uri=tracking_uri(how, folder))
        experiment = _find_or_create_experiment(client, how.experiment)
        digest = figures.digest
        run = _find_run(client, experiment, digest)
        if run is not None and run.info.status == FINISHED:
            return False
        if run is None:
            start_ms = int(figures.made * 1000)
            tags = {TAG: digest, "mlflow.runName": name, "mlflow.user": "consilium"}
            run = client.create_run(experiment, start_time=start_ms, tags=tags, run_name=name)
        _complete_run(client, run.info.run_id, figures)
        client.set_terminated(run.info.run_id, FINISHED, end_time=int(figures.made * 1000))
    return True


def tracking_uri(how: MLflow, folder: Path) -> str:
    """The URI of the tracking store: a folder becomes an absolute `file:` URI."""
    if how.uri is not None and urlsplit(how.uri).scheme:
        return how.uri
    place = folder if how.uri is None else Path(how.uri)
    place.mkdir(parents=True, exist_ok=True)
    return place.resolve().as_uri()


def _find_or_create_experiment(client: Any, name: str) -> str:
    """The identifier of the experiment of this name."""
    experiment = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if experiment is None else experiment.experiment_id)


def _find_run(client: Any, experiment: str, digest: str) -> Any:
    """The run with these figures, if there is one."""
    runs = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{digest}'", max_results=1)
    return runs[0] if runs else None


def _complete_run(client: Any, run: str, figures: Figures) -> None:
    """Write what the run lacks. A number that is there is not written again: MLflow would draw it twice."""
    from mlflow.entities import Metric, Param

    known = client.get_run(run).data
    logged = {
        (name, metric.step, metric.value) for name in known.metrics for metric in client.get_metric_history(run, name)
    }
    when = int(figures.made * 1000)
    metrics = [
        Metric(point.name, point.value, when, point.step)
        for point in figures.points
        if (point.name, point.step, point.value) not in logged
    ]
    settings = [Param(name, text) for name, text in figures.settings.items() if name not in known.params]
    for at in range(0, len(settings), MOST_PARAMETERS):
        client.log_batch(run, params=settings[at : at + MOST_PARAMETERS])
    for at in range(0, len(metrics), AT_ONCE):
        client.log_batch(run, metrics=metrics[at : at + AT_ONCE])
    paths = {artifact.path for artifact in client.list_artifacts(run)}
    for name, path in figures.files.items():
        if name not in paths:
            client.log_artifact(run, str(path))


@contextmanager
def _silence_mlflow(patience_s: int) -> Iterator[None]:
    """MLflow without telemetry, which would tell its makers of this machine, with one try and a limit of time."""
    variables = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(patience_s),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
