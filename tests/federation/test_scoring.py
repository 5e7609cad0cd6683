"""The network that scores and learns is used again, and nothing of one hospital shows in what follows."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import nn

from consilium.testing import testbed
from federation import fedavg, spare_network
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.parameters import loaded, prefixed, read_parameters
from federation.participant import answer_training_call
from federation.task import Task
from privacy.dp.access import Rows, open_access
from privacy.message import Call, Message, from_bytes, to_bytes, unseal_parts

PICTURES = Task(Cnn(widths=(8, 8)), (1, 8, 8), 2)
DROPPING = Task(Mlp(hidden=(6,), dropout=0.5), (4,), 2)


def site(task: Task) -> Site:
    g = torch.Generator().manual_seed(0)
    rows = Rows(torch.randn(12, *task.inputs, generator=g), torch.arange(12) % 2, torch.arange(12))
    access = open_access({"train": rows, "validation": rows}, batch=5, seed=3, balance=False)
    return Site("a", task, Work(batch=5), access)


def model(task: Task, seed: int) -> Message:
    """A model as nobody initializes one: buffers, too, are somewhere."""
    torch.manual_seed(seed)
    drawn = {
        n: torch.rand_like(t) + 0.1 if t.is_floating_point() else t + seed
        for n, t in read_parameters(task.network()).items()
    }
    return Message(prefixed("model", drawn), {"algorithm": {}, "best": None})


def answer(task: Task, seed: int, models: testbed.MemoryFolder, round_: int = 2) -> tuple[bytes, bytes]:
    torch.manual_seed(7)
    call = Call("r", round_, "train", {"a": round_ - 1})
    reply, memory = answer_training_call(FedAvg(), site(task), call, model(task, seed), Message(), models)
    return to_bytes(reply), to_bytes(memory)


@pytest.mark.parametrize("task", [PICTURES, DROPPING])
def test_an_answer_is_the_same_in_a_new_network_and_in_one_that_scored_others(task):
    spare_network._SPARE.clear()
    fresh = answer(task, 1, testbed.MemoryFolder())
    for other in (2, 3):
        answer(task, other, testbed.MemoryFolder())
    assert answer(task, 1, testbed.MemoryFolder()) == fresh
    expected = loaded(task.network(), {n.removeprefix("model/"): t for n, t in model(task, 1).tensors.items()})
    loss = site(task).measure(expected, task.validation, "validation")
    assert from_bytes(fresh[0]).facts["loss"] == loss


def list_state(value: object) -> object:
    """Everything that a network's object holds, without its numbers."""
    parts = value.modules() if isinstance(value, nn.Module) else ()
    return [
        {name: held for name, held in vars(part).items() if name not in ("_modules", "_parameters", "_buffers")}
        for part in parts
    ]


def test_what_waits_for_the_next_hospital_is_as_a_new_network_full_of_zeros():
    answer(PICTURES, 1, testbed.MemoryFolder())
    (spare,) = spare_network._SPARE.values()
    assert not any(tensor.any() for tensor in spare.module.state_dict().values())
    assert all(p.grad is None and not vars(p) and p.requires_grad for p in spare.module.parameters())
    assert list_state(spare.module) == list_state(PICTURES.network())


def test_the_next_hospital_gets_its_own_numbers_and_nobody_elses():
    """The first one's network is the second one's, whose every parameter and buffer was sent to it."""
    given = {n.removeprefix("model/"): t for n, t in model(PICTURES, 1).tensors.items()}
    modules = []
    for _ in range(2):
        with spare_network.borrow_network(FedAvg(), PICTURES, given) as module:
            assert testbed.are_equal(read_parameters(module), given)
            assert not spare_network._SPARE, "while it is in use it is nobody else's"
            with torch.no_grad():
                for tensor in module.state_dict().values():
                    tensor.add_(3)
            modules.append(module)
    assert modules[0] is modules[1]


class Leaving:
    """What work may leave in a network."""

    @staticmethod
    def hook(module: nn.Module) -> None:
        module.stem.register_forward_hook(lambda *_: None)

    @staticmethod
    def gradients(module: nn.Module) -> None:
        next(module.parameters()).grad_sample = torch.ones(1)  # type: ignore[attr-defined]

    @staticmethod
    def frozen(module: nn.Module) -> None:
        next(module.parameters()).requires_grad_(False)

    @staticmethod
    def hook_of_a_gradient(module: nn.Module) -> None:
        next(module.parameters()).register_hook(lambda gradient: gradient)

    @staticmethod
    def hook_behind_a_gradient(module: nn.Module) -> None:
        next(module.parameters()).register_post_accumulate_grad_hook(lambda _: None)

    @staticmethod
    def other_memory(module: nn.Module) -> None:
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(module.parameters()), module.parameters())

    @staticmethod
    def other_type(module: nn.Module) -> None:
        module.double()

    @staticmethod
    def other_parameter(module: nn.Module) -> None:
        module.head.weight = nn.Parameter(torch.ones_like(module.head.weight))

    @staticmethod
    def other_layer(module: nn.Module) -> None:
        module.head = nn.Linear(module.head.in_features, module.head.out_features)

    @staticmethod
    def further_buffer(module: nn.Module) -> None:
        module.head.register_buffer("seen", torch.ones(1))

    @staticmethod
    def attribute(module: nn.Module) -> None:
        module.head.seen = torch.ones(1)

    @staticmethod
    def setting(module: nn.Module) -> None:
        next(part for part in module.modules() if isinstance(part, nn.BatchNorm2d)).momentum = 0.5

    @staticmethod
    def failure(module: nn.Module) -> None:
        raise RuntimeError

    @staticmethod
    def interruption(module: nn.Module) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("leave", [name for name in vars(Leaving) if not name.startswith("_")])
