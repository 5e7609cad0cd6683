"""The way into a hospital: one call in, one message out, or a code.

Every answer goes the same way: do the work once and commit it, write the ledger line, let it go. Any failure
becomes a code on the other side of the wall, and a traceback in the hospital's own log.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TypeAlias

from federation.conversation import once
from federation.engine import Worker
from pipelines.site import admit, learn, page, score
from pipelines.site.hospital import Done, Hospital
from privacy.events import NOTHING, describe
from privacy.gate import Refused, release
from privacy.message import Call, Json, Message, from_bytes, to_bytes
from privacy.policy import Policy

RECIPIENT = "coordinator"
Handler: TypeAlias = Callable[[Hospital, Call, Message, Message], Done]
"""handler(hospital, call, message, memory) -> Done"""

FRESH: Mapping[str, Handler] = {"survey": admit.survey_files, "holds": admit.holds}
"""Questions about the disk as it is now: answered anew each time."""

ONCE: Mapping[str, Handler] = {
    "ingest": admit.ingest,
    "introduce": learn.introduce,
    "train": learn.train,
    "finish": learn.finish,
    "export": learn.export,
    "pool": learn.pool,
    "evaluate": score.evaluate,
    "report": page.report,
}
"""Work: done once per (run, round, request), committed before anything leaves."""


def worker(hospital: Hospital) -> Worker:
    """The function that an engine calls for this hospital."""

    def answer(call: Call, message: Message) -> Message:
        try:
            allowed = _policy(hospital).allows(call.request)
            # What the policy forbids is not even worked on; the gate then refuses, and writes it down.
            reply, event, again = _work(hospital, call, message) if allowed else (b"", describe(NOTHING), False)
            release(
                reply,
                event,
                call=call,
                policy=_policy(hospital),
                ledger=hospital.ledger,
                recipient=RECIPIENT,
                now=hospital.now(),
                again=again,
            )
            return from_bytes(reply)
        except Refused as refused:
            _log(hospital, f"{call.run} round {call.round} {call.request}: refused with code {refused.code}")
            raise
        except Exception as error:
            _log(hospital, f"{call.run} round {call.round} {call.request}:\n{traceback.format_exc()}")
            raise Refused("failed") from error

    return answer


def _work(hospital: Hospital, call: Call, message: Message) -> tuple[bytes, Json, bool]:
    if call.request in FRESH:
        done = FRESH[call.request](hospital, call, message, Message())
        return to_bytes(done.reply), done.event, False
    handler = ONCE.get(call.request)
    if handler is None:
        raise Refused("unknown_request")

    def work(memory: Message) -> tuple[Message, Message]:
        done = handler(hospital, call, message, memory)
        return done.reply, Message(done.memory.tensors, {**done.memory.facts, "event": done.event})

    if call.request == "ingest":
        admit.forget_damaged(hospital, call)
    answer = once(hospital.conversation(call.run), call, hospital.name, work)
    if call.request in ("train", "finish"):
        learn.tidy(hospital, call, message, answer.memory)
    return answer.reply, answer.memory.facts["event"], answer.again


def _policy(hospital: Hospital) -> Policy:
    return hospital.settings.policy if hospital.settings is not None else hospital.policy


def _log(hospital: Hospital, text: str) -> None:
    hospital.root.mkdir(parents=True, exist_ok=True)
    with (hospital.root / "log.txt").open("a", encoding="utf-8") as file:
        file.write(f"{hospital.now()} {text}\n")
