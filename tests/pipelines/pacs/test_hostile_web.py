"""Whatever is answered over HTTP ends as entry, file, `Odd`, `Unreachable` or `Denied`: soon, and in the folder."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest

import pipelines.pacs.inbox
import pipelines.pacs.patience
from archive_outcomes import outcome
from hostile_web import WEB, hostile_web, image
from pipelines.pacs.opening import open_archive
from pipelines.pacs.settings import DicomWeb, Limits

QUICK = Limits(timeout_s=0.3, answer_s=0.7, retries=0, most=2000, largest_gib=0.001)
USUAL = Limits(timeout_s=20, answer_s=60, retries=1, most=2000, largest_gib=0.001)
LONGEST = 30  # seconds of one case, on a busy machine

# Case -> what comes of find, fetch and store: counts of entries or files, reasons, or the exception.
ANYTHING = {
    "html": ("0 no_json", "0 wrong_content_type", "wrong_content_type"),
    "nothing": ("0 empty", "0 wrong_content_type", "empty"),
    "moved": ("Denied", "Denied", "Denied"),
    "bad": ("Denied", "0 refused", "refused"),
    "log_in": ("Denied", "Denied", "Denied"),
    "forbidden": ("Denied", "Denied", "Denied"),
    "not_found": ("Denied", "0 gone", "refused"),
    "gone": ("Denied", "0 gone", "refused"),
    "too_fast": ("Unreachable", "Unreachable", "Unreachable"),
    "broken": ("Unreachable", "Unreachable", "Unreachable"),
    "busy": ("Unreachable", "Unreachable", "Unreachable"),
    "unknown": ("Denied", "0 refused", "refused"),
    "no_http": ("Unreachable", "Unreachable", "Unreachable"),
    "closed": ("Unreachable", "Unreachable", "Unreachable"),
    "short": ("Unreachable", "0 wrong_content_type", "Unreachable"),
    "negative": ("0", "0 wrong_content_type", "unconfirmed"),
    "chunks": ("Unreachable", "0 wrong_content_type", "Unreachable"),
    "headers": ("Unreachable", "Unreachable", "Unreachable"),
    "long_header": ("Unreachable", "Unreachable", "Unreachable"),
    "silent": ("Unreachable", "Unreachable", "Unreachable"),
    "slow_header": ("Unreachable", "Unreachable", "Unreachable"),
    "slow_body": ("Unreachable", "0 wrong_content_type", "Unreachable"),
    "slow_chunk": ("Unreachable", "0 wrong_content_type", "Unreachable"),
    "endless": ("0 too_large", "0 wrong_content_type", "too_large"),
    "zipped": ("0 too_large", "0 wrong_content_type", "too_large"),
    "garbage": ("0 no_json", "0 wrong_content_type", "no_json"),
    "deep": ("0 no_json", "0 wrong_content_type", "no_json"),
    "digits": ("0 no_json", "0 wrong_content_type", "no_json"),
}
FIND = {
    "good": "2",
    "numbers": "0 bad_uid",
    "no_list": "0 no_list",
    "empty_values": "0 bad_uid",
    "up": "0 bad_uid",
    "odd_uids": "0 bad_uid",
    "types": "1 bad_uid",
    "long_text": "0 long_text",
    "others": "0 not_asked_for",
    "same_page": "200 same_page",
    "all_at_once": "2",
    "million": "2000 too_many",
    "million_at_once": "0 bad_uid too_many",
}
FETCH = {
    "good": "2",
    "one_file": "1 incomplete",
    "preamble": "2",
    "no_header": "1 incomplete",
    "no_boundary": "0 wrong_content_type",
    "other_boundary": "0 truncated",
    "line_feeds": "0 truncated",
    "no_parts": "0 incomplete",
    "cut": "1 truncated",
    "cut_short": "Unreachable",
    "endless_part": "0 too_large",
    "endless_header": "0 malformed",
    "endless_parts": "Unreachable",
    "many": "50 too_large",
    "slow_part": "Unreachable",
    "other_series": "0 other_series",
    "other_study": "0 other_series",
    "path": "0 bad_uid",
    "no_uid": "0 unreadable",
    "twice": "1 sent_twice",
    "contradictory": "1 contradictory",
    "no_dicom": "1 not_dicom",
    "damaged": "1 unreadable",
    "bomb": "0 too_packed",
    "nested": "0 unreadable",
    "fewer": "1 incomplete",
}
STORE = {
    "good": "",
    "there": "",
    "failed": "refused",
    "failed_200": "refused",
    "no_reason": "refused",
    "odd_reason": "refused",
    "other": "unconfirmed",
    "unclear": "unconfirmed",
    "xml": "",
    "xml_failed": "unconfirmed",
    "large": "refused",
}
ACTS = ("find", "fetch", "store")
CASES = (
    [
        (f"any-{case}", act, said[n])
        for case, said in ANYTHING.items()
        for n, act in enumerate(("find", "fetch", "store"))
    ]
    + [(f"find-{case}", "find", said) for case, said in FIND.items()]
    + [(f"fetch-{case}", "fetch", said) for case, said in FETCH.items()]
    + [(f"store-{case}", "store", said) for case, said in STORE.items()]
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with hostile_web() as found:
        yield found


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(pipelines.pacs.patience, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(pipelines.pacs.patience, "LONGEST_WAIT", 0.001)
    monkeypatch.setattr(pipelines.pacs.inbox, "UNPACKED", 2**24)


def test_each_case_is_tried():
    assert {case for case, _, _ in CASES} == set(WEB)


@pytest.mark.parametrize(("case", "act", "expected"), CASES)
def test_every_answer_ends_as_what_an_archive_may_say(port, tmp_path, case, act, expected):
    one = tmp_path / "one.dcm"
    one.write_bytes(image())
    limits = QUICK if any(word in case for word in ("slow", "silent", "endless_parts")) else USUAL
    limits = Limits(**{**vars(limits), "most": 50}) if act == "fetch" else limits
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_archive(DicomWeb(url=f"http://127.0.0.1:{port}/{case}", limits=limits)) as archive:
        found = outcome(archive, act, one, tmp_path / "series")
    assert found == expected
    assert time.monotonic() - begun < LONGEST
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    assert {path.name for path in tmp_path.iterdir()} <= {"one.dcm", "series"}
