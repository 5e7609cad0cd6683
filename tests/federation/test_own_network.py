"""Networks of one's own are what they wrap, for every method, private or not; and what is told of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import methods
from consilium.testing import testbed
from federation.descent import Work
from federation.models.adapted import OwnModule, adapted
from federation.models.cnn import Cnn, CnnModule
from federation.models.own import Own, register_network
from federation.parameters import read_parameters
from federation.randomness import use_seed
from federation.rounds import Schedule
from federation.sizes import count_network_values
from federation.task import Output, Task
from pipelines.models.size_limits import find_size_problems
from privacy.dp.modules import find_unfit_parts
from privacy.dp.protection import Protection

ADAM = Work(optimizer="adam", lr=0.02, batch=24, epochs=1)
SGD = Work(optimizer="sgd", lr=0.05, batch=24, epochs=1)
NOISED = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, validation_noise=3.0, cut="c")


class Plain(nn.Module):
    """As `MlpModule` with six hidden units, by somebody who never heard of stems and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True))
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lin(x.flatten(1)))


class Convolutions(nn.Module):
    """The layers of `Cnn(widths=(8, 16), norm="group")`, under other names."""

    def __init__(self, inputs: tuple[int, ...], classes: int) -> None:
        super().__init__()
        given = CnnModule(inputs, classes, (8, 16), "group")
        self.one, self.two, self.three = given.stem, given.blocks[0], given.head

    def forward(self, x: Tensor) -> Tensor:
        h = self.two(self.one(x))
        return self.three(torch.cat([h.flatten(2).mean(dim=2), h.flatten(2).amax(dim=2)], dim=1))


PLAIN = Own(network="plain", stem=("lin",), head="out")
WRAPPED = Own(network="convolutions", stem=("one",), blocks=("two",), head="three")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_network("plain", Plain)
    register_network("convolutions", Convolutions)
    return


def both(inputs: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    made = []
    for model in (Cnn(widths=(8, 16), norm="group"), WRAPPED):
        with use_seed(3):
            made.append(model.build(inputs=inputs, classes=3))
    return made[0], made[1]


@pytest.mark.parametrize("inputs", [(1, 8, 8), (2, 8, 8, 8)])
def test_a_wrapped_network_is_the_network(inputs: tuple[int, ...]) -> None:
    ours, own = both(inputs)
    assert list(read_parameters(ours)) == list(read_parameters(own))
    assert all(torch.equal(read_parameters(ours)[name], read_parameters(own)[name]) for name in read_parameters(own))
    x = torch.randn(3, *inputs)
    one, two = ours(x), own(x)
    assert torch.equal(one.logits, two.logits) and torch.equal(one.features, two.features) and two.maps is None
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in own.named_parameters()]
    again = copy.deepcopy(own)
    with torch.no_grad():
        own.get_parameter("stem.0.conv.weight").zero_()
    assert torch.equal(again(x).logits, two.logits) and not torch.equal(own(x).logits, two.logits)
    assert find_unfit_parts(again) == []


def test_gradients_of_each_example_are_those_of_the_network_alone() -> None:
    _, own = both((1, 8, 8))
    x, y, params = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), dict(own.named_parameters())

    def loss(given: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        output: Output = torch.func.functional_call(own, given, (one[None],))
        return nn.functional.cross_entropy(output.logits, label[None])

    at_once = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for row in range(len(x)):
        own.zero_grad()
        nn.functional.cross_entropy(own(x[row : row + 1]).logits, y[row : row + 1]).backward()
        for name, parameter in own.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(at_once[name][row], parameter.grad, atol=1e-6), name


@pytest.mark.repeats(8)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("algorithm", [pytest.param(one, id=one.name) for one in methods.fit(testbed.make_task())])
def test_every_method_trains_it_as_the_network_that_it_is(algorithm: Any, private: bool) -> None:
    algorithm = methods.PRIVATELY.get(algorithm.name, algorithm) if private else algorithm
    work, ours = methods.work_of(algorithm, ADAM, SGD), testbed.make_task()
    own = replace(ours, model=PLAIN)
    work = SGD if private else work
    said = algorithm.complaints(algorithm.network(ours), work, private)
    assert [
        text.replace("OwnModule", "MlpModule") for text in algorithm.complaints(algorithm.network(own), work, private)
    ] == said
    if said:
        return
    found = []
    for task in (ours, own):
        splits = {site: testbed.make_table(seed) for seed, site in enumerate("ab")}
        hospitals = testbed.make_federation(algorithm, splits, task=task, work=work)
        if private:
            hospitals = {name: replace(each, protection=NOISED) for name, each in hospitals.items()}
        done = testbed.train(algorithm, hospitals, task=task, work=work, schedule=Schedule(rounds=1))
        found.append(done.state.tensors)
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_dropout_between_the_parts_is_off_where_it_is_evaluated() -> None:
    class Dropping(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.9)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.drop(self.lin(x)))

    module = adapted(Dropping(), stem=("lin",), blocks=(), head="out")
    x = torch.randn(8, 4)
    assert not torch.equal(module(x).logits, module(x).logits)
    module.eval()
    assert torch.equal(module(x).logits, module(x).logits)


def variant(**changes: Any) -> type[nn.Module]:
    return type("Variant", (Plain,), changes)


def _soft(self: Any, x: Tensor) -> Tensor:
    return Plain.forward(self, x).log_softmax(dim=1)


