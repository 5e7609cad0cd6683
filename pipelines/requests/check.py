"""A question is parsed once, before its handler reads a patient: a later failure for a missing fact could not be told
from one that a patient's data caused.
"""

from __future__ import annotations

from typing import Any

from pipelines.requests import REQUESTS
from pipelines.requests.report import REPORT, OutsideReport
from privacy.message import Message
from privacy.release.form import Misformed, read_form
from privacy.release.gate import Refused

MALFORMED = "malformed_request"


def parse_question(name: str, message: Message) -> Any:
    """The question of a request.

    Raises:
        Refused: the code of the facts that are wrong, if they have one, else `malformed_request`; its cause names every
            fact that is missing or of another type, without its value.
    """
    request = REQUESTS[name]
    if message.tensors and not request.takes_tensors:
        raise Refused(MALFORMED) from ValueError(f"{name} takes no tensors, found {len(message.tensors)}")
    if text := request.problem(message.tensors):
        raise Refused(MALFORMED) from ValueError(text)
    form = OutsideReport if request is REPORT and "lines" in message.facts else request.question
    try:
        return read_form(form, message)
    except Misformed as error:
        codes = {flaw.code for flaw in error.flaws}
        raise Refused(codes.pop() if len(codes) == 1 and codes != {""} else MALFORMED) from error
