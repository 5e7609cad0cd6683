"""The engine between machines, for any transport: long work through short calls.

Work at a hospital can take hours, and during a call of hours a working hospital and a lost one look the same. So calls
are short: the first sends the question, the hospital works in a separate thread, and the coordinator polls for the
answer every few seconds. A lost call is repeated; the work is done once.

Only a few large messages are in memory at a time, for any number of hospitals. Questions and answers of more than
`SMALL` bytes are transferred for `CARRIED` hospitals at a time: a question is serialized when its turn comes, for a
hospital that has just given a sign of life; an answer stays at the hospital, which only reports that it is ready, until
the coordinator fetches it. A fetched reply is given to `keep`, which can write it to a disk.

Questions and answers of more than `PIECE` bytes cross in pieces. They wait in files without a name where they arrive
(`federation.spool`), and are cut from where they lie where they leave, so that neither end has one in memory. A lost
piece is sent again, and the others are not: a hospital says how much of a question it has, and the coordinator asks for
an answer from the place up to which it has it.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from federation import wire
from federation.engine import Answers, Worker, report_answer
from federation.spool import Spool
from privacy.message import Buffer, Call, Message, count_bytes, digest_parts
from privacy.release.gate import Refused
from privacy.system_errors import classify_failure

SMALL = 2**20
"""Most bytes of a question or an answer that needs no turn; the wire adds names and facts."""
PIECE = 2**23
"""Most bytes of a question or an answer in one call."""
CARRIED = 4
"""Larger questions and answers that are transferred at the same time."""
WAIT_S = 10.0
"""How long a hospital keeps one call open while it works."""
AGAIN_S = 15.0
"""Longest silence if a hospital was gone at the last request: few of them return within a job."""
MOST = 3
"""Most unfinished questions at a hospital: a late one, the next, and one to spare."""
TRIES = 3
"""How often a hospital may say that it does not know a question that was sent."""
WORKING, UNKNOWN, READY = "working", "unknown_question", "ready"
IN_PIECES = "ready_in_pieces"
"""The answer is there, and has more than `PIECE` bytes."""
HAS = re.compile(r"has_(\d{1,12})")
"""How many bytes of a question a hospital has."""
OURS = ("unknown_site", "gone", "late", "stopped")
"""Codes that only the engine gives, never a hospital."""


class Unreachable(Exception):
    """A call did not arrive, or its answer did not."""


class Stopped(Exception):
    """The transport was asked to end, so no calls are possible any more."""


Reach: TypeAlias = Callable[[str, bytes, float, float], object]
"""One hospital, as `Pending.answer` with a limit of silence in s: (key, question, wait_s, timeout_s) -> bytes, or
whatever else a hospital sends. Raises: Unreachable, Stopped."""


class _Answer(NamedTuple):
    """An answer where it lies. digest: sha256 of an answer of more than `PIECE` bytes."""

    parts: list[Buffer]
    size: int
    digest: bytes


class Pending:
    """The hospital's side: its worker, one question at a time, and the unfinished questions. folder: where questions
    wait that arrive in pieces; None: where the system has its temporary files.
    """

    def __init__(self, worker: Worker, folder: Path | None = None) -> None:
        self._worker, self._folder = worker, folder
        self._executor = ThreadPoolExecutor(1, "worker")
        self._futures: dict[str, Future[_Answer]] = {}
        self._spools: dict[str, Spool] = {}
        self._lock = threading.Lock()

    def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
        """The answer, or `working` after `wait_s`. key: sha256 of the question, which is sent once; later calls send
        empty bytes. A call with `wait_s` > 0 gets `ready` in place of an answer of more than `SMALL` bytes; a call that
        does not wait gets the answer itself.

        A question of more than `PIECE` bytes comes as pieces in their order (`wire.write_piece`); each but the last is
        answered by `HAS`, as is a call without bytes in between. An answer of more is `ready_in_pieces` for every call
        but one with a piece of size 0, which gets the piece from its place on.
        """
        if not (isinstance(key, str) and isinstance(question, bytes) and isinstance(wait_s, int | float)):
            return wire.code_answer("malformed")
        with self._lock:
            future = self._futures.get(key)
            if future is None:
                try:
                    data = self._receive_question(key, question)
                except OSError as error:
                    return wire.code_answer(classify_failure(error))
                if isinstance(data, str):
                    return wire.code_answer(data)
                future = self._futures[key] = self._executor.submit(_work, self._worker, [data])
                del data
        try:
            answer = future.result(timeout=min(max(wait_s, 0.0), WAIT_S))
        except TimeoutError:
            return wire.code_answer(WORKING)
        if answer.size > PIECE:
            piece = wire.read_piece(question)
            if piece is None or piece.size:
                return wire.code_answer(IN_PIECES)
            part = wire.cut_parts(answer.parts, piece.start, PIECE)
            return wire.write_piece(wire.Piece(piece.start, answer.size, answer.digest, part))
        return wire.code_answer(READY) if wait_s > 0 and answer.size > SMALL else b"".join(answer.parts)

    def _receive_question(self, key: str, question: bytes) -> Buffer | str:
        """The whole question, or a code. Raises: OSError: the disk."""
        piece = wire.read_piece(question)
        if (is_piece := piece is not None and piece.size > 0) or key in self._spools:
            data: Buffer | str = self._receive_piece(key, piece if is_piece else None)
            if isinstance(data, str):
                return data
        elif hashlib.sha256(question).hexdigest() == key:
            data = question
        else:
            return UNKNOWN
        self._futures = {old: work for old, work in self._futures.items() if not work.done()}
        return "busy" if len(self._futures) >= MOST else data

    def _receive_piece(self, key: str, piece: wire.Piece | None) -> memoryview | str:
        """The question, once all its pieces are there, or a code. None: how much is there."""
        spool = self._spools.get(key)
        if spool is None and piece is not None and piece.start == 0 and piece.digest.hex() == key:
            while len(self._spools) >= MOST:
                del self._spools[next(iter(self._spools))]
            try:
                spool = self._spools[key] = Spool(self._folder, piece.size, piece.digest)
            except ValueError:
                return "malformed"
        if spool is None:
            return UNKNOWN
        if piece is not None:
            spool.add(piece.start, piece.data)
        if not spool.is_whole:
            return f"has_{spool.received}"
        del self._spools[key]
        view = spool.view()
        return UNKNOWN if view is None else view


def _work(worker: Worker, questions: list[Buffer]) -> _Answer:
    """The worker's answer to the question in a list, from which it is taken: it shall not outlive the work."""
    parts = wire.lay_out_answer(worker, questions.pop())
    size = count_bytes(parts)
    return _Answer(parts, size, bytes.fromhex(digest_parts(parts)) if size > PIECE else b"")


