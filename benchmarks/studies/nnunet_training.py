"""nnU-Net v2 itself, trained on given images. It runs in an environment with nnunetv2 and knows nothing of us.

    /where/nnunet/bin/python benchmarks/studies/nnunet_training.py JOB.json [JOB.json ...]

JOB.json: folder (of its own; new), configuration (3d_fullres or 2d), channels (their names), ending (of files: .nii.gz,
or .png with values 0 and 1 in masks), label, training (pairs of files: an image and its mask), test (images), masks
(the folder into which masks of test images go), epochs, patches (of each), filters (of the first stage; nnU-Net's are
32), mirror (predictions), seed. It plans, prepares and trains by nnU-Net's own code on all of the training images, on a
CPU, and prints its plan.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.pool
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

NUMBER, NAME = 1, "Dataset001_given"


class ThreadsOnly:
    """What nnU-Net takes of a multiprocessing context."""

    Pool = multiprocessing.pool.ThreadPool


def set_places(folder: Path) -> None:
    """nnU-Net's folders and number of processes, for one job."""
    for variable in ("raw", "preprocessed", "results"):
        (folder / variable).mkdir(parents=True)
        os.environ[f"nnUNet_{variable}"] = str(folder / variable)
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_compile": "false", "nnUNet_def_n_proc": "1"}


def write_dataset(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """The training images in nnU-Net's form."""
    raw = folder / "raw" / NAME
    for part in ("imagesTr", "labelsTr"):
        (raw / part).mkdir(parents=True)
    for place, (image, mask) in enumerate(job["training"]):
        shutil.copy(image, raw / "imagesTr" / f"p{place:03d}_0000{job['ending']}")
        shutil.copy(mask, raw / "labelsTr" / f"p{place:03d}{job['ending']}")
    facts = {
        "channel_names": {str(place): name for place, name in enumerate(job["channels"])},
        "labels": {"background": 0, job["label"]: 1},
        "numTraining": len(job["training"]),
        "file_ending": job["ending"],
    }
    (raw / "dataset.json").write_text(json.dumps(facts))
    return facts


def plan_and_prepare(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Its plan, after the images were prepared by it."""
    from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, preprocess_dataset

    extract_fingerprints([NUMBER], num_processes=1, check_dataset_integrity=False)
    planner = ExperimentPlanner(NAME)
    planner.UNet_base_num_features = job["filters"]
    planner.plan_experiment()
    preprocess_dataset(NUMBER, "nnUNetPlans", [job["configuration"]], [1])
    written = folder / "preprocessed" / NAME / "nnUNetPlans.json"
    plans: dict[str, Any] = json.loads(written.read_text())
    return plans


def train_and_predict(job: dict[str, Any], plans: dict[str, Any], facts: dict[str, Any]) -> None:
    """Train on all images, and write masks of the test images."""
    import numpy as np
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    os.environ |= {"nnUNet_n_proc_DA": "0"}  # in this process; planning takes the same number for threads, above 0
    random.seed(job["seed"])
    np.random.seed(job["seed"])
    torch.manual_seed(job["seed"])
    trainer = nnUNetTrainer(
        {**plans, "continue_training": False}, job["configuration"], "all", facts, torch.device("cpu")
    )
    batch = plans["configurations"][job["configuration"]]["batch_size"]
    trainer.num_epochs, trainer.num_iterations_per_epoch = job["epochs"], round(job["patches"] / batch)
    trainer.num_val_iterations_per_epoch = 1
    trainer.disable_checkpointing = True
    with patch.object(trainer.logger, "plot_progress_png"):  # nobody looks, and it takes as long as half an epoch
        trainer.run_training()
    trainer.network.eval()
    trainer.set_deep_supervision_enabled(False)
    device = torch.device("cpu")
    predictor = nnUNetPredictor(
        use_mirroring=job["mirror"], perform_everything_on_device=False, device=device, allow_tqdm=False
    )
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
    names = [str(out / Path(image).name.removesuffix(job["ending"])) for image in job["test"]]
    predictor.predict_from_files_sequential([[image] for image in job["test"]], names)


def do_job(job: dict[str, Any]) -> None:
    """Plan, prepare, train and predict, and print the plan."""
    folder = Path(job["folder"])
    set_places(folder)
    facts = write_dataset(folder, job)
    # a process of its own would import torch again
    with patch.object(multiprocessing, "get_context", return_value=ThreadsOnly):
        plans = plan_and_prepare(folder, job)
    train_and_predict(job, plans, facts)
    own = plans["configurations"][job["configuration"]]
    main_lines = {"patch": own["patch_size"], "batch": own["batch_size"], "spacing": own["spacing"]}
    print("PLAN", json.dumps({**main_lines, "strides": own["architecture"]["arch_kwargs"]["strides"]}))


def main() -> None:
    """Do the jobs, one after the other."""
    for path in sys.argv[1:]:
        do_job(json.loads(Path(path).read_text()))


if __name__ == "__main__":
    main()