def test_a_network_in_which_something_was_left_is_not_used_again(leave):
    given = {n.removeprefix("model/"): t for n, t in model(PICTURES, 1).tensors.items()}
    for before in (0, 1):  # a new network, and one that was used
        spare_network._SPARE.clear()
        for _ in range(before):
            with spare_network.borrow_network(FedAvg(), PICTURES, given):
                pass
        with suppress(RuntimeError, KeyboardInterrupt), spare_network.borrow_network(FedAvg(), PICTURES, given) as m:
            getattr(Leaving, leave)(m)
        assert not spare_network._SPARE


class Watching(nn.Linear):
    """Somebody's own layer, which keeps what it saw."""


def test_only_layers_that_hold_nothing_else_are_used_again():
    hidden = nn.Linear(2, 2)
    hidden.register_buffer("seen", torch.zeros(2), persistent=False)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    for module in (Watching(2, 2), hidden, tied, nn.Sequential(hidden, tied), nn.Dropout(0.5)):
        assert not spare_network.can_be_spare(nn.Sequential(nn.Linear(2, 2), module))
    assert spare_network.can_be_spare(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
    spare_network._SPARE.clear()
    held = replace(PICTURES, frozen={"w": torch.ones(1)})
    object.__setattr__(held, "give_frozen", lambda module: module)  # two tasks are equal whatever they hold
    with spare_network.borrow_network(FedAvg(), held, read_parameters(PICTURES.network())):
        pass
    assert not spare_network._SPARE


def test_a_network_that_is_used_again_is_in_the_mode_of_a_new_one_in_each_of_its_layers():
    spare_network._SPARE.clear()
    params, modes = read_parameters(PICTURES.network()), []
    for _ in range(2):
        with spare_network.borrow_network(FedAvg(), PICTURES, params) as module:
            modes.append([part.training for part in module.modules()])
            module.head.eval()
    assert spare_network._SPARE
    assert modes[0] == modes[1]


@pytest.mark.parametrize("task", [PICTURES, DROPPING])
def test_what_is_drawn_next_hangs_on_no_network_that_was_used_before(task):
    given, drawn = read_parameters(task.network()), []
    spare_network._SPARE.clear()
    for _ in range(2):
        torch.manual_seed(5)
        with spare_network.borrow_network(FedAvg(), task, given):
            drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]


def test_a_network_with_dropout_is_made_anew_because_making_it_draws_random_numbers():
    spare_network._SPARE.clear()
    answer(DROPPING, 1, testbed.MemoryFolder())
    assert not spare_network._SPARE


@pytest.mark.parametrize("work", [(Site, "measure"), (Site, "descend"), (fedavg, "reply")])
def test_a_network_whose_work_failed_is_not_used_again(monkeypatch, work):
    answer(PICTURES, 1, testbed.MemoryFolder())

    def fails(*args: object, **more: object) -> float:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(*work, fails)
        with pytest.raises(RuntimeError):
            answer(PICTURES, 1, testbed.MemoryFolder())
    assert not spare_network._SPARE


def test_a_model_is_on_the_disk_before_a_site_has_its_answer_and_a_full_disk_is_told():
    held, models = threading.Event(), testbed.MemoryFolder()

    class Slow(testbed.MemoryFolder):
        def write(self, name: str, data: bytes) -> None:
            held.wait(0.05)
            models.write(name, data)

    answer(PICTURES, 1, Slow())
    kept = from_bytes(unseal_parts(models.read("1"))).tensors
    assert to_bytes(Message(prefixed("model", kept))) == to_bytes(Message(model(PICTURES, 1).tensors))

    class Full(testbed.MemoryFolder):
        def write(self, name: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        answer(PICTURES, 1, Full())


def test_what_does_not_fit_is_named():
    module = PICTURES.network()
    before = read_parameters(module)
    params = {n: torch.ones_like(t) for n, t in before.items()}
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        loaded(module, {n: t for n, t in params.items() if n != "head.bias"})
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.bias"):
        loaded(PICTURES.network(), {**params, "head.bias": torch.ones(3)})
    assert testbed.are_equal(read_parameters(loaded(module, params)), params)


def test_a_network_of_other_settings_or_another_precision_is_not_taken():
    """A run in float64 beside one in float32, as tests have them."""
    task, used = testbed.make_task(), []
    other = replace(task, smoothing=0.1)
    for method, each, precision in [
        (FedAvg(), task, torch.float32),
        (FedAvg(weights="uniform"), task, torch.float32),
        (FedAvg(weights="uniform"), other, torch.float32),
        (FedAvg(weights="uniform"), other, torch.float64),
    ]:
        torch.set_default_dtype(precision)
        try:
            with spare_network.borrow_network(method, each, read_parameters(each.network())) as module:
                used.append(module)
                assert next(module.parameters()).dtype == precision
        finally:
            torch.set_default_dtype(torch.float32)
        assert list(spare_network._SPARE) == [(method, each, precision)]
    assert len({id(module) for module in used}) == 4
    spare_network._SPARE.clear()
