"""How a network passes over rows in training without differential privacy: in which numbers, and how they lie.

Both only alter rounding and speed. Weights, gradients, losses and messages are float32 whatever is chosen; per-patient
gradients of private training do not come through here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Precision: TypeAlias = Literal["float32", "bf16"]
VOLUME_AXES = 5
"""Examples, channels, depth, rows and columns."""


@dataclass(frozen=True)
class Passes:
    """precision: bf16 = convolutions and products of matrices in bfloat16, chosen by `torch.autocast`; the outputs of
    the network are float32 again before any loss is computed. On a processor volumes pass in float32: torch 2.13's
    gradients of 3-D convolutions in bfloat16 read memory there that nobody wrote, where a side has two voxels.
    channels_last: images (b, C, H, W) lie with the channels of a pixel side by side, which a GPU's bfloat16
    convolutions need to be fast.
    """

    precision: Precision = "float32"
    channels_last: bool = False

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., object]:
        """The module itself, or a function of the same inputs that passes through it in this way."""
        if self.precision == "float32" and not self.channels_last:
            return module

        from torch.func import functional_call  # imported by torch already

        def pass_through(*inputs: object) -> object:
            is_volume = any(isinstance(value, Tensor) and value.dim() == VOLUME_AXES for value in inputs)
            is_reduced = self.precision == "bf16" and not (is_volume and device.type == "cpu")
            with torch.autocast(device.type, torch.bfloat16, enabled=is_reduced):
                if not self.channels_last:
                    return to_float32(module(*inputs))
                # Weights too: with one channel, how images lie tells torch nothing.
                weights = {name: lay_channels_last(p) for name, p in module.named_parameters()}
                laid_inputs = tuple(
                    lay_channels_last(value) if isinstance(value, Tensor) else value for value in inputs
                )
                return to_float32(functional_call(module, weights, laid_inputs))

        return pass_through


PLAIN = Passes()


def lay_channels_last(x: Tensor) -> Tensor:
    """A tensor of four axes with its second one innermost in memory; any other as it is."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def to_float32(output: object) -> object:
    """The same tensor, or the same tuple of tensors, with float32 in place of bfloat16; anything else as it is."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype == torch.bfloat16 else output
    if isinstance(output, tuple):
        parts = [to_float32(part) for part in output]
        named: Callable[..., object] | None = getattr(type(output), "_make", None)
        return tuple(parts) if named is None else named(parts)
    return output
