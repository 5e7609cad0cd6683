"""Many patients' rows in one pass: each patient's gradient is that of a pass alone, or vmap is taken.

The law of each operation that is allowed is tried on an example that uses it, and every operation has one. What could
mix patients is refused; the gradients are right all the same, because they are computed the slow way then.
"""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from consilium.testing import testbed
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.task import Output, Task
from privacy.dp import persample, rowwise
from privacy.dp.access import Batch
from privacy.dp.persample import Ways, patient_gradients

U = 4


class Through(nn.Module):
    """Layers, then a function, then a linear head: what stands between is differentiated on both sides."""

    def __init__(self, layers: nn.Module, between, width: int) -> None:
        super().__init__()
        self.layers, self.between, self.head = layers, between, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.layers(x)).flatten(1))


def losses(forward, batch: Batch) -> Tensor:
    return functional.cross_entropy(forward(batch.x), batch.y, reduction="none")


def case(layers: nn.Module, inputs: tuple[int, ...], between=lambda h: h) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    width = between(layers(torch.randn(2, *inputs))).flatten(1).shape[1]
    return Through(layers, between, width), inputs


def signals(*more: nn.Module, **how) -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 3, **how), *more)


def pictures(*more: nn.Module, **how) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, **how), *more)


def volumes(*more: nn.Module, **how) -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 3, **how), *more)


P, V = (2, 8, 7), (2, 6, 5, 7)
CASES = {
    "linear": case(nn.Linear(3, 5), (3,)),
    "linear of places": case(nn.Linear(3, 5, bias=False), (4, 3)),
    "linear without bias": case(nn.Linear(3, 5, bias=False), (3,)),
    "signals": case(signals(nn.MaxPool1d(2)), (2, 9)),
    "signals, averages": case(signals(nn.AvgPool1d(2), stride=2), (2, 19)),
    "pictures": case(pictures(nn.ReLU(), nn.MaxPool2d(2), padding=1), P),
    "pictures, stride": case(pictures(nn.AvgPool2d(2), stride=2, bias=False), P),
    "pictures of few places": case(pictures(nn.Conv2d(4, 3, (2, 1), stride=(2, 1), padding=(1, 0))), (2, 5, 6)),
    "pictures of few places, dilation": case(pictures(padding=(2, 1), dilation=(2, 1), stride=(1, 2)), (2, 3, 5)),
    "pictures, dilation": case(pictures(nn.AdaptiveAvgPool2d(2), dilation=2), P),
    "pictures, groups": case(pictures(nn.Conv2d(4, 6, 2, groups=2, padding=(1, 0))), P),
    "volumes": case(volumes(nn.MaxPool3d(2), padding=1), V),
    "volumes, averages": case(volumes(nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(1), padding=1), V),
    "group norm": case(pictures(nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.GroupNorm(4, 4)), P),
    "group norm of numbers": case(nn.Sequential(nn.Linear(3, 6), nn.GroupNorm(2, 6)), (3,)),
    "group norm of volumes": case(volumes(nn.GroupNorm(2, 4, affine=False), nn.GroupNorm(1, 4)), V),
    "one by one": case(
        nn.Sequential(
            nn.Linear(3, 5), nn.LeakyReLU(), nn.ELU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.Dropout(0.0)
        ),
        (3,),
        lambda h: torch.tanh(torch.sigmoid(torch.relu(h))).relu().tanh().sigmoid().clamp(min=0.1),
    ),
    "two": case(
        nn.Linear(3, 5),
        (3,),
        lambda h: torch.logaddexp(torch.mul(h + h, h - 1.0), torch.add(h * h, h)) / (h * h + 2.0) - h[:, :1],
    ),
    "along axes": case(
        pictures(),
        P,
        lambda h: torch.cat(
            [h.mean(dim=(2, 3)), h.amax(dim=(2, 3)), h.amin(dim=-1).sum(2), h[:, 1, 2:4].softmax(dim=1).flatten(1),
             h.unflatten(1, (2, 2))[:, 0].sum(dim=(1, 2)).log_softmax(1),
             functional.pad(torch.flatten(h[:, 1], 1), (1, 2))],
            dim=1,
        ),
    ),
}  # fmt: skip


