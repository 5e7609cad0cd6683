"""A pass over many patients' rows at once that is known to keep rows apart, because each operation of it is.

Patients are protected only if one patient's gradient does not hang on who else is there. `torch.func.vmap` sees to that
whatever a network does, but a small network then waits for vmap. Here rows of all patients pass together, as in plain
training, while `Apart` looks at every operation: it must stand in `RULES`, with arguments of which its rule knows that
row i of the result depends on rows i of its arguments alone. So each tensor that was seen has this property, by
induction. Anything else, a tensor from elsewhere among them, raises `Mixed`, and whoever asked takes vmap.

Parameters enter in `Tap`s only: layers whose gradient for each patient follows from the layer's input and the gradient
of its output (Goodfellow, Efficient per-example gradient computations, arXiv 1510.01799, for linear layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional, grad
from torch.overrides import TorchFunctionMode

OfPatients: TypeAlias = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""of(g, U): gradients (U, *shape) of a layer's weight and bias, from the gradient g (n, ...) of its output."""


class Mixed(Exception):
    """An operation of which it is not known that it keeps rows apart."""


class Tap(NamedTuple):
    """One use of a layer. out: its output (n, ...). weight, bias: names of what is trained of it, or None."""

    out: Tensor
    weight: str | None
    bias: str | None
    of: OfPatients


