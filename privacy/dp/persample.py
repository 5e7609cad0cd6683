"""The gradient of every single patient, each computed alone.

A patient's loss is the mean over the patient's views, so one patient has one gradient, however many images there are of
them (Abadi et al., Deep Learning with Differential Privacy, CCS 2016, with the patient as the example).

Patients do not pass through a network together. A product of matrices or a convolution rounds a row by how many rows
there are and by where the row lies, so that one patient more changes the last bits of others; weights that somebody
crafted amplify these bits beyond every clipping norm. Under vmap and in blocks of a fixed size it is the same. So each
patient's rows pass alone, in memory of their own (`privacy.dp.chunks.copy_rows`), and the shape of a pass depends on
that patient alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from privacy.dp.access import Batch, Objective
from privacy.message import Params


def patient_gradients(module: nn.Module, objective: Objective, patients: Iterable[Batch]) -> Iterator[Params]:
    """Yield the gradient of one patient's mean loss after another's, by name of each parameter that requires one.

    Args:
        module: without buffers (`privacy.dp.modules.find_unfit_parts`). objective: (forward, batch) -> losses (K,).
        patients: the views of each patient: x (K, ...), y (K,) or (K, *spatial), aux (K, ...) or None. K may differ.

    Returns:
        Parameters that the loss does not reach have zeros.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for views in patients:
        with torch.enable_grad():
            loss = objective(module, views).mean()
            reached = (
                torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
                if loss.requires_grad
                else [None] * len(trained)
            )
        yield {
            name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(trained.items(), reached, strict=True)
        }
