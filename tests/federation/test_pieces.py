"""Messages that cross in pieces: the same bits, what is lost is sent again and nothing else, and neither end holds one
in memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import federation.remote
from federation import wire
from federation.flare import COORDINATOR, ClientApp
from federation.remote import CARRIED, Pending, Reach, Remote, Unreachable
from privacy.message import Call, Message, to_bytes

CALL = Call("run", 1, "train", {})
STATUS = Path("/proc/self/status")
PIECE, NUMBERS = 1000, 3000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation.remote, "SMALL", 100)
    monkeypatch.setattr(federation.remote, "PIECE", PIECE)
    monkeypatch.setattr("federation.remote.time.sleep", lambda seconds: None)


MODEL = Message({"model/w": torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))}, {"n": 3})


class Counted:
    """A hospital's work, which gives the negative of what it was sent."""

    def __init__(self) -> None:
        self.worked = 0

    def __call__(self, call: Call, message: Message) -> Message:
        self.worked += 1
        return Message({name: -tensor for name, tensor in message.tensors.items()}, message.facts)


class Line:
    """A way to a hospital: what crossed it, and what is done to some calls. after: calls that arrive, and whose answer
    is lost; before: calls that do not arrive.
    """

    def __init__(self, ask: Callable[[str, bytes, float], bytes], before: set[int], after: set[int]) -> None:
        self.ask, self.before, self.after = ask, before, after
        self.calls, self.there, self.back, self.most = 0, 0, 0, 0

    def __call__(self, key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
        self.calls += 1
        self.most = max(self.most, len(question))
        if self.calls in self.before:
            raise Unreachable
        self.there += count_data(question)
        answer = self.ask(key, question, wait_s)
        self.most = max(self.most, len(answer))
        if self.calls in self.after:
            raise Unreachable
        self.back += count_data(answer)
        return answer


def count_data(sent: bytes) -> int:
    """The bytes of a message in a piece."""
    piece = wire.read_piece(sent)
    return 0 if piece is None else len(piece.data)


def expected() -> bytes:
    return to_bytes(Counted()(CALL, MODEL))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_lost_is_sent_again_and_nothing_else(tmp_path: Path, seed: int) -> None:
    """Any calls are lost, on their way there or back: the work is done once, and no piece arrives twice."""
    draw = torch.Generator().manual_seed(seed)
    lost = torch.randperm(40, generator=draw)[: seed % 5] + 1
    before, after = set(lost[::2].tolist()), set(lost[1::2].tolist())
    worker = Counted()
    line = Line(ClientApp(worker, lambda: COORDINATOR, folder=tmp_path / "h").answer, before, after)
    answers = Remote({"a": line}, ("a",), folder=tmp_path / "c").ask(CALL, {"a": MODEL})
    assert to_bytes(answers.replies["a"]) == expected() and worker.worked == 1
    assert line.calls > 2 * NUMBERS * 4 // PIECE
    assert line.most <= PIECE + wire.HEAD.size
    assert line.there == len(wire.build_question(CALL, MODEL))
    assert line.back == len(wire.answer(worker, wire.build_question(CALL, MODEL)))
    assert not list((tmp_path / "h").iterdir()) and not list((tmp_path / "c").iterdir())


@pytest.mark.parametrize("restarts", [{3}, {8}, {15}, {20}, {5, 18, 30}])
def test_a_hospital_that_starts_anew_in_the_middle_is_asked_again(tmp_path: Path, restarts: set[int]) -> None:
    """It has forgotten the pieces that it had, and gives its committed answer again, bit for bit."""
    worker, pending, calls = Counted(), [Pending(Counted(), tmp_path)], [0]

    def ask(key: str, question: bytes, wait_s: float) -> bytes:
        calls[0] += 1
        if calls[0] in restarts:
            pending[0] = Pending(worker, tmp_path)
        return pending[0].answer(key, question, wait_s)

    answers = Remote({"a": Line(ask, set(), set())}, ("a",), folder=tmp_path).ask(CALL, {"a": MODEL})
    assert to_bytes(answers.replies["a"]) == expected()


def changing(plain: Reach, change: Callable[[wire.Piece], wire.Piece]) -> Reach:
    """A hospital whose pieces are others."""

    def call(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
        answer = plain(key, question, wait_s, timeout_s)
        piece = wire.read_piece(answer)
        return answer if piece is None else wire.write_piece(change(piece))

    return call


@pytest.mark.parametrize(
    "change",
    [
        lambda piece: piece._replace(data=bytes([piece.data[0] ^ 1]) + piece.data[1:]),
        lambda piece: piece._replace(data=b""),
        lambda piece: piece._replace(start=piece.start + 1),
        lambda piece: piece._replace(size=2**40),
        lambda piece: piece._replace(size=0),
        lambda piece: piece._replace(data=piece.data * 50),
    ],
)
def test_pieces_that_make_no_answer_are_malformed(tmp_path: Path, change: Callable[[wire.Piece], wire.Piece]) -> None:
    line = Line(Pending(Counted(), tmp_path).answer, set(), set())
    answers = Remote({"a": changing(line, change)}, ("a",), folder=tmp_path).ask(CALL, {"a": MODEL})
    assert answers.missing == {"a": "malformed"}


@pytest.mark.parametrize("code", ["has_0", "has_500", "has_999999999999", "ready_in_pieces"])
def test_a_hospital_that_says_the_same_for_ever_is_malformed(code: str) -> None:
    said = wire.code_answer(code)
    assert Remote({"a": lambda *_: said}, ("a",)).ask(CALL, {"a": MODEL}).missing == {"a": "malformed"}


def test_an_answer_that_came_whole_after_a_piece_of_another_is_kept_as_any_other(tmp_path: Path) -> None:
    """A hospital that lost its first answer may have a smaller one: it lies in no file yet."""
    small, kept = Message({"model/w": torch.ones(30)}, {"n": 1}), list[Message]()
    first, then = Pending(Counted(), tmp_path), Pending(lambda call, message: small, tmp_path)
    pieces = [0]

    def ask(key: str, question: bytes, wait_s: float) -> bytes:
        answer = (then if pieces[0] else first).answer(key, question, wait_s)
        pieces[0] += count_data(answer) > 0
        return answer

    def keep(call: Call, reply: Message) -> Message:
        kept.append(reply)
        return reply

    answers = Remote({"a": Line(ask, set(), set())}, ("a",), folder=tmp_path, keep=keep).ask(CALL, {"a": MODEL})
    assert [to_bytes(each) for each in kept] == [to_bytes(answers.replies["a"])] == [to_bytes(small)]


def test_pieces_of_another_question_are_not_worked_on(tmp_path: Path) -> None:
    """What was put together must be what the key says; so must each piece's own words of it."""
    worker = Counted()
    pending = Pending(worker, tmp_path)
    data = wire.build_question(CALL, MODEL)
    digest = bytes(32)
    for start in range(0, len(data), PIECE):
        piece = wire.Piece(start, len(data), digest, data[start : start + PIECE])
        said = wire.read_answer(pending.answer(digest.hex(), wire.write_piece(piece), 0.0))
        assert said == f"has_{start + PIECE}" or start + PIECE >= len(data)
    assert said == federation.remote.UNKNOWN and worker.worked == 0
    piece = wire.Piece(0, 2**40, digest, b"0")
    assert wire.read_answer(pending.answer(digest.hex(), wire.write_piece(piece), 0.0)) == "malformed"


def test_a_full_disk_is_said_by_its_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    there = Line(Pending(Counted(), tmp_path / "file").answer, set(), set())
    assert Remote({"a": there}, ("a",), folder=tmp_path).ask(CALL, {"a": MODEL}).missing == {"a": "disk"}
    back = Line(Pending(Counted(), tmp_path).answer, set(), set())
    assert Remote({"a": back}, ("a",), folder=tmp_path / "file").ask(CALL, {"a": MODEL}).missing == {"a": "disk"}


PROGRAM = """
import sys, threading, time
from pathlib import Path
import torch
from federation.remote import Pending, Remote
from federation.spool import move_params_to_file
from privacy.message import Call, Message

def anonymous():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

place, count = Path(sys.argv[1]), int(sys.argv[2])
def work(call, message):
    return Message(move_params_to_file({"w": message.tensors["w"]}, place), {"n": 1})
def reach(pending):
    return lambda key, question, wait_s, timeout_s: pending.answer(key, question, wait_s)
model = Message(move_params_to_file({"w": torch.arange(2**25, dtype=torch.int32)}, place))
sites = [f"s{number}" for number in range(count)]
remote = Remote({site: reach(Pending(work, place)) for site in sites}, sites, folder=place)
before, most, over = anonymous(), [0.0], threading.Event()
def watch():
    while not over.wait(0.002):
        most[0] = max(most[0], anonymous() - before)
threading.Thread(target=watch, daemon=True).start()
answers = remote.ask(Call("run", 1, "train", {}), dict.fromkeys(sites, model))
over.set()
assert not answers.missing, answers.missing
assert all(int(reply.tensors["w"][-1]) == 2**25 - 1 for reply in answers.replies.values())
print(most[0])
"""


@pytest.mark.skipif(not STATUS.exists(), reason="memory without files behind it is told by Linux alone")
def test_neither_end_holds_a_large_message_in_memory(tmp_path: Path) -> None:
    """Coordinator and two hospitals in one process, a model of 128 MiB to and from each."""
    line = [sys.executable, "-c", PROGRAM, str(tmp_path), "2"]
    frugal = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=frugal)
    assert float(done.stdout) < 100, f"at most {CARRIED} pieces of 8 MiB with their copies, of 4 x 128 MiB"
