"""A planned network with the weights of a trained nnU-Net beside nnU-Net itself, on one input.

    python -m benchmarks.studies.nnunet_weights --nnunet /where/nnunet/bin/python
    python -m benchmarks.tables.derived --write planned

nnU-Net 2.8.1 trains for two epochs on four made-up volumes, in an environment of its own
(`benchmarks/studies/nnunet_training.py`), and answers one patch of noise, at all resolutions
(`benchmarks/studies/nnunet_answers.py`). Its checkpoint's tensors become ours by name, as in `start: {name: weights}`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.studies.beside_nnunet import call

NAME = "nnunet_weights"
SHAPE, SPACING = (48, 48, 16), (1.0, 1.0, 3.0)
COMMAND = "python -m benchmarks.studies.nnunet_weights --nnunet …"


def train_nnunet(folder: Path, python: str) -> Path:
    """Train nnU-Net; the file of its answers."""
    from nibabel import Nifti1Image, save

    generator, pairs = np.random.default_rng(0), list[tuple[str, str]]()
    for number in range(5):
        labels = np.zeros(SHAPE, np.uint8)
        first = int(generator.integers(8, 16))
        labels[first : first + 20, 12:36, 4:12] = 1
        image = (3 + 2 * labels + generator.normal(0, 0.5, SHAPE)).astype(np.float32)
        pair = (str(folder / f"image{number}.nii.gz"), str(folder / f"mask{number}.nii.gz"))
        for path, values in zip(pair, (image, labels), strict=True):
            save(Nifti1Image(values, np.diag([*SPACING, 1.0])), path)
        pairs.append(pair)
    job = {
        "folder": str(folder / "nnunet"),
        "channel": "T2",
        "label": "block",
        "training": pairs[:4],
        "test": [pairs[4][0]],
        "masks": str(folder / "masks"),
        "epochs": 2,
        "patches": 8,
        "filters": 8,
        "seed": 0,
    }
    (folder / "job.json").write_text(json.dumps(job))
    call(folder, python, str(ROOT / "benchmarks/studies/nnunet_training.py"), "job.json")
    call(folder, python, str(ROOT / "benchmarks/studies/nnunet_answers.py"), str(folder / "nnunet"), "answers.npz")
    return folder / "answers.npz"


def compare(file: Path) -> dict[str, Any]:
    """How far our network's answers are from nnU-Net's."""
    import torch

    from federation.models.planned import Planned
    from federation.parameters import loaded
    from federation.weights import select_fitting_tensors

    stored = dict(np.load(file, allow_pickle=False))
    plan = json.loads(str(stored["plan"]))
    rows = {
        ours: tuple(map(tuple, plan[theirs]))
        for ours, theirs in {"kernels": "kernel_sizes", "strides": "strides"}.items()
    }
    model = Planned(patch=tuple(plan["patch"]), filters=tuple(plan["features_per_stage"]), up_bias=True, **rows)
    network = model.build(inputs=(1, *model.patch), classes=2)
    weights = {
        name.removeprefix("weights/"): torch.from_numpy(each)
        for name, each in stored.items()
        if name.startswith("weights/")
    }
    module = loaded(network, select_fitting_tensors(weights, network))
    with torch.no_grad():
        output = module.train()(torch.from_numpy(stored["x"]))  # an instance norm is the same in training
    answers = [output.logits, *output.deep]
    off = [float((each - torch.from_numpy(stored[f"logits/{k}"])).abs().max()) for k, each in enumerate(answers)]
    largest = [float(np.abs(stored[f"logits/{number}"]).max()) for number in range(len(answers))]
    distinct = {
        name: each for name, each in weights.items() if "all_modules" not in name and "decoder.encoder" not in name
    }
    biases = [name for name in distinct if name.endswith(".conv.bias")]
    return {
        "patch": plan["patch"],
        "stages": len(model.filters),
        "tensors": len(distinct),
        "taken": len(network.state_dict()),
        "cancelled biases": len(biases),
        "largest bias": max(float(distinct[name].abs().max()) for name in biases),
        "largest logit": largest,
        "off by": off,
    }


def tables(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The table of differences by resolution."""
    rows = [
        ["all voxels" if number == 0 else f"1 / {2**number} along an axis", f"{largest:.2f}", f"{off:.1e}"]
        for number, (largest, off) in enumerate(zip(kept["largest logit"], kept["off by"], strict=True))
    ]
    return {"weights": make_table(["resolution", "largest logit", "largest difference"], rows, COMMAND)}


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nnunet", required=True, help="python of an environment with nnunetv2")
    return parser.parse_args()


def main() -> None:
    """Measure once."""
    options = parse_options()
    if not read_measured(NAME):
        with tempfile.TemporaryDirectory() as name:
            figures = compare(train_nnunet(Path(name), options.nnunet))
        write_measured(NAME, figures)
        print(figures)


if __name__ == "__main__":
    main()
