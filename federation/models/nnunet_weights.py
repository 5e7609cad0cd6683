"""Weights of nnU-Net's own network (PlainConvUNet of dynamic_network_architectures) by the names of ours.

Both compute the same (`benchmarks/studies/nnunet_weights.py`), but for biases of convolutions before an instance norm:
the norm takes the mean off, and with it every constant. nnU-Net's files have these biases, and our network has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from federation.models.planned import Planned
from privacy.message import Params

FIRST = "encoder.stages.0.0.convs.0.conv.weight"
"""A tensor by which its files are known."""
COPIES = ("decoder.encoder.", ".all_modules.")
"""In names under which its files hold tensors a second time."""


def is_nnunet(tensors: Params) -> bool:
    """Whether tensors have the names of nnU-Net's network."""
    return FIRST in tensors


def rename_nnunet_tensors(tensors: Params, plan: Planned) -> dict[str, Tensor]:
    """The tensors that a planned network has, by its names; unknown ones keep theirs, so that they are told.

    Left out are second copies, biases before a norm, and answers at resolutions that the network does not supervise.

    Raises:
        ValueError: the network's norm is not `instance`, or its transposed convolutions have no bias, as nnU-Net's do.
    """
    if plan.norm != "instance":
        raise ValueError(f"nnU-Net's network has instance norms, and this one has model.norm {plan.norm}: say instance")
    if not plan.up_bias and "decoder.transpconvs.0.bias" in tensors:
        raise ValueError("nnU-Net's transposed convolutions have biases: say model.up_bias: true")
    names = dict(_list_names(plan))
    unused = {name for name in tensors if any(part in name for part in COPIES)}
    unused |= {name for name in tensors if name.endswith(".conv.bias")}
    unused |= {
        f"decoder.seg_layers.{stage}.{part}" for stage in range(len(plan.filters)) for part in ("weight", "bias")
    }
    return {names.get(name, name): tensor for name, tensor in tensors.items() if name in names or name not in unused}


def _list_names(plan: Planned) -> Iterator[tuple[str, str]]:
    """nnU-Net's name of each tensor of the network, and its own."""
    stages = len(plan.filters)
    blocks = [(f"encoder.stages.{stage}.0", f"blocks.{stage - 1}" if stage else "stem") for stage in range(stages)]
    for up in range(stages - 1):
        ours, is_last = f"blocks.{stages - 1 + up}", up == stages - 2
        blocks.append((f"decoder.stages.{up}", f"{ours}.up.conv_block"))
        for part in ("weight", "bias"):
            yield f"decoder.transpconvs.{up}.{part}", f"{ours}.up.transp_conv.conv.{part}"
            if is_last or (plan.deep_supervision and up > 0):
                yield f"decoder.seg_layers.{up}.{part}", f"head.{part}" if is_last else f"{ours}.supervised.{part}"
    for theirs, ours in blocks:
        for number in (0, 1):
            yield f"{theirs}.convs.{number}.conv.weight", f"{ours}.conv{number + 1}.conv.weight"
            for part in ("weight", "bias"):
                yield f"{theirs}.convs.{number}.norm.{part}", f"{ours}.norm{number + 1}.{part}"
