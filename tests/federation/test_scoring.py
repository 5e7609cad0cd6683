"""The network that scores models is used again, and nothing of one model shows in what follows."""

from __future__ import annotations

import threading

import pytest
import torch

from consilium.testing import testbed
from federation import participant
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
    participant._IDLE.clear()
    fresh = answer(task, 1, testbed.MemoryFolder())
    for other in (2, 3):
        answer(task, other, testbed.MemoryFolder())
    assert answer(task, 1, testbed.MemoryFolder()) == fresh
    expected = loaded(task.network(), {n.removeprefix("model/"): t for n, t in model(task, 1).tensors.items()})
    loss = site(task).measure(expected, task.validation, "validation")
    assert from_bytes(fresh[0]).facts["loss"] == loss


def test_nothing_of_a_model_waits_for_the_next():
    answer(PICTURES, 1, testbed.MemoryFolder())
    (idle,) = participant._IDLE.values()
    assert not any(tensor.any() for tensor in idle.state_dict().values())
    assert all(p.grad is None for p in idle.parameters())


def test_a_network_with_dropout_is_made_anew_because_making_it_draws_random_numbers():
    participant._IDLE.clear()
    answer(DROPPING, 1, testbed.MemoryFolder())
    assert not participant._IDLE


def test_a_network_whose_scoring_failed_is_not_used_again(monkeypatch):
    answer(PICTURES, 1, testbed.MemoryFolder())

    def fails(*args: object, **more: object) -> float:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(Site, "measure", fails)
        with pytest.raises(RuntimeError):
            answer(PICTURES, 1, testbed.MemoryFolder())
    assert not participant._IDLE


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


def test_a_network_of_another_precision_is_not_taken():
    """A run in float64 beside one in float32, as tests have them."""
    single, double = testbed.make_task().network(), testbed.make_task().network().double()
    participant._IDLE.clear()
    participant._put_back(FedAvg(), testbed.make_task(), single)
    assert (FedAvg(), testbed.make_task(), torch.float64) not in participant._IDLE
    torch.set_default_dtype(torch.float64)
    try:
        participant._put_back(FedAvg(), testbed.make_task(), double)
        assert {(FedAvg(), testbed.make_task(), torch.float64): double} == participant._IDLE
    finally:
        torch.set_default_dtype(torch.float32)
        participant._IDLE.clear()
