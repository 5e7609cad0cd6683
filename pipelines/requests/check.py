"""A question is parsed once, before its handler reads a patient: a later failure for a missing fact could not be told
from one that a patient's data caused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pipelines.requests import REQUESTS
from pipelines.requests.report import REPORT, OutsideReport
from pipelines.requests.train import INTRODUCE
from privacy.message import Message
from privacy.release.bounds import show_value
from privacy.release.form import Misformed, fields_of, read_form
from privacy.release.gate import Refused

MALFORMED = "malformed_request"
UNKNOWN = "unknown_setting"
"""The refusal code of a question that says something which this program does not know."""


def parse_question(name: str, message: Message) -> Any:
    """The question of a request.

    Raises:
        Refused: `unknown_setting`: see `check_all_known`; or the code of the facts that are wrong, if they have one,
            else `malformed_request`; its cause names every fact that is missing or of another type, without its value.
    """
    request = REQUESTS[name]
    form: type = OutsideReport if request is REPORT and "lines" in message.facts else request.question
    if request is not INTRODUCE:  # its facts are a run's settings, which `pipelines.hospital.opening` parses
        check_all_known(message.facts, {field.name for field in fields_of(form)})
    if message.tensors and not request.takes_tensors:
        raise Refused(MALFORMED) from ValueError(f"{name} takes no tensors, found {len(message.tensors)}")
    if text := request.problem(message.tensors):
        raise Refused(MALFORMED) from ValueError(text)
    try:
        return read_form(form, message)
    except Misformed as error:
        codes = {flaw.code for flaw in error.flaws}
        raise Refused(codes.pop() if len(codes) == 1 and codes != {""} else MALFORMED) from error


def check_all_known(names: Iterable[str], known: Collection[str]) -> None:
    """Every fact must be one that this program knows: what a later version asks for, such as more protection, must not
    be left out in silence. A coordinator sends a new setting only where it is used, so an older hospital refuses no
    run that it can take part in.

    Raises:
        Refused: `unknown_setting`.
    """
    if unknown := sorted(set(names) - set(known)):
        shown = ", ".join(show_value(name) for name in unknown[:5])
        raise Refused(UNKNOWN) from ValueError(
            f"this program knows no {shown}; the coordinator's is newer or differs: install one version at all sites"
        )
