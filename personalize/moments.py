"""Moments: a linear head for each hospital, in closed form, from sums that every hospital sends once.

The network before its head stays as all hospitals got it; z is its output. Hospital i sends, over its training
patients and about their mean m_i: class sizes n_i, class sums S_i = sum y (z - m_i)', second moments G_i = sum
(z - m_i)(z - m_i)'. Sums of these lose nothing that ridge regression or discriminant analysis needs (Fani et al.,
Accelerating heterogeneous federated learning with closed-form classifiers, ICML 2024), so one round is enough, and what
others get depends on which hospitals took part and on no order.

Each hospital then solves for itself, with weights a = `others_gram` and r = `others_classes` of the other hospitals:

    N   = sum_c n_ic + a sum_j sum_c n_jc                                     patients behind the second moments
    C   = (G_i + a sum_j G_j + t I) / N                                       scatter, with a ridge
    H_i = diag(n_i) - n_i n_i' / |n_i|,  B_i = S_i' - S_i' 1 n_i' / |n_i|     centred labels, and their products with z
    M   = (B_i + r sum_j B_j) (H_i + r sum_j H_j)^+                           class means, but for a shift
    W   = C^-1 M                                                              directions of linear discriminant analysis

a = r = 0 is local; a = r = 1 is one model with a private intercept, and in between hospitals share directions and not
shifts, because every sum is about its own hospital's mean. W is scaled as the scatter within classes asks for
(Woodbury's identity), and the intercepts take the hospital's own class shares.

A hospital that did not answer (its budget was spent before the only round) gets what all others' sums give.

Privately, the four sums leave with noise in one release (`privacy.dp.moments`); what is solved from them costs nothing
more, the hospital's own model included. The ridge is AdaSSP's (Wang, Revisiting differentially private linear
regression, UAI 2018): t covers the largest eigenvalue that the noise of G is expected to have, 2 s sqrt(d / 2). Noise
of variance u in each number of sum B hides rare classes: in M, an eigenvalue l of sum H is then inverted as
l / (l^2 + u / v), with v the mean square of M's numbers (Wiener's filter), and M and W are shrunk by what noise is
expected to have added to M' W, so that probabilities are not 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.parameters import loaded, prefixed, read_parameters, section
from federation.task import Output
from privacy.dp import moments as released
from privacy.message import Call, Message, Params
from privacy.settings_error import out_of_range, refuse

SENT = ("sizes", "sums", "gram", "variance")
OF = "head.weight"  # moments are of what this layer gets
SUMS = ("sizes", "gram", "variance", "labels", "products")
ABSENT = 1e-2  # of a patient: the size of a class that a hospital does not have; noised, 2 deviations of the noise
ROUNDED = 1e-10  # of the largest eigenvalue: a smaller one of centred labels is 0, but for rounding
LARGEST = 0.9  # share of a direction's scatter that may lie between classes
FAINT = 0.05  # of the noise in the largest class: the least that class means are taken to differ
LEAST = 1e-2  # of it is kept where noise explains it all, so that scores still have an order
FARTHEST = 10.0  # logits of a class below its share at the hospital's mean


@dataclass(frozen=True, kw_only=True)
class Moments:
    """others_gram: a. others_classes: r. ridge: t in shares of the mean eigenvalue of the scatter, beside what noise
    asks for. radius: in private training, the norm to which z is cut, in units of sqrt(d). opposed: whether a hospital
    gets class sums of one whose classes lie the other way round, by more than chance and noise explain.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    rounds: ClassVar[int] = 1
    needs_classes: ClassVar = "it solves for a head by sums over classes"
    without_loss: ClassVar = "it solves for a head by sums over classes"

    name: Literal["moments"] = "moments"
    others_gram: float = 1.0
    others_classes: float = 0.3
    ridge: float = 1e-2
    radius: float = 1.0
    opposed: Literal["kept", "left_out"] = "kept"

    def __post_init__(self) -> None:
        refuse(
            out_of_range(self, others_gram=(0.0, 1.0), others_classes=(0.0, 1.0), ridge=(0.0, 1e6), radius=(1e-6, 1e6))
        )

    network = FedAvg.network
    introduce = FedAvg.introduce
    start = FedAvg.start

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        head = getattr(module, "head", None)
        if isinstance(head, nn.Linear):
            return []
        return ["moments solves for a linear layer called head, and this network has none: take mlp or cnn"]

    def send(self, state: State, site: str, call: Call) -> Message:
        model = prefixed("model", section(state.tensors, "model"))
        if call.request == "train":
            return Message(model)
        total = section(state.tensors, "total")
        if self.opposed == "left_out" and site in _sites(state.tensors):
            total = _sum_moments(_not_opposed(_moments_by_site(state.tensors, self.radius), site, self.radius))
        # A site whose reply was lost has no start, and no sums in the total.
        return Message({**prefixed("total", total), **({} if site in call.merged else model)})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model")).eval()
        sent, centre = moments_of(site, module, self.radius)
        return Message({f"{part}/{OF}": sent[part] for part in SENT}), Message(
            {**prefixed("model", read_parameters(module)), **prefixed("own", sent), "centre": centre}
        )

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        tensors = dict(state.tensors)
        for site, reply in replies.items():
            tensors |= {f"site/{site}/{part}": reply.tensors[f"{part}/{OF}"] for part in SENT}
        return _add_totals(tensors, self.radius)

    def without(self, state: State, sites: frozenset[str]) -> State:
        """The state as if these sites had never sent their sums: see `federation.membership`."""
        theirs = tuple(f"site/{site}/" for site in sites)
        return _add_totals({n: tensor for n, tensor in state.tensors.items() if not n.startswith(theirs)}, self.radius)

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        sent, total = _on_cpu(section(memory.tensors, "own")), _on_cpu(section(received.tensors, "total"))
        if not sent:
            start = section(received.tensors, "model")
            return {**start, **_head(start, *_of_others(self, total))} if total else start
        start, site_sums = section(memory.tensors, "model"), centre_moments(sent, self.radius)
        other_sums = {part: total[part] - site_sums[part] for part in SUMS} if total else _nothing(site_sums)
        weight, bias = solve_head(self, site_sums, other_sums, memory.tensors["centre"].cpu())
        return {**start, **_head(start, weight, bias)}