def drawn(inputs: tuple[int, ...], k: int, dtype=torch.float64, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(U, k, *inputs, generator=g, dtype=torch.float64)
    weight = torch.rand(U, k, generator=g, dtype=torch.float64)
    return x.to(dtype), torch.randint(2, (U, k), generator=g), weight.to(dtype)


def loop(module: nn.Module, objective, x, y, weight, aux=None) -> dict[str, Tensor]:
    """One backward pass for each patient alone."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = {name: [] for name in named}
    for u in range(len(x)):
        loss = (objective(module, Batch(x[u], y[u], None if aux is None else aux[u])) * weight[u]).sum()
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for (name, p), gradient in zip(named.items(), gradients, strict=True):
            found[name].append(torch.zeros_like(p) if gradient is None else gradient)
    return {name: torch.stack(parts) for name, parts in found.items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference, over the largest number."""
    assert set(one) == set(other) and all(one[name].shape == other[name].shape for name in one)
    largest = max(float(value.abs().max()) for value in other.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / max(largest, 1e-30)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_layer_gives_each_patient_the_gradient_of_a_pass_alone(name, k):
    module, inputs = CASES[name]
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        x, y, weight = drawn(inputs, k, dtype)
        ways = Ways()
        found, values = patient_gradients(module.to(dtype), losses, x, y, weight, ways=ways)
        assert ways.way == "together", "the case is for what is not refused"
        assert apart(found, loop(module, losses, x, y, weight)) < bound
        wanted = torch.stack([(losses(module, Batch(*pair)) * w).sum() for *pair, w in zip(x, y, weight, strict=True)])
        assert float((values - wanted).detach().abs().max()) < 100 * bound


@pytest.mark.parametrize("wild", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", CASES)
def test_nobody_changes_the_gradient_of_another_patient_whatever_they_hold(name, wild):
    module, inputs = CASES[name]
    module.double()
    x, y, weight = drawn(inputs, 2)
    one, _ = patient_gradients(module, losses, x, y, weight)
    x, y = x.clone(), y.clone()
    x[1], y[1] = wild, 1 - y[1]
    ways = Ways()
    two, _ = patient_gradients(module, losses, x, y, weight, ways=ways)
    assert ways.way == "together"
    others = [0, 2, 3]
    assert apart({n: g[others] for n, g in two.items()}, {n: g[others] for n, g in one.items()}) < 1e-12


def test_every_operation_that_is_allowed_has_such_a_case(monkeypatch):
    seen = set()

    def noting(func, rule):
        def noted(*args, **kwargs):
            seen.add(func)
            return rule(*args, **kwargs)

        return noted

    monkeypatch.setattr(rowwise, "RULES", {func: noting(func, rule) for func, rule in rowwise.RULES.items()})
    for module, inputs in CASES.values():
        x, y, weight = drawn(inputs, 2)
        patient_gradients(module.double(), losses, x, y, weight)
    task = Task(Mlp(), (3,), 2)  # which asks how many axes there are
    patient_gradients(task.network().double(), task.objective, *drawn((3,), 1))
    assert {getattr(func, "__name__", func) for func in rowwise.RULES.keys() - seen} == set()


class Reversed(torch.autograd.Function):
    """The identity, whose gradient a patient gets from the next one."""

    @staticmethod
    def forward(ctx, x):
        return functional.relu(x) if x.dim() else x

    @staticmethod
    def backward(ctx, g):
        return g.roll(1, dims=0)


def caught(h: Tensor) -> Tensor:
    """Goes on after a refusal."""
    with contextlib.suppress(rowwise.Mixed):
        h.roll(1, dims=0)
    return h


def hooked(h: Tensor) -> Tensor:
    h.register_hook(lambda g: g.roll(1, dims=0))
    return h


KEPT = torch.randn(U, 5, dtype=torch.float64)
MIXING = {
    "centred": lambda h: h - h.mean(dim=0),
    "centred, keepdim": lambda h: h - h.mean(dim=0, keepdim=True),
    "a mean of everything": lambda h: h - h.mean(),
    "a sum over no axes": lambda h: h - h.sum(dim=()),
    "the largest of all": lambda h: h.amax(dim=(0, 1)) + h,
    "softmax of rows": lambda h: h.softmax(dim=0),
    "softmax of rows from behind": lambda h: h.log_softmax(-2),
    "rows against rows": lambda h: h @ h.t() @ h,
    "rows and numbers broadcast": lambda h: h.sum(dim=1) + h[:, :1],
    "the next row": lambda h: h + h.roll(1, dims=0),
    "the first row": lambda h: h + h[0],
    "some rows": lambda h: torch.cat([h[:1] + h, h], dim=1),
    "an axis before": lambda h: h[None, :].sum(dim=1) + h,
    "rows on end": lambda h: torch.cat([h, h])[: len(h)],
    "flat": lambda h: h.flatten().unflatten(0, (-1, 5)),
    "sorted": lambda h: h.sort(dim=0).values,
    "how many rows": lambda h: h / h.shape[0],
    "how many rows, by len": lambda h: h / len(h),
    "the numbers": lambda h: h * float(h.detach().sum()),
    "by a number of a row": lambda h: h if h[0, 0] > 0 else -h,
    "in place": lambda h: h.add_(1.0),
    "in place, relu": lambda h: functional.relu(h, inplace=True),
    "a hook": hooked,
    "a refusal that is caught": caught,
    "limits by a tensor": lambda h: h.clamp(min=h.mean()),
    "one picture of all rows": lambda h: functional.max_pool1d(h, 3, 1, 1),
    "rows as places": lambda h: functional.avg_pool1d(h, 1),
    "padded with rows": lambda h: functional.pad(h, (0, 0, 1, 0))[:-1],
}


class Mixing(nn.Module):
    def __init__(self, mix) -> None:
        super().__init__()
        self.one, self.mix, self.two = nn.Linear(3, 5), mix, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.mix(self.one(x)))


@pytest.mark.parametrize("name", MIXING)
def test_what_could_mix_patients_is_refused(name):
    module = Mixing(MIXING[name]).double()
    x, y, weight = drawn((3,), 2)
    asked = persample.Asked(module, losses, dict(module.named_parameters()), [])
    for way in ("together", "network"):
        with pytest.raises(rowwise.Mixed):
            persample.WAYS[way](asked, persample.Views(x, y, weight, None))


SLOW_ALIKE = ("centred", "centred, keepdim", "a mean of everything", "softmax of rows", "the next row", "how many rows")


@pytest.mark.parametrize("name", SLOW_ALIKE)
def test_a_network_that_mixes_the_rows_of_a_patient_has_the_gradients_of_a_pass_alone(name):
    module = Mixing(MIXING[name]).double()
    x, y, weight = drawn((3,), 3)
    ways = Ways()
    found, _ = patient_gradients(module, losses, x, y, weight, ways=ways)
    assert ways.way == "alone" and apart(found, loop(module, losses, x, y, weight)) < 1e-12


@pytest.mark.parametrize(
    "mix",
    [
        Reversed.apply,
        lambda h: h + KEPT[: len(KEPT)].repeat(2, 1),
        lambda h: torch.func.vmap(lambda row: row - 1.0)(h),
        lambda h: torch.func.grad(lambda one: functional.relu(one).sum())(h) * h,
        torch.jit.script(nn.ReLU()),
    ],
    ids=["a function with a gradient of its own", "a tensor from elsewhere", "vmap", "a gradient", "a script"],
)
def test_what_is_not_seen_operation_by_operation_is_refused(mix):
    module = Mixing(mix).double()
    x, y, weight = drawn((3,), 2)
    asked = persample.Asked(module, losses, dict(module.named_parameters()), [])
    for way in ("together", "network"):
        with pytest.raises(rowwise.Mixed):
            persample.WAYS[way](asked, persample.Views(x, y, weight, None))


def test_parameters_count_only_where_the_network_itself_runs():
    module = nn.Linear(3, 2).double()

    def beside(forward, batch):  # the second use is of a constant, as under vmap
        return losses(forward, batch) + functional.linear(batch.x, module.weight).sum(dim=1)

    x, y, weight = drawn((3,), 2)
    found, _ = patient_gradients(module, beside, x, y, weight)
    assert apart(found, loop(module, losses, x, y, weight)) < 1e-12


def distilled(forward, batch):
    with torch.no_grad():
        target = (3 * forward(batch.x)).softmax(dim=1)
    return functional.cross_entropy(forward(batch.x), target, reduction="none")


def frozen_target(forward, batch):
    with torch.no_grad():
        scores = forward(batch.x)
    return (scores * scores.abs()).sum(dim=1)


def slope(forward, batch):
    if isinstance(forward, nn.Module):  # in the loop
        x = batch.x.detach().requires_grad_()
        return torch.autograd.grad(forward(x).tanh().sum(), x, create_graph=True)[0].norm(dim=1)
    return torch.func.grad(lambda one: forward(one).tanh().sum())(batch.x).norm(dim=1)


CLASSES = torch.tensor([1.0, 3.0], dtype=torch.float64)
ONES = torch.ones(3, dtype=torch.float64)
OBJECTIVES = {
    "weights of classes": ("network", lambda f, b: losses(f, b) * CLASSES[b.y]),
    "a mean of the patient's rows": ("network", lambda f, b: losses(f, b).mean().expand(b.x.shape[0])),
    "with aux": ("network", lambda f, b: losses(f, b) * b.aux.exp()),
    "twice, with what is allowed": ("together", lambda f, b: losses(f, b) + f(b.x).mean(dim=1)),
    "twice": ("alone", lambda f, b: losses(f, b) + f(b.x).square().sum(dim=1)),
    "for something else": ("alone", lambda f, b: losses(f, Batch(b.x * ONES + 1, b.y))),
    "against itself without gradient": ("alone", distilled),
    "by its own gradient": ("alone", slope),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_of_any_kind_have_the_gradients_of_a_pass_alone(name):
    way, objective = OBJECTIVES[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y, weight = drawn((3,), 3)
    aux = x[..., 0]
    ways = Ways()
    found, _ = patient_gradients(module, objective, x, y, weight, aux, ways=ways)
    assert ways.way == way
    assert apart(found, loop(module, objective, x, y, weight, aux)) < 1e-12


def test_a_pass_without_gradient_has_none():
    module = nn.Linear(3, 2).double()
    x, y, weight = drawn((3,), 2)
    found, _ = patient_gradients(module, frozen_target, x, y, weight)
    assert all(not value.any() for value in found.values())


def test_a_layer_that_is_used_twice_has_both_gradients_and_one_that_is_not_has_zeros():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.unused, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.one(torch.tanh(self.one(x)))))

    module = Twice().double()
    module.head.weight.requires_grad_(False)
    x, y, weight = drawn((3,), 2)
    ways = Ways()
    found, _ = patient_gradients(module, losses, x, y, weight, ways=ways)
    assert ways.way == "together" and "head.weight" not in found and not found["unused.weight"].any()
    assert apart(found, loop(module, losses, x, y, weight)) < 1e-12


NETWORKS = {
    "mlp": ("together", testbed.task()),
    "cnn": ("together", Task(Cnn(widths=(8, 16), norm="group"), (1, 8, 8), 2)),
    "cnn of volumes": ("together", Task(Cnn(widths=(8, 16), norm="group"), (1, 8, 8, 8), 2)),
    "cam": ("network", Task(Cam(widths=(16, 16, 16, 16), norm="group"), (1, 32, 32), 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_of_the_house_take_the_quick_way_and_all_ways_agree(name):
    way, task = NETWORKS[name]
    torch.manual_seed(0)
    module = task.network().double()
    x, y, weight = drawn(task.inputs, 2)
    ways = Ways()
    patient_gradients(module, task.objective, x, y, weight, ways=ways)
    assert ways.way == way, "otherwise private training of this network is slow"
    asked = persample.Asked(module, task.objective, dict(module.named_parameters()), [])
    views = persample.Views(x, y, weight, None)
    slow = loop(module, task.objective, x, y, weight)
    for each in ("together", "network", "alone")[("together", "network", "alone").index(way) :]:
        assert apart(persample.WAYS[each](asked, views)[0], slow) < 1e-10


def test_a_way_is_not_sought_again_for_the_same_network_and_loss(monkeypatch):
    tried = []

    def noted(way):
        real = persample.WAYS[way]
        return lambda asked, views: tried.append(way) or real(asked, views)

    monkeypatch.setattr(persample, "WAYS", {way: noted(way) for way in persample.WAYS})
    module, ways = Mixing(MIXING["centred"]).double(), Ways()
    for _ in range(2):
        patient_gradients(module, losses, *drawn((3,), 2), ways=ways)
    assert tried == ["together", "network", "alone", "alone"]
    patient_gradients(module, frozen_target, *drawn((3,), 2), ways=ways)
    patient_gradients(nn.Linear(3, 2).double(), losses, *drawn((3,), 2), ways=ways)
    assert tried[4:] == ["together", "network", "alone", "together"]


def test_dropout_differs_between_patients_and_a_way_that_is_given_up_uses_no_random_numbers():
    module = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 2)).double()
    x = torch.ones(U, 1, 3, dtype=torch.float64)
    y, weight = torch.zeros(U, 1, dtype=torch.long), torch.ones(U, 1, dtype=torch.float64)
    found, _ = patient_gradients(module, losses, x, y, weight)
    assert len({tuple((row != 0).flatten().tolist()) for row in found["0.weight"]}) == U
    mixed = Mixing(lambda h: functional.dropout(h, 0.5) - h.mean()).double()
    states = []
    for ways in (Ways(), Ways(mixed, losses, "alone")):
        torch.manual_seed(3)
        patient_gradients(mixed, losses, x, y, weight, ways=ways)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_network_that_takes_something_else_than_x_is_given_it():
    class Joint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 2)

        def forward(self, x: Tensor, more: Tensor) -> Tensor:
            return self.one(torch.cat([x, more], dim=1))

    def objective(forward, batch):
        return functional.cross_entropy(forward(batch.x, batch.aux), batch.y, reduction="none") * CLASSES[batch.y]

    module, ways = Joint().double(), Ways()
    x, y, weight = drawn((3,), 2)
    aux = x[..., :1] + 1
    found, _ = patient_gradients(module, objective, x, y, weight, aux, ways=ways)
    assert ways.way == "alone" and apart(found, loop(module, objective, x, y, weight, aux)) < 1e-12
    with pytest.raises(TypeError, match="more"):
        patient_gradients(module, losses, x, y, weight)


def test_what_a_network_gives_besides_scores_reaches_the_loss():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Output:
            h = torch.tanh(self.one(x))
            return Output(self.two(h), h)

    def pulled(forward, batch):
        found = forward(batch.x)
        assert isinstance(found, Output) and found.maps is None
        near = (found.features - torch.ones(5, dtype=torch.float64)).square().sum(dim=1)
        return functional.cross_entropy(found.logits, batch.y, reduction="none") + near

    module, ways = Both().double(), Ways()
    x, y, weight = drawn((3,), 2)
    found, _ = patient_gradients(module, pulled, x, y, weight, ways=ways)
    assert ways.way == "network" and apart(found, loop(module, pulled, x, y, weight)) < 1e-12
