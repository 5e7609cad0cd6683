"""A network of one's own: any `nn.Module`, whose submodules are told as stem, blocks and head.

Settings cross the wire as JSON and code never does, so they name a builder that the process has registered. A hospital
on another machine has none: there an installed package offers the network (`federation.registry`), perhaps by
`adapted`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from federation.code_digest import code_digest
from federation.models.fixed import Fixed, apply_to_fixed, find_fixed, hide_fixed, read_fixed, show_fixed, write_fixed
from federation.task import Kind, Output, cross_entropy, overlap_loss
from privacy.message import Params
from privacy.settings_error import Problem, refuse

Build: TypeAlias = Callable[..., nn.Module]
ELSEWHERE = (
    "a network of one's own is known only where it was registered; for hospitals on other machines put it into a "
    "package that each installs (docs/how-to/extend.md)"
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


class OwnModule(nn.Module):
    """A network whose parts are named stem, blocks.k and head. Parts are the given network's own submodules, and its
    own `forward` runs; only the head is called here, so that it can be replaced.
    What its author fixed is none of its parameters and buffers (`federation.models.fixed`).
    """

    def __init__(
        self, whole: nn.Module, stem: nn.Module, blocks: list[nn.Module], head: nn.Module, kind: Kind, fixed: Fixed
    ) -> None:
        super().__init__()
        self.fixed = fixed
        self.stem, self.blocks, self.head, self.kind = stem, nn.ModuleList(blocks), head, kind
        self.originals: dict[str, str] = {}  # name in the given network -> ours, in `state_dict`
        self._whole = (whole,)  # in a tuple it is no submodule, or each parameter would have two names

    def train(self, mode: bool = True) -> OwnModule:
        """As every module, with what a method added; then as the given network does it, which may leave parts in
        evaluation mode, and has parts without parameters, as dropout between the blocks.
        """
        super().train(mode)
        self._whole[0].train(mode)
        for path in self.fixed.still:
            self._whole[0].get_submodule(path).eval()
        return self

    def write_fixed(self, values: Params) -> None:
        """Take these for what is fixed, by the names of the given network.

        Raises:
            ValueError: names or shapes are not those of what is fixed.
        """
        held = self.read_fixed()
        both = held.keys() & values.keys()
        if odd := sorted((held.keys() ^ values.keys()) | {n for n in both if held[n].shape != values[n].shape}):
            raise ValueError(f"what is fixed in the network does not fit: {', '.join(odd[:4])}")
        buffers = self.fixed.buffers  # copied, because code of the network's author may change them
        write_fixed(self._whole[0], {n: value.clone() if n in buffers else value for n, value in values.items()})

    def read_fixed(self) -> Params:
        """What is fixed, by the names of the given network."""
        return read_fixed(self._whole[0], self.fixed)

    def show_fixed(self) -> OwnModule:
        """The module itself, with what is fixed among its parameters and buffers: whole, and not to be trained here."""
        show_fixed(self._whole[0], self.fixed)
        self.fixed = Fixed()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OwnModule:
        """Of torch: to another device or type."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        apply_to_fixed(self._whole[0], self.fixed, fn)
        return self

    def forward(self, x: Tensor) -> Output:
        features = self._whole[0](x)
        return Output(self.head(features), features)


def adapted(
    network: nn.Module, *, stem: tuple[str, ...], blocks: tuple[str, ...], head: str, kind: Kind = "classification"
) -> OwnModule:
    """Wrap a network, which is taken over: its head becomes an identity, and no layer works in place any more.

    stem, blocks, head: paths of submodules, as `Own` takes them.

    Raises:
        ValueError: a path that is none, a parameter in no part or in two, a head without weight; all at once.
    """
    paths = (*stem, *blocks, head)
    if problems := [*_path_problems(network, paths), *_head_problems(network, head, kind)]:
        raise ValueError("; ".join(problems))
    fixed = find_fixed(network)
    first = [network.get_submodule(path) for path in stem]
    middle, last = [network.get_submodule(path) for path in blocks], network.get_submodule(head)
    before = network.state_dict(keep_vars=True)
    above, _, own = head.rpartition(".")
    setattr(network.get_submodule(above), own, nn.Identity())
    for part in network.modules():
        if getattr(part, "inplace", False) is True:
            part.inplace = False  # type: ignore[assignment]  # per-patient gradients would be wrong
    module = OwnModule(network, first[0] if len(first) == 1 else nn.ModuleList(first), middle, last, kind, fixed)
    ours = {id(value): name for name, value in module.state_dict(keep_vars=True).items()}
    module.originals = {name: ours[id(value)] for name, value in before.items()}
    hide_fixed(network, fixed)
    return module


def fixed_in(module: nn.Module) -> Params:
    """All that is fixed in a method's network, as `<path of an own network>/<name>`; not copied."""
    return {
        f"{path}/{name}": value
        for path, part in module.named_modules()
        if isinstance(part, OwnModule)
        for name, value in part.read_fixed().items()
    }


def write_fixed_in(module: nn.Module, values: Params) -> None:
    """Take these for what is fixed in a method's network; as made, where there are none.

    Raises:
        ValueError: they do not fit.
    """
    for path, part in module.named_modules():
        theirs = {n.removeprefix(f"{path}/"): v for n, v in values.items() if n.rpartition("/")[0] == path}
        if theirs and isinstance(part, OwnModule):
            part.write_fixed(theirs)


def show_fixed_in(module: nn.Module) -> nn.Module:
    """A method's network itself, with what is fixed among its parameters and buffers: whole, not to be trained."""
    for part in list(module.modules()):
        if isinstance(part, OwnModule):
            part.show_fixed()
    return module


def _adapted(network: nn.Module, how: Own) -> OwnModule:
    return adapted(network, stem=how.stem, blocks=how.blocks, head=how.head, kind=how.kind)


def _path_problems(network: nn.Module, paths: tuple[str, ...]) -> Iterator[str]:
    there = dict(network.named_modules())
    known = ", ".join(name for name, _ in network.named_children())
    for path in paths:
        if path not in there:
            yield f"there is no submodule {path!r}; the network's are {known}"
    parts = [f"{path}." for path in paths if path in there]
    named = [name for name, _ in (*network.named_parameters(), *network.named_buffers())]
    if lost := [name for name in named if not name.startswith(tuple(parts))]:
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield f"{shown}: in none of stem, blocks and head; name each submodule that has parameters or buffers"
    if twice := [name for name in named if sum(name.startswith(part) for part in parts) > 1]:
        yield f"{twice[0]} is in two of stem, blocks and head; name each submodule once"


def _head_problems(network: nn.Module, head: str, kind: Kind) -> Iterator[str]:
    last = dict(network.named_modules()).get(head)
    if last is None:
        return
    if frozen := [name for name, p in last.named_parameters() if not p.requires_grad]:
        names = ", ".join(f"{head}.{name}" for name in frozen)
        yield f"{names}: frozen, and every method trains the head; leave it its gradient"
    if getattr(last, "weight", None) is None:
        yield f"the head {head!r} is a {type(last).__name__} without weight; name the last Linear (or 1x1 convolution)"
    elif kind == "segmentation" and not (isinstance(last, nn.Conv2d | nn.Conv3d) and set(last.kernel_size) == {1}):
        text = f"the head {head!r} of a network that segments must be a 1x1 convolution, found {type(last).__name__}"
        yield f"{text}; end the network in one"


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
            whole = network(x)
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
