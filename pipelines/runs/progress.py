"""Show progress: a bar with the remaining time on a terminal, a plain line at intervals elsewhere (a batch job)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY_S = 10.0  # a line after this time, or
EVERY_SHARE = 0.1  # once this much more is done, but
LEAST_S = 1.0  # never more often than this
SENT_S = 0.2  # a step is sent to another process no more often than this


class ShowStep(Protocol):
    """Shows the progress: `done` of `total` (None = unknown), with `text` on the current step."""

    def __call__(self, done: float, total: float | None = None, text: str = "") -> None:
        """Show the progress."""
        ...


ProgressMessage: TypeAlias = tuple[tuple[str, ...], tuple[float, float | None, str] | None]
"""Titles of a task in another process, the outermost first, and its progress; None = the task ended."""


@dataclass(frozen=True)
class _Display:
    console: Console
    clock: Callable[[], float]
    bars: Progress | None
    titles: tuple[str, ...] = ()
    send: Callable[[ProgressMessage], None] | None = None


@dataclass
class _Line:
    """The state of the last line written for a task."""

    begun: float
    written: float
    share: float = 0.0
    first: float | None = None
    last: tuple[float, float | None, str] = field(default=(0.0, None, ""))


@dataclass(frozen=True)
class TaskProgress:
    """How far a task is. titles: the outermost first. total: None = unknown. seconds_left: None = unknown."""

    titles: tuple[str, ...]
    done: float = 0.0
    total: float | None = None
    text: str = ""
    seconds_left: float | None = None
    has_ended: bool = False


_DISPLAY: ContextVar[_Display | None] = ContextVar("progress", default=None)
_WATCHER: ContextVar[Callable[[TaskProgress], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_progress(watcher: Callable[[TaskProgress], None]) -> Iterator[None]:
    """In this context, `watcher` is called with each step of each task that is shown, and when a task ends."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def show_progress(
    title: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[ShowStep]:
    """Show the progress of a task: `with show_progress("train") as step: step(3, 10, "round 3")`.

    A task inside another one gets its own bar below, or its title after the outer one's. Writes to the standard error
    stream, to keep the standard output for results. console, clock: for tests.
    """
    outer = _DISPLAY.get()
    if outer is not None and outer.send is not None:
        with _send_steps(outer, outer.send, title) as step:
            yield step
        return
    if outer is None:
        display = _Display(console or Console(stderr=True, emoji=False), clock, None)
        if display.console.is_terminal:
            with _make_bars(display.console) as bars, _show_within(replace(display, bars=bars), title) as step:
                yield step
            return
        outer = display
    with _show_within(outer, title) as step:
        yield step


def make_counter(step: ShowStep, total: float, done_before: float = 0, text: str = "") -> Callable[[str], None]:
    """A function that counts one more of `total` as done at each call, and shows `text` and its argument."""
    done = count(1)

    def count_next(what: str) -> None:
        step(done_before + next(done), total, f"{text}{what}")

    return count_next


def print_remark(text: str) -> None:
    """Print a line that stays: above the bars of a terminal, else among the lines of the surrounding task."""
    display = _DISPLAY.get() or _Display(Console(stderr=True, emoji=False), time.monotonic, None)
    _write_sentence(display if display.bars is None else replace(display, console=display.bars.console), f"! {text}")


def send_progress(send: Callable[[ProgressMessage], None]) -> None:
    """From now on this process shows no progress, but sends it to a process that uses `make_message_display`."""
    _DISPLAY.set(_Display(Console(quiet=True), time.monotonic, None, send=send))


def make_message_display() -> Callable[[str, ProgressMessage], None]:
    """A function that shows the progress messages of other processes. owner: the name of whose work it is. Their
    outermost tasks are shown below the task of this process, with the owner's name.
    """
    open_tasks: dict[tuple[str, ...], tuple[Context, AbstractContextManager[ShowStep], ShowStep]] = {}

    def show_message(owner: str, message: ProgressMessage) -> None:
        titles, state = message
        titles = titles if titles[0] == owner else (owner, *titles)
        if titles not in open_tasks and state is not None:
            context = copy_context()  # each has its own, because tasks overlap
            task: AbstractContextManager[ShowStep] = show_progress(" > ".join(titles))
            open_tasks[titles] = context, task, context.run(task.__enter__)
        if state is not None:
            open_tasks[titles][2](*state)
        elif titles in open_tasks:
            context, task, _ = open_tasks.pop(titles)
            context.run(task.__exit__, None, None, None)

    return show_message


def estimate_seconds_left(elapsed: float, done: float, total: float | None) -> float | None:
    """Seconds left at the pace so far; None while it is unknown."""
    if total is None or done <= 0 or elapsed <= 0:
        return None
    return max(0.0, elapsed / done * (total - done))


