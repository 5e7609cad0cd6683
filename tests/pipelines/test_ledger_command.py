"""The ledger as a hospital's IT looks at it: intact or not, what it sums to, what each line means."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import ledger as command
from pipelines.runs.exits import Exit
from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    NON_PRIVATE,
    NOTHING,
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    describe_event,
)
from privacy.dp.replacing import replaced_cost
from privacy.release import ledger as ledgers

TRAINED = SelfComposed(PoissonSampled(0.2, Gaussian(1.1)), 400)
TESTED = Part("cut", "test", Gaussian(5.0))


def line(number: int, event: Event, **more: object) -> dict:
    said = {
        "time": f"2026-01-01T00:00:0{number}+00:00",
        "run": "night/fedavg",
        "round": number,
        "request": "train",
        "recipient": "coordinator",
        "event": describe_event(event),
        "sha256": f"{number:064x}",
        "bytes": 1000 + number,
        "again": False,
        "refused": None,
    }
    return {**said, **more}


def written(folder: Path, *lines: dict) -> Path:
    for one in lines:
        ledgers.append_line(folder / "ledger.jsonl", one)
    return folder / "ledger.jsonl"


@pytest.fixture
def ledger(tmp_path) -> Path:
    """Training, the same reply once more, a test in another run, a refusal, and a torn line."""
    once = line(1, TRAINED)
    failed = line(3, Declared("failure"), refused="failed", bytes=0, sha256=None)
    path = written(tmp_path / "site", once, {**once, "again": True}, failed)
    with path.open("ab") as file:
        file.write(b'{"time": "20')
    return written(tmp_path / "site", line(4, TESTED, run="night/evaluate", request="evaluate"))


def shown(capsys, *words: object) -> tuple[int, str]:
    code = command.main([str(word) for word in words])
    return code, " ".join(capsys.readouterr().out.split())


def answered(capsys, *words: object) -> dict:
    code = command.main([*(str(word) for word in words), "--json"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["exit"] == code
    return found


@pytest.mark.parametrize("given_as", ["file", "folder"])
def test_an_intact_ledger_is_said_to_be_so_with_a_head_for_a_witness(ledger, capsys, given_as):
    code, text = shown(capsys, "verify", ledger if given_as == "file" else ledger.parent)
    lines, sha = ledgers.read_head(ledger)
    assert code == Exit.OK and "intact: 5 lines" in text and f"{lines}:{sha}" in text


@pytest.mark.parametrize("what", ["verify", "sum", "explain"])
def test_a_damaged_ledger_is_told_line_by_line_whatever_is_asked(ledger, capsys, what):
    ledger.write_bytes(ledger.read_bytes().replace(b"1001", b"1000", 1))
    code, text = shown(capsys, what, ledger)
    assert code == Exit.DATA and "line 2:" in text and "restore ledger.jsonl and ledger.head" in text
    found = answered(capsys, what, ledger)
    assert found["intact"] is False and found["head"] is None and found["complaints"][0].startswith("line 2:")


def test_a_deleted_ledger_is_damage_and_none_at_all_is_a_wrong_command_line(ledger, tmp_path, capsys):
    ledger.unlink()
    assert shown(capsys, "verify", ledger.parent)[0] == Exit.DATA
    with pytest.raises(SystemExit) as stopped:
        command.main(["verify", str(tmp_path)])
    assert stopped.value.code == Exit.CONFIG and "does not exist" in capsys.readouterr().err


def test_a_witness_is_asked(ledger, capsys):
    lines, sha = ledgers.read_head(ledger)
    assert shown(capsys, "verify", ledger, "--witness", f"{lines}:{sha}")[0] == Exit.OK
    code, text = shown(capsys, "verify", ledger, "--witness", f"2:{sha}")
    assert code == Exit.DATA and "line 2: a witness saw" in text
    assert shown(capsys, "verify", ledger, "--witness", f"9:{sha}")[0] == Exit.DATA


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["verify", ".", "--witness", "5"], "a witness is"),
        (["sum", ".", "--delta", "0"], "delta is"),
        (["sum", ".", "--delta", "nan"], "delta is"),
        (["sum", ".", "--delta", "x"], "invalid delta value"),
        (["burn", "."], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_told(words, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(words)
    assert stopped.value.code == Exit.CONFIG and told in capsys.readouterr().err


def test_a_sum_is_what_the_accountant_says_of_what_is_charged(ledger, capsys):
    found = answered(capsys, "sum", ledger, "--delta", "1e-6")
    everything = compute_cost([TRAINED, Declared("failure"), TESTED], 1e-6)
    assert found["all"] == {
        "name": "all",
        "messages": 3,
        "bytes": 1001 + 1001 + 1004,
        "refused": 1,
        "epsilon": everything.epsilon,
        "accountant": everything.accountant,
        "replaced": replaced_cost([TRAINED, Declared("failure"), TESTED], 1e-6).epsilon,
    }
    assert found["all"]["replaced"] > everything.epsilon
    train, evaluate = found["by_run"]
    assert (train["name"], train["messages"], train["refused"]) == ("night/fedavg", 2, 1)
    assert train["epsilon"] == compute_cost([TRAINED], 1e-6).epsilon < everything.epsilon
    assert evaluate["epsilon"] == compute_cost([Gaussian(5.0)], 1e-6).epsilon
    assert [one["name"] for one in found["by_request"]] == ["train", "evaluate"]
    assert [(one["cut"], one["split"]) for one in found["by_split"]] == [("cut", "test")]
    assert found["delta"] == 1e-6 and found["unread"] == 0


def test_a_sum_is_rounded_up_for_people(ledger, capsys):
    text = shown(capsys, "sum", ledger)[1]
    exact = compute_cost([TRAINED], 1e-5).epsilon
    said = float(text.split("night/fedavg │")[1].split("│")[3])
    assert exact <= said <= exact * 1.01
    assert "PLD" in text and "δ = 1e-05" in text


UNKNOWN = [{"kind": "magic"}, None, describe_event(PoissonSampled(0.1, Composed((Laplace(1.0), Gaussian(1.0)))))]


@pytest.mark.parametrize("event", UNKNOWN)
def test_an_event_that_nobody_can_account_for_is_no_guarantee_and_said_so(tmp_path, capsys, event):
    ledger = written(tmp_path, line(1, TRAINED), {**line(2, NOTHING, run="other"), "event": event})
    found = answered(capsys, "sum", ledger)
    assert found["all"]["epsilon"] == found["by_run"][1]["epsilon"] == "Infinity"
    assert math.isfinite(found["by_run"][0]["epsilon"])
    assert "counted as non-private" in shown(capsys, "sum", ledger)[1]


def test_an_empty_sum_is_nothing(tmp_path, capsys):
    (tmp_path / "ledger.jsonl").touch()
    assert answered(capsys, "sum", tmp_path)["all"]["epsilon"] == 0
    assert shown(capsys, "explain", tmp_path)[0] == Exit.OK


def test_every_line_is_explained(ledger, capsys):
    first, again, failed, torn, last = answered(capsys, "explain", ledger)["explained"]
    expected = "400 steps, each patient in one with probability 0.2, noise 1.1 times what one patient can change"
    assert first["done"] == expected
    assert (first["line"], first["time"], first["to"], first["bytes"]) == (
        1,
        line(1, TRAINED)["time"],
        "coordinator",
        1001,
    )
    assert (
        first["asked"].startswith("train: parameters of the method") and "(run night/fedavg, round 1)" in first["asked"]
    )
    assert "sent again" in again["done"]
    assert "only the code failed left" in failed["done"] and "that a request failed" in failed["done"]
    assert torn["line"] == 4 and "torn" in torn["done"] and torn["bytes"] == 0
    assert last["done"] == "of the test patients only: noise 5 times what one patient can change"
    text = shown(capsys, "explain", ledger)[1]
    assert "coordinator" in text and "1,004" in text


def test_what_others_named_cannot_redraw_the_screen(tmp_path, capsys):
    ledger = written(
        tmp_path,
        line(1, NOTHING, run="\x1b[2J[bold]x", request="[red]\r"),
        {**line(2, NOTHING), "event": {"kind": "\x1b[2J"}},
    )
    for what in ("explain", "sum"):
        assert command.main([what, str(ledger)]) == Exit.OK
        text = capsys.readouterr().out
        assert "\x1b" not in text and "\r" not in text and "[bold]" in text


def test_a_ledger_that_cannot_be_read_is_told(tmp_path, capsys):
    (tmp_path / "ledger.jsonl").touch()
    (tmp_path / "ledger.head").mkdir()
    code, text = shown(capsys, "verify", tmp_path)
    assert code == Exit.DISK and "correct it" in text


LEAVES = [
    NON_PRIVATE,
    NOTHING,
    Declared("counts"),
    Declared("failure"),
    Gaussian(0),
    Gaussian(1.5),
    Laplace(0.7),
    Pure(0.1),
]
EVENTS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(PoissonSampled, st.sampled_from([0.0, 0.25, 1.0]), inner),
        st.builds(SelfComposed, inner, st.integers(0, 2000)),
        st.lists(inner, max_size=3).map(lambda events: Composed(tuple(events))),
        st.builds(Part, st.just("cut"), st.just("train"), inner),
    ),
    max_leaves=4,
)


@given(EVENTS)
def test_every_event_has_words_and_no_words_promise_what_is_not_there(event):
    words = command.describe_in_words(event)
    assert words and words.isprintable()
    flat = json.dumps(describe_event(event))
    if '"non_private"' in flat or '"noise_multiplier": 0}' in flat:
        assert "no formal guarantee" in words
