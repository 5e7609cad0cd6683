from __future__ import annotations

import io
from contextvars import copy_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pipelines.runs.progress import (
    EVERY_S,
    estimate_seconds_left,
    format_duration,
    make_message_display,
    print_remark,
    send_progress,
    show_progress,
)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=False, width=80), text


def lines(text: io.StringIO) -> list[str]:
    return [line.split(" ", 1)[1] for line in text.getvalue().splitlines()]


def test_a_batch_gets_plain_lines_with_the_time_left():
    console, text = batch()
    clock = Clock()
    with show_progress("train", console=console, clock=clock) as step:
        step(0, 100, "round 0")
        clock.now += 20
        step(5, 100, "round 5 [of fedavg]")
        clock.now += 20
        step(10, 100)
    assert lines(text) == [
        "train: begins",
        "train: round 5 [of fedavg], 5 of 100 (5 %), about 6 min 20 s left",
        "train: 10 of 100 (10 %), about 6 min 00 s left",
        "train: done in 40 s",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_remark_is_printed_at_once_and_stays(terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=80)
    with show_progress("ingest", console=console, clock=Clock()) as step:
        step(0, 2)
        print_remark("class [a] is nowhere")
        assert "ingest: ! class [a] is nowhere" in text.getvalue()


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=200))
def test_a_batch_is_not_flooded_and_not_left_in_the_dark(waits):
    console, text = batch()
    clock = Clock()
    with show_progress("work", console=console, clock=clock) as step:
        for index, wait in enumerate(waits):
            clock.now += wait
            step(index + 1, len(waits))
    written = len(lines(text)) - 2
    assert written <= sum(waits) / EVERY_S + 10
    assert written >= sum(waits) // (EVERY_S + max(waits))


def test_work_that_goes_on_is_timed_from_where_it_began():
    console, text = batch()
    clock = Clock()
    with show_progress("train", console=console, clock=clock) as step:
        step(90, 100)
        clock.now += 50
        step(95, 100)
    assert "about 50 s left" in text.getvalue()


def test_an_inner_piece_of_work_is_told_within_the_outer_one():
    console, text = batch()
    with show_progress("run", console=console) as outer:
        outer(0, 2, "train")
        with show_progress("train") as inner:
            inner(1, 2)
        with show_progress("evaluate"):
            pass
    with show_progress("next", console=console):
        pass
    assert [line.rsplit(":", 1)[0] for line in lines(text)] == [
        "run", "run > train", "run > train", "run > evaluate", "run > evaluate", "run", "next", "next"
    ]  # fmt: skip


def test_a_failure_is_told_as_one_and_the_next_work_starts_clean():
    console, text = batch()
    with pytest.raises(ValueError, match="x"), show_progress("run", console=console), show_progress("train"):
        raise ValueError("x")
    assert [line.split(",")[0] for line in lines(text)[2:]] == ["run > train: ended early", "run: ended early"]
    with show_progress("again", console=console):
        pass
    assert lines(text)[-2:] == ["again: begins", "again: done in 0 s"]


def test_a_terminal_gets_bars_one_below_the_other():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with show_progress("run", console=console) as outer:
        outer(1, 4, "stage [train]")
        with show_progress("train") as inner:
            inner(5, 10, "round 5")
            inner(10, 10)
    seen = text.getvalue()
    for word in ("run", "  train", "25%", "left"):
        assert word in seen


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.floats(0.1, 1e5), st.floats(0.01, 1e4), st.floats(0, 1e4))
def test_at_an_even_pace_the_time_left_is_what_is_left(pace, done, rest):
    told = estimate_seconds_left(done * pace, done, done + rest)
    assert told == pytest.approx(rest * pace, rel=1e-6, abs=1e-3 * pace)


def test_the_time_left_is_not_guessed_from_nothing():
    assert estimate_seconds_left(10, 0, 5) is None
    assert estimate_seconds_left(10, 3, None) is None
    assert estimate_seconds_left(0, 3, 5) is None
    assert estimate_seconds_left(10, 6, 5) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (12_000, "3 h 20 min")],
)
def test_durations_are_spoken(seconds, text):
    assert format_duration(seconds) == text


def test_another_processes_work_is_shown_below_ones_own_also_where_tasks_overlap():
    there = copy_context()  # in place of another process

    def work(send):
        send_progress(send)
        with show_progress("north") as step, show_progress("synthesis") as inner:
            step(1, 2)
            inner(3, 10, "step 3")
            inner(4, 10, "too soon after the last to be sent")
        return "done"

    heard = []
    assert there.run(work, heard.append) == "done"
    north, synthesis = ("north",), ("north", "synthesis")
    assert heard == [(north, (1, 2, "")), (synthesis, (3, 10, "step 3")), (synthesis, None), (north, None)]

    console, text = batch()
    clock = Clock()
    with show_progress("run", console=console, clock=clock):
        take = make_message_display()
        south = [("south", (("vafl",), at)) for at in ((1, 5, ""), None, None)]
        for who, told in [*(("north", one) for one in heard[:2]), south[0], *(("north", one) for one in heard[2:])]:
            take(who, told)
        for who, told in south[1:]:
            take(who, told)
        with show_progress("next"):
            pass
    assert lines(text) == [
        "run: begins",
        "run > north: begins",
        "run > north > synthesis: begins",
        "run > south > vafl: begins",
        "run > north > synthesis: done in 0 s",
        "run > north: done in 0 s",
        "run > south > vafl: done in 0 s",
        "run > next: begins",
        "run > next: done in 0 s",
        "run: done in 0 s",
    ]