def _on_cpu(tensors: Params) -> Params:
    """Sums and what is solved from them: small, in float64, and the same bits at every hospital."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _add_totals(tensors: Params, radius: float) -> State:
    """The state with the sums of all its sites, which most sites get alike, added up once and not for each of them."""
    site_tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("total/")}
    return Message({**site_tensors, **prefixed("total", _sum_moments(_moments_by_site(site_tensors, radius)))})


def _moments_by_site(tensors: Params, radius: float) -> dict[str, Params]:
    """The centred moments of each site, by name."""
    return {name: centre_moments(section(tensors, f"site/{name}"), radius) for name in sorted(_sites(tensors))}


def _sum_moments(every: Mapping[str, Params]) -> Params:
    """The sums of all sites' moments, rounded once."""
    return {part: sum_exactly([moments[part] for moments in every.values()]) for part in SUMS if every}


def moments_of(site: Site, module: nn.Module, radius: float) -> tuple[Params, Tensor]:
    """What a hospital sends, float64, and the mean m (d,) that it keeps. radius: in units of sqrt(d)."""
    width = read_parameters(module)["head.weight"].shape[1]

    def embed(x: Tensor) -> Tensor:
        output: Output = module(x)
        return output.features

    furthest = radius * math.sqrt(width)
    moments = site.moments(embed, width=width, radius=furthest)
    deviation = torch.tensor(moments.deviation, dtype=torch.float64)
    sent = {"sizes": moments.sizes, "sums": moments.sums, "gram": moments.gram, "variance": deviation**2}
    # Noise can take the centre to where no row is.
    return sent, moments.centre if not moments.deviation else released.cut_rows(moments.centre[None] / furthest)[
        0
    ] * furthest


