"""NVIDIA FLARE carries the conversation between real hospitals: the one file that imports it.

FLARE's Collab API gives one remote call a hospital, over mutual TLS. Work there can take hours, and a call that waits
for hours cannot tell a hospital that works from one that is gone. So calls are short: the first brings the question,
the hospital works on in a thread of its own, and the coordinator comes back for the answer every few seconds. What is
raised in a published function goes back with its traceback; ours raise nothing: what crosses is `federation.wire`'s.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Protocol, TypeVar, cast

from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted
from nvflare.fuel.flare_api.flare_api import new_secure_session

from federation import wire
from federation.engine import Answers, Worker
from privacy.message import Call, Message

WAIT_S = 10.0
"""How long a hospital keeps one call open while it works."""
AGAIN_S = 15.0
"""Silence that is waited for where a hospital was gone when it was asked last: FLARE gives no job a process back."""
MOST = 3
"""Questions that a hospital works on or keeps waiting; a late one, the next, and one to spare."""
TRIES = 3
"""How often a hospital may say that it does not know a question that was sent."""
COORDINATOR = "server"
"""The coordinator's name in FLARE. Hospitals of one job can call each other; they get no answer here."""
WORKING, UNKNOWN = "working", "unknown_question"
OURS = ("unknown_site", "gone", "late", "stopped")
"""Codes that the engine gives, and no hospital may."""

F = TypeVar("F", bound=Callable[..., object])


def _published(function: F) -> F:
    return cast(F, collab.publish(function))


def _main(function: F) -> F:
    return cast(F, collab.main(function))


class Ward:
    """What a hospital's FLARE process publishes: its worker, one question at a time."""

    def __init__(self, worker: Worker, caller: Callable[[], str] = lambda: collab.caller) -> None:
        self._worker = worker
        self._caller = caller
        self._hands = ThreadPoolExecutor(1, "ward")
        self._begun: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()

    @_published
    def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
        """The answer, or `working` after `wait_s`. key: sha256 of the question, which is sent once; empty later."""
        if self._caller() != COORDINATOR:
            return wire.coded("not_the_coordinator")
        if not (isinstance(key, str) and isinstance(question, bytes) and isinstance(wait_s, int | float)):
            return wire.coded("malformed")
        with self._lock:
            begun = self._begun.get(key)
            if begun is None:
                if hashlib.sha256(question).hexdigest() != key:
                    return wire.coded(UNKNOWN)
                self._begun = {old: work for old, work in self._begun.items() if not work.done()}
                if len(self._begun) >= MOST:
                    return wire.coded("busy")
                begun = self._begun[key] = self._hands.submit(wire.answer, self._worker, question)
        try:
            return begun.result(timeout=min(max(wait_s, 0.0), WAIT_S))
        except TimeoutError:
            return wire.coded(WORKING)


class Proxy(Protocol):
    """A hospital as FLARE shows it to the coordinator."""

    def __call__(self, *, timeout: float) -> Ward:
        """The same, with a limit of silence in s for calls."""
        ...


