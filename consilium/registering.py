"""Networks and methods of one's own, registered for the settings of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import TypeVar

from torch import nn

from federation.models import MODELS
from federation.models.own import Own, register_network
from federation.registry import find_offer
from federation.registry import register as add
from federation.task import Kind
from personalize import ALGORITHMS
from pipelines.loader.document import ConfigError
from privacy.settings_error import Problem

T = TypeVar("T", bound=type)


def own(
    build: Callable[..., nn.Module],
    *,
    stem: str | Sequence[str],
    blocks: Sequence[str] = (),
    head: str,
    name: str | None = None,
    kind: Kind = "classification",
) -> Own:
    """The settings of a network of one's own, which is registered for this process.

    build: a class or function that makes a new `nn.Module`; called with `inputs`, the shape of an example, and
    `classes`, if it takes arguments. stem, blocks, head: paths of submodules; see `federation.models.own.Own`. name: in
    settings; None = that of `build`.

    Raises:
        ConfigError: it cannot be called, or a path is empty. What its submodules lack is reported before anything is
        run.
    """
    called = name or str(getattr(build, "__name__", "network")).lower()
    try:
        code = register_network(called, build)
        first = (stem,) if isinstance(stem, str) else tuple(stem)
        return Own(network=called, stem=first, blocks=tuple(blocks), head=head, kind=kind, code=code)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(("model",), str(error))]) from error


def register(kind: T) -> T:
    """Let settings of this process name a method, or a network's settings, of one's own; usable as a decorator.

    kind: a frozen dataclass as `federation/algorithm.py` describes methods, or with `build` and `losses` as
    `federation/task.py` describes networks.

    Raises:
        ConfigError: what it lacks, all of it; or its name is taken.
    """
    group = MODELS if hasattr(kind, "build") else ALGORITHMS
    try:
        add(group, kind)
    except ValueError as error:
        raise ConfigError([Problem((getattr(kind, "__name__", "?"),), str(error))]) from error
    return kind


def is_registered(settings: object) -> bool:
    """Whether a method or network is one of one's own; its class is then registered. Raises: ConfigError: see above."""
    kind, name = type(settings), str(getattr(settings, "name", ""))
    if isinstance(settings, Own):
        return True
    group = MODELS if hasattr(kind, "build") else ALGORITHMS
    if not is_dataclass(kind) or kind in group.built_in or find_offer(group, name) is not None:
        return False  # the check of the settings reports what is none of them
    register(kind)
    return True
