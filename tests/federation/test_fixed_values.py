"""What an author fixed, in networks of odd kinds: the same after training, at every hospital and in every file."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from consilium.testing import testbed
from consilium.testing.networks import what_its_author_fixed_is_kept_from_methods_and_is_the_same_everywhere
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.adapted import OwnModule, adapted, fixed_in, show_fixed_in, write_fixed_in
from federation.models.cnn import Cnn
from federation.models.fixed import has_fixed_statistics
from federation.models.own import Own, register_network
from federation.parameters import count_values, read_parameters
from federation.participant import FIXED
from federation.rounds import QuorumLost, Schedule
from federation.sizes import count_network_values
from federation.task import Task
from federation.verdict import OTHER_FIXED
from federation.weights import select_fitting_tensors
from personalize.adaptation_norms import AtTest, by_test_statistics
from personalize.cusfl import CusFL, freeze_statistics
from personalize.partial import Partial
from privacy.dp.modules import find_unfit_parts
from privacy.dp.protection import Protection
from privacy.message import Call, Message

WORK = Work(optimizer="sgd", lr=0.05, batch=24, epochs=1)
NOISED = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, validation_noise=3.0, cut="c")


class Network(nn.Module):
    """A fixed part and a head."""

    def __init__(self, part: nn.Module, run: Callable[[nn.Module, Tensor], Tensor] = lambda part, x: part(x)) -> None:
        super().__init__()
        self.part, self.head, self.run = part.requires_grad_(False), nn.Linear(4, 2), run

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.run(self.part, x.flatten(1)))


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def with_hook() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.utils.weight_norm(nn.Linear(4, 4)))


def parametrized() -> nn.Module:
    made = nn.utils.parametrizations
    return nn.Sequential(made.spectral_norm(nn.Linear(4, 4)), made.weight_norm(nn.Linear(4, 4)))


def passing() -> nn.Module:
    made = nn.Linear(4, 4)
    made.register_buffer("place", torch.ones(4), persistent=False)
    return made


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())


KINDS: dict[str, Callable[[], nn.Module]] = {
    "a layer in two places": lambda: Network(twice()),
    "norms by hooks": lambda: Network(with_hook()),
    "norms by parametrization": lambda: Network(parametrized()),
    "a buffer outside state_dict": lambda: Network(passing(), lambda part, x: part(x) + part.place),
    "recurrent": lambda: Network(nn.LSTM(4, 4, batch_first=True), lambda part, x: part(x[:, None])[0][:, -1]),
    "attention": lambda: Network(
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), lambda part, x: part(x[:, None])[:, 0]
    ),
    "batch norm": lambda: Network(normed()),
}
MODEL = Own(network="odd", stem=("part",), head="head")
TASK = replace(testbed.make_task(), model=MODEL)


def built(build: Callable[[], nn.Module]) -> OwnModule:
    register_network("odd", build)
    module = TASK.network()
    assert isinstance(module, OwnModule)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_fixed_is_the_same_after_training_at_another_hospital_and_shown(kind: str) -> None:
    module, other, x = built(KINDS[kind]), built(KINDS[kind]), torch.randn(5, 4)
    before = {name: value.clone() for name, value in fixed_in(module).items()}
    assert before and set(read_parameters(module)) == {"head.weight", "head.bias"}
    for _ in range(3):
        module.train()(x).logits.sum().backward()
    for each in (module, other):
        assert all(torch.equal(value, fixed_in(each)[name]) for name, value in before.items())
    features = module.eval()(x).features
    assert torch.equal(other.eval()(x).features, features)
    twin = copy.deepcopy(module).double()
    assert torch.allclose(twin(x.double()).features.float(), features, atol=1e-5)
    shown = show_fixed_in(module)
    names = {name.replace("part.", "stem.", 1) for name in KINDS[kind]().state_dict()}
    assert set(shown.state_dict()) == names and torch.equal(shown(x).features, features)


@pytest.mark.parametrize("kind", KINDS)
def test_it_counts_towards_the_size(kind: str) -> None:
    built(KINDS[kind])
    whole = sum({value.data_ptr(): value.numel() for value in KINDS[kind]().state_dict().values()}.values())
    count_network_values.cache_clear()
    assert count_network_values(None, TASK) == whole + (4 if kind == "a buffer outside state_dict" else 0)


def test_scales_beside_fixed_statistics_are_refused_privately_in_our_words() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2)

        def train(self, mode: bool = True) -> Kept:
            super().train(mode)
            self.part[1].eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.part(x))

    (said,) = find_unfit_parts(built(Kept))
    assert said.startswith("BatchNorm1d trains scale and shift beside fixed statistics; fix these too")
    assert find_unfit_parts(built(KINDS["batch norm"])) == []


def test_a_part_that_a_method_adds_changes_its_mode_too() -> None:
    module = built(KINDS["batch norm"])
    module.projector = nn.BatchNorm1d(4)
    assert not module.eval().projector.training and module.train().projector.training


def test_what_an_author_keeps_in_evaluation_stays_there_also_without_buffers() -> None:
    class Kept(Network):
        def train(self, mode: bool = True) -> Kept:
            super().train(mode)
            self.part[1].eval()
            return self

    module = built(lambda: Kept(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))))
    x = torch.randn(5, 4)
    assert torch.equal(module.train()(x).features, module(x).features) and module.training


def test_a_buffer_that_its_authors_code_changes_is_changed_at_one_hospital_only() -> None:
    def counted(part: nn.Module, x: Tensor) -> Tensor:
        part.place += 1
        return cast(Tensor, part(x))

    here, elsewhere = built(lambda: Network(passing(), counted)), cast(OwnModule, TASK.network())
    before = elsewhere.read_fixed()["part.place"].clone()
    here(torch.randn(5, 4))
    assert torch.equal(elsewhere.read_fixed()["part.place"], before)
    assert not torch.equal(here.read_fixed()["part.place"], before)


def test_other_code_changes_no_fixed_statistics() -> None:
    module = built(KINDS["batch norm"])
    freeze_statistics(module)
    assert not module.stem[1].training
    by_test_statistics(AtTest(module).network, "set", "trained")
    assert isinstance(module.stem[1], nn.BatchNorm1d) and has_fixed_statistics(module.stem[1])
    assert not has_fixed_statistics(nn.BatchNorm1d(4)) and not has_fixed_statistics(nn.GroupNorm(2, 4))


@pytest.mark.parametrize("algorithm", [FedAvg(), CusFL(depth=1), Partial(name="fedper")], ids=lambda one: one.name)
def test_values_are_kept_beside_a_model_and_return_to_it(algorithm: Any) -> None:
    register_network("odd", lambda: _with_body(normed()))
    task = replace(TASK, model=replace(MODEL, stem=("0",), blocks=("1",), head="2"))
    module, other = algorithm.network(task), algorithm.network(task)
    held = {name: value + 1 for name, value in fixed_in(module).items()}
    assert held
    write_fixed_in(other, held)
    assert all(torch.equal(value, fixed_in(other)[name]) for name, value in held.items())
    assert not any(torch.equal(value, fixed_in(module)[name]) for name, value in held.items())
    with pytest.raises(ValueError, match=r"what is fixed in the network does not fit: 0\.0\.bias"):
        write_fixed_in(other, {name: value for name, value in held.items() if not name.endswith("0.0.bias")})


def _with_body(fixed: nn.Module) -> nn.Module:
    return nn.Sequential(fixed.requires_grad_(False), nn.Linear(4, 4), nn.Linear(4, 2))


def test_a_hospital_whose_code_gives_other_values_is_named() -> None:
    built(KINDS["batch norm"])
    crew = testbed.make_federation(
        FedAvg(), {name: testbed.make_table(k) for k, name in enumerate("ab")}, task=TASK, work=WORK
    )

    def elsewhere(call: Call, message: Message) -> Message:
        reply = crew["b"](call, message)
        assert call.request != "introduce" or len(str(reply.facts[FIXED])) == 64
        return Message(reply.tensors, {**reply.facts, FIXED: "0" * 64})

    with pytest.raises(QuorumLost) as lost:
        testbed.train(FedAvg(), {**crew, "b": elsewhere}, task=TASK, work=WORK, schedule=Schedule(rounds=1))
    assert lost.value.missing == {"b": OTHER_FIXED}


def test_a_network_without_anything_fixed_says_nothing_of_it() -> None:
    crew = testbed.make_federation(FedAvg(), {"a": testbed.make_table(0)}, task=testbed.make_task(), work=WORK)
    assert dict(crew["a"](Call("law", 0, "introduce", {}), Message()).facts) == {"algorithm": {}}


def test_a_file_of_weights_may_hold_what_is_fixed_if_it_is_the_same() -> None:
    module, author = built(KINDS["batch norm"]), KINDS["batch norm"]()
    same = {**author.state_dict(), **module.read_fixed()}
    assert set(select_fitting_tensors(same, module)) == {"head.weight", "head.bias"}
    assert set(select_fitting_tensors(show_fixed_in(copy.deepcopy(module)).state_dict(), module)) == {
        "head.weight",
        "head.bias",
    }
    other = {**same, "part.1.running_mean": torch.ones(4)}
    with pytest.raises(ValueError, match=r"1 are fixed by the network's author .*: part\.1\.running_mean; load"):
        select_fitting_tensors(other, module)


class Lora(nn.Module):
    """W x + B A x, of which only A and B are learnt (Hu et al., LoRA, ICLR 2022, section 4.1)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.b(self.a(x))


