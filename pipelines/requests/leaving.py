"""What left a hospital in answer to a request, with what the request declares of its replies."""

from __future__ import annotations

from evaluation.leaving import Left, Records
from pipelines.requests import REQUESTS
from pipelines.requests.train import HIDDEN_BRIEF, HIDDEN_SAYS, SILENT_BRIEF, SILENT_SAYS

TO = " to outside"
"""Suffix of a request whose reply went to external sites."""


def left_in(site: str, request: str, content: str, records: Records, messages: int = 0, size: int = 0) -> Left:
    """What left. request: its name, perhaps with `TO`. size: in bytes."""
    declared = REQUESTS.get(request.removesuffix(TO))
    brief, of_patients = ("", "") if declared is None else (declared.brief, declared.records)
    others = {HIDDEN_SAYS: HIDDEN_BRIEF, SILENT_SAYS: SILENT_BRIEF}
    brief = next((words for says, words in others.items() if content.startswith(says)), brief)
    return Left(site, request, messages, size, content=content, brief=brief, records=records, of_patients=of_patients)