def centre_moments(sent: Params, radius: float) -> Params:
    """What a hospital sent, with its labels and their products with z about their means: H_i and B_i."""
    # Noise can make a size negative. Without noise an absent class keeps a finite, small share.
    hidden = math.sqrt(max(0.0, float(sent["variance"])) * released.GRAM / released.SIZES) / _unit(sent["gram"], radius)
    n = sent["sizes"].clamp(min=max(1.0, 2 * hidden) if hidden > 0 else ABSENT)
    shares = n / n.sum()
    labels, products = n.diag() - n[:, None] * shares, sent["sums"] - shares[:, None] * sent["sums"].sum(dim=0)
    return {"sizes": n, "gram": sent["gram"], "variance": sent["variance"], "labels": labels, "products": products}


def solve_head(how: Moments, site_sums: Params, other_sums: Params, centre: Tensor) -> tuple[Tensor, Tensor]:
    """The head W (classes, d) and its bias (classes,), float64. See the head of this file."""
    a, r = how.others_gram, how.others_classes
    n = site_sums["sizes"].sum() + a * other_sums["sizes"].sum()
    gram = site_sums["gram"] + a * other_sums["gram"]
    width = len(gram)
    noise = (site_sums["variance"] + a**2 * other_sums["variance"]).clamp(min=0).sqrt()
    ridge = how.ridge * gram.trace().clamp(min=0) / width + 2 * noise * math.sqrt(width / 2)
    values, axes = torch.linalg.eigh(gram + ridge * torch.eye(width, dtype=gram.dtype))
    values = values.clamp(min=torch.finfo(values.dtype).eps * values.abs().max() + 1e-12).clamp(min=ridge / 2)
    products = (site_sums["products"] + r * other_sums["products"]).T / n
    spoilt = (site_sums["variance"] + r**2 * other_sums["variance"]).clamp(min=0) * released.GRAM / released.SUMS
    spoilt = spoilt / _unit(gram, how.radius) / n**2
    labels = _inverse((site_sums["labels"] + r * other_sums["labels"]) / n, products, spoilt)
    means = products @ labels
    shares = site_sums["sizes"] / site_sums["sizes"].sum()
    means = means - (means @ shares)[:, None]
    weight = axes @ ((axes.T @ means) / (values / n)[:, None])
    # What the noise of products alone would make of M' C^-1 M: its mean, times what the largest of several is above it.
    variance = (site_sums["variance"] + r**2 * other_sums["variance"]).clamp(min=0) * released.GRAM / released.SUMS
    edge = (1 + math.sqrt((len(labels) - 1) / width)) ** 2
    hidden = edge * variance / _unit(gram, how.radius) / n * (1 / values).sum() * labels @ labels
    weight, means = _within(weight, means, (site_sums["labels"] + a * other_sums["labels"]) / n, hidden)
    offset = 0.5 * (means * weight).sum(dim=0)
    bias = shares.log() - offset.clamp(max=FARTHEST) - centre @ weight
    return weight.T, bias


