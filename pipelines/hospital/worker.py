"""The entry to a hospital: one request in; one reply, or an error code, out.

Every request takes the same steps: do the work once and commit it, write the ledger line, send the reply. The
coordinator sees a failure as a code only; the traceback goes into the hospital's own log.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar

from federation.conversation import answer_once, load_memory
from federation.engine import Worker
from federation.origins import PACKAGES, list_origins
from federation.registry import NotPermitted, Permission, permit_packages
from pipelines import requests
from pipelines.hospital import attacks as attack
from pipelines.hospital import files, promises, route
from pipelines.hospital import intake as admit
from pipelines.hospital import scoring as score
from pipelines.hospital import synthesis as imitate
from pipelines.hospital import training as learn
from pipelines.hospital import translation as translate
from pipelines.hospital.augmenting import augment_cohort
from pipelines.hospital.benchmark import score_signed_model
from pipelines.hospital.features import extract_features
from pipelines.hospital.figures import release_figures
from pipelines.hospital.fingerprint import measure_patients
from pipelines.hospital.hospital import Context, Done, Hospital
from pipelines.hospital.page import page
from pipelines.hospital.paid_once import MEANING, check_paid_once, meaning_of
from pipelines.hospital.private_limits import check_may_answer, check_paid
from pipelines.hospital.recommending import compare_models
from pipelines.hospital.tracking import agree_to_tracking
from pipelines.requests import REQUESTS, Repeat, Request
from pipelines.requests.check import parse_question
from pipelines.requests.fingerprint import Fingerprint
from pipelines.requests.reading import Reading
from pipelines.requests.writing import to_message
from pipelines.runs.exits import format_trace
from pipelines.runs.stopping import Stopped
from pipelines.runs.written import collect_written_files
from privacy.dp.events import NOTHING, Declared, describe_event
from privacy.message import Buffer, Call, Json, Message, to_bytes
from privacy.release.bounds import check_request, remove_controls
from privacy.release.chain import Damaged
from privacy.release.gate import Refused, book_refusal, release_reply
from privacy.release.policy import COORDINATOR
from privacy.system_errors import classify_failure

Q = TypeVar("Q")
R = TypeVar("R")
Handler: TypeAlias = Callable[[Hospital, Context[Any]], Done[Any]]
"""handler(hospital, asked) -> Done"""


def pair_handler(request: Request[Q, R], handler: Callable[[Hospital, Context[Q]], Done[R]]) -> tuple[str, Handler]:
    """A request's name and its handler, which takes the request's question and gives one of its replies."""
    return request.name, handler


HANDLERS: Mapping[str, Handler] = dict(
    (
        pair_handler(requests.SURVEY, files.survey_files),
        pair_handler(requests.FINGERPRINT, measure_patients),
        pair_handler(requests.MOMENTS, admit.pooled_moments),
        pair_handler(requests.INGEST, admit.ingest_cohort),
        pair_handler(requests.SCORE, imitate.score_images),
        pair_handler(requests.SYNTHESIZE, imitate.synthesize_images),
        pair_handler(requests.SAMPLE, imitate.sample_shared_images),
        pair_handler(requests.TRANSLATE, translate.translate),
        pair_handler(requests.AUGMENT, augment_cohort),
        pair_handler(requests.EXTRACT, extract_features),
        pair_handler(requests.INTRODUCE, learn.introduce),
        pair_handler(requests.TRAIN, learn.train),
        pair_handler(requests.FINISH, learn.finish_training),
        pair_handler(requests.FIGURES, release_figures),
        pair_handler(requests.EXPORT, learn.export_model),
        pair_handler(requests.POOL, learn.pool_images),
        pair_handler(requests.EVALUATE, score.evaluate_model),
        pair_handler(requests.AUDIT, attack.attack_models),
        pair_handler(requests.ROUTE, route.route_models),
        pair_handler(requests.BENCHMARK, score_signed_model),
        pair_handler(requests.COMPARE, compare_models),
        pair_handler(requests.TRACK, agree_to_tracking),
        pair_handler(requests.REPORT, page.write_report),
        pair_handler(requests.HOLDS, admit.check_holdings),
    )
)
"""Work that a request asks for. It is committed before anything leaves, once per (run, round, request), unless the
request is answered anew each time (`Repeat.ANEW`)."""
ROUNDS = {name: request.rounds for name, request in REQUESTS.items()}
LONGEST = 1000
"""Most characters of a reason in the log."""


def make_worker(hospital: Hospital) -> Worker:
    """The function that an engine calls for this hospital. It raises `Refused` only: whatever else goes wrong becomes
    its code, and a line in the hospital's log.
    """

    def answer(call: Call, message: Message) -> Message:
        try:
            return _answer_call(hospital, call, message)
        except Refused:
            raise
        except Exception as error:  # a reply without its ledger line must not leave, nor a failure without a line
            call_text = remove_controls(f"{call.run} round {call.round} {call.request}")[:LONGEST]
            write_log_line(hospital, f"{call_text}: {format_trace(error)}")
            raise Refused(classify_failure(error)) from error

    return answer


def _answer_call(hospital: Hospital, call: Call, message: Message) -> Message:
    """The reply, once it is in the ledger. Raises: Refused, or what went wrong on the way out."""
    policy = hospital.policy
    place: Place = {"call": call, "ledger": hospital.ledger, "recipient": COORDINATOR, "now": hospital.now()}
    done = Work(b"", describe_event(NOTHING))
    with permit_packages(policy.plugins) as allowed:
        question = _parse_request(hospital, call, message, place)
        if policy.allows(call.request):  # no work on what the policy forbids; the gate refuses it below
            done = _try_work(hospital, Context(call, question, message), allowed, place)
    try:
        place["recipient"] = done.recipient
        how: Replay = {"replay": done.replay, "commit": done.commit}
        reply = release_reply(
            done.reply, done.event, forms=REQUESTS[call.request].replies, policy=policy, **how, **place
        )
    except Refused as refused:
        text = f"refused with code {refused.code}: {describe_cause(refused)}".removesuffix(": ")
        write_log_line(hospital, f"{call.run} round {call.round} {call.request}: {text}")
        raise
    except Damaged as error:
        write_log_line(hospital, f"{call.run} round {call.round} {call.request}: {error}")
        raise Refused("damaged_ledger") from error
    with suppress(Exception):  # the reply has left; files that cannot be deleted do not change that
        # A kill may have come between the commit and this; only for the finish no later request makes up for it.
        if done.best and (call.request == "finish" or not done.replay):
            learn.delete_unneeded_models(hospital, call, done.best[0], done.memories)
    return reply


def _parse_request(hospital: Hospital, call: Call, message: Message, place: Place) -> Any:
    """Check and parse a request before any work; a refusal here adds no line to the ledger, but where a package is not
    permitted. What the policy forbids is not parsed.

    Raises:
        Refused: see `privacy.release.bounds.check_request` and `parse_question`.
    """
    try:
        check_request(call, message, ROUNDS)
        return parse_question(call.request, message) if hospital.policy.allows(call.request) else None
    except Refused as refused:
        write_log_line(hospital, f"a question was refused with code {refused.code}: {describe_cause(refused)}")
        raise
    except NotPermitted as error:
        raise _not_permitted(hospital, call, place, error) from error


class Work(NamedTuple):
    """The serialized reply, its privacy event, whether it was committed before, that commit's random name, and the
    recipient. memories: facts of the memory committed with it, and of the memory before the work. best: the globally
    best round in the request that was worked on, whatever a repeated request says; () if it was no training.
    """

    reply: Buffer
    event: Json
    replay: bool = False
    commit: str = ""
    recipient: str = COORDINATOR
    memories: tuple[Message, ...] = ()
    best: tuple[Json, ...] = ()


class Replay(TypedDict):
    """Whether a reply was committed before, and under which name."""

    replay: bool
    commit: str


class Place(TypedDict):
    """The fields of every ledger line."""

    call: Call
    ledger: Path
    recipient: str
    now: str


def _try_work(hospital: Hospital, context: Context[Any], allowed: Permission, place: Place) -> Work:
    """Do the work; turn an error into a code, with a line in the ledger and details in the log.

    Raises:
        Refused: with the code. Whether a request fails can depend on patients, so the ledger records the failure.
    """
    call = context.call
    try:
        check_may_answer(hospital)
        return _do_work(hospital, context, allowed)
    except NotPermitted as error:
        raise _not_permitted(hospital, call, place, error) from error
    except Stopped as stopped:  # stopped by a person, so it reveals nothing about patients
        raise Refused("stopped") from stopped
    except Exception as error:
        code = error.code if isinstance(error, Refused) else classify_failure(error)
        if code == "lost_ledger":  # writing a line would start a new ledger
            raise Refused(code) from error
        text = (
            f"refused with code {code}: {describe_cause(error)}" if isinstance(error, Refused) else format_trace(error)
        )
        _book_failure(hospital, call, place, code, text)
        raise Refused(code) from error


def _not_permitted(hospital: Hospital, call: Call, place: Place, error: NotPermitted) -> Refused:
    """The refusal of a package, booked."""
    refused = Refused("policy_plugin")
    _book_failure(
        hospital,
        call,
        place,
        refused.code,
        f"refused with code {refused.code}: {remove_controls(str(error))[:LONGEST]}",
    )
    return refused


def _book_failure(hospital: Hospital, call: Call, place: Place, code: str, text: str) -> None:
    write_log_line(hospital, f"{call.run} round {call.round} {call.request}: {text}")
    with suppress(OSError, Damaged):  # the code must still reach the coordinator
        book_refusal(code, describe_event(Declared("failure")), **place)


def _packages_of_reader(hospital: Hospital, call: Call) -> set[tuple[str, str, str]]:
    """The package whose reader wrote the files that a request reads, as `Permission.used` has it; empty without."""
    if hospital.settings is None or not issubclass(REQUESTS[call.request].question, Reading | Fingerprint):
        return set()
    return {(origin.what, origin.source, origin.digest) for origin in list_origins(hospital.settings.source)}


def _do_work(hospital: Hospital, context: Context[Any], allowed: Permission) -> Work:
    """Do the work, or read its committed reply. allowed: packages; which of them took part is committed, too."""
    call, message = context.call, context.message
    request, handler = REQUESTS[call.request], HANDLERS[call.request]
    if request.repeat is Repeat.ANEW:
        with collect_written_files() as written:
            done = handler(hospital, context)
        if written:
            promises.keep_promises(hospital, call, written)
        return Work(to_bytes(to_message(done.reply)), done.event)

    def work_and_commit(memory: Message) -> tuple[Message, Message]:
        check_paid(hospital, memory)
        check_paid_once(hospital, call, message)
        with collect_written_files() as written:
            done = handler(hospital, context._replace(memory=memory))
        if request.writes:
            promises.keep_promises(hospital, call, written)
        commit_facts: dict[str, Json] = {"best": message.facts.get("best")} if request.rounds else {}
        used = allowed.used | _packages_of_reader(hospital, call)
        commit_facts |= {PACKAGES: [list(package) for package in sorted(used)]} if used else {}
        commit_facts |= {} if request.rounds else {MEANING: meaning_of(call, message)}
        facts = {**done.memory.facts, **commit_facts, "event": done.event, "commit": secrets.token_hex(16)}
        return to_message(done.reply), Message(done.memory.tensors, facts)

    if request.repeat is not Repeat.ONCE:
        admit.forget_damaged(hospital, call)
    folder = hospital.conversation(call.run)
    answered = request.repeat is Repeat.RESTORED and folder.has(f"{call.request}-{call.round}")
    if answered and promises.find_broken_files(hospital, call) != []:
        work_and_commit(
            load_memory(folder, call.merged.get(hospital.name, 0))
        )  # its files again; its reply stays what it was
    answer = answer_once(folder, call, hospital.name, work_and_commit)
    facts = answer.memory.facts
    recipient = str(facts.get(learn.RECIPIENT, COORDINATOR))
    memories = (Message({}, facts), Message({}, answer.before.facts))
    commit, best = str(facts.get("commit", "")), (facts["best"],) if "best" in facts else ()
    return Work(answer.reply, facts["event"], answer.again, commit, recipient, memories, best)


def describe_cause(error: BaseException) -> str:
    """The error's cause on one line of limited length, because it may quote the request."""
    return remove_controls(str(error.__cause__ or ""))[:LONGEST]


def write_log_line(hospital: Hospital, text: str) -> None:
    """Add a line to the hospital's log; where it cannot be written, one line to the log of the process, which goes to
    stderr: what was asked, and the end of a trace.
    """
    line = f"{hospital.now()} {text}"
    try:
        hospital.root.mkdir(parents=True, exist_ok=True)
        with (hospital.root / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        first, *other_lines = line.strip().splitlines()
        short_text = " ".join([first, *other_lines[-1:]])
        why = error.strerror or type(error).__name__
        logging.getLogger(__name__).error("%s: log.txt cannot be written (%s): %s", hospital.name, why, short_text)
