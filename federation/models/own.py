"""A network of one's own: any `nn.Module`, whose submodules are told as stem, blocks and head.

Settings cross the wire as JSON and code never does, so they name a builder that the process has registered. A hospital
on another machine has none: there an installed package offers the network (`federation.registry`), perhaps by
`adapted`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from federation.code_digest import code_digest
from federation.models.adapted import OwnModule, adapted
from federation.task import Kind, Output, cross_entropy, overlap_loss
from privacy.dp.chunks import compute_repeatably
from privacy.message import Params
from privacy.settings_error import Problem, refuse

Build: TypeAlias = Callable[..., nn.Module]
ELSEWHERE = (
    "a network of one's own is known only to the process that registered it, from Python: there Results.probabilities "
    "and Results.export use it; for commands and hospitals on other machines put it into a package that each installs "
    "(docs/how-to/extend.md)"
)
_BUILDERS: dict[tuple[str, str], Build] = {}
"""By name and digest of the code, the last one registered last."""


@dataclass(frozen=True, kw_only=True)
class Own:
    """A registered network. network: the name under which it was registered. stem: paths of the submodules that come
    first, as in [conv1, bn1]. blocks: a path each, in the order from input to output. head: path of the last layer, a
    Linear, or a 1x1 convolution in segmentation; what it gets are the network's features, what it gives the logits.
    kind: of the task. code: digest of its code (`federation.code_digest`); empty = the last one of that name.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["own"] = "own"
    network: str
    stem: tuple[str, ...]
    blocks: tuple[str, ...] = ()
    head: str
    kind: Kind = "classification"
    code: str = ""

    def __post_init__(self) -> None:
        given = {"network": (self.network,), "stem": self.stem, "blocks": self.blocks, "head": (self.head,)}
        problems = [
            Problem((key,), "empty; give the path of a submodule, as named_modules() tells them")
            for key, names in given.items()
            if (key != "blocks" and not names) or not all(names)
        ]
        refuse(problems)

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A new network. Raises: ValueError: nobody registered it here, or it cannot be adapted: all that is wrong."""
        build = builder_of(self)
        if build is None and (others := [code for name, code in _BUILDERS if name == self.network]):
            raise ValueError(
                f"the network {self.network!r} that is registered here has other code ({others[-1][:12]}) than these "
                f"settings name ({self.code[:12]}): define it as it was, or train anew with it as it is"
            )
        if build is None:
            known = ", ".join(sorted({name for name, _ in _BUILDERS})) or "none"
            raise ValueError(f"no network {self.network!r} is registered here (there is {known}): {ELSEWHERE}")
        fixed = _tried(build, self, inputs, classes)
        module = _adapted(_made(build, inputs, classes), self)
        module.write_fixed(fixed)
        return module

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, per example; in segmentation with soft Dice."""
        return overlap_loss(output, y) if self.kind == "segmentation" else cross_entropy(output, y)


def register_network(name: str, build: Build) -> str:
    """Let settings of this process name a network. build: makes a new `nn.Module`; called with `inputs`, the shape of
    an example, and `classes`, if it takes arguments. Networks of one name and other code stand beside each other.

    Returns:
        The digest of its code, by which `Own` tells it from others of that name.

    Raises:
        TypeError: it cannot be called; a module instead of what makes one would be shared by all hospitals.
        ValueError: it holds a value that cannot be compared (`federation.code_digest`).
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise TypeError(f"build must be a function or class that makes a network, found {type(build).__name__}")
    code = code_digest(build)
    _BUILDERS.pop((name, code), None)
    _BUILDERS[name, code] = build
    return code


def builder_of(own: Own) -> Build | None:
    """What was registered under a name, with this code."""
    if own.code:
        return _BUILDERS.get((own.network, own.code))
    return next((build for (name, _), build in reversed(_BUILDERS.items()) if name == own.network), None)


def _adapted(network: nn.Module, how: Own) -> OwnModule:
    return adapted(network, stem=how.stem, blocks=how.blocks, head=how.head, kind=how.kind)


def _made(build: Build, inputs: tuple[int, ...], classes: int) -> nn.Module:
    given: dict[str, Any] = {"inputs": inputs, "classes": classes}
    parameters = _parameters_of(build)
    takes = [name for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    # Of a class they are those of `nn.Module`, which takes none.
    everything = not isinstance(build, type) and any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    needs = [
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) and name not in given
    ]
    if needs:
        raise ValueError(
            f"the network needs {', '.join(needs)}, and is given only inputs (the shape of an example) and classes, "
            "where it takes them; give it a default, or say what it is: functools.partial(Net, width=8)"
        )
    try:
        found = build(**{name: value for name, value in given.items() if everything or name in takes})
    except Exception as error:  # its own code
        raise ValueError(f"the network cannot be made ({type(error).__name__}: {error})") from error
    if not isinstance(found, nn.Module):
        raise ValueError(f"build must return an nn.Module, found {type(found).__name__}")
    return found


def _parameters_of(build: Build) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(build).parameters
    except ValueError:  # some built-in classes tell no signature
        return {}


@lru_cache(maxsize=64)
def _tried(build: Build, own: Own, inputs: tuple[int, ...], classes: int) -> Params:
    """Check once, with two random examples, that the head's output is the network's. Raises: ValueError.

    Returns:
        What its author fixed, by name: drawn with one seed, so that it is the same at all hospitals.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        torch.manual_seed(0)
        network, x = _made(build, inputs, classes).eval(), torch.randn(2, *inputs)
        try:
            whole = copy.deepcopy(network)(x)  # it may keep what it saw
        except Exception as error:  # its own code
            text = f"the network cannot take examples of shape {list(inputs)} ({type(error).__name__}: {error})"
            raise ValueError(text) from error
        spatial = inputs[1:] if own.kind == "segmentation" else ()
        if not isinstance(whole, Tensor) or whole.shape != (2, classes, *spatial):
            found = list(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__
            wanted = ["n", classes, *spatial]
            raise ValueError(f"the network must return logits {wanted}, found {found}")
        module = _adapted(network, own).eval()
        try:
            with compute_repeatably():
                logits = module(x).logits
        except Exception as error:  # its own code, which meets an identity in the head's place
            raise ValueError(
                f"the head {own.head!r} must be the last layer ({type(error).__name__}: {error})"
            ) from error
        if logits.shape != whole.shape or not torch.allclose(logits, whole, rtol=1e-4, atol=1e-5):
            raise ValueError(
                f"the head {own.head!r} is not the network's last step: without it the features are not what it gets, "
                "or something follows it; name the last layer, and return its logits as they are"
            )
        return _fixed_values(build, own, inputs, classes)


def _fixed_values(build: Build, own: Own, inputs: tuple[int, ...], classes: int) -> Params:
    """Raises: ValueError: they are not the same the next time."""
    values = []
    for _ in range(2):
        torch.manual_seed(0)
        values.append(_adapted(_made(build, inputs, classes), own).read_fixed())
    first, second = values
    other = [name for name, value in first.items() if name not in second or not torch.equal(value, second[name])]
    if other or len(first) != len(second):
        raise ValueError(
            f"{', '.join(other) or 'what'} is fixed and has other values each time the network is made, so hospitals "
            "would differ; load its values, or draw them by torch.randn and the like, which are seeded"
        )
    return first
