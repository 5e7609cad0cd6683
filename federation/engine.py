"""The engine: sends one request to each site and returns the replies.

Methods, stages and sites do not depend on the engine. The engine here simulates all sites in one process, one after
another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from privacy.message import Call, Message
from privacy.release.gate import Refused

Worker: TypeAlias = Callable[[Call, Message], Message]
"""The function that answers at a site: worker(call, message) -> reply, or raises Refused with a code."""


class Answers(NamedTuple):
    """replies: by site; missing: site -> the code of the reason. Every asked site is in exactly one of them."""

    replies: Mapping[str, Message]
    missing: Mapping[str, str]


class Engine(Protocol):
    """Sends requests to sites and collects the replies."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        ...

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """Send each named site its message. A site that fails, refuses or is late is in `missing` with a code; no
        exception is raised.
        """
        ...


@runtime_checkable
class Eager(Protocol):
    """An engine whose sites can begin before anybody waits for them, as those on other machines can."""

    def begin(self, call: Call, messages: Mapping[str, Message]) -> None:
        """Send each named site its message, and return at once. A later `ask` of the same call waits for the replies;
        a call that was begun before is not sent again.
        """
        ...


_ON_ANSWER: ContextVar[Callable[[str], None]] = ContextVar("heard", default=lambda site: None)


@contextmanager
def listen_for_answers(on_answer: Callable[[str], None]) -> Iterator[None]:
    """Within this context every engine calls `on_answer` with each site that has answered, by reply or code."""
    token = _ON_ANSWER.set(on_answer)
    try:
        yield
    finally:
        _ON_ANSWER.reset(token)


def report_answer(site: str) -> None:
    """Report that a site has answered; engines call this."""
    _ON_ANSWER.get()(site)


class InProcess:
    """All sites in this process. A late reply counts as lost, although the site has stored it."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = dict(sorted(workers.items()))

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return tuple(self._workers)

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`; `unknown_site` and `failed` are codes of this engine, the rest are the site's own."""
        replies: dict[str, Message] = {}
        missing: dict[str, str] = {}
        for site in sorted(messages):
            started = time.monotonic()
            reply = _ask_worker(self._workers.get(site), call.at(site), messages[site])
            if isinstance(reply, str):
                missing[site] = reply
            elif deadline_s is not None and time.monotonic() - started > deadline_s:
                missing[site] = "late"
            else:
                replies[site] = reply
            report_answer(site)
        return Answers(replies, missing)


def _ask_worker(worker: Worker | None, call: Call, message: Message) -> Message | str:
    """The worker's reply, or the code of its refusal or failure."""
    if worker is None:
        return "unknown_site"
    try:
        return worker(call, message)
    except Refused as refused:
        return refused.code
    except Exception:
        return "failed"