class Remote:
    """The engine. All hospitals work in parallel.

    reached: hospitals that can be called now. sites: all participants; one that cannot be called is `gone`. silence_s:
    without a sign of life for this long, a hospital is `gone`; silence adds up over questions with shorter deadlines.
    on_gone: called for each that is gone. keep: returns the reply to hand on; it may raise Refused. A reply that came
    in pieces lies in a file already and is not given to it. folder: of that file; None: where the system has its
    temporary files.
    """

    def __init__(
        self,
        reached: Mapping[str, Reach],
        sites: Sequence[str],
        *,
        silence_s: float = 60.0,
        on_gone: Callable[[str], None] = lambda site: None,
        keep: Callable[[Call, Message], Message] = lambda call, reply: reply,
        folder: Path | None = None,
    ) -> None:
        self._folder = folder
        self._reached, self._sites = reached, tuple(sorted(sites))
        self._silence_s, self._on_gone, self._keep = silence_s, on_gone, keep
        self._turns = threading.Semaphore(CARRIED)
        self._lost: set[str] = set()
        self._silent: dict[str, float] = {}  # seconds of unanswered calls
        self._begun: dict[tuple[str, str, int, str], Future[Message | str]] = {}

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the hospitals, sorted."""
        return self._sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`; `OURS` and `malformed` are codes of this engine, the others come from hospitals or from
        `keep`.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        running = {site: self._begun.pop(_key_of(call, site), None) for site in messages}
        with ThreadPoolExecutor(max(1, len(messages)), "ask") as pool:
            site_by_future = {
                pool.submit(self._await_begun, work, at, call.at(at), messages[at], until)
                if (work := running[at]) is not None
                else pool.submit(self._ask_hospital, at, call.at(at), messages[at], until): at
                for at in sorted(messages)
            }
            for future in as_completed(site_by_future):
                report_answer(site_by_future[future])
        answers = {site: future.result() for future, site in site_by_future.items()}
        replies = {site: reply for site, reply in answers.items() if isinstance(reply, Message)}
        return Answers(replies, {site: code for site, code in answers.items() if isinstance(code, str)})

    def begin(self, call: Call, messages: Mapping[str, Message]) -> None:
        """See `Eager.begin`. Each hospital is asked by a thread that ends with the process, so that a slow one does not
        keep a run that was stopped from ending.
        """
        for site, message in sorted(messages.items()):
            if (key := _key_of(call, site)) not in self._begun:
                self._begun[key] = future = Future[Message | str]()
                threading.Thread(
                    target=_fill_future, args=(future, self._ask_hospital, site, call.at(site), message), daemon=True
                ).start()

    def _await_begun(
        self, work: Future[Message | str], site: str, call: Call, message: Message, until: float | None
    ) -> Message | str:
        """The answer of a hospital that has begun, or `late`. One that was gone meanwhile is asked again."""
        try:
            answer = work.result(None if until is None else max(0.0, until - time.monotonic()))
        except TimeoutError:
            return "late"
        return self._ask_hospital(site, call, message, until) if answer == "gone" else answer

    def _ask_hospital(self, site: str, call: Call, message: Message, until: float | None) -> Message | str:
        """One hospital's reply, or a code. until: by which time, as `time.monotonic` counts."""
        if site not in self._sites:
            return "unknown_site"
        if site not in self._reached:
            return self._mark_gone(site)
        question = _Question(call, message, self._folder)
        last_sign = time.monotonic() - self._silent.pop(site, 0.0)
        patience = min(self._silence_s, AGAIN_S) if site in self._lost else self._silence_s
        while True:
            with self._wait_for_turn(question.carries, until) as waited:
                last_sign += waited  # waiting for a turn is no silence of the hospital
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    self._silent[site] = time.monotonic() - last_sign
                    return "late" if self._silent[site] <= patience else self._mark_gone(site)
                try:
                    answer = question.ask(self._reached[site], left, patience)
                except Stopped:
                    return "stopped"
                except Unreachable:
                    if time.monotonic() - last_sign > patience:
                        return self._mark_gone(site)
                    continue
                last_sign, patience = time.monotonic(), self._silence_s
                self._lost.discard(site)
                if not question.note_answer(answer):
                    if until is not None and time.monotonic() > until:
                        return "late"
                    is_kept = question.is_on_disk and isinstance(answer, Message)
                    return answer if is_kept else self._keep_answer(call, answer)
            if question.unknown > TRIES:
                return "malformed"

    @contextmanager
    def _wait_for_turn(self, carries: bool, until: float | None) -> Iterator[float]:
        """Wait for one of the `CARRIED` turns, if this call transfers many bytes; yields the seconds of waiting."""
        started = time.monotonic()
        has_turn = carries and self._turns.acquire(timeout=None if until is None else max(0.0, until - started))
        try:
            yield time.monotonic() - started
        finally:
            if has_turn:
                self._turns.release()

    def _keep_answer(self, call: Call, answer: Message | str) -> Message | str:
        """What `keep` makes of a reply; the code in place of one."""
        if isinstance(answer, str):
            return "malformed" if answer in (*OURS, READY, IN_PIECES) else answer
        try:
            return self._keep(call, answer)
        except Refused as refused:
            return refused.code

    def _mark_gone(self, site: str) -> str:
        """Note a hospital as gone and report it; returns the code."""
        self._silent.pop(site, None)
        self._lost.add(site)
        self._on_gone(site)
        return "gone"


