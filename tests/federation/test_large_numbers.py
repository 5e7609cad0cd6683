"""Large tensors are computed with in pieces: bit for bit what is computed at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import federation.conversation
import federation.outcome
import federation.parameters
import federation.participant
import privacy.secure_sum
from consilium.testing import testbed
from federation.conversation import answer_once
from federation.fedavg import FedAvg
from federation.notices import measure_updates
from federation.outcome import Outcome, move_to_file, save_outcome
from federation.parameters import average_models
from federation.summing import MASKED, encode_reply, hide_reply, masked_form, reveal_sum
from federation.verdict import find_reply_problem
from pipelines.runs.store import DiskFolder
from privacy.message import Call, Message, from_bytes, to_bytes, unseal_parts
from privacy.secure_sum import make_key_pair

PIECES = (1, 7, 50, 2**20)
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
STATUS = Path("/proc/self/status")


@pytest.fixture(params=PIECES[:-1])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(federation.parameters, "PIECE", request.param)
    monkeypatch.setattr(privacy.secure_sum, "PIECE", request.param)
    size: int = request.param
    return size


def models(count: int = 3) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"w": (13, 11), "b": (100,), "s": (), "z": (0, 2)}
    made = []
    for _ in range(count):
        model = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        model |= {f"{kind}": (torch.randn(60, generator=draw) * 9).to(kind) for kind in KINDS}
        made.append(model | {"t": torch.randn(8, 9, generator=draw).T})
    return made


def replies_of(made: list[dict[str, Tensor]]) -> dict[str, Message]:
    return {f"h{k}": Message(model, {"algorithm": {"n": 3 + k}, "loss": 0.5, "n": 2}) for k, model in enumerate(made)}


def test_a_mean_is_the_same_number_by_number(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces = average_models(models(), [1.0, 2.0, 4.0])
    monkeypatch.setattr(federation.parameters, "PIECE", 2**20)
    at_once = average_models(models(), [1.0, 2.0, 4.0])
    for name, mean in at_once.items():
        assert in_pieces[name].dtype == mean.dtype and in_pieces[name].shape == mean.shape
        assert in_pieces[name].equal(mean), name


@pytest.mark.parametrize("place", [0, 49, 50, 142])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38])
def test_a_number_that_nobody_can_merge_is_seen_wherever_it_stands(piece: int, place: int, value: float) -> None:
    reply = replies_of(models(1))["h0"]
    form = Message({name: tensor.to("meta") for name, tensor in reply.tensors.items()}, reply.facts)
    assert find_reply_problem(reply, form) is None
    reply.tensors["w"].view(-1)[place] = value
    assert find_reply_problem(reply, form) == "non_finite"


def test_measures_of_updates_are_the_same_to_the_last_bits(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replies, sent = replies_of(models(5)), dict.fromkeys([f"h{k}" for k in range(5)], Message(models(1)[0]))
    in_pieces = measure_updates(replies, sent, {})
    monkeypatch.setattr(federation.parameters, "PIECE", 2**20)
    for site, update in measure_updates(replies, sent, {}).items():
        assert in_pieces[site].size == pytest.approx(update.size, rel=1e-12)
        assert in_pieces[site].cosine == pytest.approx(update.cosine, rel=1e-12)


def test_hidden_replies_and_their_sum_are_the_same(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = replies_of(models())
    replies = {
        site: Message({**reply.tensors, "sum/n": torch.arange(9)}, {**reply.facts, "algorithm": {"n": 3}})
        for site, reply in replies.items()
    }
    pairs = {site: make_key_pair() for site in replies}
    keys = {site: pair.public for site, pair in pairs.items()}
    call = Call("run", 1, "train", {})

    def hide() -> dict[str, Message]:
        return {
            site: hide_reply(FedAvg(), reply, secret=pairs[site].secret, keys=keys, site=site, call=call)
            for site, reply in replies.items()
        }

    in_pieces = hide()
    sum_in_pieces = reveal_sum(in_pieces, replies["h0"])
    monkeypatch.setattr(federation.parameters, "PIECE", 2**20)
    monkeypatch.setattr(privacy.secure_sum, "PIECE", 2**20)
    at_once = hide()
    for site, reply in at_once.items():
        assert in_pieces[site].tensors[MASKED].equal(reply.tensors[MASKED])
        assert not reply.tensors[MASKED].equal(encode_reply(FedAvg(), replies[site], 3))
        assert masked_form(replies[site]).tensors[MASKED].shape == reply.tensors[MASKED].shape
    revealed = reveal_sum(at_once, replies["h0"])
    assert all(sum_in_pieces.tensors[name].equal(revealed.tensors[name]) for name in revealed.tensors)
    assert revealed.tensors["sum/n"].equal(3 * torch.arange(9))


@pytest.mark.parametrize("large", [-1, 2**24])
def test_a_model_is_kept_as_it_was_before_training_changed_it(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(federation.participant, "LARGE", large)
    folder, params = testbed.MemoryFolder(), {"w": torch.ones(9)}
    call = Call("run", 2, "train", {})
    packed = federation.participant._pack_models(folder, call, params, Message(), averaged=False)
    params["w"].zero_()
    federation.participant._write_models(folder, packed)
    assert from_bytes(unseal_parts(folder.read("1"))).tensors["w"].equal(torch.ones(9))


@pytest.mark.parametrize("large", [-1, 2**24])
def test_an_answer_and_a_state_are_the_same_from_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    for module in (federation.conversation, federation.outcome):
        monkeypatch.setattr(module, "LARGE", large)
    folder = DiskFolder(tmp_path)
    reply, memory = Message({"w": torch.ones(3), "c": torch.tensor([True])}, {"n": 1}), Message({"m": torch.zeros(5)})
    call, worked = Call("run", 1, "train", {}), []

    def work(before: Message) -> tuple[Message, Message]:
        worked.append(1)
        return reply, memory

    first, again = (answer_once(folder, call, "a", work) for _ in range(2))
    assert bytes(first.reply) == bytes(again.reply) == to_bytes(reply) and worked == [1]
    assert to_bytes(first.memory) == to_bytes(again.memory) == to_bytes(memory)
    outcome = Outcome(Message({"w": torch.ones(3)}, {"x": 1}), {}, {}, {}, earlier={2: Message({"w": torch.zeros(2)})})
    save_outcome(folder, "run", outcome)
    moved = move_to_file(folder, outcome)
    assert (moved.state.tensors["w"] is outcome.state.tensors["w"]) == (large > 0)
    for left, right in ((moved.state, outcome.state), (moved.earlier[2], outcome.earlier[2])):
        assert to_bytes(left) == to_bytes(right)


PROGRAM = """
import os, sys, threading, torch
from pathlib import Path
torch.set_num_threads(1)
from benchmarks.speed import large_models as large
root, case, mb = Path(sys.argv[1]), sys.argv[2], 30.0
_, names = large.hospitals(root / "sites", {f"h{n}": large.cohort(n, 16) for n in range(2)})
def run(mb, place):
    workers = {name: large.make_worker(large.hospital_at(place, name)) for name in names}
    kept = {name: large.store_replies(worker, place / "federation", print) for name, worker in workers.items()}
    large.coordinate(lambda: large.InProcess(kept), place, names, mb, case)
import shutil
shutil.copytree(root / "sites", root / "small" / "sites")
run(1.0, root / "small")  # what is imported and built once
with large.sample_memory({"one": os.getpid()}) as most:
    run(mb, root)
print(most["one"] / (mb * 1e6) - large.CASES[case][2])
"""


@pytest.mark.skipif(not STATUS.exists(), reason="memory without files behind it is told by Linux alone")
def test_a_run_holds_little_more_than_training_needs(tmp_path: Path) -> None:
    """Coordinator and two hospitals in one process, in models of 30 MB: what they hold above model and gradient."""
    frugal = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000", "PYTHONPATH": str(Path(__file__).parents[2])}
    line = [sys.executable, "-c", PROGRAM, str(tmp_path), "fedavg"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=frugal)
    assert float(done.stdout) < 1.5
