"""nnU-Net's own loader on given arrays, for patch_loader.py. It runs in an environment with nnunetv2, and knows nothing
of us.

    /where/nnunet/bin/python benchmarks/speed/patch_loader_nnunet.py JOB.json

JOB.json: folder (with image NAME.npy (1, z, y, x) float32 and its mask NAME-mask.npy int16), names, patch (of two or
three sides), batch. For each line `places N` or `views N` that it reads, it makes N batches, without or with nnU-Net's
augmentation, and prints the seconds of the processor.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def store_cases(folder: Path, job: dict[str, Any]) -> str:
    """Write the arrays as nnU-Net's preprocessing does; the folder."""
    import numpy as np
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2

    stored = folder / "stored"
    stored.mkdir()
    for name in job["names"]:
        image, mask = np.load(folder / f"{name}.npy"), np.load(folder / f"{name}-mask.npy")[None]
        patch = (1,) * (3 - len(job["patch"])) + tuple(job["patch"])
        blocks, chunks = comp_blosc2_params(image.shape, patch, image.itemsize)
        places = DefaultPreprocessor._sample_foreground_locations(mask, [1])
        blocks_mask, chunks_mask = comp_blosc2_params(mask.shape, patch, 1)
        nnUNetDatasetBlosc2.save_case(
            image,
            mask.astype(np.int8),
            {"class_locations": places},
            str(stored / name),
            chunks=chunks,
            blocks=blocks,
            chunks_seg=chunks_mask,
            blocks_seg=blocks_mask,
        )
    return str(stored)


def make_loaders(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Loaders without and with augmentation, as `nnUNetTrainer` makes them."""
    import torch
    from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
    from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.utilities.label_handling.label_handling import LabelManager

    class Plans:
        """What the trainer reads of a configuration."""

        patch_size = job["patch"]

    trainer = object.__new__(nnUNetTrainer)
    trainer.configuration_manager = Plans()
    trainer.print_to_log_file = lambda *words, **more: None
    turning, flat, first, mirrored = trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
    transforms = nnUNetTrainer.get_training_transforms(tuple(job["patch"]), turning, None, mirrored, flat)
    dataset = nnUNetDatasetBlosc2(store_cases(folder, job), job["names"])
    labels = LabelManager({"background": 0, "organ": 1}, None)
    torch.set_num_threads(1)
    sides = {"places": (tuple(job["patch"]), None), "views": (tuple(first), transforms)}
    return {
        way: nnUNetDataLoader(
            dataset,
            job["batch"],
            begun,
            tuple(job["patch"]),
            labels,
            oversample_foreground_percent=0.33,
            transforms=then,
            probabilistic_oversampling=True,
        )
        for way, (begun, then) in sides.items()
    }


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(job["folder"])
    for variable in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{variable}"] = str(folder)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever others print
    loaders = make_loaders(folder, job)
    answers.write("ready\n")
    for line in sys.stdin:
        way, batches = line.split()
        begun = time.process_time()
        for _ in range(int(batches)):
            batch = next(loaders[way])
        if list(batch["data"].shape[2:]) != list(job["patch"]):
            raise RuntimeError(f"patches are {list(batch['data'].shape[2:])}, asked were {job['patch']}")
        answers.write(f"{time.process_time() - begun}\n")


if __name__ == "__main__":
    main()
