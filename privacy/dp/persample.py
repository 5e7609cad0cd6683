"""The gradient of every single patient, as if each had been computed alone.

A patient's loss is the weighted mean over the patient's K views, so one patient has one gradient, however many images
there are of them (Abadi et al., Deep Learning with Differential Privacy, CCS 2016, with the patient as the example).

There are three ways, and the quickest that is known to keep patients apart is taken, chunk by chunk. `together`: the
network and the loss run over all rows at once, where each operation is known to keep rows apart
(`privacy.dp.rowwise`). `network`: the network does, the loss is computed under vmap. `alone`: everything is under
vmap, by `torch.func`; a loss that itself contains gradients, as a gradient penalty does, works too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from privacy.dp.access import Batch, Objective
from privacy.dp.rowwise import Apart, Mixed, Tap
from privacy.message import Params

CHUNK = 16  # patients whose gradients are computed together: half the memory of all at once, at the same speed

Way: TypeAlias = Literal["together", "network", "alone"]
OfEach: TypeAlias = tuple[dict[str, Tensor], Tensor]
"""Gradients by name (U, *shape), and losses (U,)."""


@dataclass
class Ways:
    """The way that was found for the network and the loss that were asked last, so that it is not sought each time."""

    module: nn.Module | None = None
    objective: Objective | None = None
    way: Way = "together"

    def first(self, module: nn.Module, objective: Objective) -> Way:
        """The way to try first."""
        if self.module is not module or self.objective != objective:
            self.module, self.objective, self.way = module, objective, "together"
        return self.way


class Asked(NamedTuple):
    """Whose gradients, by the names of what is trained, and what is not."""

    module: nn.Module
    objective: Objective
    trained: Mapping[str, nn.Parameter]
    frozen: Sequence[nn.Parameter]


class Views(NamedTuple):
    """Patients of one chunk. x: (U, K, ...). y: (U, K, ...). weight: (U, K). aux: (U, K, ...) or None."""

    x: Tensor
    y: Tensor
    weight: Tensor
    aux: Tensor | None

    def rows(self) -> Batch:
        """All views of all patients, one after the other: (U K, ...)."""
        return Batch(self.x.flatten(0, 1), self.y.flatten(0, 1), None if self.aux is None else self.aux.flatten(0, 1))


def patient_gradients(
    module: nn.Module,
    objective: Objective,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    aux: Tensor | None = None,
    *,
    chunk: int = CHUNK,
    ways: Ways | None = None,
) -> OfEach:
    """Gradients and losses of U patients with K views each.

    Args:
        module: without buffers (`privacy.dp.modules.unfit`). objective: (forward, batch) -> losses (K,) of one patient.
        x: (U, K, ...). y: (U, K) or (U, K, *spatial). weight: (U, K), each row sums to 1. aux: (U, K, ...) or None.
        ways: what was found before; it is updated.

    Returns:
        By name of each parameter that requires a gradient: (U, *shape); and the losses (U,). Parameters that the
        loss does not reach have zeros; no patient at all gives tensors of length 0.
    """
    every = dict(module.named_parameters())
    named = {name: p for name, p in every.items() if p.requires_grad}
    if len(x) == 0:
        return {name: p.new_zeros(0, *p.shape) for name, p in named.items()}, x.new_zeros(0)
    ways = ways or Ways()
    asked = Asked(module, objective, named, [p for p in every.values() if not p.requires_grad])
    if len(x) <= chunk:
        return _by_some_way(asked, Views(x, y, weight, aux), ways)
    parts = []
    for own in (slice(begin, begin + chunk) for begin in range(0, len(x), chunk)):
        views = Views(x[own], y[own], weight[own], None if aux is None else aux[own])
        parts.append(_by_some_way(asked, views, ways))
    gradients = {name: torch.cat([gradient[name] for gradient, _ in parts]) for name in named}
    return gradients, torch.cat([losses for _, losses in parts])


def _by_some_way(asked: Asked, views: Views, ways: Ways) -> OfEach:
    first = ways.first(asked.module, asked.objective)
    for way in itertools.dropwhile(lambda one: one != first, get_args(Way)):
        ways.way = way
        state = torch.get_rng_state()  # a way that is given up must not have used up random numbers
        try:
            return WAYS[way](asked, views)
        except Mixed:
            torch.set_rng_state(state)
    raise AssertionError("the last way takes every network")


def _together(asked: Asked, views: Views) -> OfEach:
    """Everything over all rows at once. Raises: Mixed: an operation is not known to keep rows apart."""
    batch = views.rows()
    apart = Apart(asked.trained, asked.frozen, batch)
    with torch.enable_grad(), apart:
        result = asked.objective(apart.through(asked.module), batch)
    losses = apart.finished(result)
    apart.need(losses.dim() == 1, "losses with other axes than that of the rows")
    gradients = _of_taps(losses, views.weight.flatten().to(losses.dtype), apart.taps, asked, len(views.x))
    return gradients, (losses.detach().view(views.weight.shape) * views.weight).sum(dim=1)


def _network(asked: Asked, views: Views) -> OfEach:
    """The network over all rows at once, the loss of each patient under vmap.

    Raises:
        Mixed: an operation is not known to keep rows apart, or the loss asks the network for anything but once for x.
    """
    batch = views.rows()
    apart = Apart(asked.trained, asked.frozen, batch)
    try:
        with torch.enable_grad(), apart:
            found = apart.through(asked.module)(batch.x)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        raise Mixed(f"this network may not be for x: {error}") from error  # if it is, the next way tells it
    fields = found if isinstance(found, tuple) else (found,)
    given = [None if field is None else _by_patient(apart.finished(field), views) for field in fields]

    def loss(x: Tensor, y: Tensor, weight: Tensor, *given: Tensor | None) -> Tensor:
        uses = itertools.count()

        def forward(*inputs: object) -> object:
            once = len(inputs) == 1 and inputs[0] is x and next(uses) == 0 and torch.is_grad_enabled()
            apart.need(once, "the network is asked for something else than its output for x")
            return _like(found, given[1:])

        return (asked.objective(forward, Batch(x, y, given[0])) * weight).sum()

    more = (views.aux, *given)
    with torch.enable_grad():
        of_each = vmap(loss, in_dims=(0, 0, 0, *_axes(more)), randomness="different")
        losses = of_each(views.x, views.y, views.weight, *more)
    apart.need(not apart.mixed, "the loss asked again after a refusal")
    return _of_taps(losses, torch.ones_like(losses), apart.taps, asked, len(views.x)), losses.detach()


def _alone(asked: Asked, views: Views) -> OfEach:
    """Everything under vmap, whatever the network and the loss do."""
    trained = {name: p.detach() for name, p in asked.trained.items()}
    frozen = {name: p.detach() for name, p in asked.module.named_parameters() if name not in trained}

    def loss(params: Params, x: Tensor, y: Tensor, weight: Tensor, aux: Tensor | None) -> Tensor:
        def forward(*inputs: object) -> object:
            return functional_call(asked.module, {**params, **frozen}, inputs)

        return (asked.objective(forward, Batch(x, y, aux)) * weight).sum()

    inputs = (views.x, views.y, views.weight, views.aux)
    of_each = vmap(grad_and_value(loss), in_dims=(None, *_axes(inputs)), randomness="different")
    gradients, losses = of_each(trained, *inputs)
    return gradients, losses


WAYS: Mapping[Way, Callable[[Asked, Views], OfEach]] = {"together": _together, "network": _network, "alone": _alone}


def _axes(inputs: Iterable[Tensor | None]) -> tuple[int | None, ...]:
    return tuple(None if one is None else 0 for one in inputs)


def _by_patient(rows: Tensor, views: Views) -> Tensor:
    """(U K, ...) as (U, K, ...)."""
    return rows.reshape(*views.x.shape[:2], *rows.shape[1:])


def _like(found: object, fields: Iterable[Tensor | None]) -> object:
    """The same type as `found`, a tensor or a named tuple of some, with other tensors."""
    if not isinstance(found, tuple):
        return next(iter(fields))
    return type(found)._make(fields) if hasattr(found, "_make") else tuple(fields)


def _of_taps(losses: Tensor, weight: Tensor, taps: list[Tap], asked: Asked, patients: int) -> dict[str, Tensor]:
    """Each patient's gradient of their weighted losses (n,), by name (U, *shape)."""
    found: dict[str, Tensor] = {}
    outs = [tap.out for tap in taps] if losses.requires_grad else []
    reached = torch.autograd.grad(losses, outs, weight, allow_unused=True) if outs else ()
    with torch.no_grad():
        for tap, g in zip(taps, reached, strict=False):
            if g is None:
                continue
            for name, gradient in zip((tap.weight, tap.bias), tap.of(g, patients), strict=True):
                if name is not None:
                    found[name] = found[name] + gradient if name in found else gradient
    return {n: found[n] if n in found else p.new_zeros(patients, *p.shape) for n, p in asked.trained.items()}
