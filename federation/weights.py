"""Initial weights from a file of the user: tensors of the same network, by their names.

The data on which they were trained are not known here. Unless settings declare the weights public, no privacy guarantee
covers the people in those data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.models.adapted import OwnModule
from federation.models.nnunet_weights import is_nnunet, rename_nnunet_tensors
from federation.models.planned import PlannedModule
from federation.pretraining import HEAD
from privacy.message import Params
from privacy.settings_error import Problem, refuse

SHOWN = 6  # problems of one kind that an error names
HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """file: safetensors, with the tensors of the method's network, named as in its `state_dict`; for a network of MONAI
    or of the user, names of the original network or of ours, and for a planned network nnU-Net's or ours. head: kept,
    or fresh = drawn at random; the file may then have another head or none. public: whether they were trained without
    patients of these hospitals; weights that are not declared public are outside of every privacy guarantee. sha256: of
    the file; empty = any.
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


def select_fitting_tensors(
    file_tensors: Params, network: nn.Module, *, head: Literal["kept", "fresh"] = "kept"
) -> Params:
    """The tensors of a file by our names, in the types of the network; without the head, if that is drawn at random.

    network: its values are not read, so it may be on the device `meta`.

    Raises:
        ValueError: tensors are missing, not in the network, of another shape or kind, or not finite; all are listed.
    """
    network_tensors: dict[str, Tensor] = dict(network.state_dict())
    if isinstance(network, PlannedModule) and is_nnunet(file_tensors):
        file_tensors = rename_nnunet_tensors(file_tensors, network.plan)
    known = network.originals if isinstance(network, OwnModule) else {}
    if len(known.keys() & file_tensors.keys()) <= len(network_tensors.keys() & file_tensors.keys()):
        known = {}
    file_names = {ours: name for name, ours in reversed(known.items())}  # our name -> the name in the file
    tensors = {
        known.get(name, name): value for name, value in reversed([*file_tensors.items()])
    }  # if two names mean one tensor, the first counts
    if isinstance(network, OwnModule):
        tensors = _drop_fixed(
            tensors, {network.originals.get(n, n): v for n, v in network.read_fixed().items()}, file_names
        )
    if head == "fresh":
        network_tensors = {name: value for name, value in network_tensors.items() if not name.startswith(HEAD)}
        tensors = {name: value for name, value in tensors.items() if not name.startswith(HEAD)}
    if problems := list(_find_mismatches(tensors, network_tensors, file_names)):
        raise ValueError("; ".join(problems))
    return {name: tensors[name].to(value.dtype) for name, value in network_tensors.items()}


def _drop_fixed(tensors: Params, fixed: Params, file_names: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors without those that the network's author fixed, which every hospital has from the network's code.

    Raises:
        ValueError: the file has other values of fixed tensors.
    """
    both = [name for name in fixed if name in tensors and not fixed[name].is_meta]
    if other := [file_names.get(n, n) for n in both if not torch.equal(tensors[n].to(fixed[n].dtype), fixed[n].cpu())]:
        raise ValueError(
            f"{len(other)} are fixed by the network's author and have other values in the file: "
            f"{_format_names(other)}; load them in the network's constructor, so that every hospital has them"
        )
    return {name: value for name, value in tensors.items() if name not in fixed}


def _find_mismatches(tensors: Params, network_tensors: Params, file_names: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each kind of difference between the tensors of the file and of the network."""

    def file_name(name: str) -> str:
        return file_names.get(name, name)

    both = [name for name in network_tensors if name in tensors]
    if lost := [file_name(name) for name in network_tensors if name not in tensors]:
        yield f"{len(lost)} of the network's {len(network_tensors)} tensors are missing: {_format_names(lost)}"
    if strange := [name for name in tensors if name not in network_tensors]:
        yield f"{len(strange)} are none of the network's: {_format_names(strange)}"
    if shapes := [
        f"{file_name(name)} {[*tensors[name].shape]} for {[*network_tensors[name].shape]}"
        for name in both
        if tensors[name].shape != network_tensors[name].shape
    ]:
        yield f"{len(shapes)} have another shape: {_format_names(shapes)}"
    if kinds := [
        f"{file_name(name)} {str(tensors[name].dtype).removeprefix('torch.')}"
        for name in both
        if _number_kind(tensors[name]) != _number_kind(network_tensors[name])
    ]:
        yield f"{len(kinds)} have numbers of another kind: {_format_names(kinds)}"
    same_kind = [name for name in both if _number_kind(tensors[name]) == _number_kind(network_tensors[name])]
    if endless := [
        file_name(name)
        for name in same_kind
        if not bool(tensors[name].to(network_tensors[name].dtype).isfinite().all())
    ]:
        yield f"{len(endless)} have values that are not finite in the network's type: {_format_names(endless)}"


def _number_kind(tensor: Tensor) -> tuple[bool, bool]:
    """(floating point, complex): tensors of equal kinds can be converted without loss of meaning."""
    return tensor.is_floating_point(), tensor.is_complex()


def _format_names(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