def _within(weight: Tensor, means: Tensor, h: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """C_w^-1 M from W = C^-1 M, where C = C_w + M H M' (Woodbury), and M: W + W R (I - R M' W R)^-1 R M' W, R R = H.

    Noise takes class means further apart than they are, and under much noise every probability would be 0 or 1. So W
    and M are shrunk first, by one factor: M' W by what noise is expected to have added to it, `hidden`.
    """
    values, axes = torch.linalg.eigh(h)
    root = axes * values.clamp(min=0).sqrt() @ axes.T
    between = root @ means.T @ weight @ root
    share, turned = torch.linalg.eigh((between + between.T) / 2)
    if hidden.any():
        most, added = share.max().clamp(min=1e-300), torch.linalg.eigvalsh(root @ hidden @ root).max()
        shrunk = ((most - added).clamp(LEAST * most, LARGEST) / most).sqrt()
        weight, means, share = weight * shrunk, means * shrunk, share * shrunk**2
    inverse = turned / (1 - share.clamp(0, LARGEST)) @ turned.T
    return weight + weight @ root @ inverse @ root @ means.T @ weight, means


def _not_opposed(every: Mapping[str, Params], site: str, radius: float) -> dict[str, Params]:
    """The sums of all, where those whose class means point away from a site's by more than two deviations have no
    class sums. From what left alone; docs/results/one-message.md tells what it was worth.
    """
    gram = sum_exactly([moments["gram"] for moments in every.values()])
    noise = sum_exactly([moments["variance"] for moments in every.values()]).clamp(min=0).sqrt()
    ridge = 2 * noise * math.sqrt(len(gram) / 2) * torch.eye(len(gram), dtype=gram.dtype)
    values, axes = torch.linalg.eigh((gram + ridge) / sum(moments["sizes"].sum() for moments in every.values()))
    values = values.clamp(min=1e-3 * values.max())
    seen = {name: _contrasts(moments, values, axes, _unit(gram, radius)) for name, moments in every.items()}
    mine, spread = seen[site]
    agreeing = dict(every)
    for name, (theirs, unsure) in seen.items():
        score = (mine / spread * theirs).sum() / ((mine / spread).square() * unsure).sum().sqrt().clamp(min=1e-300)
        if name != site and score < -2:
            agreeing[name] = {**every[name], **{part: 0 * every[name][part] for part in ("labels", "products")}}
    return agreeing


def _contrasts(sent: Params, values: Tensor, axes: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """Differences of class means from the first class along each axis (classes - 1, d), and their variances."""
    inverse = torch.linalg.pinv(sent["labels"], hermitian=True, rtol=ROUNDED)
    means = inverse @ sent["products"] @ axes
    noise = sent["variance"].clamp(min=0) * released.GRAM / released.SUMS / unit
    differences = torch.eye(len(inverse), dtype=inverse.dtype)[1:] - torch.eye(len(inverse), dtype=inverse.dtype)[0]
    sampled, noised = ((differences @ h @ differences.T).diagonal()[:, None] for h in (inverse, inverse @ inverse))
    return means[1:] - means[0], sampled * values + 2 * noise * noised


def _inverse(labels: Tensor, products: Tensor, noise: Tensor) -> Tensor:
    """H^+ for M = B H^+, where noise of variance s^2 in each number of B hides rare classes: each eigenvalue l of H
    becomes l / (l^2 + s^2 / v) as in a Wiener filter, with v, the mean square of a number of M, estimated from B. With
    two classes H has one eigenvalue, so the order of scores stays.
    """
    if not noise > 0:
        plain: Tensor = torch.linalg.pinv(labels, hermitian=True, rtol=ROUNDED)
        return plain
    values, axes = torch.linalg.eigh(labels)
    values = values.clamp(min=0)
    seen = (products @ axes[:, 1:]).square().sum() / len(products) - (len(values) - 1) * noise
    v = (seen / values.square().sum()).clamp(min=FAINT * noise / values.max() ** 2)
    filtered: Tensor = axes * (values / (values**2 + noise / v)) @ axes.T
    return filtered


def _of_others(how: Moments, total: Params) -> tuple[Tensor, Tensor]:
    """The head of a hospital that did not answer in the only round, as if its mean were 0."""
    return solve_head(how, total, _nothing(total), torch.zeros(len(total["gram"]), dtype=total["gram"].dtype))


def _nothing(like: Params) -> Params:
    """The sums of no hospital."""
    return {part: torch.zeros_like(like[part]) for part in SUMS}


def _unit(gram: Tensor, radius: float) -> float:
    """The largest second moment of a patient: the square of the norm to which rows are cut."""
    return len(gram) * radius**2


def _head(start: Params, weight: Tensor, bias: Tensor) -> Params:
    """The head's parameters, also of a network with one logit for two classes."""
    if len(start["head.weight"]) == 1 and len(weight) == 2:
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    parameters = {"head.weight": weight.to(start["head.weight"])}
    return parameters | ({"head.bias": bias.to(start["head.bias"])} if "head.bias" in start else {})


def sum_exactly(parts: list[Tensor]) -> Tensor:
    """The sum of tensors, each number rounded once, so that it does not depend on their order."""
    stacked = torch.stack([part.flatten() for part in parts]).T.tolist()
    return torch.tensor([math.fsum(numbers) for numbers in stacked], dtype=parts[0].dtype).view(parts[0].shape)


def _sites(tensors: Params) -> set[str]:
    """Names of the sites whose moments are there."""
    return {name.split("/")[1] for name in tensors if name.startswith("site/")}
