"""NVIDIA FLARE carries the calls of `federation.remote` between real hospitals.

FLARE's Collab API offers one remote call per hospital, over mutual TLS. An exception in a published function is sent
back with its traceback; ours raise nothing: errors are sent as codes of `federation.wire`.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Protocol, TypeVar, cast

from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted
from nvflare.fuel.flare_api.flare_api import new_secure_session

from federation import wire
from federation.engine import Worker
from federation.remote import Pending, Reach, Stopped, Unreachable

COORDINATOR = "server"
"""The coordinator's name in FLARE. Hospitals of one job could call each other; here such calls are refused."""

_SILENT = logging.NullHandler()
"""Silences FLARE's log in the operator's process: we report a lost server ourselves, once."""

LITTER = 2**26
"""Bytes of calls after which garbage is collected. FLARE's objects hold sent messages and refer to each other, so that
only a full collection frees them, and Python starts one by the number of objects, not by their size."""

F = TypeVar("F", bound=Callable[..., object])


def _publish(function: F) -> F:
    """FLARE's decorator for functions that hospitals publish, typed."""
    return cast(F, collab.publish(function))


def _main(function: F) -> F:
    """FLARE's decorator for the coordinator's function, typed."""
    return cast(F, collab.main(function))


class ClientApp:
    """The functions that a hospital's FLARE process publishes."""

    def __init__(
        self, worker: Worker, caller: Callable[[], str] = lambda: collab.caller, *, folder: Path | None = None
    ) -> None:
        """folder: see `Pending`."""
        self._pending, self._caller, self._note = Pending(worker, folder), caller, build_collector()

    @_publish
    def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
        """See `Pending.answer`; callers other than the coordinator get an error code."""
        if self._caller() != COORDINATOR:
            return wire.code_answer("not_the_coordinator")
        answer = self._pending.answer(key, question, wait_s)
        self._note(len(question) + len(answer))
        return answer


class Proxy(Protocol):
    """A hospital as FLARE shows it to the coordinator."""

    def __call__(self, *, timeout: float) -> ClientApp:
        """The same hospital, with a limit in s on silence during a call. An ongoing transfer is no silence."""
        ...


def build_collector(litter: int = LITTER) -> Callable[[int], None]:
    """A function that takes the bytes of each call, and collects garbage when their sum reaches `litter`."""
    lock, carried = threading.Lock(), 0

    def note_bytes(size: int) -> None:
        nonlocal carried
        with lock:
            carried += size
            full = carried >= litter
            carried = 0 if full else carried
        if full:
            gc.collect()

    return note_bytes


def build_reach(proxy: Proxy, note: Callable[[int], None] = lambda size: None) -> Reach:
    """A function that calls the hospital behind a proxy. note: called with the bytes of each call."""

    def call_hospital(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
        try:
            reply = proxy(timeout=timeout_s).answer(key, question, wait_s)
            note(len(question) + (len(reply) if isinstance(reply, bytes) else 0))
            return reply
        except RunAborted as error:  # by the operator, or FLARE
            raise Stopped(str(error)) from error
        except CollabCallError as error:
            raise Unreachable(str(error)) from error

    return call_hospital


class ServerApp:
    """The function that the coordinator's FLARE process runs once: `work`, with the hospitals of the job."""

    def __init__(self, work: Callable[[Mapping[str, Reach]], None]) -> None:
        self._work = work

    @_main
    def run(self) -> None:
        """Do the work with the hospitals of the job."""
        note = build_collector()
        self._work({client.name: build_reach(client, note) for client in collab.clients})


class Jobs:
    """Submits the coordinator's jobs to FLARE. kit: the startup kit of a user who may submit.

    Raises:
        ConnectionError: from every function: FLARE's server cannot be reached, or refuses this kit.
    """

    def __init__(self, kit: Path, *, patience_s: float = 10.0) -> None:
        logging.getLogger("nvflare").addHandler(_SILENT)
        admin = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]
        with _as_connection_error():
            self._session = new_secure_session(admin["username"], str(kit), timeout=patience_s)

    def submit(self, folder: Path) -> str:
        """Submit a job; returns its identifier."""
        with _as_connection_error():
            return str(self._session.submit_job(str(folder)))

    def running(self, job: str) -> bool:
        """Whether a job has not finished yet."""
        with _as_connection_error():
            return not str(self._session.get_job_status(job)).startswith("FINISHED")

    def signs_of_life(self) -> dict[str, str]:
        """When each connected hospital last sent a heartbeat."""
        with _as_connection_error():
            return {
                client.name: str(client.last_connect_time) for client in self._session.get_system_info().client_info
            }

    def abort(self, job: str) -> None:
        """End a job at once."""
        with _as_connection_error():
            self._session.abort_job(job)

    def close(self) -> None:
        """Close the session."""
        with suppress(Exception):
            self._session.close()


@contextmanager
def _as_connection_error() -> Iterator[None]:
    """FLARE's exceptions as ConnectionError; what FLARE prints is discarded."""
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except Exception as error:
        raise ConnectionError(f"FLARE's server: {type(error).__name__}: {error}") from error