@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
@pytest.mark.parametrize(("algorithm", "values"), [(FedAvg(), 266), (Partial(name="fedper"), 200)])
def test_of_an_adapter_only_the_small_matrices_are_sent(algorithm: Any, values: int, private: bool) -> None:
    register_network(
        "odd", lambda: nn.Sequential(Lora(nn.Linear(4, 32), 2), nn.ReLU(), Lora(nn.Linear(32, 32), 2), nn.Linear(32, 2))
    )
    task = replace(TASK, model=replace(MODEL, stem=("0",), blocks=("2",), head="3"))
    crew = testbed.make_federation(
        algorithm, {name: testbed.make_table(k) for k, name in enumerate("ab")}, task=task, work=WORK
    )
    if private:
        crew = {name: replace(each, protection=NOISED) for name, each in crew.items()}
    sent: list[int] = []

    def listening(hospital: testbed.Hospital) -> Callable[[Call, Message], Message]:
        def asked(call: Call, message: Message) -> Message:
            reply = hospital(call, message)
            if call.request == "train":
                sent.append(count_values(reply.tensors))
            return reply

        return asked

    testbed.train(
        algorithm,
        {name: listening(each) for name, each in crew.items()},
        task=task,
        work=WORK,
        schedule=Schedule(rounds=2),
    )
    assert sent == [values] * 4, "of 1482 values that the network has"
    start = read_parameters(task.network())
    learnt = testbed.newest_model(crew["a"])
    assert set(learnt) == set(start) and bool(learnt["stem.b.weight"].abs().max() > 0), "B began at zero"


@dataclass(frozen=True, kw_only=True)
class Drawn(Cnn):
    """Its first layer is fixed and drawn anew by each hospital. wrapped: whether methods are kept from it."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: Literal["drawn"] = "drawn"  # type: ignore[assignment]
    wrapped: bool = True

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        stem = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs[0], 4)).requires_grad_(False)
        made = nn.Sequential(stem, nn.Linear(4, classes))
        return adapted(made, stem=("0",), blocks=(), head="1") if self.wrapped else made


@pytest.mark.parametrize(("wrapped", "words"), [(True, "what is fixed, which every"), (False, "would be sent")])
def test_a_package_whose_fixed_values_hospitals_would_not_share_is_told(wrapped: bool, words: str) -> None:
    task = Task(Drawn(wrapped=wrapped), (1, 8, 8), 2)
    with pytest.raises(AssertionError, match=words):
        what_its_author_fixed_is_kept_from_methods_and_is_the_same_everywhere(task)
