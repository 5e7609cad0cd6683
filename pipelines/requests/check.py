"""A question is parsed once, before its handler reads a patient: a later failure for a missing fact could not be told
from one that a patient's data caused.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pipelines.requests import REQUESTS
from pipelines.requests.report import REPORT, OutsideReport
from privacy.message import Message
from privacy.release.form import UNDECLARED, UNDECLARED_SETTING, Misformed, read_form
from privacy.release.gate import Refused

T = TypeVar("T")
MALFORMED = "malformed_request"
UNKNOWN = "unknown_setting"
"""The refusal code of a question with a fact that this program does not know: what a later version asks for, such as
more protection, must not be left out in silence.
"""
NEWER = "this program knows no such fact: the coordinator's is newer or differs; install one version at all sites"
"""Said in a hospital's log of such a fact."""


def parse_question(name: str, message: Message) -> Any:
    """The question of a request.

    Raises:
        Refused: `unknown_setting`: it has a fact, in whatever depth, that this program does not know; or the code of
            the facts that are wrong, if they have one, else `malformed_request`. Its cause names every such fact,
            without its value.
    """
    request = REQUESTS[name]
    form = OutsideReport if request is REPORT and "lines" in message.facts else request.question
    question = read_question(form, message)
    if message.tensors and not request.takes_tensors:
        raise Refused(MALFORMED) from ValueError(f"{name} takes no tensors, found {len(message.tensors)}")
    if text := request.problem(message.tensors):
        raise Refused(MALFORMED) from ValueError(text)
    return question


def read_question(form: type[T], message: Message) -> T:
    """A message as the form of a question. Raises: Refused: as `parse_question`."""
    try:
        return read_form(form, message, closed=True)
    except Misformed as error:
        unknown = [flaw.where for flaw in error.flaws if flaw.what == UNDECLARED]
        if all(flaw.what in (UNDECLARED, UNDECLARED_SETTING) for flaw in error.flaws):  # else it is another group
            unknown = [flaw.where for flaw in error.flaws]
        if unknown:
            raise Refused(UNKNOWN) from ValueError(f"{', '.join(unknown[:5])}; {NEWER}")
        codes = {flaw.code for flaw in error.flaws}
        raise Refused(codes.pop() if len(codes) == 1 and codes != {""} else MALFORMED) from error
