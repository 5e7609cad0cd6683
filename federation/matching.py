"""A trained network's channel moments, and a network whose channels have them on another hospital's images.

Every norm puts out w_c u_c + b_c in channel c, where u_c, the standard output, is about 0 in the mean and 1 in the
square, and w_c and b_c are the norm's own. Over the images on which a network was trained, let m_c and q_c be the means
of u_c and of its square, over all places; patients weigh the same, and images of a patient. These few hundred numbers
travel with the network. A hospital that gets both has the moments m'_c and q'_c of its own images, without labels, and
changes w and b alone, such that a channel has there what it has at home:

    s_c = sqrt(q_c - m_c^2),    r_c = s_c / s'_c,    w_c <- r_c w_c,    b_c <- b_c + w_c (m_c - r_c m'_c)

norm after norm in the order of a pass, so that a norm is measured after all those before it were matched.

Why behind the norm and not behind the convolution: what is matched is then a network of the same form, with other
numbers in two parameters, which every file, export and page takes as it is; and m and q have a scale that no patient
tells, which bounds what one patient adds (`privacy.dp.channels`). Of batch norm it is AdaBN (`federation.calibration`),
whose statistics take the place of those of training: there m = 0 and q = 1 without looking. Group norm keeps no
statistics, and so nothing of its images that AdaBN could replace; it is what private training takes.

Of group and layer norm the channels of one group have together mean 0 and square 1 in every image: m and q hold fewer
free numbers than channels (`free_moments`), and where a group is one channel there is nothing to match.

The way is not shortened by the share that noise explains (James and Stein, 1961).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from federation.parameters import NORMS
from privacy.dp.chunks import at_once

LARGEST = 10.0
"""The most by which a channel is stretched or shrunk: one that is nearly constant here has no deviation to match."""
LEAST = 1e-4
"""Variance of a standard output below which a channel counts as constant."""
LEAST_SHARE = 0.1
"""Of a channel's variance here: the least that noise can make the variance that is asked for."""
LARGEST_NOISE = 0.5
"""Deviation of the noise in a moment, in deviations of a standard output, above which a network is left as it is."""


class ChannelMoments(NamedTuple):
    """Of the channels of a network's norms, in the order of a pass: (channels,) float64 on the CPU.

    mean, square: m and q. deviation: of the noise in each number; 0 without noise.
    """

    mean: Tensor
    square: Tensor
    deviation: float = 0.0


class _Reached(Exception):
    """A pass has come to the norm that is looked at."""


def has_matchable_norms(module: nn.Module) -> bool:
    """Whether a network has norms with a scale and a shift for each channel, which its author did not fix."""
    return bool(_list_norms(module))


def check_matchable(module: nn.Module) -> None:
    """Raises: ValueError: the network has no norms that can be matched."""
    if not has_matchable_norms(module):
        raise ValueError(
            f"{type(module).__name__} has no norm with a scale and a shift for each channel; give it norm: group"
        )


def order_norms(module: nn.Module, inputs: Sequence[int], depth: int | None = None) -> dict[str, int]:
    """The norms that can be matched, by path, and their numbers of channels, in the order in which a pass reaches them.

    Found with an image of zeros: it depends on no patient. A norm that runs more than once stands where it runs first.

    Args:
        inputs: shape of one example. depth: how many of the first ones; None: all.
    """
    reached: list[str] = []
    hooks = [
        part.register_forward_pre_hook(lambda _part, _args, path=path: reached.append(path))
        for path, part in _list_norms(module).items()
    ]
    training = module.training
    device = next(iter(module.parameters())).device
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(1, *inputs, device=device))
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    norms = _list_norms(module)
    return {path: _parameter(norms[path], "weight").numel() for path in list(dict.fromkeys(reached))[:depth]}


