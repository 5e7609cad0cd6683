"""Replies that wait on the disk: the same bits, nothing left behind, no memory taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipelines.runs import replies
from pipelines.runs.replies import SMALL, store_replies
from privacy.message import Call, Message, to_bytes
from privacy.release.gate import Refused

CALL = Call("run", 1, "train", {})
STATUS = Path("/proc/self/status")


@pytest.mark.parametrize("smallest", [-1, SMALL], ids=["on the disk", "in memory"])
def test_a_reply_is_the_same_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smallest: int) -> None:
    monkeypatch.setattr(replies, "SMALL", smallest)
    tensors = {
        "model/weight": torch.tensor([[-0.0, float("nan")], [1e-45, float("inf")]]),
        "model/count": torch.tensor(7),
        "model/none": torch.zeros(0, 3),
        "model/half": torch.arange(5, dtype=torch.bfloat16),
        "model/turned": torch.arange(6.0).reshape(2, 3).T.contiguous(),
    }
    plain = Message(tensors, {"loss": 0.25, "algorithm": {"n": 3}})
    reply = store_replies(lambda call, message: plain, tmp_path / "new", str)(CALL, Message())
    assert list(reply.tensors) == list(tensors)
    assert to_bytes(reply) == to_bytes(plain)
    assert not list(tmp_path.glob("*/*"))
    assert (tmp_path / "new").exists() == (smallest < 0)
    reply.tensors["model/weight"].zero_()  # who gets it may write into it, and writes into its own alone
    assert torch.isnan(plain.tensors["model/weight"]).any()


def test_what_holds_no_numbers_touches_no_disk_and_a_refusal_passes(tmp_path: Path) -> None:
    def refusing(call: Call, message: Message) -> Message:
        raise Refused("no")

    plain = Message({}, {"n": 1})
    assert store_replies(lambda call, message: plain, tmp_path / "new", str)(CALL, Message()).facts == {"n": 1}
    empty = Message({"none": torch.zeros(0, 3)}, {"n": 1})
    assert store_replies(lambda call, message: empty, tmp_path / "new", str)(CALL, Message()).tensors["none"].shape == (
        0,
        3,
    )
    with pytest.raises(Refused, match="no"):
        store_replies(refusing, tmp_path / "new", str)(CALL, Message())
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not STATUS.exists(), reason="memory without files behind it is counted by Linux alone")
def test_replies_that_wait_take_no_memory(tmp_path: Path) -> None:
    """In a process of its own, whose allocator gives back at once what is freed: what is held is what counts here."""
    program = """
import sys
from pathlib import Path
import torch
from pipelines.runs.replies import store_replies
from privacy.message import Call, Message

def anonymous():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

large = store_replies(lambda call, message: Message({"model/w": torch.ones(2**22)}), Path(sys.argv[1]), str)
kept = [large(Call("run", 1, "train", {}), Message())]
before = anonymous()
kept += [large(Call("run", 1, "train", {}), Message()) for _ in range(16)]  # 16 MiB each
grown = anonymous() - before
assert all(bool((reply.tensors["model/w"] == 1).all()) for reply in kept)
print(grown)
"""
    frugal = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    line = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=frugal)
    assert float(done.stdout) < 64, "of 256 MiB"
