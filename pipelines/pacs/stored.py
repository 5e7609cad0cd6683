"""What an archive's answer to a stored file means (PS3.18, 10.5.3): taken, or why not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import requests

from pipelines.pacs.archive import Odd
from pipelines.pacs.multipart import media_type

FAILED, TAKEN, INSTANCE, REASON = "00081198", "00081199", "00081155", "00081197"
ALREADY_THERE = (0x0111, 0xB007)  # PS3.4 and PS3.18: duplicate SOP instance
JSON, XML = ("application/dicom+json", "application/json"), ("application/dicom+xml", "application/xml", "text/xml")


def find_refusal(response: requests.Response, instance: str) -> Odd | None:
    """None if this one file is taken. Odd: `refused`, with the archive's number; `unconfirmed`, where the answer does
    not name it; `wrong_content_type`, `no_json`.
    """
    status, kind = response.status_code, media_type(response.headers.get("Content-Type", ""))[0]
    if status not in (200, 202, 409):
        return Odd(instance, "refused", f"the archive answers {status}")
    if kind in XML:  # asked for JSON; no parser of ours reads XML of strangers
        if status == 200 and instance in response.text and "FailedSOPSequence" not in response.text:
            return None
        return Odd(instance, "unconfirmed", f"the archive answers {status} in XML, and not that it took the file")
    if kind not in JSON:
        return Odd(instance, "wrong_content_type", f"the archive answers {status}, and not in JSON")
    try:
        answer = json.loads(response.content)
    except (ValueError, RecursionError):
        return Odd(instance, "no_json", f"the archive answers {status}, and its answer is no JSON")
    answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    for item in _list_items(answer, FAILED):
        if _first_value(item, INSTANCE) == instance:
            reason = _first_value(item, REASON)
            if reason in ALREADY_THERE:
                return None
            number = f"0x{reason:04X}" if isinstance(reason, int) and 0 <= reason <= 0xFFFF else "none"
            return Odd(instance, "refused", f"the archive refuses it, reason {number} (PS3.18, table 10.5.3-2)")
    if any(_first_value(item, INSTANCE) == instance for item in _list_items(answer, TAKEN)):
        return None
    return Odd(instance, "unconfirmed", f"the archive answers {status}, and not that it took the file")


def _list_items(answer: object, tag: str) -> Iterator[object]:
    element = answer.get(tag) if isinstance(answer, Mapping) else None
    values = element.get("Value") if isinstance(element, Mapping) else None
    yield from values if isinstance(values, list) else ()


def _first_value(item: object, tag: str) -> object:
    element = item.get(tag) if isinstance(item, Mapping) else None
    values = element.get("Value") if isinstance(element, Mapping) else None
    return values[0] if isinstance(values, list) and values else None
