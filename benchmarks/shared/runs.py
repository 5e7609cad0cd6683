"""Runs of settings by the project's own commands, and what finished runs say."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def run_settings(settings: Mapping[str, Any], folder: Path, *options: str, name: str = "") -> int:
    """Run settings, which are written into a folder, where its artifacts are; return the exit code."""
    from pipelines.run import main

    path = folder / f"{name or settings['name']}.yaml"
    path.write_text(yaml.safe_dump(dict(settings)))
    return main([str(path), *options])


def must_run(settings: Mapping[str, Any], folder: Path, *options: str, name: str = "") -> Path:
    """Run settings whose artifacts are in the same folder; return the run's own. Raises: SystemExit: it failed."""
    if code := run_settings({**settings, "runs": str(folder)}, folder, *options, name=name):
        raise SystemExit(f"{settings['name']} ended with {code}")
    return folder / settings["name"]


def newest_of(root: Path, stage: str) -> Path:
    """The last artifact of a run's stage."""
    made = [path for path in (root / stage).iterdir() if (path / "manifest.json").exists()]
    return max(made, key=lambda path: path.stat().st_mtime)


def read_json(root: Path, stage: str, file: str) -> Any:
    """A file of the last artifact of a run's stage."""
    return json.loads((newest_of(root, stage) / file).read_text())


def read_scores(root: Path, measures: tuple[str, ...] = ("AUC", "balanced accuracy")) -> dict[str, dict[str, float]]:
    """method -> `measure overall` or `measure hospital` -> value, of a finished run."""
    found: dict[str, dict[str, float]] = {}
    for row in read_json(root, "report", "scores.json"):
        if row["measure"] in measures and row["protocol"] in ("private", "overall"):
            where = "overall" if row["protocol"] == "overall" else row["sites"][0]
            found.setdefault(row["method"], {})[f"{row['measure']} {where}"] = row["value"]
    return found


def read_prostatex() -> Any:
    """The cohort that `prostatex.yaml` reads: two patients, one with a lesion."""
    from pipelines.hospital.hospital import COHORT, read_cohort_file
    from pipelines.run import main

    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            main(["prostatex.yaml", "--until", "ingest"])
            (path,) = Path(folder).glob(f"runs/prostatex/sites/prostatex/cohorts/*/{COHORT}")
            return read_cohort_file(path)
        finally:
            os.chdir(home)