class Flare:
    """The engine over FLARE. All hospitals work at once.

    sites: who takes part; one without a proxy is `gone` until another job has it. silence_s: without a sign of life for
    so long, a hospital is `gone`; silence adds up over questions whose deadline is shorter. A transfer that goes on is
    a sign of life. on_gone: told of each that is gone.
    """

    def __init__(
        self,
        proxies: Mapping[str, Proxy],
        sites: Sequence[str],
        *,
        silence_s: float = 60.0,
        on_gone: Callable[[str], None] = lambda site: None,
    ) -> None:
        self._proxies, self._sites = proxies, tuple(sorted(sites))
        self._silence_s, self._on_gone = silence_s, on_gone
        self._lost: set[str] = set()
        self._silent: dict[str, float] = {}  # seconds for which it was asked and said nothing

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the hospitals, sorted."""
        return self._sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`; `unknown_site`, `gone`, `late` and `malformed` are codes of this engine."""
        until = None if deadline_s is None else time.monotonic() + deadline_s
        with ThreadPoolExecutor(max(1, len(messages)), "ask") as pool:
            asked = {site: pool.submit(self._ask, site, call, messages[site], until) for site in sorted(messages)}
        found = {site: future.result() for site, future in asked.items()}
        replies = {site: reply for site, reply in found.items() if isinstance(reply, Message)}
        return Answers(replies, {site: code for site, code in found.items() if isinstance(code, str)})

    def _ask(self, site: str, call: Call, message: Message, until: float | None) -> Message | str:
        if site not in self._sites:
            return "unknown_site"
        if site not in self._proxies:
            return self._gone(site)
        question = wire.question(call, message)
        key, known, unknown = hashlib.sha256(question).hexdigest(), False, 0
        heard = time.monotonic() - self._silent.pop(site, 0.0)
        patience = min(self._silence_s, AGAIN_S) if site in self._lost else self._silence_s
        while True:
            left = WAIT_S if until is None else until - time.monotonic()
            if left <= 0:
                self._silent[site] = time.monotonic() - heard
                return "late" if self._silent[site] <= patience else self._gone(site)
            begun = time.monotonic()
            try:
                proxy = self._proxies[site](timeout=min(patience, max(left, 1.0)) if until is not None else patience)
                said = wire.answered(proxy.answer(key, b"" if known else question, min(left, WAIT_S)))
            except RunAborted:  # by the operator, or FLARE
                return "stopped"
            except CollabCallError:
                if time.monotonic() - heard > patience:
                    return self._gone(site)
                time.sleep(max(0.0, min(1.0, left) - (time.monotonic() - begun)))
                continue
            heard, patience = time.monotonic(), self._silence_s
            self._lost.discard(site)
            if said not in (WORKING, UNKNOWN):
                if until is not None and time.monotonic() > until:
                    return "late"
                return "malformed" if said in OURS else said
            unknown = unknown + 1 if said == UNKNOWN else 0
            if unknown > TRIES:
                return "malformed"
            known = said == WORKING

    def _gone(self, site: str) -> str:
        self._silent.pop(site, None)
        self._lost.add(site)
        self._on_gone(site)
        return "gone"


class Bureau:
    """What the coordinator's FLARE process runs, once: the work, with the hospitals that are in the job."""

    def __init__(self, work: Callable[[Mapping[str, Proxy]], None]) -> None:
        self._work = work

    @_main
    def run(self) -> None:
        """Do it."""
        self._work({client.name: client for client in collab.clients})


class Jobs:
    """The door through which the coordinator submits jobs. kit: the startup kit of who may.

    Raises:
        ConnectionError: by every function: FLARE's server is not there, or lets nobody in who has this kit.
    """

    def __init__(self, kit: Path, *, patience_s: float = 10.0) -> None:
        said = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]
        with _as_connection_error():
            self._session = new_secure_session(said["username"], str(kit), timeout=patience_s)

    def submit(self, folder: Path) -> str:
        """Hand in a job; returns its identifier."""
        with _as_connection_error():
            return str(self._session.submit_job(str(folder)))

    def running(self, job: str) -> bool:
        """Whether a job is still to end."""
        with _as_connection_error():
            return not str(self._session.get_job_status(job)).startswith("FINISHED")

    def signs_of_life(self) -> dict[str, str]:
        """When each connected hospital was heard last."""
        with _as_connection_error():
            return {one.name: str(one.last_connect_time) for one in self._session.get_system_info().client_info}

    def abort(self, job: str) -> None:
        """End a job at once."""
        with _as_connection_error():
            self._session.abort_job(job)

    def close(self) -> None:
        """Leave."""
        with suppress(Exception):
            self._session.close()


@contextmanager
def _as_connection_error() -> Iterator[None]:
    """FLARE's many ways to say so, as one. It also prints, which is nobody's business."""
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except Exception as error:
        raise ConnectionError(f"FLARE's server: {type(error).__name__}: {error}") from error
