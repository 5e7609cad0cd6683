"""Reasons why a network cannot be trained privately, all at once and with the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

REMEDY = "use group norm (norm: group)"


def find_unfit_parts(module: nn.Module) -> list[str]:
    """Why per-patient gradients would not protect patients with this network; empty = fine.

    A buffer that training changes (running statistics of a norm, vectors of spectral norm) carries patients' data past
    clipping and noise into the model, so a private module has none. A norm over the examples of a batch would mix a
    patient's own images only, but a model must not need several of them. Everything else is fit, recurrent layers and
    attention too: patients pass alone, by torch's own gradient, and no layer is taught to give one for each example.
    """
    parts_by_reason: dict[str, list[str]] = {}
    module.train()
    for name, part in module.named_modules():
        buffers = [buffer for buffer, _ in part.named_buffers(recurse=False)]
        kind = type(part).__name__
        if buffers:
            what = f"{kind} keeps {', '.join(buffers)}, which training writes past clipping and noise; {REMEDY}"
            parts_by_reason.setdefault(what, []).append(name)
        elif isinstance(part, _NormBase) and part.training and not _of_one_example(part):
            parts_by_reason.setdefault(f"{kind} mixes the examples of a batch; {REMEDY}", []).append(name)
        elif isinstance(part, _BatchNorm) and not part.training and any(p.requires_grad for p in part.parameters()):
            what = f"{kind} trains scale and shift beside fixed statistics; fix these too (requires_grad_(False))"
            parts_by_reason.setdefault(what, []).append(name)
    complaints = [f"{what} (at {_join_names(names)})" for what, names in parts_by_reason.items()]
    if complaints:
        return complaints
    if not any(p.requires_grad for p in module.parameters()):
        return ["the network has no parameter to train; use another one"]
    return []


@contextmanager
def keep_unchanged(module: nn.Module) -> Iterator[None]:
    """Passes of patients within must leave every parameter as it is: what `forward` writes is not clipped and has no
    noise, and the next patient would meet it.

    Raises:
        ValueError: a parameter has other bits afterwards.
    """
    before = _copy_bits(module)
    yield
    now = _copy_bits(module)
    if before.is_same(now):  # all at once: a GPU waits for one answer
        return
    parts = now.parts()
    if moved := [name for name, part in before.parts().items() if name not in parts or not part.is_same(parts[name])]:
        raise ValueError(
            f"this network cannot be trained privately: its forward writes {_join_names(moved)} itself, past clipping"
            " and noise; take a layer that leaves its weights alone (no max_norm, no first batch that sets them)"
        )


class _Bits(NamedTuple):
    """Copies of parameters. shapes: by name, with the number of bytes. bits: (all bytes,), one after another."""

    shapes: Mapping[str, tuple[torch.Size, int]]
    bits: Tensor

    def parts(self) -> dict[str, _Bits]:
        """Each parameter's own."""
        split = torch.split(self.bits, [size for _, size in self.shapes.values()])
        return {
            name: _Bits({name: shape}, part) for (name, shape), part in zip(self.shapes.items(), split, strict=True)
        }

    def is_same(self, other: _Bits) -> bool:
        """Whether both hold the same bits; numbers that are none count, too."""
        return self.shapes == other.shapes and torch.equal(self.bits, other.bits)


def _copy_bits(module: nn.Module) -> _Bits:
    """The bits of all parameters of a module, copied."""
    parts = {name: value.detach().contiguous().flatten().view(torch.uint8) for name, value in module.named_parameters()}
    shapes = {name: (value.shape, len(parts[name])) for name, value in module.named_parameters()}
    return _Bits(shapes, torch.cat(list(parts.values())))


def _of_one_example(part: _NormBase) -> bool:
    """Instance norms without running statistics use one example at a time; batch norms never do."""
    return not part.track_running_stats and isinstance(part, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)


def _join_names(names: list[str]) -> str:
    """The first three names as text, and how many more there are."""
    shown = ", ".join(name or "the top" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