def _lost(self: Any) -> None:
    Plain.__init__(self)
    self.norm = nn.BatchNorm1d(6)


def _raising(self: Any, x: Tensor) -> Tensor:
    raise KeyError("ours")


def _using(self: Any, x: Tensor) -> Tensor:
    return self.lin(x) @ self.out.weight.T + self.out.bias


@pytest.mark.parametrize(
    ("build", "changes", "words"),
    [
        (Plain, {"stem": ("first",), "head": "last"}, ["no submodule 'first'", "no submodule 'last'", "are lin, out"]),
        (Plain, {"blocks": ("lin.0",)}, ["lin.0.weight is in two of stem, blocks and head"]),
        (Plain, {"head": "lin", "stem": ("out",)}, ["the head 'lin' is a Sequential without weight"]),
        (
            variant(__init__=_lost),
            {},
            ["norm.weight, norm.bias, norm.running_mean, norm.running_var and 1 more: in no"],
        ),
        (variant(forward=_soft), {}, ["the head 'out' is not the network's last step"]),
        (variant(forward=_raising), {}, ["cannot take examples of shape [4] (KeyError: 'ours')"]),
        (variant(forward=_using), {}, ["the head 'out' must be the last layer (AttributeError"]),
        (
            variant(forward=lambda self, x: (Plain.forward(self, x), 0)),
            {},
            ["must return logits ['n', 2], found tuple"],
        ),
        (lambda: 3, {}, ["build must return an nn.Module, found int"]),
        (lambda: 1 / 0, {}, ["cannot be made (ZeroDivisionError"]),
        (lambda: nn.Linear(4, 5), {"stem": ("x",)}, ["must return logits ['n', 2], found [2, 5]"]),
    ],
)
def test_what_cannot_be_wrapped_is_told(build: Any, changes: dict[str, Any], words: list[str]) -> None:
    register_network("variant", build)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words follow
        replace(PLAIN, network="variant", **changes).build(inputs=(4,), classes=2)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("last", [nn.Conv2d(4, 3, 3, padding=1), nn.ConvTranspose2d(4, 3, 1), nn.Linear(4, 3)])
def test_a_head_that_segments_has_features_of_each_pixel(last: nn.Module) -> None:
    """Methods put heads of their own on features; of another kind of head these would not be the pixels'."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), last)
    with pytest.raises(ValueError, match=rf"must be a 1x1 convolution, found {type(last).__name__}; end the network"):
        adapted(network, stem=("0",), blocks=(), head="1", kind="segmentation")
    good = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1))
    assert (
        adapted(good, stem=("0",), blocks=(), head="1", kind="segmentation")(torch.zeros(2, 1, 8, 8)).logits.shape[1]
        == 3
    )


def test_an_unknown_network_says_where_it_would_be_known() -> None:
    with pytest.raises(ValueError, match=r"no network 'nobody' is registered here .*package that each installs"):
        Own(network="nobody", stem=("a",), head="b").build(inputs=(4,), classes=2)
    with pytest.raises(TypeError, match="found Linear"):
        register_network("x", nn.Linear(1, 1))  # type: ignore[arg-type]


def test_names_may_not_be_empty() -> None:
    with pytest.raises(ValueError, match=r"(?s)stem.*head"):
        Own(network="plain", stem=(), head="")


def test_its_size_is_counted_without_memory() -> None:
    task = Task(WRAPPED, (1, 8, 8), 2)
    fedavg = next(one for one in methods.ALL if one.name == "fedavg")
    assert find_size_problems(fedavg, task, Work()) == []
    assert count_network_values(fedavg, task) == sum(
        value.numel() for value in read_parameters(WRAPPED.build(inputs=(1, 8, 8), classes=2)).values()
    )


def test_several_submodules_are_one_stem() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x)))

    module = adapted(Three(), stem=("a", "b"), blocks=(), head="c")
    assert isinstance(module, OwnModule) and {name.split(".")[0] for name in read_parameters(module)} == {
        "stem",
        "head",
    }


def _lone(width: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: _lone(),
        lambda width=5: _lone(width),
        lambda inputs: _lone(*inputs),
        lambda classes, drop=0.1: _lone(3 * classes),
        lambda inputs, classes: _lone(inputs[0] * classes),
        lambda *, classes, width=5: _lone(width),
        lambda **given: _lone(given["inputs"][0]),
        lambda *rest: _lone(),
        functools.partial(_lone, width=3),
    ],
)
def test_a_network_is_given_what_its_signature_names(build: Any) -> None:
    register_network("signed", build)
    module = Own(network="signed", stem=("0",), head="1").build(inputs=(4,), classes=2)
    assert module(torch.randn(3, 4)).logits.shape == (3, 2)


def test_what_a_network_needs_and_nobody_gives_is_named() -> None:
    def build(width: int, depth: int, classes: int) -> nn.Module:
        return _lone(width)

    register_network("signed", build)
    with pytest.raises(ValueError, match=r"the network needs width, depth, and is given only inputs"):
        Own(network="signed", stem=("0",), head="1").build(inputs=(4,), classes=2)


def test_a_class_that_has_no_constructor_is_made_without_arguments() -> None:
    class Bare(nn.Sequential):
        pass

    register_network("signed", Bare)
    with pytest.raises(ValueError, match=r"no submodule .0.|cannot take examples|must return logits"):
        Own(network="signed", stem=("0",), head="1").build(inputs=(4,), classes=2)