def weigh_rows(patient: Tensor) -> Tensor:
    """The weight of each row (n,), float64, sum 1: patients weigh the same, and rows of a patient."""
    _, place, count = torch.unique(patient.cpu(), return_inverse=True, return_counts=True)
    weights: Tensor = 1.0 / (len(count) * count[place].double())
    return weights


def measure_channels(module: nn.Module, x: Tensor, weights: Tensor, norms: Mapping[str, int]) -> ChannelMoments:
    """The moments of these norms' channels over images x (n, ...), without noise. The network is not changed.

    Args:
        weights: (n,), sum 1: see `weigh_rows`. norms: see `order_norms`.
    """
    module.eval()
    parts = [_measure_norm(module, path, x, weights) for path in norms]
    empty = torch.zeros(0, dtype=torch.float64)
    return ChannelMoments(torch.cat([empty, *(m for m, _ in parts)]), torch.cat([empty, *(q for _, q in parts)]))


def match_channels(
    module: nn.Module, target: ChannelMoments, x: Tensor, patient: Tensor, norms: Mapping[str, int]
) -> nn.Module:
    """A copy of the network, in evaluation mode, whose channels have the target moments on these images; one that is
    not changed where the noise in them exceeds `LARGEST_NOISE`.

    Args:
        module: on the device of the images. target: of its training images, for these norms. x, patient: images
            (n, ...) and whose they are (n,); no labels.

    Raises:
        ValueError: the network has no norm that can be matched, there are no images, or the moments are of another
            network or not finite.
    """
    _check_fit(target, x, norms)
    matched, weights, begin = copy.deepcopy(module).eval(), weigh_rows(patient), 0
    if target.deviation > LARGEST_NOISE:
        return matched
    for path, channels in norms.items():
        mean, square = (part[begin : begin + channels] for part in target[:2])
        seen = _measure_norm(matched, path, x, weights)
        least = LEAST_SHARE * (seen[1] - seen[0].square()) if target.deviation else 0.0
        _adjust_norm(matched.get_submodule(path), seen, (mean, torch.maximum(square, mean.square() + least)))
        begin += channels
    return matched


