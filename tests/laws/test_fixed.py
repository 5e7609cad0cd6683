"""What the author of a network fixed stays fixed: nobody trains, clips, noises or sends it, whatever the method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import methods
from consilium.testing import testbed
from federation.descent import Work
from federation.models.adapted import OwnModule, adapted
from federation.models.own import Own, register_network
from federation.parameters import read_parameters
from federation.rounds import Schedule
from privacy.dp import private_access
from privacy.dp.modules import find_unfit_parts
from privacy.dp.protection import Protection

ADAM, SGD = Work(lr=1e-2, batch=8, epochs=2), Work(optimizer="sgd", lr=1e-2, batch=8, epochs=2)
NOISED = Protection(clip=0.5, sampling=0.5, views=2, noise=1.0, validation_noise=1.0, votes_noise=1.0)


class Body(nn.Module):
    """A frozen stem with a norm, drawn at random by its constructor; a norm that its author keeps as it is; a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.stem[1].running_mean.copy_(torch.randn(6))
        self.middle, self.kept = nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)
        self.kept.running_var.fill_(4.0)
        self.head = nn.Linear(6, 2)
        self.stem.requires_grad_(False)
        self.middle.bias.requires_grad_(False)

    def train(self, mode: bool = True) -> Body:
        super().train(mode)
        self.kept.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.kept(self.middle(self.stem(x))).relu())


MODEL = Own(network="fixed", stem=("stem",), blocks=("middle", "kept"), head="head")
FIXED = {
    *(f"stem.{k}.{name}" for k in (0, 1) for name in ("weight", "bias")),
    *(f"{norm}.{name}" for norm in ("stem.1", "kept") for name in ("running_mean", "running_var")),
    *("stem.1.num_batches_tracked", "kept.num_batches_tracked"),
    "middle.bias",
}  # fmt: skip
LEARNT = {"blocks.0.weight", "head.weight", "head.bias"}


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_network("fixed", Body)


def built(model: Own = MODEL) -> OwnModule:
    module = model.build(inputs=(4,), classes=2)
    assert isinstance(module, OwnModule)
    return module


def test_what_is_fixed_is_no_parameter_and_is_the_same_at_every_hospital():
    first, second = built(), built()
    assert set(first.read_fixed()) == FIXED and set(read_parameters(first)) == LEARNT
    assert all(torch.equal(value, second.read_fixed()[name]) for name, value in first.read_fixed().items())
    assert not torch.equal(first.head.weight, second.head.weight), "what is learnt is drawn anew"
    assert find_unfit_parts(first) == [], "it can be trained privately"


@pytest.mark.repeats(12)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("algorithm", [pytest.param(one, id=one.name) for one in methods.fit(testbed.make_task())])
def test_no_method_trains_notes_or_sends_it(algorithm: Any, private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = methods.PRIVATELY.get(algorithm.name, algorithm) if private else algorithm
    task, work = replace(testbed.make_task(), model=MODEL), SGD if private else methods.work_of(algorithm, ADAM, SGD)
    if algorithm.complaints(algorithm.network(task), work, private):
        pytest.skip("the method takes no such network")
    before, noised = built().read_fixed(), set[str]()
    release = private_access.private_gradient

    def recorded(params: Any, *rest: Any, **how: Any) -> Any:
        noised.update(params)
        return release(params, *rest, **how)

    monkeypatch.setattr(private_access, "private_gradient", recorded)
    hospitals = testbed.make_federation(
        algorithm, {site: testbed.make_table(seed) for seed, site in enumerate("ab")}, task=task, work=work
    )
    if private:
        hospitals = {name: replace(each, protection=NOISED) for name, each in hospitals.items()}
    seen: list[str] = []

    def said(state: Any) -> None:
        seen.extend(state.state.tensors)

    done = testbed.train(algorithm, hospitals, task=task, work=work, schedule=Schedule(rounds=2), between=said)
    held = [*seen, *done.state.tensors, *noised]
    for hospital in hospitals.values():
        held += [*testbed.newest_model(hospital)]
    assert held and not [name for name in held if "stem." in name or name.endswith("blocks.0.bias")]
    assert all(torch.equal(value, built().read_fixed()[name]) for name, value in before.items())


def modes(module: nn.Module) -> Iterator[bool]:
    yield module.training
    module.train()
    yield module.training
    module.eval()
    yield module.training


def test_what_its_author_keeps_in_evaluation_stays_there_and_the_rest_goes_on():
    module = built()
    whole = module._whole[0]
    assert list(modes(module))[1:] == [True, False]
    module.train()
    assert whole.middle.training and whole.stem[0].training and module.head.training
    assert not whole.kept.training and not whole.stem[1].training
    before = {name: value.clone() for name, value in module.read_fixed().items()}
    module(torch.randn(8, 4)).logits.sum().backward()
    assert all(torch.equal(before[name], value) for name, value in module.read_fixed().items())


def test_a_copy_another_type_and_the_whole_network_have_it():
    module = built()
    twin = copy.deepcopy(module)
    assert all(torch.equal(value, twin.read_fixed()[name]) for name, value in module.read_fixed().items())
    x = torch.randn(3, 4)
    expected = module.eval()(x).logits
    assert torch.equal(twin.eval()(x).logits, expected)
    double = twin.double()
    assert {value.dtype for value in double.read_fixed().values()} == {torch.float64, torch.int64}
    assert torch.allclose(double(x.double()).logits.float(), expected, atol=1e-5)
    shown = module.show_fixed()
    names = {name for name, _ in shown.named_parameters()}
    assert {"stem.0.weight", "blocks.0.bias"} <= names and "stem.1.running_mean" in shown.state_dict()
    assert torch.equal(shown(x).logits, expected)
    assert {name for name, p in shown.named_parameters() if p.requires_grad} == LEARNT


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: _with(Body, lambda m: m.head.requires_grad_(False)), "head.weight, head.bias: frozen"),
        (lambda: _with(Body, lambda m: m.stem[0].weight.copy_(_from_numpy((6, 4)))), "stem.0.weight is fixed and has"),
    ],
)
def test_what_cannot_be_held_is_refused_in_words(build: Callable[[], nn.Module], words: str) -> None:
    register_network("fixed", build)
    with pytest.raises(ValueError, match=words):
        built()


def _with(kind: type[nn.Module], change: Callable[[Any], object]) -> nn.Module:
    made = kind()
    with torch.no_grad():
        change(made)
    return made


def _from_numpy(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng().normal(size=shape))


class Lora(nn.Module):
    """W x + B A x: a frozen layer and a learnt matrix of low rank beside it (Hu et al., ICLR 2022)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.b(self.a(x))


def test_of_an_adapter_only_the_small_matrices_are_learnt():
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Lora(nn.Linear(4, 32), 2), Lora(nn.Linear(32, 32), 2)
            self.head = nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x).relu()).relu())

    module = adapted(Adapted(), stem=("first",), blocks=("second",), head="head")
    assert set(read_parameters(module)) == {"stem.a.weight", "stem.b.weight", "blocks.0.a.weight", "blocks.0.b.weight",
                                 "head.weight", "head.bias"}  # fmt: skip
    assert sum(value.numel() for value in read_parameters(module).values()) == 2 * (4 + 32) + 2 * (32 + 32) + 66
    assert find_unfit_parts(module) == []
