"""The engine between machines, for any transport: long work through short calls.

Work at a hospital can take hours, and during a call of hours a working hospital and a lost one look the same.
So calls are short: the first brings the question, the hospital works in a thread of its own, and the
coordinator polls for the answer every few seconds. A lost call is repeated; the work is done once.

Few large messages stand in memory at once, however many hospitals there are. Questions and answers of more than `SMALL`
bytes are carried by `CARRIED` hospitals at a time: a question is written when its turn comes, to a hospital that gave a
sign of life just before, and an answer stays at the hospital, which says only that it is ready, until it is fetched.
What was fetched is given to `keep`, which can put it on a disk.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeAlias

from federation import wire
from federation.engine import Answers, Worker, heard
from privacy.message import Call, Message
from privacy.release.gate import Refused

SMALL = 2**20
"""Bytes of a question or an answer that is carried at once; the wire adds names and facts."""
CARRIED = 4
"""Larger questions and answers that are on their way at the same time."""
WAIT_S = 10.0
"""How long a hospital keeps one call open while it works."""
AGAIN_S = 15.0
"""Silence to wait for if a hospital was gone at the last request: few come back within a job."""
MOST = 3
"""Questions that a hospital works on or keeps waiting; a late one, the next, and one to spare."""
TRIES = 3
"""How often a hospital may say that it does not know a question that was sent."""
WORKING, UNKNOWN, READY = "working", "unknown_question", "ready"
OURS = ("unknown_site", "gone", "late", "stopped")
"""Codes that only the engine gives, never a hospital."""


class Unreachable(Exception):
    """A call did not arrive, or its answer did not."""


class Stopped(Exception):
    """There are no more calls: the transport was told to end."""


Reach: TypeAlias = Callable[[str, bytes, float, float], object]
"""One hospital, as `Pending.answer` with a limit of silence in s: (key, question, wait_s, timeout_s) -> bytes, or
whatever a hospital sends in their place. Raises: Unreachable, Stopped."""


class Pending:
    """The hospital's side: its worker, one question at a time, and the unfinished questions."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._hands = ThreadPoolExecutor(1, "worker")
        self._begun: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()

    def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
        """The answer, or `working` after `wait_s`. key: sha256 of the question, which is sent once; later it is
        empty. An answer of more than `SMALL` bytes is brought by a call that does not wait; others say `ready`.
        """
        if not (isinstance(key, str) and isinstance(question, bytes) and isinstance(wait_s, int | float)):
            return wire.code_answer("malformed")
        with self._lock:
            begun = self._begun.get(key)
            if begun is None:
                if hashlib.sha256(question).hexdigest() != key:
                    return wire.code_answer(UNKNOWN)
                self._begun = {old: work for old, work in self._begun.items() if not work.done()}
                if len(self._begun) >= MOST:
                    return wire.code_answer("busy")
                begun = self._begun[key] = self._hands.submit(wire.answer, self._worker, question)
        try:
            found = begun.result(timeout=min(max(wait_s, 0.0), WAIT_S))
        except TimeoutError:
            return wire.code_answer(WORKING)
        return wire.code_answer(READY) if wait_s > 0 and len(found) > SMALL else found


