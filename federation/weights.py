"""A network's start from weights that somebody brings: a file of the same network, by the names of its tensors.

Whose data shaped them is not known here. Unless they are said to be public, no claim of privacy covers those people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.models.adapted import OwnModule
from federation.pretraining import HEAD
from privacy.message import Params
from privacy.settings_error import Problem, refuse

SHOWN = 6  # problems of one kind that an error names
HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """file: safetensors, with the tensors of the method's network by name, as its `state_dict` has them: of a network
    of MONAI's or one's own by the names that it has by itself, or by ours. head: kept, or fresh: drawn at random, where
    the file may have none, or another. public: whether no patient of these hospitals shaped them; what is not said to
    be public lies outside any claim of privacy. sha256: of the file; empty = any.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["weights"] = "weights"
    file: str
    head: Literal["kept", "fresh"] = "kept"
    public: bool = False
    sha256: str = ""

    def __post_init__(self) -> None:
        problems = [] if self.file else [Problem(("file",), "empty; give the path of a safetensors file")]
        if self.sha256 and not (len(self.sha256) == 64 and set(self.sha256) <= HEX):
            problems.append(Problem(("sha256",), f"must be 64 of 0-9 a-f, found {self.sha256[:80]!r}"))
        refuse(problems)


def fitting(found: Params, network: nn.Module, *, head: Literal["kept", "fresh"] = "kept") -> Params:
    """The tensors of a file by our names, in the network's types; without the head, if it is drawn afresh.

    network: its values are not read, so it may be on the device `meta`.

    Raises:
        ValueError: what is missing, is not the network's, or has another shape, another kind or no finite values; all.
    """
    wanted: dict[str, Tensor] = dict(network.state_dict())
    known = network.originals if isinstance(network, OwnModule) else {}
    if len(known.keys() & found.keys()) <= len(wanted.keys() & found.keys()):
        known = {}
    said = {ours: name for name, ours in reversed(known.items())}  # the name in the file of each of ours
    given = {known.get(name, name): value for name, value in reversed([*found.items()])}  # of one tensor the first name
    if isinstance(network, OwnModule):
        given = _without_fixed(given, {network.originals.get(n, n): v for n, v in network.read_fixed().items()}, said)
    if head == "fresh":
        wanted = {name: value for name, value in wanted.items() if not name.startswith(HEAD)}
        given = {name: value for name, value in given.items() if not name.startswith(HEAD)}
    if problems := list(_mismatches(given, wanted, said)):
        raise ValueError("; ".join(problems))
    return {name: given[name].to(value.dtype) for name, value in wanted.items()}


def _without_fixed(given: Params, fixed: Params, said: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors without what the network's author fixed, which every hospital has from the network's code.

    Raises:
        ValueError: the file has other values of it.
    """
    both = [name for name in fixed if name in given and not fixed[name].is_meta]
    if other := [said.get(n, n) for n in both if not torch.equal(given[n].to(fixed[n].dtype), fixed[n].cpu())]:
        raise ValueError(
            f"{len(other)} are fixed by the network's author and have other values in the file: {_listed(other)}; load "
            "them in the network's constructor, so that every hospital has them"
        )
    return {name: value for name, value in given.items() if name not in fixed}


def _mismatches(given: Params, wanted: Params, said: Mapping[str, str]) -> Iterator[str]:
    def of(name: str) -> str:
        return said.get(name, name)

    both = [name for name in wanted if name in given]
    if lost := [of(name) for name in wanted if name not in given]:
        yield f"{len(lost)} of the network's {len(wanted)} tensors are missing: {_listed(lost)}"
    if strange := [name for name in given if name not in wanted]:
        yield f"{len(strange)} are none of the network's: {_listed(strange)}"
    if shapes := [
        f"{of(name)} {[*given[name].shape]} for {[*wanted[name].shape]}"
        for name in both
        if given[name].shape != wanted[name].shape
    ]:
        yield f"{len(shapes)} have another shape: {_listed(shapes)}"
    if kinds := [
        f"{of(name)} {str(given[name].dtype).removeprefix('torch.')}"
        for name in both
        if _kind(given[name]) != _kind(wanted[name])
    ]:
        yield f"{len(kinds)} have numbers of another kind: {_listed(kinds)}"
    alike = [name for name in both if _kind(given[name]) == _kind(wanted[name])]
    if endless := [of(name) for name in alike if not bool(given[name].to(wanted[name].dtype).isfinite().all())]:
        yield f"{len(endless)} have values that are not finite in the network's type: {_listed(endless)}"


def _kind(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
