"""What nnU-Net's own trained network answers, and its weights. It runs in an environment with nnunetv2.

    /where/nnunet/bin/python benchmarks/studies/nnunet_answers.py FOLDER OUT.npz

FOLDER: in which `nnunet_training.py` trained. OUT.npz: an input of one patch, logits at all resolutions, and each
tensor of checkpoint_final.pth's `network_weights` by its name; and the plan of its network, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

NAME = "Dataset001_given"


def main() -> None:
    """Load the checkpoint as nnU-Net does, and write what its network answers."""
    import numpy as np
    import torch
    from nnunetv2.utilities.get_network_from_plans import get_network_from_plans

    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    (file,) = (folder / "results" / NAME).glob("*/fold_all/checkpoint_final.pth")
    checkpoint = torch.load(file, map_location="cpu", weights_only=False)
    plan = checkpoint["init_args"]["plans"]["configurations"]["3d_fullres"]
    described = plan["architecture"]
    network = get_network_from_plans(
        described["network_class_name"],
        described["arch_kwargs"],
        described["_kw_requires_import"],
        1,
        2,
        allow_init=True,
        deep_supervision=True,
    )
    network.load_state_dict(checkpoint["network_weights"])
    network.eval()
    x = torch.randn(1, 1, *plan["patch_size"], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = network(x)
    answers = {f"logits/{number}": each.numpy() for number, each in enumerate(logits)}
    weights = {f"weights/{name}": each.numpy() for name, each in checkpoint["network_weights"].items()}
    shown = {key: described["arch_kwargs"][key] for key in ("kernel_sizes", "strides", "features_per_stage")}
    text = json.dumps({"patch": [int(side) for side in plan["patch_size"]], **shown})
    np.savez(out, x=x.numpy(), plan=np.array(text), **answers, **weights)


if __name__ == "__main__":
    main()
