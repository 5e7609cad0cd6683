"""Rules of merging: how the coordinator turns replies into one model, so that one hospital cannot decide for all.

A rule changes the replies before the method merges them. It serves each method that is `averaging`: whose state
depends on the tensors of replies only through their weighted means, so that a rule's result in place of every reply is
in place of the mean. The coordinator must see each reply. With secure sums (`federation.summing`) only `mean` is
left, and `norm_bounded` with a bound, which each hospital applies itself: that limits mistakes, and no attacker.

`median` and `trimmed_mean`: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018, definitions 1 and 2. `krum`: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning
with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017, section 4. `norm_bounded`: Sun, Kairouz, Suresh,
McMahan: Can You Really Backdoor Federated Learning?, 2019, there with a constant bound.

The papers' hospitals have as many patients each. Here `median`, `trimmed_mean` and `krum` count every hospital once,
whatever the method's `weights` say: a number of patients is no vote. `norm_bounded` keeps the method's weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from privacy.message import Message
from privacy.settings_error import refuse, unmet

Replies: TypeAlias = Mapping[str, Message]
"""Replies of a round, or what was sent for them, by site."""


class Rule(Protocol):
    """A rule of merging. Its dataclass fields are its YAML keys."""

    @property
    def name(self) -> str:
        """The rule's name in YAML."""
        ...

    @property
    def fewest(self) -> int:
        """The fewest replies with which it can be computed."""
        ...

    def combine(self, replies: Replies, sent: Replies) -> Replies:
        """The replies that the method merges. sent: what each of these sites got before it answered."""
        ...


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of the method: nothing is changed, and one hospital can move it anywhere."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["mean"] = "mean"
    fewest: ClassVar = 1

    def combine(self, replies: Replies, sent: Replies) -> Replies:
        return replies


@dataclass(frozen=True, kw_only=True)
class Median:
    """Each number is the median over hospitals: fewer than half of them cannot move it beyond what the others sent."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["median"] = "median"
    fewest: ClassVar = 3

    def combine(self, replies: Replies, sent: Replies) -> Replies:
        return _replace_tensors(replies, lambda stack: _trim_mean(stack, (len(stack) - 1) // 2))


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """Each number is the mean over hospitals without the `trimmed` largest and the `trimmed` smallest."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["trimmed_mean"] = "trimmed_mean"
    trimmed: int = 1

    def __post_init__(self) -> None:
        refuse(unmet(self, trimmed=(self.trimmed >= 1, ">= 1")))

    @property
    def fewest(self) -> int:
        """The fewest replies with which it can be computed."""
        return 2 * self.trimmed + 1

    def combine(self, replies: Replies, sent: Replies) -> Replies:
        return _replace_tensors(replies, lambda stack: _trim_mean(stack, self.trimmed))


@dataclass(frozen=True, kw_only=True)
class Krum:
    """The `kept` replies with the smallest sums of squared distances to their K - attackers - 2 nearest others.

    attackers: f, how many hospitals may send anything; the proof needs K >= 2 f + 3. kept: m, 1 = Krum, more =
    Multi-Krum, the plain mean of these. A hospital whose reply is not kept still counts as answered: what stays at home
    goes on, and methods that count replies (SCAFFOLD, FedDyn) count it.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["krum"] = "krum"
    attackers: int = 1
    kept: int = 1

    def __post_init__(self) -> None:
        refuse(unmet(self, attackers=(self.attackers >= 1, ">= 1"), kept=(self.kept >= 1, ">= 1")))

    @property
    def fewest(self) -> int:
        """The fewest replies with which it can be computed."""
        return max(2 * self.attackers + 3, self.kept + self.attackers)

    def combine(self, replies: Replies, sent: Replies) -> Replies:
        sites = [*replies]
        square = _square_distances([replies[site] for site in sites])
        nearest = square.sort(dim=1).values[:, 1 : len(sites) - self.attackers - 1]  # the first is the reply itself
        order = nearest.sum(dim=1).sort(stable=True).indices.tolist()
        selected = {sites[place]: replies[sites[place]] for place in order[: self.kept]}
        return _replace_tensors(replies, lambda stack: stack.mean(dim=0), selected)


@dataclass(frozen=True, kw_only=True)
class NormBounded:
    """Each update (reply minus what was sent) is shortened to a Euclidean norm of at most `bound`.

    bound: null = the median of the round's norms, so that an update of another size has no more weight than the others.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["norm_bounded"] = "norm_bounded"
    bound: float | None = None
    fewest: ClassVar = 3

    def __post_init__(self) -> None:
        refuse(unmet(self, bound=(self.bound is None or 0 < self.bound < math.inf, "> 0 or null")))

    def combine(self, replies: Replies, sent: Replies) -> Replies:
        norms = {site: update_norm(reply, sent[site]) for site, reply in replies.items()}
        bound = median(norms.values()) if self.bound is None else self.bound
        return {site: shorten_update(reply, sent[site], bound) for site, reply in replies.items()}


