"""The way into a hospital: one call in, one message out, or a code.

Every answer goes the same way: do the work once and commit it, write the ledger line, let it go. Any failure
becomes a code on the other side of the wall, and a traceback in the hospital's own log.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypedDict

from federation.conversation import once
from federation.engine import Worker
from pipelines.hospital import attacks as attack
from pipelines.hospital import files, route
from pipelines.hospital import intake as admit
from pipelines.hospital import scoring as score
from pipelines.hospital import synthesis as imitate
from pipelines.hospital import training as learn
from pipelines.hospital import translation as translate
from pipelines.hospital.hospital import Done, Hospital
from pipelines.hospital.page import page
from pipelines.hospital.private_limits import check_may_answer, check_paid
from pipelines.hospital.request_checks import check_question
from pipelines.runs.exits import trace
from pipelines.runs.stopping import Stopped
from privacy.dp.events import NOTHING, Declared, describe
from privacy.message import Call, Json, Message, from_bytes, to_bytes
from privacy.release.bounds import check, plain
from privacy.release.chain import Damaged
from privacy.release.gate import Refused, book_refusal, release
from privacy.release.policy import COORDINATOR

Handler: TypeAlias = Callable[[Hospital, Call, Message, Message], Done]
"""handler(hospital, call, message, memory) -> Done"""

FRESH: Mapping[str, Handler] = {"survey": files.survey_files, "holds": admit.holds, "report": page.report}
"""Questions about the disk as it is now: answered anew each time."""

ONCE: Mapping[str, Handler] = {
    "moments": admit.pooled_moments,
    "ingest": admit.ingest,
    "score": imitate.score,
    "synthesize": imitate.synthesize,
    "sample": imitate.sample,
    "translate": translate.translate,
    "introduce": learn.introduce,
    "train": learn.train,
    "finish": learn.finish,
    "export": learn.export,
    "pool": learn.pool,
    "evaluate": score.evaluate,
    "audit": attack.attack_models,
    "route": route.route,
}
"""Work: done once per (run, round, request), committed before anything leaves."""

LONGEST = 1000
"""Characters of a reason in the log."""
REPEATABLE = ("moments", "ingest", "sample", "translate", "export", "pool", "evaluate", "audit", "route")
"""Work that trains nothing: a committed answer that is damaged may be made again, and comes out the same."""


def worker(hospital: Hospital) -> Worker:
    """The function that an engine calls for this hospital."""

    def answer(call: Call, message: Message) -> Message:
        policy = hospital.policy
        _heard(hospital, call, message)
        place: Place = {"call": call, "ledger": hospital.ledger, "recipient": COORDINATOR, "now": hospital.now()}
        done = Work(b"", describe(NOTHING))
        if policy.allows(call.request):  # what the policy forbids is not even worked on; the gate refuses it
            done = _tried(hospital, call, message, place)
        try:
            place["recipient"] = done.recipient
            release(done.reply, done.event, policy=policy, replay=done.replay, commit=done.commit, **place)
        except Refused as refused:
            _log(hospital, f"{call.run} round {call.round} {call.request}: refused with code {refused.code}")
            raise
        except OSError as error:  # what cannot be written down does not leave
            raise Refused("disk") from error
        except Damaged as error:
            with suppress(OSError):
                _log(hospital, f"{call.run} round {call.round} {call.request}: {error}")
            raise Refused("damaged_ledger") from error
        with suppress(Exception):  # what left has left: a model too many on the disk is no reason to say otherwise
            if call.request in ("train", "finish") and not done.replay:
                learn.tidy(hospital, call, message, done.memories)
        return from_bytes(done.reply)

    return answer


def _heard(hospital: Hospital, call: Call, message: Message) -> None:
    """Check a request before anything is done: what is refused here leaves no line in the ledger.

    Raises:
        Refused: see `privacy.release.bounds.check` and `check_question`.
    """
    try:
        check(call, message)
        if hospital.policy.allows(call.request):
            check_question(call.request, message)
    except Refused as refused:
        with suppress(OSError):
            _log(hospital, f"a question was refused with code {refused.code}: {cause(refused)}")
        raise


class Work(NamedTuple):
    """The serialized reply, its event, whether it was committed before, the random name of that commit, and who gets
    it. memories: what was committed with it, and what the work began with; their facts only.
    """

    reply: bytes
    event: Json
    replay: bool = False
    commit: str = ""
    recipient: str = COORDINATOR
    memories: tuple[Message, ...] = ()


class Place(TypedDict):
    """The fields of every ledger line."""

    call: Call
    ledger: Path
    recipient: str
    now: str


def _tried(hospital: Hospital, call: Call, message: Message, place: Place) -> Work:
    """Do the work; an error leaves as a code, with its line in the ledger and its details in the log.

    Raises:
        Refused: with the code. Whether a request fails can depend on patients: the ledger says that it was told.
    """
    try:
        check_may_answer(hospital)
        return _work(hospital, call, message)
    except Stopped as stopped:  # by a person, not by a patient: nothing is told
        raise Refused("stopped") from stopped
    except Exception as error:
        code = error.code if isinstance(error, Refused) else "disk" if isinstance(error, OSError) else "failed"
        if code == "lost_ledger":  # a line would begin a new one
            raise Refused(code) from error
        told = f"refused with code {code}: {cause(error)}" if isinstance(error, Refused) else trace(error)
        with suppress(OSError, Damaged):  # the code must still leave, and the coordinator must still stop
            _log(hospital, f"{call.run} round {call.round} {call.request}: {told}")
            book_refusal(code, describe(Declared("failure")), **place)
        raise Refused(code) from error


def _work(hospital: Hospital, call: Call, message: Message) -> Work:
    """Do it, or find it done."""
    if call.request in FRESH:
        done = FRESH[call.request](hospital, call, message, Message())
        return Work(to_bytes(done.reply), done.event)
    handler = ONCE.get(call.request)
    if handler is None:
        raise Refused("unknown_request")

    def work(memory: Message) -> tuple[Message, Message]:
        check_paid(hospital, memory)
        done = handler(hospital, call, message, memory)
        facts = {**done.memory.facts, "event": done.event, "commit": secrets.token_hex(16)}
        return done.reply, Message(done.memory.tensors, facts)

    if call.request in REPEATABLE:
        admit.forget_damaged(hospital, call)
    answer = once(hospital.conversation(call.run), call, hospital.name, work)
    facts = answer.memory.facts
    recipient = str(facts.get(learn.RECIPIENT, COORDINATOR))
    memories = (Message({}, facts), Message({}, answer.before.facts))
    return Work(answer.reply, facts["event"], answer.again, str(facts.get("commit", "")), recipient, memories)


def cause(error: BaseException) -> str:
    """The reason, on one line of bounded length: it may quote the request."""
    return plain(str(error.__cause__ or ""))[:LONGEST]


def _log(hospital: Hospital, text: str) -> None:
    hospital.root.mkdir(parents=True, exist_ok=True)
    with (hospital.root / "log.txt").open("a", encoding="utf-8") as file:
        file.write(f"{hospital.now()} {text}\n")
