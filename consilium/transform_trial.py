"""Whether a transform of one's own can be used: it is tried on invented examples before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from federation.transforms import compute_view, find_function, register_transform
from privacy.settings_error import Problem

INVENTED = 32  # examples, each tried twice: what changes half of them by chance is missed once in 4e9


def transform_problems(transform: Callable[..., Any], x: NDArray[Any], mask: NDArray[Any] | None) -> list[Problem]:
    """Why a transform cannot be used: it fails, or gives other views of an example where its seed is the same.

    It is tried on invented examples: one that keeps what it sees must not meet patients, those for test among them.
    """
    x, mask = _invent_examples(x, mask)
    rows = range(len(x))
    try:
        function = find_function(register_transform(transform))
        before, after = (
            {row: _digest_view(function, x[row], None if mask is None else mask[row], row) for row in order}
            for order in (rows, rows[::-1])
        )
    except (TypeError, ValueError) as error:
        return [Problem(("transform",), str(error))]
    if all(before[row] == after[row] for row in rows):
        return []
    text = "gives another view of an example with the same seed: it draws from a generator of its own, or remembers "
    text += "earlier examples; draw from torch's, numpy's or Python's global generator in each call, or have MONAI's "
    return [Problem(("transform",), f"{text}set_random_state")]


def _invent_examples(x: NDArray[Any], mask: NDArray[Any] | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Examples of the same shape, with random values between the lowest and the highest."""
    random = np.random.default_rng(0)
    low, high = float(x.min()), float(x.max())
    made = random.uniform(low, high if high > low else low + 1, size=(INVENTED, *x.shape[1:])).astype(np.float32)
    if mask is None:
        return made, None
    return made, random.integers(0, int(mask.max()) + 1, size=(INVENTED, *mask.shape[1:])).astype(mask.dtype)


def _digest_view(function: Callable[..., Any], x: NDArray[Any], mask: NDArray[Any] | None, seed: int) -> list[bytes]:
    """The bytes of the view that a transform makes of one example with this seed."""
    y = torch.zeros((), dtype=torch.int64) if mask is None else torch.from_numpy(np.array(mask))
    return [part.numpy().tobytes() for part in compute_view(function, torch.from_numpy(np.array(x)), y, seed)]
