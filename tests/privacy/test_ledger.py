"""A ledger that was touched is found out, and two processes may write to one at once."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import assume, given
from hypothesis import strategies as st

from privacy.dp.events import NON_PRIVATE, Composed, Declared, Gaussian, PoissonSampled, describe_event
from privacy.release import ledger as ledgers
from privacy.release.chain import ZEROS, Damaged

FORKED = multiprocessing.get_context("fork")  # a fresh interpreter takes seconds to import torch
COUNT = 8
TORN_AT = 4  # the fifth line of the example is torn


def line(number: int, **more: object) -> dict:
    said = {
        "time": f"2026-01-01T00:00:{number % 60:02d}",
        "run": "r",
        "round": number,
        "request": "train",
        "recipient": "coordinator",
        "event": describe_event(NON_PRIVATE),
        "sha256": hashlib.sha256(str(number).encode()).hexdigest(),
        "bytes": number,
        "again": False,
        "refused": None,
    }
    return {**said, **more}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raws(ledger: Path) -> list[bytes]:
    return ledger.read_bytes().split(b"\n")[:-1]


def put(ledger: Path, found: list[bytes]) -> None:
    ledger.write_bytes(b"".join(raw + b"\n" for raw in found))


def by_hand(found: list[bytes]) -> list[bytes]:
    """A second, slow implementation of the chain: the same lines with a `previous` that fits, where they had one."""
    made: list[bytes] = []
    for raw in found:
        if b'"previous"' not in raw:
            made.append(raw)
            continue
        said = json.loads(raw)
        since = max((k for k, one in enumerate(made) if b'"previous"' in one), default=0)
        said["previous"] = sha(b"\n".join(made[since:])) if made else ZEROS
        made.append(json.dumps(said, sort_keys=True).encode())
    return made


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """Eight lines, of which the fifth was torn by a crash."""
    ledger = tmp_path_factory.mktemp("example") / "ledger.jsonl"
    for number in range(TORN_AT):
        ledgers.append_line(ledger, line(number))
    with ledger.open("ab") as file:
        file.write(b'{"again": false, "byt')
    for number in range(TORN_AT + 1, COUNT):
        ledgers.append_line(ledger, line(number))
    assert len(raws(ledger)) == COUNT and ledgers.verify_ledger(ledger) == []
    return ledger


@pytest.fixture(scope="module")
def touched(example, tmp_path_factory):
    """touched(lines) -> what a copy of the example is found to be when it holds these lines instead."""
    folder = tmp_path_factory.mktemp("touched")
    shutil.copy(example.with_suffix(".head"), folder)

    def found(lines: list[bytes]) -> tuple[list[str], Path]:
        put(folder / "ledger.jsonl", lines)
        return ledgers.verify_ledger(folder / "ledger.jsonl"), folder / "ledger.jsonl"

    return found


POSITIONS = st.integers(0, COUNT - 1)
NOISE = st.binary(max_size=40).filter(lambda noise: b"\n" not in noise)


def test_every_line_vouches_for_the_one_before(example):
    assert by_hand(raws(example)) == raws(example)
    first, second = raws(example)[:2]
    assert json.loads(first)["previous"] == "0" * 64
    assert json.loads(second)["previous"] == sha(first)
    kept = json.loads(example.with_suffix(".head").read_text().splitlines()[-1])
    assert kept == {"lines": COUNT, "sha256": sha(raws(example)[-1])}
    assert ledgers.read_head(example) == (COUNT, sha(raws(example)[-1]))


@given(POSITIONS, st.data())
def test_a_byte_that_was_edited_is_found(example, touched, at, data):
    lines = raws(example)
    place = data.draw(st.integers(0, len(lines[at]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (lines[at][place], 10)))
    lines[at] = lines[at][:place] + bytes([byte]) + lines[at][place + 1 :]
    complaints, ledger = touched(lines)
    assert complaints
    with pytest.raises(Damaged, match="restore"):
        ledgers.append_line(ledger, line(99))
    assert raws(ledger) == lines, "something was written to a damaged ledger"


@given(POSITIONS, st.integers(0, 200), st.integers(0, 200), NOISE)
def test_a_line_of_which_a_part_was_edited_is_found(example, touched, at, start, length, noise):
    lines = raws(example)
    edited = lines[at][:start] + noise + lines[at][start + length :]
    assume(edited != lines[at])
    lines[at] = edited
    assert touched(lines)[0]


@given(POSITIONS)
def test_a_line_that_was_removed_is_found(example, touched, at):
    lines = raws(example)
    del lines[at]
    assert touched(lines)[0]


@given(POSITIONS, st.one_of(NOISE, POSITIONS))
def test_a_line_that_was_put_in_is_found(example, touched, at, what):
    lines = raws(example)
    lines.insert(at, what if isinstance(what, bytes) else lines[what])
    assert touched(lines)[0]


@given(st.lists(POSITIONS, min_size=2, max_size=2, unique=True))
def test_two_lines_that_were_swapped_are_found(example, touched, pair):
    lines, (one, other) = raws(example), pair
    lines[one], lines[other] = lines[other], lines[one]
    assert touched(lines)[0]


@given(st.integers(0, 3000))
def test_a_tail_that_was_cut_off_is_found(example, touched, keep):
    data = example.read_bytes()
    assume(keep < len(data) - 1)  # a missing last newline changes no line
    _, ledger = touched([])
    ledger.write_bytes(data[:keep])
    assert ledgers.verify_ledger(ledger)
    with pytest.raises(Damaged):
        ledgers.append_line(ledger, line(99))


def test_a_complaint_says_which_line_and_an_error_what_to_do(example, touched):
    lines = raws(example)
    lines[1] = lines[1].replace(b'"bytes": 1', b'"bytes": 0')
    complaints, ledger = touched(lines)
    (complaint,) = complaints
    assert (
        complaint.startswith("line 3:") and sha(lines[1])[:12] in complaint and sha(raws(example)[1])[:12] in complaint
    )
    with pytest.raises(Damaged, match=r"line 3: .* restore ledger\.jsonl and ledger\.head from the backup"):
        ledgers.append_line(ledger, line(99))


def test_a_deleted_ledger_is_found_by_its_head(example, touched):
    _, ledger = touched([])
    ledger.unlink()
    assert "counts 8 lines, found 0" in ledgers.verify_ledger(ledger)[0]
    with pytest.raises(Damaged, match="found 0"):
        ledgers.append_line(ledger, line(0))
    assert not ledger.exists()


def test_a_chain_without_head_is_found(tmp_path, example):
    ledger = Path(shutil.copy(example, tmp_path))
    assert "head is missing" in ledgers.verify_ledger(ledger)[0]
    with pytest.raises(Damaged, match="head is missing"):
        ledgers.append_line(ledger, line(99))


@pytest.mark.parametrize(
    "head", [b"", b"{", b"[]", b'{"lines": 8}', b'{"lines": "8", "sha256": ""}', b"\xff", b"[" * 9999]
)
def test_a_head_that_cannot_be_read_is_damage(tmp_path, example, head):
    ledger = Path(shutil.copy(example, tmp_path))
    ledger.with_suffix(".head").write_bytes(head)
    assert "is no head" in ledgers.verify_ledger(ledger)[0]
    with pytest.raises(Damaged, match="is no head"):
        ledgers.append_line(ledger, line(99))
    with pytest.raises(Damaged, match="is no head"):
        ledgers.read_head(ledger)


@pytest.mark.parametrize("lost", range(1, 40))
def test_a_head_whose_last_line_was_torn_counts_what_it_counted_before(tmp_path, lost):
    ledger = tmp_path / "ledger.jsonl"
    for number in range(3):
        ledgers.append_line(ledger, line(number))
    head = ledger.with_suffix(".head")
    head.write_bytes(head.read_bytes()[:-lost])
    assert ledgers.verify_ledger(ledger) == [] and ledgers.read_head(ledger).lines == 2
    ledgers.append_line(ledger, line(3))
    assert ledgers.verify_ledger(ledger) == [] and ledgers.read_head(ledger).lines == 4


@pytest.mark.parametrize("checked", [True, False])
def test_a_head_of_one_line_with_or_without_its_newline_is_gone_on_with(tmp_path, checked):
    """As earlier versions wrote it, and as somebody may put it back."""
    ledger = tmp_path / "ledger.jsonl"
    for number in range(3):
        ledgers.append_line(ledger, line(number))
    head = ledger.with_suffix(".head")
    head.write_text(json.dumps(ledgers.read_head(ledger)._asdict()))
    if not checked:
        ledgers._KNOWN.clear()
    for number in range(3, 6):
        ledgers.append_line(ledger, line(number))
        assert ledgers.verify_ledger(ledger) == [] and ledgers.read_head(ledger).lines == number + 1


def test_a_head_stays_short(tmp_path):
    for number in range(3 * ledgers.HEADS):
        ledgers.append_line(tmp_path / "ledger.jsonl", line(number))
        assert len((tmp_path / "ledger.head").read_text().split()) <= 4 * ledgers.HEADS  # of four words each


def test_lines_from_memory_are_those_of_the_file_whoever_wrote_them(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    for number in range(4):
        ledgers.append_line(ledger, line(number))
        assert list(ledgers.read_lines(ledger)) == [json.loads(raw) for raw in raws(ledger)]
        with ledger.open("ab") as other:
            other.write(b'{"another process": %d}\n' % number)
        assert list(ledgers.read_lines(ledger)) == [json.loads(raw) for raw in raws(ledger)]
        ledger.write_bytes(b"\n".join(raws(ledger)[:-1]) + b"\n")


def test_an_older_head_that_was_put_back_is_found(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    ledgers.append_line(ledger, line(0))
    old = ledger.with_suffix(".head").read_bytes()
    for number in (1, 2):
        ledgers.append_line(ledger, line(number))
    ledger.with_suffix(".head").write_bytes(old)
    assert "counts 1 lines, found 3" in ledgers.verify_ledger(ledger)[0]


@given(POSITIONS, st.integers(0, 10**6))
def test_a_history_that_was_rewritten_to_fit_is_found_by_a_witness(example, touched, at, size):
    """The one who can write all files makes a chain and a head that fit; not so the head that somebody else has."""
    assume(at != TORN_AT and size != json.loads(raws(example)[at])["bytes"])
    lines = raws(example)
    lines[at] = json.dumps({**json.loads(lines[at]), "bytes": size}, sort_keys=True).encode()
    rewritten = by_hand(lines)
    _, ledger = touched(rewritten)
    head = ledger.with_suffix(".head")
    before = head.read_bytes()
    head.write_text(json.dumps({"lines": COUNT, "sha256": sha(rewritten[-1])}))
    try:
        assert ledgers.verify_ledger(ledger) == []
        assert "rewritten" in ledgers.verify_ledger(ledger, witness=ledgers.read_head(example))[0]
        for seen in range(1, TORN_AT + 1):  # earlier heads: each vouches for the lines up to its own
            complaints = ledgers.verify_ledger(ledger, witness=(seen, sha(raws(example)[seen - 1])))
            assert bool(complaints) == (seen > at)
        assert "found 8" in ledgers.verify_ledger(ledger, witness=(9, ZEROS))[0]
    finally:
        head.write_bytes(before)


def test_every_earlier_head_stays_a_witness(tmp_path):
    ledger, seen = tmp_path / "ledger.jsonl", [ledgers.read_head(tmp_path / "ledger.jsonl")]
    for number in range(5):
        ledgers.append_line(ledger, line(number))
        seen.append(ledgers.read_head(ledger))
    assert [head.lines for head in seen] == [0, 1, 2, 3, 4, 5]
    assert all(ledgers.verify_ledger(ledger, witness=head) == [] for head in seen)


def test_a_ledger_from_before_the_chain_is_taken_into_it(tmp_path):
    """Also all its lines are vouched for from then on, not only the last one."""
    ledger = tmp_path / "ledger.jsonl"
    old = [json.dumps(line(number)).encode() for number in range(3)]
    ledger.write_bytes(b"\n".join(old) + b'\n{"torn')
    assert ledgers.verify_ledger(ledger) == []
    expected = ledgers.read_head(ledger)
    ledgers.append_line(ledger, line(3))
    assert raws(ledger)[:4] == [*old, b'{"torn'] and ledgers.verify_ledger(ledger, witness=expected) == []
    assert json.loads(raws(ledger)[4])["previous"] == sha(b"\n".join([*old, b'{"torn'])) == expected.sha256
    assert by_hand(raws(ledger))[4] == raws(ledger)[4]
    for at in range(4):
        lines = raws(ledger)
        lines[at] = lines[at][:-1] + b" }"
        other = tmp_path / str(at) / "ledger.jsonl"
        other.parent.mkdir()
        shutil.copy(ledger.with_suffix(".head"), other.parent)
        put(other, lines)
        assert ledgers.verify_ledger(other)


def test_a_line_from_before_the_chain_may_not_follow_it(tmp_path, example):
    ledger = Path(shutil.copy(example, tmp_path))
    shutil.copy(example.with_suffix(".head"), tmp_path)
    with ledger.open("ab") as file:
        file.write(json.dumps(line(8)).encode() + b"\n")
    assert "no `previous`" in ledgers.verify_ledger(ledger)[0]


def test_readers_get_torn_lines_as_such(example):
    found = list(ledgers.read_lines(example))
    assert [said for said in found if said.get("torn")] == [{"torn": True, "line": TORN_AT + 1}]
    assert [said.get("round") for said in found] == [0, 1, 2, 3, None, 5, 6, 7]
    assert list(ledgers.read_lines(example.with_name("none"))) == []


@pytest.mark.parametrize("bad", [{"x": float("nan")}, {"x": object()}, {"previous": ZEROS}])
def test_a_line_that_cannot_be_written_leaves_nothing_behind(tmp_path, bad):
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match=r"JSON|previous"):
        ledgers.append_line(ledger, bad)
    assert not ledger.exists()
    ledgers.append_line(ledger, line(0))
    assert ledgers.verify_ledger(ledger) == []


def test_what_was_read_holds_until_the_line_is_written(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with ledgers.open_transaction(ledger) as opened:
        assert list(opened.lines()) == []
        opened.append(line(0))
        opened.append(line(1))
        assert [said["round"] for said in opened.lines()] == [0, 1]
        with pytest.raises(TimeoutError):
            FileLock(tmp_path / "ledger.lock", timeout=0).acquire()
    with pytest.raises(ValueError, match="transaction"):
        opened.append(line(2))
    assert list(ledgers.read_lines(ledger)) == [dict(said) for said in opened.lines()]


def test_a_refusal_in_a_transaction_lets_the_lock_go(tmp_path):
    ledger = tmp_path / "ledger.jsonl"

    def refused() -> None:
        with ledgers.open_transaction(ledger) as opened:
            opened.append(line(0))
            raise KeyError

    with pytest.raises(KeyError):
        refused()
    ledgers.append_line(ledger, line(1))
    assert ledgers.verify_ledger(ledger) == [] and len(raws(ledger)) == 2


def test_what_another_process_did_to_it_is_seen_before_the_next_line(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    for number in range(3):
        ledgers.append_line(ledger, line(number))
    other = FORKED.Process(target=ledgers.append_line, args=(ledger, line(3)))
    other.start()
    other.join()
    with ledgers.open_transaction(ledger) as opened:
        assert [said["round"] for said in opened.lines()] == [0, 1, 2, 3]
    data = ledger.read_bytes()
    ledger.write_bytes(data.replace(b'"bytes": 1,', b'"bytes": 7,'))
    with pytest.raises(Damaged, match="line 3"):
        ledgers.append_line(ledger, line(4))
    ledger.write_bytes(data)
    ledgers.append_line(ledger, line(4))
    assert ledgers.verify_ledger(ledger) == []


def test_a_link_to_a_ledger_is_the_same_ledger(tmp_path):
    ledger, link = tmp_path / "ledger.jsonl", tmp_path / "elsewhere" / "other.jsonl"
    link.parent.mkdir()
    link.symlink_to(ledger)
    for number, path in enumerate((ledger, link, ledger)):
        ledgers.append_line(path, line(number))
    assert ledgers.verify_ledger(link) == [] and len(raws(ledger)) == 3 and [*link.parent.iterdir()] == [link]


def _write_many(ledger: Path, who: int, count: int) -> None:
    for number in range(count):
        ledgers.append_line(ledger, line(number, recipient=f"writer {who}"))


def test_four_processes_write_one_chain(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    writers = [FORKED.Process(target=_write_many, args=(ledger, who, 50)) for who in range(4)]
    for writer in writers:
        writer.start()
    looked = [ledgers.verify_ledger(ledger) for _ in range(30)]  # also a reader without the lock sees no damage
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4 and not any(looked)
    assert ledgers.verify_ledger(ledger) == [] and ledgers.read_head(ledger).lines == 200
    found = list(ledgers.read_lines(ledger))
    for who in range(4):
        assert [said["round"] for said in found if said["recipient"] == f"writer {who}"] == list(range(50))


def test_check_and_spend_are_one_step_also_for_two_processes(tmp_path):
    """Each spends one of ten coins if it sees one left: together they never spend an eleventh."""
    ledger = tmp_path / "ledger.jsonl"

    def spend() -> None:
        for number in range(10):
            with ledgers.open_transaction(ledger) as opened:
                if len(list(opened.lines())) < 10:
                    opened.append(line(number))

    spenders = [FORKED.Process(target=spend) for _ in range(3)]
    for spender in spenders:
        spender.start()
    for spender in spenders:
        spender.join()
    assert len(raws(ledger)) == 10 and ledgers.verify_ledger(ledger) == []


@pytest.mark.parametrize("operation", ["write", "fsync", "replace", "open"])
@pytest.mark.parametrize("after", range(4))
def test_a_disk_that_fails_once_is_gone_on_with(tmp_path, monkeypatch, operation, after):
    """A full disk raises where it is met; when there is room again, the chain goes on."""
    ledger, real, calls = tmp_path / "ledger.jsonl", getattr(os, operation), []
    ledgers.append_line(ledger, line(0))

    def fail(*args: object, **more: object) -> object:
        calls.append(args)
        if len(calls) == after + 1:
            if operation == "write":
                real(args[0], args[1][:9])
            raise OSError(28, "No space left on device")
        return real(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(f"privacy.release.ledger.os.{operation}", fail)
        patched.setattr(ledgers, "HEADS", 1 if operation == "replace" else ledgers.HEADS)
        failed = []
        for number in (1, 2, 3, 4):
            try:
                ledgers.append_line(ledger, line(number))
            except OSError:
                failed.append(number)
            assert ledgers.verify_ledger(ledger) == []
    assert len(failed) == 1 and len(calls) > after
    rounds = [said.get("round") for said in ledgers.read_lines(ledger)]
    assert [r for r in rounds if r is not None and r not in failed] == [n for n in range(5) if n not in failed]


# What is charged.

NOISED = PoissonSampled(0.2, Gaussian(1.1))


def test_a_reply_that_is_sent_again_is_charged_once():
    one = line(1, event=describe_event(NOISED))
    assert ledgers.spent_events([one, {**one, "again": True}, {**one, "again": True, "time": "later"}]) == (NOISED,)


@pytest.mark.parametrize("name", ["run", "round", "request", "sha256"])
def test_again_is_believed_only_of_the_same_reply(name):
    one = line(1, event=describe_event(NOISED))
    assert ledgers.spent_events([one, {**one, "again": True, name: "other"}]) == (NOISED, NOISED)


def test_equal_bytes_that_were_made_anew_are_charged_anew():
    """An answer of few bits comes out the same by chance; the patients were looked at twice."""
    one = line(1, event=describe_event(NOISED))
    assert ledgers.spent_events([one, one]) == (NOISED, NOISED)


def test_again_after_a_refusal_is_charged():
    one = line(1, event=describe_event(NOISED))
    refused = {**one, "refused": "policy_bytes", "event": describe_event(Declared("failure"))}
    assert ledgers.spent_events([refused, {**one, "again": True}]) == (Declared("failure"), NOISED)


def test_a_torn_line_costs_nothing_and_a_line_that_nobody_can_read_is_non_private():
    unknown = line(1, event={"kind": "magic"})
    nothing = {name: value for name, value in line(2).items() if name != "event"}
    found = ledgers.spent_events(
        [{"torn": True, "line": 1}, unknown, nothing, line(3, event=describe_event(Composed((NOISED,))))]
    )
    assert found == (NON_PRIVATE, NON_PRIVATE, Composed((NOISED,)))
