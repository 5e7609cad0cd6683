"""A network with parts stem, blocks and head, from any `nn.Module` and the paths of its submodules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from federation.models.fixed import (
    Fixed,
    apply_to_fixed,
    copy_network,
    find_fixed,
    hide_fixed,
    read_fixed,
    show_fixed,
    write_fixed,
)
from federation.task import Kind, Output
from privacy.dp.chunks import is_repeatable
from privacy.message import Params


class OwnModule(nn.Module):
    """A network whose parts are named stem, blocks.k and head. They are submodules of the original network, whose
    `forward` runs; only the head is called here, so that it can be replaced. Tensors that its author fixed are not
    among its parameters and buffers (`federation.models.fixed`). is_ours: its code keeps nothing of what it sees.
    """

    def __init__(
        self, network: nn.Module, stem: nn.Module, blocks: list[nn.Module], head: nn.Module, kind: Kind, fixed: Fixed
    ) -> None:
        super().__init__()
        self.fixed, self.is_ours = fixed, False
        self.stem, self.blocks, self.head, self.kind = stem, nn.ModuleList(blocks), head, kind
        self.originals: dict[str, str] = {}  # name in the original network -> our name, in `state_dict`
        self._whole = (network,)  # in a tuple it is no submodule, or each parameter would have two names

    def train(self, mode: bool = True) -> OwnModule:
        """Set the mode of all parts, and of modules that a method added; then by the original network, which may leave
        parts in evaluation mode, and may have parts without parameters, such as dropout between blocks.
        """
        super().train(mode)
        self._whole[0].train(mode)
        for path in self.fixed.still:
            self._whole[0].get_submodule(path).eval()
        return self

    def write_fixed(self, values: Params) -> None:
        """Set the fixed tensors, by the names of the original network.

        Raises:
            ValueError: names or shapes are not those of the fixed tensors.
        """
        fixed_values = self.read_fixed()
        both = fixed_values.keys() & values.keys()
        if mismatched := sorted(
            (fixed_values.keys() ^ values.keys()) | {n for n in both if fixed_values[n].shape != values[n].shape}
        ):
            raise ValueError(f"what is fixed in the network does not fit: {', '.join(mismatched[:4])}")
        write_fixed(
            self._whole[0], {name: value.clone() for name, value in values.items()}
        )  # code of the network may change them

    def read_fixed(self) -> Params:
        """The fixed tensors, by the names of the original network."""
        return read_fixed(self._whole[0], self.fixed)

    def show_fixed(self) -> OwnModule:
        """The module itself, with fixed tensors among its parameters and buffers: complete, not to be trained."""
        show_fixed(self._whole[0], self.fixed)
        self.fixed = Fixed()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OwnModule:
        """torch's hook for another device or type, for fixed tensors too."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        apply_to_fixed(self._whole[0], self.fixed, fn)
        return self

    def forward(self, x: Tensor) -> Output:
        """If the numbers of a patient must not depend on other patients, the author's code runs in a copy that is
        discarded: it may change its weights (`Embedding(max_norm=...)`) or store its input.
        """
        is_copied = is_repeatable() and not self.is_ours
        features = (copy_network(self._whole[0], self.fixed) if is_copied else self._whole[0])(x)
        return Output(self.head(features), features)


def adapted(
    network: nn.Module, *, stem: tuple[str, ...], blocks: tuple[str, ...], head: str, kind: Kind = "classification"
) -> OwnModule:
    """Wrap a network. The network is changed: its head becomes an identity, and no layer works in place any more.

    stem, blocks, head: paths of submodules, as `Own` takes them.

    Raises:
        ValueError: a path that does not exist, a parameter in no part or in two, a head without weight; all are listed.
    """
    paths = (*stem, *blocks, head)
    if problems := [*_find_path_problems(network, paths), *_find_head_problems(network, head, kind)]:
        raise ValueError("; ".join(problems))
    fixed = find_fixed(network)
    first = [network.get_submodule(path) for path in stem]
    middle, last = [network.get_submodule(path) for path in blocks], network.get_submodule(head)
    before = network.state_dict(keep_vars=True)
    above, _, head_name = head.rpartition(".")
    setattr(network.get_submodule(above), head_name, nn.Identity())
    for part in network.modules():
        if getattr(part, "inplace", False) is True:
            part.inplace = False  # type: ignore[assignment]  # per-patient gradients would be wrong
    module = OwnModule(network, first[0] if len(first) == 1 else nn.ModuleList(first), middle, last, kind, fixed)
    ours = {id(value): name for name, value in module.state_dict(keep_vars=True).items()}
    module.originals = {name: ours[id(value)] for name, value in before.items()}
    hide_fixed(network, fixed)
    return module


def fixed_in(module: nn.Module) -> Params:
    """All fixed tensors in a method's network, as `<path of an OwnModule>/<name>`; not copied."""
    return {
        f"{path}/{name}": value
        for path, part in module.named_modules()
        if isinstance(part, OwnModule)
        for name, value in part.read_fixed().items()
    }


def write_fixed_in(module: nn.Module, values: Params) -> None:
    """Set the fixed tensors in a method's network; parts without values stay as they were built.

    Raises:
        ValueError: names or shapes do not fit.
    """
    for path, part in module.named_modules():
        theirs = {n.removeprefix(f"{path}/"): v for n, v in values.items() if n.rpartition("/")[0] == path}
        if theirs and isinstance(part, OwnModule):
            part.write_fixed(theirs)


def show_fixed_in(module: nn.Module) -> nn.Module:
    """A method's network itself, with fixed tensors among its parameters and buffers: complete, not to be trained."""
    for part in list(module.modules()):
        if isinstance(part, OwnModule):
            part.show_fixed()
    return module


def _find_path_problems(network: nn.Module, paths: tuple[str, ...]) -> Iterator[str]:
    """What is wrong with the paths of stem, blocks and head."""
    submodules = dict(network.named_modules())
    known = ", ".join(name for name, _ in network.named_children())
    for path in paths:
        if path not in submodules:
            yield f"there is no submodule {path!r}; the network's are {known}"
    parts = [f"{path}." for path in paths if path in submodules]
    named = [name for name, _ in (*network.named_parameters(), *network.named_buffers())]
    if lost := [name for name in named if not name.startswith(tuple(parts))]:
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield f"{shown}: in none of stem, blocks and head; name each submodule that has parameters or buffers"
    if twice := [name for name in named if sum(name.startswith(part) for part in parts) > 1]:
        yield f"{twice[0]} is in two of stem, blocks and head; name each submodule once"


def _find_head_problems(network: nn.Module, head: str, kind: Kind) -> Iterator[str]:
    """What is wrong with the last layer."""
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