def format_duration(seconds: float) -> str:
    """A duration in words: `8 s`, `2 min 05 s`, `3 h 20 min`."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def _make_bars(console: Console) -> Progress:
    """The progress bars of a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.fields[text]}"),
        console=console,
    )


@contextmanager
def _show_within(display: _Display, title: str) -> Iterator[ShowStep]:
    """Show a task inside the tasks of a display, as a bar or as lines."""
    inner = replace(display, titles=(*display.titles, title))
    token = _DISPLAY.set(inner)
    try:
        with (
            _show_bar(inner, inner.bars) if inner.bars is not None else _print_lines(inner) as step,
            _watch_steps(inner, step) as watched,
        ):
            yield watched
    finally:
        _DISPLAY.reset(token)


@contextmanager
def _watch_steps(display: _Display, show: ShowStep) -> Iterator[ShowStep]:
    """Tell a watcher of each step that is shown; without one, only show it."""
    watcher = _WATCHER.get()
    if watcher is None:
        yield show
        return
    line = _Line(begun=display.clock(), written=-math.inf)

    def step(done: float, total: float | None = None, text: str = "") -> None:
        show(done, total, text)
        _note_step(line, (done, total, text), display.clock())
        watcher(TaskProgress(display.titles, done, total, text, _estimate_left(line, display.clock())))

    watcher(TaskProgress(display.titles))
    try:
        yield step
    finally:
        watcher(TaskProgress(display.titles, has_ended=True))


@contextmanager
def _send_steps(display: _Display, send: Callable[[ProgressMessage], None], title: str) -> Iterator[ShowStep]:
    """Send the steps of a task to another process, and a message when it ends."""
    inner = replace(display, titles=(*display.titles, title))
    token, last = _DISPLAY.set(inner), [-math.inf]

    def step(done: float, total: float | None = None, text: str = "") -> None:
        if display.clock() - last[0] >= SENT_S:
            last[0] = display.clock()
            send((inner.titles, (done, total, text)))

    try:
        yield step
    finally:
        send((inner.titles, None))
        _DISPLAY.reset(token)


@contextmanager
def _show_bar(display: _Display, bars: Progress) -> Iterator[ShowStep]:
    """Show a task as a bar; an inner task's bar disappears at the end."""
    indent = "  " * (len(display.titles) - 1)
    task = bars.add_task(f"{indent}{display.titles[-1]}", total=None, text="")

    def step(done: float, total: float | None = None, text: str = "") -> None:
        bars.update(task, completed=done, total=total, text=text)

    try:
        yield step
    finally:
        if len(display.titles) > 1:
            bars.remove_task(task)
        else:
            bars.stop_task(task)


@contextmanager
def _print_lines(display: _Display) -> Iterator[ShowStep]:
    """Print a task's begin, steps at intervals, and end as lines."""
    start = display.clock()
    line = _Line(begun=start, written=start)
    _write_sentence(display, "begins")

    def step(done: float, total: float | None = None, text: str = "") -> None:
        _note_step(line, (done, total, text), display.clock())
        seconds_since = display.clock() - line.written
        share = done / total if total else 0.0
        if seconds_since >= EVERY_S or (share - line.share >= EVERY_SHARE and seconds_since >= LEAST_S):
            line.written, line.share = display.clock(), share
            _write_sentence(display, _describe_line(line, display.clock()))

    try:
        yield step
    except BaseException:
        _write_sentence(display, f"ended early, after {format_duration(display.clock() - start)}")
        raise
    _write_sentence(display, f"done in {format_duration(display.clock() - start)}")


def _note_step(line: _Line, step: tuple[float, float | None, str], now: float) -> None:
    """Take down a task's step: how far it is, of how much, and a text."""
    if line.first is None:
        line.first, line.begun = step[0], now  # a resumed task begins in the middle
    line.last = step


def _estimate_left(line: _Line, now: float) -> float | None:
    """The seconds that a task still takes at its pace so far; None = unknown."""
    done, total, _ = line.last
    first = line.first or 0.0
    return estimate_seconds_left(now - line.begun, done - first, None if total is None else total - first)


def _describe_line(line: _Line, now: float) -> str:
    """A step in words: its text, the share that is done, and the remaining time."""
    done, total, text = line.last
    parts = [text] if text else []
    if total:
        parts.append(f"{done:g} of {total:g} ({100 * done / total:.0f} %)")
    if (seconds_left := _estimate_left(line, now)) is not None:
        parts.append(f"about {format_duration(seconds_left)} left")
    return ", ".join(parts) or f"{done:g} done"


def _write_sentence(display: _Display, sentence: str) -> None:
    """Print a sentence with the time and the titles of the tasks."""
    text = f"{time.strftime('%H:%M:%S')} {' > '.join(display.titles)}: {sentence}"
    display.console.print(text, markup=False, highlight=False, soft_wrap=True)
