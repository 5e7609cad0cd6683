"""A network of the user: any `nn.Module`, whose submodules are named as stem, blocks and head.

Settings are sent as JSON and code is never sent, so settings name a builder that the process has registered. A hospital
on another machine has no such builder: there an installed package offers the network (`federation.registry`), perhaps
by `adapted`.
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
from federation.task import Kind, Output, label_loss, overlap_loss
from privacy.dp.chunks import compute_repeatably
from privacy.message import Params
from privacy.settings_error import Problem, refuse

Build: TypeAlias = Callable[..., nn.Module]
NETWORK_HINT = (
    "a network of one's own is known only to the process that registered it, from Python: there Results.probabilities "
    "and Results.export use it; for commands and hospitals on other machines put it into a package that each installs "
    "(docs/how-to/extend.md)"
)
_BUILDERS: dict[tuple[str, str], Build] = {}
"""(name, digest of the code) -> builder, in the order of registration."""


@dataclass(frozen=True, kw_only=True)
class Own:
    """A registered network. network: the name under which it was registered. stem: paths of the submodules that come
    first, as in [conv1, bn1]. blocks: a path each, in the order from input to output. head: path of the last layer, a
    Linear, or a 1x1 convolution in segmentation; its input are the features of the network, its output the logits.
    kind: of the task. code: digest of its code (`federation.code_digest`); empty = the last one of that name.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["own"] = "own"
    network: str
    stem: tuple[str, ...]
    blocks: tuple[str, ...] = ()
    head: str
    kind: Kind = "classification"
    code: str = ""

    def __post_init__(self) -> None:
        paths = {"network": (self.network,), "stem": self.stem, "blocks": self.blocks, "head": (self.head,)}
        problems = [
            Problem((key,), "empty; give the path of a submodule, as named_modules() tells them")
            for key, names in paths.items()
            if (key != "blocks" and not names) or not all(names)
        ]
        refuse(problems)

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A new network. Raises: ValueError: it is not registered here, or cannot be adapted, with all problems."""
        build = find_builder(self)
        if build is None and (other_codes := [code for name, code in _BUILDERS if name == self.network]):
            raise ValueError(
                f"the network {self.network!r} that is registered here has other code ({other_codes[-1][:12]}) than "
                f"these settings name ({self.code[:12]}): define it as it was, or train anew with it as it is"
            )
        if build is None:
            known = ", ".join(sorted({name for name, _ in _BUILDERS})) or "none"
            raise ValueError(f"no network {self.network!r} is registered here (there is {known}): {NETWORK_HINT}")
        fixed = _check_network(build, self, inputs, classes)
        module = _adapt_network(_build_network(build, inputs, classes), self)
        module.write_fixed(fixed)
        return module

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example; in segmentation with soft Dice."""
        return overlap_loss(output, y) if self.kind == "segmentation" else label_loss(output, y)


def register_network(name: str, build: Build) -> str:
    """Let settings of this process name a network. build: makes a new `nn.Module`; called with `inputs`, the shape of
    an example, and `classes`, if it takes these arguments. Networks of one name with different code can coexist.

    Returns:
        The digest of its code, by which `Own` distinguishes it from others of that name.

    Raises:
        TypeError: it cannot be called, or is a module, which all hospitals would share.
        ValueError: it contains a value that cannot be compared (`federation.code_digest`).
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise TypeError(f"build must be a function or class that makes a network, found {type(build).__name__}")
    code = code_digest(build)
    _BUILDERS.pop((name, code), None)
    _BUILDERS[name, code] = build
    return code


def find_builder(settings: Own) -> Build | None:
    """The builder that was registered under the name and code of these settings, or None."""
    if settings.code:
        return _BUILDERS.get((settings.network, settings.code))
    return next((build for (name, _), build in reversed(_BUILDERS.items()) if name == settings.network), None)


def _adapt_network(network: nn.Module, how: Own) -> OwnModule:
    """The network, wrapped with the parts that its settings name."""
    return adapted(network, stem=how.stem, blocks=how.blocks, head=how.head, kind=how.kind)


def _build_network(build: Build, inputs: tuple[int, ...], classes: int) -> nn.Module:
    """A network from its builder. Raises: ValueError: the builder fails or returns something else."""
    arguments: dict[str, Any] = {"inputs": inputs, "classes": classes}
    parameters = _list_parameters(build)
    takes = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    # The keyword arguments of a class are those of `nn.Module`, which takes none.
    everything = not isinstance(build, type) and any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    needs = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in arguments
    ]
    if needs:
        raise ValueError(
            f"the network needs {', '.join(needs)}, and is given only inputs (the shape of an example) and classes, "
            "where it takes them; give it a default, or say what it is: functools.partial(Net, width=8)"
        )
    try:
        network = build(**{name: value for name, value in arguments.items() if everything or name in takes})
    except Exception as error:  # its own code
        raise ValueError(f"the network cannot be made ({type(error).__name__}: {error})") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"build must return an nn.Module, found {type(network).__name__}")
    return network


def _list_parameters(build: Build) -> Mapping[str, inspect.Parameter]:
    """The builder's parameters by name; empty if it tells none."""
    try:
        return inspect.signature(build).parameters
    except ValueError:  # some built-in classes have no signature
        return {}


@lru_cache(maxsize=64)
def _check_network(build: Build, settings: Own, inputs: tuple[int, ...], classes: int) -> Params:
    """Check once, with two random examples, that the head's output is the network's. Raises: ValueError.

    Returns:
        The tensors that its author fixed, by name, drawn with one seed, so that they are the same at all hospitals.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        torch.manual_seed(0)
        network, x = _build_network(build, inputs, classes).eval(), torch.randn(2, *inputs)
        try:
            output = copy.deepcopy(network)(x)  # the network may store its input
        except Exception as error:  # its own code
            text = f"the network cannot take examples of shape {list(inputs)} ({type(error).__name__}: {error})"
            raise ValueError(text) from error
        spatial = inputs[1:] if settings.kind == "segmentation" else ()
        if not isinstance(output, Tensor) or output.shape != (2, classes, *spatial):
            found_shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            expected_shape = ["n", classes, *spatial]
            raise ValueError(f"the network must return logits {expected_shape}, found {found_shape}")
        module = _adapt_network(network, settings).eval()
        try:
            with compute_repeatably():
                logits = module(x).logits
        except Exception as error:  # code of the user, which now has an identity in place of the head
            raise ValueError(
                f"the head {settings.head!r} must be the last layer ({type(error).__name__}: {error})"
            ) from error
        if logits.shape != output.shape or not torch.allclose(logits, output, rtol=1e-4, atol=1e-5):
            raise ValueError(
                f"the head {settings.head!r} is not the network's last step: without it the features are not what it "
                "gets, or something follows it; name the last layer, and return its logits as they are"
            )
        return _read_fixed_values(build, settings, inputs, classes)


def _read_fixed_values(build: Build, settings: Own, inputs: tuple[int, ...], classes: int) -> Params:
    """The fixed tensors of a new network. Raises: ValueError: a second network has other ones."""
    values = []
    for _ in range(2):
        torch.manual_seed(0)
        values.append(_adapt_network(_build_network(build, inputs, classes), settings).read_fixed())
    first, second = values
    other = [name for name, value in first.items() if name not in second or not torch.equal(value, second[name])]
    if other or len(first) != len(second):
        raise ValueError(
            f"{', '.join(other) or 'what'} is fixed and has other values each time the network is made, so hospitals "
            "would differ; load its values, or draw them by torch.randn and the like, which are seeded"
        )
    return first
