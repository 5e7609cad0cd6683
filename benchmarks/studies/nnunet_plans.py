"""Plans of nnU-Net v2 itself for made-up fingerprints. It runs in an environment with nnunetv2 and knows nothing of us.

    /where/nnunet/bin/python benchmarks/studies/nnunet_plans.py FINGERPRINTS.json PLANS.json

FINGERPRINTS.json: name -> spacings and shapes by study, (z, y, x), and names of channels and of labels. The least that
its `ExperimentPlanner` reads is written into a temporary folder: `dataset.json`, empty files as training images, and
`dataset_fingerprint.json`. PLANS.json: name -> its plans, and its version.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

INTENSITY = {"max": 1.0, "mean": 0.0, "median": 0.0, "min": -1.0, "percentile_00_5": -1.0, "percentile_99_5": 1.0}


def write_dataset(root: Path, number: int, name: str, fingerprint: dict[str, Any]) -> str:
    """Write what the planner reads; return the dataset's name."""
    dataset, studies = f"Dataset{number:03d}_{name}", len(fingerprint["spacings"])
    raw, prepared = root / "raw" / dataset, root / "preprocessed" / dataset
    for folder in (raw / "imagesTr", raw / "labelsTr", prepared):
        folder.mkdir(parents=True)
    channels = {str(place): channel for place, channel in enumerate(fingerprint["channels"])}
    for study in range(studies):
        (raw / "labelsTr" / f"s{study:04d}.nii.gz").touch()
        for place in channels:
            (raw / "imagesTr" / f"s{study:04d}_{int(place):04d}.nii.gz").touch()
    facts = {
        "channel_names": channels,
        "labels": {"background": 0, **{label: 1 + place for place, label in enumerate(fingerprint["labels"])}},
        "numTraining": studies,
        "file_ending": ".nii.gz",
        "overwrite_image_reader_writer": "SimpleITKIO",
    }
    (raw / "dataset.json").write_text(json.dumps(facts))
    measured = {
        "spacings": fingerprint["spacings"],
        "shapes_after_crop": fingerprint["shapes"],
        "median_relative_size_after_cropping": 1.0,
        "foreground_intensity_properties_per_channel": dict.fromkeys(channels, INTENSITY),
    }
    (prepared / "dataset_fingerprint.json").write_text(json.dumps(measured))
    return dataset


def main() -> None:
    """Plan every fingerprint."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("fingerprints")
    line.add_argument("plans")
    options = line.parse_args()
    fingerprints = json.loads(Path(options.fingerprints).read_text())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for variable, name in (("nnUNet_raw", "raw"), ("nnUNet_preprocessed", "preprocessed"), ("nnUNet_results", "r")):
            (root / name).mkdir()
            os.environ[variable] = str(root / name)
        from importlib.metadata import version

        from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner

        plans = {}
        for number, (name, fingerprint) in enumerate(fingerprints.items(), start=1):
            dataset = write_dataset(root, number, name, fingerprint)
            with contextlib.redirect_stdout(sys.stderr):
                plans[name] = ExperimentPlanner(dataset).plan_experiment()
    Path(options.plans).write_text(json.dumps({"version": version("nnunetv2"), "plans": plans}, default=str))


if __name__ == "__main__":
    main()
