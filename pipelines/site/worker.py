"""The way into a hospital: one call in, one message out, or a code.

Every answer goes the same way: do the work once and commit it, write the ledger line, let it go. Any failure
becomes a code on the other side of the wall, and a traceback in the hospital's own log.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, TypedDict

from federation.conversation import once
from federation.engine import Worker
from pipelines.site import admit, attack, files, learn, page, score
from pipelines.site.hospital import Done, Hospital
from privacy.chain import Damaged
from privacy.events import NOTHING, Declared, describe
from privacy.gate import Refused, book_refusal, release
from privacy.message import Call, Json, Message, from_bytes, to_bytes
from privacy.policy import COORDINATOR

Handler: TypeAlias = Callable[[Hospital, Call, Message, Message], Done]
"""handler(hospital, call, message, memory) -> Done"""

FRESH: Mapping[str, Handler] = {"survey": files.survey_files, "holds": admit.holds, "report": page.report}
"""Questions about the disk as it is now: answered anew each time."""

ONCE: Mapping[str, Handler] = {
    "moments": admit.pooled_moments,
    "ingest": admit.ingest,
    "introduce": learn.introduce,
    "train": learn.train,
    "finish": learn.finish,
    "export": learn.export,
    "pool": learn.pool,
    "evaluate": score.evaluate,
    "audit": attack.attack_models,
}
"""Work: done once per (run, round, request), committed before anything leaves."""

REPEATABLE = ("moments", "ingest", "export", "pool", "evaluate", "audit")
"""Work that trains nothing: a committed answer that is damaged may be made again, and comes out the same."""


def worker(hospital: Hospital) -> Worker:
    """The function that an engine calls for this hospital."""

    def answer(call: Call, message: Message) -> Message:
        place: Place = {"call": call, "ledger": hospital.ledger, "recipient": COORDINATOR, "now": hospital.now()}
        policy = hospital.policy
        if policy.allows(call.request):  # what the policy forbids is not even worked on; the gate refuses it
            reply, event, replay = _tried(hospital, call, message, place)
        else:
            reply, event, replay = b"", describe(NOTHING), False
        try:
            release(reply, event, policy=policy, replay=replay, **place)
        except Refused as refused:
            _log(hospital, f"{call.run} round {call.round} {call.request}: refused with code {refused.code}")
            raise
        except OSError as error:  # what cannot be written down does not leave
            raise Refused("disk") from error
        except Damaged as error:
            with suppress(OSError):
                _log(hospital, f"{call.run} round {call.round} {call.request}: {error}")
            raise Refused("damaged_ledger") from error
        return from_bytes(reply)

    return answer


class Place(TypedDict):
    """What every line of the ledger says."""

    call: Call
    ledger: Path
    recipient: str
    now: str


def _tried(hospital: Hospital, call: Call, message: Message, place: Place) -> tuple[bytes, Json, bool]:
    """Do the work; what goes wrong leaves as a code, with its line in the ledger and its story in the log.

    Raises:
        Refused: with the code. Whether a request fails can depend on patients: the ledger says that it was told.
    """
    try:
        return _work(hospital, call, message)
    except Exception as error:
        code = error.code if isinstance(error, Refused) else "disk" if isinstance(error, OSError) else "failed"
        told = f"refused with code {code}: {error.__cause__ or ''}" if isinstance(error, Refused) else trace(error)
        with suppress(OSError, Damaged):  # the code must still leave, and the coordinator must still stop
            _log(hospital, f"{call.run} round {call.round} {call.request}: {told}")
            book_refusal(code, describe(Declared("failure")), **place)
        raise Refused(code) from error


def _work(hospital: Hospital, call: Call, message: Message) -> tuple[bytes, Json, bool]:
    """The serialized reply, its event, and whether it was committed before."""
    if call.request in FRESH:
        done = FRESH[call.request](hospital, call, message, Message())
        return to_bytes(done.reply), done.event, False
    handler = ONCE.get(call.request)
    if handler is None:
        raise Refused("unknown_request")

    def work(memory: Message) -> tuple[Message, Message]:
        done = handler(hospital, call, message, memory)
        return done.reply, Message(done.memory.tensors, {**done.memory.facts, "event": done.event})

    if call.request in REPEATABLE:
        admit.forget_damaged(hospital, call)
    answer = once(hospital.conversation(call.run), call, hospital.name, work)
    if call.request in ("train", "finish") and not answer.again:
        learn.tidy(hospital, call, message, answer.memory)
    return answer.reply, answer.memory.facts["event"], answer.again


def trace(error: BaseException) -> str:
    """Where an error came from, without its words, which may quote a patient: files, lines and types only."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    parts = [
        f"{''.join(traceback.format_tb(one.__traceback__))}{type(one).__name__}{_errno(one)}" for one in reversed(links)
    ]
    return "\nwhich led to\n".join(["", *parts])


def _errno(error: BaseException) -> str:
    return f": {error.strerror}" if isinstance(error, OSError) else ""


def _log(hospital: Hospital, text: str) -> None:
    hospital.root.mkdir(parents=True, exist_ok=True)
    with (hospital.root / "log.txt").open("a", encoding="utf-8") as file:
        file.write(f"{hospital.now()} {text}\n")