class Remote:
    """The engine. All hospitals work in parallel.

    reached: hospitals that can be called now. sites: all participants; one that cannot be called is `gone`. silence_s:
    without a sign of life for this long, a hospital is `gone`; silence adds up over questions with shorter deadlines.
    on_gone: called for each that is gone. keep: what becomes of a reply that came; it may raise Refused.
    """

    def __init__(
        self,
        reached: Mapping[str, Reach],
        sites: Sequence[str],
        *,
        silence_s: float = 60.0,
        on_gone: Callable[[str], None] = lambda site: None,
        keep: Callable[[Call, Message], Message] = lambda call, reply: reply,
    ) -> None:
        self._reached, self._sites = reached, tuple(sorted(sites))
        self._silence_s, self._on_gone, self._keep = silence_s, on_gone, keep
        self._turns = threading.Semaphore(CARRIED)
        self._lost: set[str] = set()
        self._silent: dict[str, float] = {}  # seconds for which it was asked and said nothing

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the hospitals, sorted."""
        return self._sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`; `OURS` and `malformed` are codes of this engine, the rest the hospital's or of `keep`."""
        until = None if deadline_s is None else time.monotonic() + deadline_s
        with ThreadPoolExecutor(max(1, len(messages)), "ask") as pool:
            asked = {pool.submit(self._ask, at, call.at(at), messages[at], until): at for at in sorted(messages)}
            for future in as_completed(asked):
                heard(asked[future])
        found = {site: future.result() for future, site in asked.items()}
        replies = {site: reply for site, reply in found.items() if isinstance(reply, Message)}
        return Answers(replies, {site: code for site, code in found.items() if isinstance(code, str)})

    def _ask(self, site: str, call: Call, message: Message, until: float | None) -> Message | str:
        if site not in self._sites:
            return "unknown_site"
        if site not in self._reached:
            return self._mark_gone(site)
        question = _Question(call, message)
        heard = time.monotonic() - self._silent.pop(site, 0.0)
        patience = min(self._silence_s, AGAIN_S) if site in self._lost else self._silence_s
        while True:
            with self._turn(question.carries, until) as waited:
                heard += waited  # it was not asked in the meantime
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    self._silent[site] = time.monotonic() - heard
                    return "late" if self._silent[site] <= patience else self._mark_gone(site)
                try:
                    said = question.ask(self._reached[site], left, patience)
                except Stopped:
                    return "stopped"
                except Unreachable:
                    if time.monotonic() - heard > patience:
                        return self._mark_gone(site)
                    continue
                heard, patience = time.monotonic(), self._silence_s
                self._lost.discard(site)
                if not question.heard(said):
                    if until is not None and time.monotonic() > until:
                        return "late"
                    return self._kept(call, said)
            if question.unknown > TRIES:
                return "malformed"

    @contextmanager
    def _turn(self, carries: bool, until: float | None) -> Iterator[float]:
        """Wait for one of the `CARRIED` turns, if this call carries much; yields the seconds of waiting."""
        begun = time.monotonic()
        held = carries and self._turns.acquire(timeout=None if until is None else max(0.0, until - begun))
        try:
            yield time.monotonic() - begun
        finally:
            if held:
                self._turns.release()

    def _kept(self, call: Call, said: Message | str) -> Message | str:
        if isinstance(said, str):
            return "malformed" if said in (*OURS, READY) else said
        try:
            return self._keep(call, said)
        except Refused as refused:
            return refused.code

    def _mark_gone(self, site: str) -> str:
        self._silent.pop(site, None)
        self._lost.add(site)
        self._on_gone(site)
        return "gone"


class _Question:
    """How far one hospital is with a question: what the next call brings it.

    A small question is sent at once. For a large one, and after a large one was lost, it is first asked whether it is
    there at all (`look`, `poll`), so that one that is not keeps no turn from the others. The bytes of a question are
    made for each call that brings them, and not kept.
    """

    def __init__(self, call: Call, message: Message) -> None:
        self._call, self._message = call, message
        self._large = sum(tensor.nbytes for tensor in message.tensors.values()) > SMALL
        self._key, self._step, self.unknown = "", "look" if self._large else "send", 0

    @property
    def carries(self) -> bool:
        """Whether the next call carries many bytes, here or back."""
        return self._step == "fetch" or (self._step == "send" and self._large)

    def ask(self, reach: Reach, left_s: float | None, patience_s: float) -> Message | str:
        """One call. A failed one takes at least a second, if there is time, because it is repeated at once."""
        begun, left = time.monotonic(), WAIT_S if left_s is None else left_s
        timeout = patience_s if left_s is None else min(patience_s, max(left, 1.0))
        wait = 0.0 if self.carries or self._step == "look" else min(left, WAIT_S)
        question = wire.question(self._call, self._message) if self._step == "send" else b""
        self._key = hashlib.sha256(question).hexdigest() if question else self._key
        try:
            return wire.read_answer(reach(self._key, question, wait, timeout))
        except Unreachable:
            self._step = {"send": "look" if self._large else "send", "fetch": "poll"}.get(self._step, self._step)
            time.sleep(max(0.0, min(1.0, left) - (time.monotonic() - begun)))
            raise

    def heard(self, said: Message | str) -> bool:
        """Note what a hospital said; whether there is more to come."""
        self.unknown = self.unknown + 1 if said == UNKNOWN else 0
        steps = {UNKNOWN: "send", WORKING: "poll"} | ({} if self._step == "fetch" else {READY: "fetch"})
        if not isinstance(said, str) or said not in steps:
            return False
        self._step = steps[said]
        return True
