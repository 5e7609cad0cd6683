"""Random views of training examples by a function of one example: of the user, such as a transform of MONAI, or of
`federation.torchio_views`, which settings declare.

Settings are sent as JSON and code is never sent, so settings name a function that the process has registered, and the
digest of its code. It is called for one example at a time, in training draws only: never for validation or test
patients, nor for methods that read all training rows at once (moments). In private training it is a part of a patient's
views, before the clip, so it costs no ε, provided that it stores nothing of the examples that it gets, as with all code
of users. An object stores nothing, because each call gets a copy of it. The globals of a function cannot be checked, so
the statement of a hospital says that nobody reviewed them.
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
from federation.randomness import use_seed
from privacy.dp.access import Augment

Function: TypeAlias = Callable[..., Any]
TRANSFORM_HINT = (
    "a transform of one's own is known only where it was registered: from Python, by Examples(transform=...)"
)
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
        """Why this process cannot call the function; empty if it can."""
        if (self.function, self.code) in _FUNCTIONS:
            return ""
        if other_codes := [code for name, code in _FUNCTIONS if name == self.function]:
            return (
                f"the transform {self.function!r} that is registered here has other code ({other_codes[-1][:12]}) than "
                f"these settings name ({self.code[:12]}): define it as it was, or train anew with it as it is"
            )
        return f"no transform {self.function!r} is registered here: {TRANSFORM_HINT}"


def register_transform(function: Function) -> Transform:
    """Let settings of this process name a transform.

    function: called with an example x, a float32 tensor (*inputs) on the CPU, and in segmentation with its mask
    (*spatial), as function(x, mask); returns the same of the same shape. It draws from torch's, numpy's or Python's
    global generators, or has MONAI's `set_random_state`.

    Raises:
        TypeError: it cannot be called.
        ValueError: it holds a value that cannot be compared.
    """
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"transform must be a function of an example, found {function!r:.80}")
    copied = copy.deepcopy(function)
    _seed_function(copied, 0)  # the state of its generator is no part of its code
    name = str(getattr(function, "__name__", type(function).__name__)).strip("<>") or "transform"
    transform = Transform(function=name, code=code_digest(copied))
    _FUNCTIONS[transform.function, transform.code] = copied
    return transform


def find_function(how: Transform) -> Function:
    """The registered function. Raises: ValueError: none is registered here, or one of the same name with other code."""
    if how.missing:
        raise ValueError(how.missing)
    return _FUNCTIONS[how.function, how.code]


def build_views(how: Transform | Function, after: Augment | None = None) -> Augment:
    """A function that gives views of a mini-batch: of each row by the transform, then of all rows by `after`.

    how: a registered function, or a function of ours, which draws as a registered one may. Each view has its own seed,
    which is drawn from the generator: in plain training that follows from the run's seed, the hospital and the round,
    in private training from the operating system.

    Raises:
        ValueError: it is not registered here; or, when it is called, it fails, or gives another shape or a value that
            is not finite.
    """
    function = find_function(how) if isinstance(how, Transform) else how

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        seeds = torch.randint(2**62, (len(x),), generator=generator).tolist()
        views = [compute_view(copy.deepcopy(function), x[row], y[row], seed) for row, seed in enumerate(seeds)]
        if views:
            x, y = (torch.stack(parts) for parts in zip(*views, strict=True))
        return (x, y) if after is None else after(x, y, generator)

    return augment


def compute_view(function: Function, x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A view of one example. x: (*inputs). y: its mask (*spatial), or its label (), which does not change.

    Raises:
        ValueError: the function fails, or gives another shape or a value that is not finite.
    """
    arguments = [x.detach().cpu().clone()] + ([y.detach().cpu().clone()] if y.dim() else [])
    with _seed_generators(function, seed):
        try:
            result = function(*arguments)
        except Exception as error:  # code of the user
            raise ValueError(f"the transform fails ({type(error).__name__}: {error})") from error
    parts = tuple(result) if y.dim() and isinstance(result, tuple | list) else (result,)
    if len(parts) != len(arguments):
        raise ValueError(f"the transform must give {'(x, mask)' if y.dim() else 'x'}, found {type(result).__name__}")
    for name, part, before in zip(("x", "mask"), parts, arguments, strict=False):
        if tuple(np.shape(part)) != tuple(before.shape):
            text = f"found {list(np.shape(part))}; crop and resize what you give as Examples"
            raise ValueError(f"the transform must keep the shape of {name}, {list(before.shape)}, {text}")
    view = _convert_to_tensor(parts[0]).to(x.device, x.dtype)
    if not torch.isfinite(view).all():
        raise ValueError("the transform gives numbers that are not finite")
    return view, y if len(parts) == 1 else _convert_to_tensor(parts[1]).round().to(y.device, y.dtype)


def _convert_to_tensor(value: Any) -> Tensor:
    """A plain torch tensor; those of MONAI and torchvision have subclasses."""
    return torch.as_tensor(np.asarray(value)).clone()


@contextmanager
def _seed_generators(function: Function, seed: int) -> Iterator[None]:
    """Seed all generators that a transform may use, and restore the global ones afterwards."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    _seed_function(function, seed % 2**32)
    try:
        with use_seed(seed):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _seed_function(function: Function, seed: int) -> None:
    """Seed the generator of a transform that has one of its own, as those of MONAI."""
    if callable(state := getattr(function, "set_random_state", None)):
        state(seed=seed)