def free_moments(module: nn.Module, moments: ChannelMoments, norms: Mapping[str, int]) -> Tensor:
    """The free numbers in moments, (width,): of each group of channels its contrasts, of m and of q - 1.

    The map keeps lengths: from v = (m, q - 1) it takes what a norm makes 0 anyway. `restore_moments` is its inverse.
    """
    parts = [
        part.view(groups, -1) @ _contrasts(len(part) // groups).T if groups else part
        for values in (moments.mean, moments.square - 1)
        for part, groups in zip(torch.split(values, [*norms.values()]), _list_groups(module, norms), strict=True)
    ]
    return torch.cat([part.flatten() for part in parts])


def restore_moments(
    module: nn.Module, free: Tensor, norms: Mapping[str, int], deviation: float = 0.0
) -> ChannelMoments:
    """Moments from their free numbers (width,). deviation: of the noise in each of these, which is less in a moment."""
    channels, groups = [*norms.values()], _list_groups(module, norms)
    sizes = [number - count for number, count in zip(channels, groups, strict=True)]
    parts = [
        (part.view(count, number // count - 1) @ _contrasts(number // count)).flatten() if count else part
        for part, number, count in zip(torch.split(free, 2 * sizes), 2 * channels, 2 * groups, strict=True)
    ]
    mean, square = torch.split(torch.cat(parts), sum(channels))
    return ChannelMoments(mean, square + 1, deviation)


def count_free(module: nn.Module, norms: Mapping[str, int]) -> int:
    """The number of free numbers: see `free_moments`."""
    return 2 * (sum(norms.values()) - sum(_list_groups(module, norms)))


def _list_groups(module: nn.Module, norms: Mapping[str, int]) -> list[int]:
    """In how many groups each norm makes mean and square those of an image alone; 0 for batch norm."""
    parts = [module.get_submodule(path) for path in norms]
    return [
        part.num_groups
        if isinstance(part, nn.GroupNorm)
        else 0
        if isinstance(part, _BatchNorm)
        else 1
        if isinstance(part, nn.LayerNorm)
        else channels
        for part, channels in zip(parts, norms.values(), strict=True)
    ]


def _contrasts(channels: int) -> Tensor:
    """Helmert's contrasts (channels - 1, channels): orthonormal rows, each of sum 0."""
    rows = torch.ones(channels, channels, dtype=torch.float64).tril()[:-1]
    rows[torch.arange(channels - 1), torch.arange(1, channels)] = -torch.arange(1, channels).double()
    contrasts: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return contrasts


def _check_fit(target: ChannelMoments, x: Tensor, norms: Mapping[str, int]) -> None:
    """Raises: ValueError: see `match_channels`."""
    if not norms or not len(x):
        raise ValueError(
            "matching needs norms with a scale and a shift for each channel, and images; found "
            f"{len(norms)} such norms and {len(x)} images: give the network a norm, as norm: group"
        )
    channels, sizes = sum(norms.values()), [len(part) for part in target[:2]]
    if sizes != [channels, channels] or not all(bool(part.isfinite().all()) for part in target[:2]):
        raise ValueError(f"moments must be finite, of {channels} channels, found {sizes}: they are of another network")
    if not (target.deviation >= 0 and math.isfinite(target.deviation)):
        raise ValueError(f"the deviation of noise must be a finite number >= 0, found {target.deviation}")


def _measure_norm(module: nn.Module, path: str, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """m and q of one norm's channels over x, float64 on the CPU; the pass ends at the norm."""
    norm = module.get_submodule(path)
    bare = copy.deepcopy(norm)
    sums: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        _parameter(bare, "weight").fill_(1.0)
        _parameter(bare, "bias").zero_()

    def look(_norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        u = bare(arguments[0]).double()
        u = u.movedim(-1, 1) if isinstance(norm, nn.LayerNorm) else u
        u = u.reshape(len(u), u.shape[1], -1)
        sums.append((u.mean(dim=2), u.square().mean(dim=2)))
        raise _Reached

    hook = norm.register_forward_pre_hook(look)
    try:
        with torch.no_grad():
            for part in torch.split(x, at_once(x)):
                try:
                    module(part)
                except _Reached:
                    continue
    finally:
        hook.remove()
    means, squares = (torch.cat(part).cpu() for part in zip(*sums, strict=True))
    return weights @ means, weights @ squares


def _adjust_norm(norm: nn.Module, seen: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> None:
    """Change a norm's scale and shift, in place, so that moments `seen` become `target`."""
    variances = [(square - mean.square()).clamp(min=0.0) for mean, square in (seen, target)]
    ratio = (variances[1] / variances[0].clamp(min=LEAST)).sqrt().clamp(1 / LARGEST, LARGEST)
    ratio = torch.where(variances[0] < LEAST, 1.0, ratio)
    weight, bias = _parameter(norm, "weight"), _parameter(norm, "bias")
    with torch.no_grad():
        scale = weight.double().cpu()
        bias += (scale * (target[0] - ratio * seen[0])).to(bias)
        weight.copy_(scale * ratio)


def _list_norms(module: nn.Module) -> dict[str, nn.Module]:
    """Norms whose scale and shift are parameters with a number for each channel, by path."""
    return {
        path: part
        for path, part in module.named_modules()
        if isinstance(part, NORMS)
        and all(isinstance(p, nn.Parameter) and p.dim() == 1 for p in (part.weight, getattr(part, "bias", None)))
    }


def _parameter(norm: nn.Module, name: str) -> Tensor:
    """A norm's scale or shift."""
    parameter = getattr(norm, name)
    if not isinstance(parameter, Tensor):
        raise TypeError(f"a norm's {name} is a tensor, found {type(parameter).__name__}")
    return parameter