def _key_of(call: Call, site: str) -> tuple[str, str, int, str]:
    """What identifies work that was begun."""
    return site, call.at(site).run, call.round, call.request


def _fill_future(
    future: Future[Message | str],
    ask: Callable[[str, Call, Message, float | None], Message | str],
    site: str,
    call: Call,
    message: Message,
) -> None:
    """Ask a hospital, and set the result."""
    try:
        future.set_result(ask(site, call, message, None))
    except BaseException as error:
        future.set_exception(error)


class _Question:
    """The state of one question at one hospital, and so the content of the next call.

    A small question is sent at once. Before a large one is sent, and after one was lost, a call without content checks
    that the hospital answers at all (`look`, `poll`), so that a lost hospital takes no turn from the others. The bytes
    of a question are serialized for each call that sends them, and not stored.
    """

    def __init__(self, call: Call, message: Message, folder: Path | None) -> None:
        self._parts, self._folder = wire.lay_out_question(call, message), folder
        self._size = count_bytes(self._parts)
        self._large = sum(tensor.nbytes for tensor in message.tensors.values()) > SMALL
        self._key = digest_parts(self._parts) if self._large else ""
        self._step, self.unknown = "look" if self._large else "send", 0
        self._sent = 0  # bytes that the hospital has, as far as it is known
        self._in_pieces, self._spool = False, None  # type: bool, Spool | None
        self.is_on_disk = False
        """Whether the answer came in pieces, and so lies in a file."""

    @property
    def carries(self) -> bool:
        """Whether the next call transfers many bytes, in either direction."""
        return self._step == "fetch" or (self._step == "send" and self._large)

    def ask(self, reach: Reach, left_s: float | None, patience_s: float) -> Message | str:
        """Make one call. A failed call takes at least a second, if there is time, because it is repeated at once."""
        started, left = time.monotonic(), WAIT_S if left_s is None else left_s
        timeout = patience_s if left_s is None else min(patience_s, max(left, 1.0))
        wait = 0.0 if self.carries or self._step == "look" else min(left, WAIT_S)
        question = self._build_call()
        try:
            answer = reach(self._key, question, wait, timeout)
        except Unreachable:
            self._step = {"send": "look" if self._large else "send", "fetch": "poll"}.get(self._step, self._step)
            time.sleep(max(0.0, min(1.0, left) - (time.monotonic() - started)))
            raise
        if self._step != "fetch" or not self._in_pieces:
            return wire.read_answer(answer)
        piece = wire.read_piece(answer)
        self.unknown += piece is None  # unless it has another answer than that it has one
        return wire.read_answer(answer) if piece is None else self._take_piece(piece)

    def _build_call(self) -> bytes:
        """What the next call sends."""
        if self._step == "fetch" and self._in_pieces:
            return wire.write_piece(wire.Piece(self._spool.received if self._spool else 0, 0, bytes(32)))
        if self._step != "send":
            return b""
        if self._size > PIECE:
            data = wire.cut_parts(self._parts, self._sent, PIECE)
            return wire.write_piece(wire.Piece(self._sent, self._size, bytes.fromhex(self._key), data))
        question = b"".join(self._parts)
        self._key = hashlib.sha256(question).hexdigest()
        return question

    def _take_piece(self, piece: wire.Piece) -> Message | str:
        """The answer, once all its pieces are there; `IN_PIECES` before. A piece of another answer begins anew, as
        where a hospital forgot it and was asked again.
        """
        try:
            if self._spool is None or (self._spool.size, self._spool.digest) != (piece.size, piece.digest):
                self._spool = Spool(self._folder, piece.size, piece.digest)
            self.unknown = 0 if self._spool.add(piece.start, piece.data) else self.unknown + 1
            if self._spool.is_whole:
                view = self._spool.view()
                self.is_on_disk = view is not None
                return "malformed" if view is None else wire.read_answer(view)
            return IN_PIECES
        except ValueError:
            return "malformed"
        except OSError as error:
            return classify_failure(error)

    def note_answer(self, answer: Message | str) -> bool:
        """Note the answer of a hospital; returns whether another call is needed."""
        if answer == IN_PIECES and self._step == "fetch" and self._in_pieces:
            return True
        if isinstance(answer, str) and self._size > PIECE and (has := HAS.fullmatch(answer)) is not None:
            before, self._sent = self._sent, min(int(has.group(1)), self._size - 1)
            self.unknown = 0 if self._sent > before else self.unknown + 1
            self._step = "send"
            return True
        self.unknown = self.unknown + 1 if answer == UNKNOWN else 0
        self._sent = 0 if answer == UNKNOWN else self._sent
        steps = {UNKNOWN: "send", WORKING: "poll", IN_PIECES: "fetch"}
        steps |= {} if self._step == "fetch" else {READY: "fetch"}
        if not isinstance(answer, str) or answer not in steps:
            return False
        self._in_pieces = answer == IN_PIECES
        self._step = steps[answer]
        return True
