"""What a change of one word in the code would break, and no test near it saw."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import torch

from pipelines.coordinator.spending import foresee_refusals
from pipelines.hospital.recommending import read_gains
from pipelines.hospital.released_counts import Counted, _release_event
from pipelines.loader.validation import to_plain
from pipelines.pacs.archive import Denied
from pipelines.pacs.http import make_guard, session_of
from pipelines.pacs.settings import DicomWeb
from pipelines.requests.benchmark import Benchmark
from pipelines.requests.compare import Compare, Compared
from pipelines.requests.methods import Trained
from privacy.dp.events import NOTHING, Gaussian, describe_event
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.form import read_form
from privacy.release.policy import Budget, Most, Policy
from privacy.release.signature import Signature, Unsigned, check_signature, statement_of

KNOWN = Counted(cells={}, noise=2.0, date="", run="r/ingest", round=0, since=0)


@pytest.mark.parametrize("code", [None, "budget", "policy_bytes", "disk"])
def test_counts_are_paid_only_by_an_answer_that_left(tmp_path: Path, code: str | None) -> None:
    """A refused ingest charges nobody, so the counts that leave later cost what they cost."""
    hospital: Any = SimpleNamespace(ledger=tmp_path / "ledger.jsonl")
    line: dict[str, Json] = {"run": "r/ingest", "round": 0, "request": "ingest", "refused": code, "again": False}
    ledgers.append_line(
        hospital.ledger, {**line, "event": describe_event(NOTHING if code else Gaussian(2.0)), "sha256": None}
    )
    assert _release_event(hospital, KNOWN) == (NOTHING if code is None else Gaussian(2.0))
    other = Call("r/other", 0, "ingest", {})
    assert _release_event(hospital, Counted(**{**vars(KNOWN), "run": other.run})) == Gaussian(2.0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirection_is_followed(status: int) -> None:
    answer = requests.Response()
    answer.status_code, answer.raw = status, SimpleNamespace(close=lambda: None, release_conn=lambda: None)
    answer.headers["Location"] = "https://elsewhere.example/"
    with pytest.raises(Denied, match="a redirection"):
        make_guard(100)(answer)


def test_nothing_of_the_environment_decides_where_patients_images_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, "http://elsewhere.example:1")
    session = session_of(DicomWeb(url="https://pacs.example.org/dicom-web"))
    said = session.merge_environment_settings("https://pacs.example.org/dicom-web", {}, False, None, None)
    assert not said["proxies"] and said["verify"] == session.verify


def test_a_signer_is_known_by_the_whole_key() -> None:
    """A key that begins, or ends, as a trusted one does is another person's."""
    statement = statement_of(b"model", title="t", settings={}, today=date(2026, 1, 1), days=9)
    for key in ("ab" * 16 + "cd" * 16, "ab" * 31, "", "cd" * 16 + "ab" * 16):
        said = Signature(statement=statement, key=key, signature="00" * 64)
        with pytest.raises(Unsigned, match="trusted_models of the policy names 1 keys, not it"):
            check_signature(b"model", said, {"us": "ab" * 32}, today=date(2026, 1, 1))


@pytest.mark.parametrize("pair", [(1.5, 0.1), (-1.01, 0.1), (0.5, 0.0), (0.5, -1.0), (float("nan"), 0.1), (2.0**70, 1)])
def test_gains_that_cannot_be_are_not_heard(pair: tuple[float, float]) -> None:
    run: Trained = {"train_run": "r/a", "checkpoint": "latest", "best": None}
    asked = Compare(methods=[{**run, "label": "x"}, {**run, "label": "y"}])
    told = read_gains(asked, Compared(gains={"x": pair, "y": (0.5, 0.1)}))
    assert set(told) == {"y"}


@pytest.mark.parametrize("epsilon", [float("nan"), float("inf"), 0.0, -1.0, 101.0])
def test_a_benchmark_asks_for_a_number_that_limits(epsilon: float) -> None:
    statement = statement_of(b"model", title="t", settings={}, today=date(2026, 1, 1), days=9)
    said: Json = to_plain(Signature(statement=statement, key="00" * 32, signature="00" * 64))
    facts: dict[str, Json] = {"cohort": "c", "copies": 3, "signature": said}
    file = {"model": torch.zeros(5, dtype=torch.uint8)}
    assert read_form(Benchmark, Message(file, {**facts, "epsilon": 1.0})).epsilon == 1.0
    with pytest.raises(ValueError, match="epsilon"):
        read_form(Benchmark, Message(file, {**facts, "epsilon": epsilon}))


def test_a_cap_that_a_run_will_meet_is_told_ahead(tmp_path: Path) -> None:
    policy = Policy(budget=Budget(epsilon=4.0), most=Most(release=1.0, run=2.0))
    ledger, told = tmp_path / "ledger.jsonl", {}
    ledger.touch()
    for noise in (0.5, 3.0, 100.0):
        events = [Gaussian(noise)] * 2
        told[noise] = foresee_refusals(policy, ledger, run="r", releases={"train x": events}, events=events)
    assert told[100.0] == [] and [text.split(" would")[0] for text in told[0.5]] == [
        "one reply of train x",
        "runs named r",
        "all that ever left",
    ]
    assert "the policy allows 1 (" in told[0.5][0] and "will refuse with budget" in told[0.5][0]
    assert {text.split(" would")[0] for text in told[3.0]} < {text.split(" would")[0] for text in told[0.5]}
    assert foresee_refusals(Policy(), ledger, run="r", releases={}, events=[Gaussian(0.5)]) == []
