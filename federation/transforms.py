"""Random views of training examples by a function of one's own, as MONAI's and TorchIO's transforms.

Settings cross the wire as JSON and code never does, so they name a function that the process has registered, and the
digest of its code. It is called for one example at a time, in training draws only: never for validation or test
patients, nor for methods that ask for all training rows as they are (moments). In private training it is a part of a
patient's views, before the clip, so it costs no ε; as with any code of one's own, that holds if it keeps nothing of the
examples that it is given. An object keeps nothing: each call gets a copy of it. Of a function's globals nobody can say,
so a hospital's statement says that nobody reviewed them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from federation.code_digest import code_digest
from federation.randomness import seeded
from privacy.dp.access import Augment

Function: TypeAlias = Callable[..., Any]
ELSEWHERE = "a transform of one's own is known only where it was registered: from Python, by Examples(transform=...)"
_FUNCTIONS: dict[tuple[str, str], Function] = {}
"""By name and digest of the code."""


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A registered function. function: its name. code: the digest of its code (`federation.code_digest`)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    function: str
    code: str

    @property
    def missing(self) -> str:
        """Why this process cannot call it; empty if it can."""
        if (self.function, self.code) in _FUNCTIONS:
            return ""
        if others := [code for name, code in _FUNCTIONS if name == self.function]:
            return (
                f"the transform {self.function!r} that is registered here has other code ({others[-1][:12]}) than "
                f"these settings name ({self.code[:12]}): define it as it was, or train anew with it as it is"
            )
        return f"no transform {self.function!r} is registered here: {ELSEWHERE}"


def register_transform(function: Function) -> Transform:
    """Let settings of this process name a transform.

    function: called with an example x, a float32 tensor (*inputs) on the CPU, and where masks are learnt with its mask
    (*spatial), as function(x, mask); returns the same of the same shape. It draws from torch's, numpy's or Python's
    global generators, or has MONAI's `set_random_state`.

    Raises:
        TypeError: it cannot be called.
        ValueError: it holds a value that cannot be compared.
    """
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"transform must be a function of an example, found {function!r:.80}")
    kept = copy.deepcopy(function)
    _set_state(kept, 0)  # where its own generator stands is no part of its code
    name = str(getattr(function, "__name__", type(function).__name__)).strip("<>") or "transform"
    found = Transform(function=name, code=code_digest(kept))
    _FUNCTIONS[found.function, found.code] = kept
    return found


def function_of(how: Transform) -> Function:
    """What was registered. Raises: ValueError: nobody registered it here, or another code under its name."""
    if how.missing:
        raise ValueError(how.missing)
    return _FUNCTIONS[how.function, how.code]


def views_by(how: Transform, after: Augment | None = None) -> Augment:
    """The function that gives views of a mini-batch: of each row by the transform, then of all by `after`.

    Each view has a seed of its own, which follows from the generator: in plain training from the run's seed, the
    hospital and the round, in private training from the operating system.

    Raises:
        ValueError: it is not registered here; or, when it is called, it fails, or gives another shape or a value that
            is not finite.
    """
    function = function_of(how)

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        seeds = torch.randint(2**62, (len(x),), generator=generator).tolist()
        views = [view_of(copy.deepcopy(function), x[row], y[row], seed) for row, seed in enumerate(seeds)]
        if views:
            x, y = (torch.stack(parts) for parts in zip(*views, strict=True))
        return (x, y) if after is None else after(x, y, generator)

    return augment


def view_of(function: Function, x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A view of one example. x: (*inputs). y: its mask (*spatial), or its label (), which stays.

    Raises:
        ValueError: the function fails, or gives another shape or a value that is not finite.
    """
    given = [x.detach().cpu().clone()] + ([y.detach().cpu().clone()] if y.dim() else [])
    with _drawing(function, seed):
        try:
            made = function(*given)
        except Exception as error:  # its own code
            raise ValueError(f"the transform fails ({type(error).__name__}: {error})") from error
    parts = tuple(made) if y.dim() and isinstance(made, tuple | list) else (made,)
    if len(parts) != len(given):
        raise ValueError(f"the transform must give {'(x, mask)' if y.dim() else 'x'}, found {type(made).__name__}")
    for name, part, before in zip(("x", "mask"), parts, given, strict=False):
        if tuple(np.shape(part)) != tuple(before.shape):
            text = f"found {list(np.shape(part))}; crop and resize what you give as Examples"
            raise ValueError(f"the transform must keep the shape of {name}, {list(before.shape)}, {text}")
    view = _plain(parts[0]).to(x.device, x.dtype)
    if not torch.isfinite(view).all():
        raise ValueError("the transform gives numbers that are not finite")
    return view, y if len(parts) == 1 else _plain(parts[1]).round().to(y.device, y.dtype)


def _plain(value: Any) -> Tensor:
    """A tensor without a class of its own, as MONAI's and torchvision's have."""
    return torch.as_tensor(np.asarray(value)).clone()


@contextmanager
def _drawing(function: Function, seed: int) -> Iterator[None]:
    """Seed all generators that a transform may use, and restore those that it shares with others."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    _set_state(function, seed % 2**32)
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _set_state(function: Function, seed: int) -> None:
    if callable(state := getattr(function, "set_random_state", None)):
        state(seed=seed)
