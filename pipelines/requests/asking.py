"""Ask hospitals what a request declares, and read what they reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from federation.engine import Engine
from pipelines.requests.request import Request
from pipelines.requests.writing import read_reply, to_message
from privacy.message import Call, Message
from privacy.release.form import Misformed

Q = TypeVar("Q")
R = TypeVar("R")
UNEXPECTED = "unexpected_reply"
"""Code of a site whose reply is not one that its request declares."""


def is_refusal(code: str) -> bool:
    """Whether a policy refused, and nothing failed."""
    return code.startswith("policy_")


class Answered(NamedTuple, Generic[R]):
    """replies: by site; missing: site -> the code of the reason. Every asked site is in exactly one of them. messages:
    all that came, as it came.
    """

    replies: Mapping[str, R]
    missing: Mapping[str, str]
    messages: Mapping[str, Message]


def ask(engine: Engine, request: Request[Q, R], runs: Mapping[str, str], questions: Mapping[str, Q]) -> Answered[R]:
    """Send each site its question, all at once. runs: site -> the run to which its question belongs."""
    shared_run = next(iter(runs.values())) if len({*runs.values()}) == 1 else ""
    call = Call(shared_run, 0, request.name, {}, {} if shared_run else dict(runs))
    # Hospitals that are asked the same get the same message, which is serialized once.
    messages_by_question = {id(question): to_message(question) for question in questions.values()}
    answers = engine.ask(call, {site: messages_by_question[id(question)] for site, question in questions.items()})
    replies, missing = dict[str, R](), dict(answers.missing)
    for site, message in answers.replies.items():
        try:
            replies[site] = read_reply(request, message)
        except Misformed:
            missing[site] = UNEXPECTED
    return Answered(replies, missing, answers.replies)
