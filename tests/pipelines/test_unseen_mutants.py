"""What a change of one word in the code would break, and no test near it saw."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from pipelines.hospital.released_counts import Counted, _event
from pipelines.pacs.archive import Denied
from pipelines.pacs.http import guard, session_of
from pipelines.pacs.settings import DicomWeb
from privacy.dp.events import NOTHING, Gaussian, describe
from privacy.message import Call, Json
from privacy.release import ledger as ledgers

KNOWN = Counted(cells={}, noise=2.0, date="", run="r/ingest", round=0, since=0)


@pytest.mark.parametrize("code", [None, "budget", "policy_bytes", "disk"])
def test_counts_are_paid_only_by_an_answer_that_left(tmp_path: Path, code: str | None) -> None:
    """A refused ingest charges nobody, so the counts that leave later cost what they cost."""
    hospital: Any = SimpleNamespace(ledger=tmp_path / "ledger.jsonl")
    line: dict[str, Json] = {"run": "r/ingest", "round": 0, "request": "ingest", "refused": code, "again": False}
    ledgers.append(hospital.ledger, {**line, "event": describe(NOTHING if code else Gaussian(2.0)), "sha256": None})
    assert _event(hospital, KNOWN) == (NOTHING if code is None else Gaussian(2.0))
    other = Call("r/other", 0, "ingest", {})
    assert _event(hospital, Counted(**{**vars(KNOWN), "run": other.run})) == Gaussian(2.0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirection_is_followed(status: int) -> None:
    answer = requests.Response()
    answer.status_code, answer.raw = status, SimpleNamespace(close=lambda: None, release_conn=lambda: None)
    answer.headers["Location"] = "https://elsewhere.example/"
    with pytest.raises(Denied, match="a redirection"):
        guard(100)(answer)


def test_nothing_of_the_environment_decides_where_patients_images_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, "http://elsewhere.example:1")
    session = session_of(DicomWeb(url="https://pacs.example.org/dicom-web"))
    said = session.merge_environment_settings("https://pacs.example.org/dicom-web", {}, False, None, None)
    assert not said["proxies"] and said["verify"] == session.verify