class Apart(TorchFunctionMode):
    """Watches a pass over n rows. inside: whether the network runs; only then may parameters be used.

    A tensor is known as an object, with the operation that made it: a hook or a function of its own that takes its
    place in the graph makes it another one.
    """

    def __init__(self, trained: Mapping[str, Tensor], frozen: Iterable[Tensor], rows: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.named: dict[int, tuple[str | None, Tensor]] = {id(p): (None, p) for p in frozen}
        self.named |= {id(p): (name, p) for name, p in trained.items()}
        self.taps: list[Tap] = []
        self.inside = self.mixed = False
        self.known: dict[int, tuple[Tensor, object]] = {}
        self.count = next(len(tensor) for tensor in rows if tensor is not None)
        for tensor in rows:
            if tensor is not None:
                self.kept(tensor)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """One operation; the mode is off while it runs."""
        rule = RULES.get(func)
        if rule is None:
            raise self.refusal(getattr(func, "__name__", str(func)))
        try:
            result = rule(self, func, *args, **(kwargs or {}))
        except TypeError as error:  # other arguments than a rule has
            raise self.refusal(f"{getattr(func, '__name__', func)}: {error}") from error
        return self.kept(result) if isinstance(result, Tensor) else result

    def through(self, module: nn.Module) -> Callable[..., object]:
        """The network; only while it runs, parameters may be used."""

        def forward(*inputs: object) -> object:
            self.inside = True
            try:
                return module(*inputs)
            finally:
                self.inside = False

        return forward

    def finished(self, result: object) -> Tensor:
        """The result of the pass, if it is known and nothing was refused. Raises: Mixed."""
        self.need(not self.mixed, "an operation that was refused")
        return self.rows(result)

    def kept(self, tensor: Tensor) -> Tensor:
        """The same tensor, known from now on."""
        self.need(tensor.dim() >= 1 and tensor.size(0) == self.count, "a result has other rows")
        self.known[id(tensor)] = (tensor, tensor.grad_fn)
        return tensor

    def rows(self, tensor: object) -> Tensor:
        """The same tensor, if it is known to hold a row for each row. Raises: Mixed."""
        found, node = self.known.get(id(tensor), (None, None))
        if found is None or found is not tensor or found.grad_fn is not node:
            raise self.refusal("a tensor from elsewhere")
        return found

    def parameter(self, tensor: Tensor | None) -> tuple[Tensor | None, str | None]:
        """A parameter's value, and its name if it is trained. Raises: Mixed: it is none of the running network's."""
        if tensor is None:
            return None, None
        name, found = self.named.get(id(tensor), (None, None))
        self.need(self.inside and found is tensor, "a parameter from elsewhere")
        return tensor.detach(), name if torch.is_grad_enabled() else None

    def tapped(self, out: Tensor, weight: str | None, bias: str | None, of: OfPatients) -> Tensor:
        """The output of a layer, whose gradient will be needed if the layer is trained."""
        if weight is not None or bias is not None:
            self.taps.append(Tap(out if out.requires_grad else out.requires_grad_(), weight, bias, of))
        return out

    def need(self, met: bool, what: str) -> None:
        """Raises: Mixed: not met."""
        if not met:
            raise self.refusal(what)

    def refusal(self, what: str) -> Mixed:
        """What to raise; noted too, should the network catch it."""
        self.mixed = True
        return Mixed(what)


Rule: TypeAlias = Callable[..., Tensor | int]
"""rule(apart, function, arguments of the function): what the function gives, or Mixed or TypeError."""


def _fact(_: Apart, func: Any, x: Tensor) -> int:
    """Nothing in it depends on rows or on how many there are."""
    result: int = func(x)
    return result


def _alone(apart: Apart, func: Any, x: Tensor, *, inplace: bool = False, **how: float | str | bool) -> Tensor:
    """Each number by itself."""
    apart.need(not inplace and not any(isinstance(value, Tensor) for value in how.values()), "in place, or by a tensor")
    result: Tensor = func(apart.rows(x), **how)
    return result


def _two(apart: Apart, func: Any, x: Tensor, y: Tensor | float) -> Tensor:
    """Two tensors of as many axes, so that rows meet rows, or a tensor and a number."""
    one = apart.rows(x)
    if not isinstance(y, int | float):
        apart.need(apart.rows(y).dim() == one.dim(), "tensors of different axes")
    result: Tensor = func(one, y)
    return result


def _pool(apart: Apart, func: Any, x: Tensor, *how: Any, return_indices: bool = False, **more: Any) -> Tensor:
    apart.need(apart.rows(x).dim() == AXES[func] + 2 and not return_indices, "pooling without an axis of rows")
    result: Tensor = func(x, *how, **more)
    return result


def _axes(apart: Apart, x: Tensor, dim: int | Sequence[int]) -> None:
    """Raises: Mixed: an axis is that of the rows."""
    last = apart.rows(x).dim()
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    good = len(dims) > 0 and all(isinstance(d, int) and (1 <= d < last or -last < d < 0) for d in dims)
    apart.need(good, "over the axis of rows")


def _over(apart: Apart, func: Any, x: Tensor, dim: int | Sequence[int], *, keepdim: bool | None = None) -> Tensor:
    """Along axes that are given, and are not that of the rows."""
    _axes(apart, x, dim)
    result: Tensor = func(x, dim=dim) if keepdim is None else func(x, dim=dim, keepdim=keepdim)
    return result


def _unflatten(apart: Apart, func: Any, x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    _axes(apart, x, dim)
    result: Tensor = func(x, dim, sizes)
    return result


def _flatten(apart: Apart, func: Any, x: Tensor, start_dim: int, end_dim: int = -1) -> Tensor:
    apart.need(apart.rows(x).dim() > start_dim >= 1 and end_dim == -1, "the axis of rows is flattened")
    result: Tensor = func(x, start_dim)
    return result


def _cat(apart: Apart, func: Any, tensors: Sequence[Tensor], dim: int) -> Tensor:
    apart.need(len({apart.rows(x).dim() for x in tensors}) == 1, "tensors of different axes")
    _axes(apart, tensors[0], dim)
    result: Tensor = func(list(tensors), dim=dim)
    return result


def _item(apart: Apart, func: Any, x: Tensor, place: object) -> Tensor:
    """All rows, of which numbers and slices choose parts."""
    places = place if isinstance(place, tuple) else (place,)
    whole = isinstance(places[0], slice) and places[0] == slice(None)
    apart.need(whole and all(type(p) in (int, slice) for p in places), "other places than parts of all rows")
    result: Tensor = func(apart.rows(x), place)
    return result


def _pad(apart: Apart, func: Any, x: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    apart.need(len(pad) // 2 < apart.rows(x).dim() and mode == "constant", "rows are added")
    result: Tensor = func(x, pad, mode, value)
    return result


def _cross_entropy(
    apart: Apart, func: Any, x: Tensor, y: Tensor, weight: None = None, size_average: None = None,
    ignore_index: int = -100, reduce: None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    alone = (weight, size_average, reduce, reduction) == (None, None, None, "none")
    apart.need(alone and apart.rows(x).dim() >= 2 and apart.rows(y).dim() in (x.dim(), x.dim() - 1), "a mean of rows")
    result: Tensor = func(x, y, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing)
    return result


def _linear(apart: Apart, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    apart.need(apart.rows(x).dim() >= 2, "the rows are one vector")
    (w, w_name), (b, b_name) = apart.parameter(weight), apart.parameter(bias)
    given = x.detach()

    def of(g: Tensor, patients: int) -> tuple[Tensor, Tensor]:
        if len(g) == patients and g.dim() == 2:  # a product of two vectors, which bmm does slowly
            return g.unsqueeze(2) * given.unsqueeze(1), g
        outs, ins = (t.reshape(patients, -1, t.shape[-1]) for t in (g, given))
        return torch.bmm(outs.transpose(1, 2), ins), outs.sum(dim=1)

    return apart.tapped(func(x, w, b), w_name, b_name, of)


def _conv(
    apart: Apart, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The patients' gradients of the weight are one convolution in which each patient is a group."""
    apart.need(apart.rows(x).dim() == AXES[func] + 2 and not isinstance(padding, str), "images without an axis of rows")
    (w, w_name), (b, b_name) = apart.parameter(weight), apart.parameter(bias)
    given, shape = x.detach(), weight.shape

    def side_by_side(rows: Tensor, patients: int) -> Tensor:
        return rows.view(patients, -1, *rows.shape[1:]).transpose(0, 1).flatten(1, 2)

    def of(g: Tensor, patients: int) -> tuple[Tensor, Tensor]:
        each = WEIGHT_OF[func](
            side_by_side(given, patients), (patients * shape[0], *shape[1:]), side_by_side(g, patients),
            stride=stride, padding=padding, dilation=dilation, groups=patients * groups,
        )  # fmt: skip
        return each.view(patients, *shape), g.reshape(patients, -1, *g.shape[1:]).flatten(3).sum(dim=(1, 3))

    return apart.tapped(func(x, w, b, stride, padding, dilation, groups), w_name, b_name, of)


def _group_norm(
    apart: Apart, func: Any, x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    apart.need(apart.rows(x).dim() >= 2, "the rows are one vector")
    (w, w_name), (b, b_name) = apart.parameter(weight), apart.parameter(bias)
    n, channels = x.shape[:2]
    inside = x[0, 0].numel()
    out, mean, deviation = torch.native_group_norm(x.contiguous(), w, b, n, channels, inside, num_groups, eps)
    given = x.detach()

    def of(g: Tensor, patients: int) -> tuple[Tensor, Tensor]:
        shift = g.reshape(n, channels, -1).sum(dim=2)
        along = (g * given).reshape(n, channels, -1).sum(dim=2)
        grouped = along.view(n, num_groups, -1) - mean[:, :, None] * shift.view(n, num_groups, -1)
        scale = (grouped * deviation[:, :, None]).view(patients, -1, channels)
        return scale.sum(dim=1), shift.view(patients, -1, channels).sum(dim=1)

    return apart.tapped(out, w_name, b_name, of)


AXES: dict[Any, int] = {
    torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3,
    functional.max_pool1d: 1, functional.max_pool2d: 2, functional.max_pool3d: 3,
    functional.avg_pool1d: 1, functional.avg_pool2d: 2, functional.avg_pool3d: 3,
    functional.adaptive_avg_pool2d: 2, functional.adaptive_avg_pool3d: 3,
}  # fmt: skip
"""Places of a layer of images: 1 for signals, 2 for images, 3 for volumes."""
WEIGHT_OF: dict[Any, Any] = {
    torch.conv1d: grad.conv1d_weight,
    torch.conv2d: grad.conv2d_weight,
    torch.conv3d: grad.conv3d_weight,
}
RULES: dict[Any, Rule] = {
    **dict.fromkeys(AXES, _pool),
    **dict.fromkeys(WEIGHT_OF, _conv),
    **dict.fromkeys(
        (
            functional.relu, functional.leaky_relu, functional.elu, functional.gelu, functional.silu,
            functional.dropout, torch.relu, torch.tanh, torch.sigmoid,
            Tensor.relu, Tensor.tanh, Tensor.sigmoid, Tensor.clamp,
        ),
        _alone,
    ),
    **dict.fromkeys(
        (Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, torch.add, torch.mul, torch.logaddexp), _two
    ),
    **dict.fromkeys(
        (Tensor.mean, Tensor.sum, Tensor.amax, Tensor.amin, Tensor.softmax, Tensor.log_softmax), _over
    ),
    Tensor.dim: _fact,
    Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    Tensor.unflatten: _unflatten,
    torch.cat: _cat,
    Tensor.__getitem__: _item,
    functional.pad: _pad,
    functional.cross_entropy: _cross_entropy,
    functional.linear: _linear,
    functional.group_norm: _group_norm,
}  # fmt: skip
