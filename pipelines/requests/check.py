"""Check that a question is one of its request, before its handler reads a patient: a later failure for a missing fact
could not be told from one that a patient's data caused. Settings that only a parser knows are refused by it.
"""

from __future__ import annotations

from pipelines.requests import REQUESTS
from pipelines.requests.report import REPORT, OutsideReport
from privacy.message import Message
from privacy.release.form import problems
from privacy.release.gate import Refused


def check_question(name: str, message: Message) -> None:
    """Check that facts and tensors are those of this request.

    Raises:
        Refused: `malformed_request`; its cause names every fact that is missing or of another type, without its value.
    """
    request = REQUESTS[name]
    if message.tensors and not request.takes_tensors:
        wrong = [f"{name} takes no tensors, found {len(message.tensors)}"]
    elif text := request.problem(message.tensors):
        wrong = [text]
    else:
        form = OutsideReport if request is REPORT and "lines" in message.facts else request.question
        wrong = problems(form, message, closed=False)
    if wrong:
        raise Refused("malformed_request") from ValueError("; ".join(wrong[:5]))