MEAN = Mean()


def reference_of(name: str, value: Tensor, sent: Message) -> Tensor:
    """What a tensor of a reply began as, by `find_reference`, in float64; zeros, where nothing of its form was sent."""
    before = find_reference(name, value, sent)
    return torch.zeros_like(value, dtype=torch.float64) if before is None else before.double()


def find_reference(name: str, value: Tensor, sent: Message) -> Tensor | None:
    """The sent tensor of the same name, or the sent model's, where the reply has a buffer in a role of its own; None,
    where nothing of its form was sent.
    """
    for key in (name, name.replace("buffer/", "model/", 1)):
        if key in sent.tensors and sent.tensors[key].shape == value.shape and not name.startswith(DIFFERENCES):
            return sent.tensors[key]
    return None


DIFFERENCES = ("control/", "gradient/")
"""Roles of tensors that are no parameters: SCAFFOLD's c_i+ - c_i, and PGFed's gradients."""


def update_norm(reply: Message, sent: Message) -> float:
    """The Euclidean norm of a reply minus what was sent, over its floating-point numbers."""
    squares = [
        float((value.double() - reference_of(name, value, sent)).square().sum())
        for name, value in reply.tensors.items()
        if value.is_floating_point()
    ]
    return math.sqrt(math.fsum(squares))


def shorten_update(reply: Message, sent: Message, bound: float) -> Message:
    """The reply, moved towards what was sent so that its update's norm is at most `bound`."""
    norm = update_norm(reply, sent)
    if norm <= bound:
        return reply
    tensors = {name: _shorten(name, value, sent, bound / norm) for name, value in reply.tensors.items()}
    return Message(tensors, reply.facts)


def _shorten(name: str, value: Tensor, sent: Message, share: float) -> Tensor:
    """A tensor whose update is this share of what it was; a whole number stays."""
    if not value.is_floating_point():
        return value
    reference = reference_of(name, value, sent)
    return (reference + share * (value.double() - reference)).to(value.dtype)


class _Center(Protocol):
    def __call__(self, stack: Tensor) -> Tensor:
        """(K, *shape) float64 -> (*shape)."""
        ...


def _replace_tensors(replies: Replies, center: _Center, selected: Replies | None = None) -> Replies:
    """All replies with the same tensors, each the center of those that arrived, or of those to keep; facts stay."""
    tensors = dict[str, Tensor]()
    for name, like in next(iter(replies.values())).tensors.items():
        stack = torch.stack([reply.tensors[name] for reply in (selected or replies).values()]).double()
        value = center(stack)
        tensors[name] = (value if like.is_floating_point() else value.round()).to(like.dtype)
    return {site: Message({n: v.clone() for n, v in tensors.items()}, r.facts) for site, r in replies.items()}


def _trim_mean(stack: Tensor, trimmed: int) -> Tensor:
    """(K, *shape) -> (*shape): the mean without the `trimmed` smallest and largest."""
    return stack.sort(dim=0).values[trimmed : len(stack) - trimmed].mean(dim=0)


def _square_distances(replies: Sequence[Message]) -> Tensor:
    """(K, K) squared Euclidean distances between replies, over floating-point numbers, tensor by tensor."""
    total = torch.zeros(len(replies), len(replies), dtype=torch.float64)
    for name, like in replies[0].tensors.items():
        if like.is_floating_point():
            rows = torch.stack([reply.tensors[name].double().flatten() for reply in replies])
            for place, row in enumerate(rows):  # differences first: squares of large numbers would cancel
                total[place] += (rows - row).square().sum(dim=1)
    return total.fill_diagonal_(-1.0)
