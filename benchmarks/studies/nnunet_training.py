"""nnU-Net v2 itself, trained on given volumes. It runs in an environment with nnunetv2 and knows nothing of us.

    /where/nnunet/bin/python benchmarks/studies/nnunet_training.py JOB.json

JOB.json: folder (of its own; new), channel (its name), label, training (pairs of NIfTI files: an image and its mask),
test (images), masks (the folder into which masks of test images go), epochs, patches (of each), filters (of the
first stage; nnU-Net's are 32), seed. It plans, prepares and trains by nnU-Net's own code, 3d_fullres, on all of the
training volumes, on a CPU, and prints its plan.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

NUMBER, NAME = 1, "Dataset001_given"


def set_places(folder: Path) -> None:
    """nnU-Net's folders and number of processes, which it reads when it is imported."""
    for variable in ("raw", "preprocessed", "results"):
        (folder / variable).mkdir(parents=True)
        os.environ[f"nnUNet_{variable}"] = str(folder / variable)
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_compile": "false", "nnUNet_def_n_proc": "1"}


def write_dataset(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """The training volumes in nnU-Net's form."""
    raw = folder / "raw" / NAME
    for part in ("imagesTr", "labelsTr"):
        (raw / part).mkdir(parents=True)
    for place, (image, mask) in enumerate(job["training"]):
        shutil.copy(image, raw / "imagesTr" / f"p{place:03d}_0000.nii.gz")
        shutil.copy(mask, raw / "labelsTr" / f"p{place:03d}.nii.gz")
    facts = {
        "channel_names": {"0": job["channel"]},
        "labels": {"background": 0, job["label"]: 1},
        "numTraining": len(job["training"]),
        "file_ending": ".nii.gz",
    }
    (raw / "dataset.json").write_text(json.dumps(facts))
    return facts


def plan_and_prepare(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Its plan, after the volumes were prepared by it."""
    from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, preprocess_dataset

    extract_fingerprints([NUMBER], num_processes=1, check_dataset_integrity=False)
    planner = ExperimentPlanner(NAME)
    planner.UNet_base_num_features = job["filters"]
    planner.plan_experiment()
    preprocess_dataset(NUMBER, "nnUNetPlans", ["3d_fullres"], [1])
    written = folder / "preprocessed" / NAME / "nnUNetPlans.json"
    plans: dict[str, Any] = json.loads(written.read_text())
    return plans


def train_and_predict(job: dict[str, Any], plans: dict[str, Any], facts: dict[str, Any]) -> None:
    """Train on all volumes, and write masks of the test images."""
    import numpy as np
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    os.environ |= {"nnUNet_n_proc_DA": "0"}  # in this process; planning takes the same number for threads, above 0
    random.seed(job["seed"])
    np.random.seed(job["seed"])
    torch.manual_seed(job["seed"])
    trainer = nnUNetTrainer({**plans, "continue_training": False}, "3d_fullres", "all", facts, torch.device("cpu"))
    batch = plans["configurations"]["3d_fullres"]["batch_size"]
    trainer.num_epochs, trainer.num_iterations_per_epoch = job["epochs"], round(job["patches"] / batch)
    trainer.num_val_iterations_per_epoch = 1
    trainer.run_training()
    trainer.network.eval()
    trainer.set_deep_supervision_enabled(False)
    device = torch.device("cpu")
    predictor = nnUNetPredictor(use_mirroring=True, perform_everything_on_device=False, device=device, allow_tqdm=False)
    predictor.manual_initialization(
        trainer.network,
        trainer.plans_manager,
        trainer.configuration_manager,
        [trainer.network.state_dict()],
        facts,
        "nnUNetTrainer",
        trainer.inference_allowed_mirroring_axes,
    )
    out = Path(job["masks"])
    out.mkdir(parents=True)
    names = [str(out / Path(image).name.removesuffix(".nii.gz")) for image in job["test"]]
    predictor.predict_from_files_sequential([[image] for image in job["test"]], names)


def main() -> None:
    """Do the job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(job["folder"])
    set_places(folder)
    facts = write_dataset(folder, job)
    plans = plan_and_prepare(folder, job)
    train_and_predict(job, plans, facts)
    own = plans["configurations"]["3d_fullres"]
    found = {"patch": own["patch_size"], "batch": own["batch_size"], "spacing": own["spacing"]}
    print("PLAN", json.dumps({**found, "strides": own["architecture"]["arch_kwargs"]["strides"]}))


if __name__ == "__main__":
    main()
