"""The gradient of every single patient, as if each had been computed alone.

A patient's loss is the weighted mean over the patient's K views, so one patient has one gradient, however many images
there are of them (Abadi et al., Deep Learning with Differential Privacy, CCS 2016, with the patient as the example).
Computed by `torch.func`, chunk by chunk; a loss that itself contains gradients, as a gradient penalty does, works too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from privacy.dp.access import Batch, Objective
from privacy.message import Params

CHUNK = 16  # patients whose gradients are computed together: half the memory of all at once, at the same speed


def patient_gradients(
    module: nn.Module,
    objective: Objective,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    aux: Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients and losses of U patients with K views each.

    Args:
        module: without buffers (`privacy.dp.modules.unfit`). objective: (forward, batch) -> losses (K,) of one patient.
        x: (U, K, ...). y: (U, K) or (U, K, *spatial). weight: (U, K), each row sums to 1. aux: (U, K, ...) or None.

    Returns:
        By name of each parameter that requires a gradient: (U, *shape); and the losses (U,). Parameters that the
        loss does not reach have zeros; no patient at all gives tensors of length 0.
    """
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if len(x) == 0:
        return {name: p.new_zeros(0, *p.shape) for name, p in named.items()}, x.new_zeros(0)
    trained = {name: p.detach() for name, p in named.items()}
    frozen = {name: p.detach() for name, p in module.named_parameters() if name not in named}

    def loss(params: Params, x: Tensor, y: Tensor, weight: Tensor, aux: Tensor | None) -> Tensor:
        def forward(*inputs: object) -> object:
            return functional_call(module, {**params, **frozen}, inputs)

        return (objective(forward, Batch(x, y, aux)) * weight).sum()

    of_each = vmap(
        grad_and_value(loss),
        in_dims=(None, 0, 0, 0, None if aux is None else 0),
        chunk_size=chunk,
        randomness="different",
    )
    gradients, losses = of_each(trained, x, y, weight, aux)
    return gradients, losses


def without_strays(gradients: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """The same with zeros for every patient whose gradient has no finite norm, and the number of these patients.

    Clipping does not help against them: one NaN, times any factor, would make everybody's sum NaN.
    """
    first = next(iter(gradients.values()), torch.zeros(0))
    good = torch.ones(len(first), dtype=torch.bool, device=first.device)
    square = torch.zeros(len(first), device=first.device)
    for gradient in gradients.values():
        square = square + gradient.flatten(1).to(square.dtype).square().sum(dim=1)
    good &= square.isfinite()  # then every part is finite, and so is the norm used in clipping
    if bool(good.all()):
        return gradients, 0
    kept = {
        name: torch.where(good.view(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)
        for name, gradient in gradients.items()
    }
    return kept, int((~good).sum())
