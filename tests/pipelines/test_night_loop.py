"""The laws of a night: whatever cuts it off, and wherever, the next one goes on; nothing is lost, doubled or silent."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.nights import lookup, loop, worklist
from pipelines.nights.events import Log
from pipelines.nights.loop import Desk, Made, Tonight, Unread, advance_tasks, find_series
from pipelines.nights.night import _exit_code
from pipelines.nights.retention import remove_old_files
from pipelines.nights.settings import Keep
from pipelines.nights.tables import tell_of_killed
from pipelines.nights.worklist import Result, Task
from pipelines.pacs.archive import Entry, Fetched, Odd, Query, Unreachable
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop

MODEL = "0123456789abcdef"


class Killed(BaseException):
    """The process ends here, at once."""


@dataclass
class Points:
    """Counts the places at which a process may end, and ends it at one of them."""

    at: int | None = None
    passed: int = 0

    def __call__(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            raise Killed


@dataclass
class Hospital:
    """An archive in memory. series -> texts of its images. promised: another count than there are images. unfit: what
    comes with them and cannot be used. silent: series that are never answered. odd: answers that are of no use.
    """

    series: dict[str, list[str]]
    points: Points
    promised: dict[str, int | None] = field(default_factory=dict)
    taken: dict[str, bytes] = field(default_factory=dict)
    handed_over: Counter[str] = field(default_factory=Counter)
    unfit: dict[str, list[Odd]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    study: str = "1.2"
    odd: list[Odd] = field(default_factory=list)
    down: bool = False
    fetched: Counter[str] = field(default_factory=Counter)

    def _up(self) -> None:
        self.points()
        if self.down:
            raise Unreachable("no answer")

    def find(self, query: Query) -> Iterator[Entry | Odd]:
        for name, images in self.series.items():
            self._up()
            yield Entry(self.study, name, "MR", instances=self.promised.get(name, len(images)))
        yield from self.odd

    def fetch(self, entry: Entry, folder: Path) -> Fetched:
        self.fetched[entry.series] += 1
        if entry.series in self.silent:
            raise Unreachable("the archive answers 500 (5 times)")
        files = []
        for number, text in enumerate(self.series.get(entry.series, [])):
            self._up()
            (folder / f"{number}.dcm").write_text(text)
            files.append(folder / f"{number}.dcm")
        self._up()
        unfit = self.unfit.get(entry.series, [])
        short = entry.instances is not None and len(files) + len(unfit) < entry.instances  # as an inbox tells it
        odd = [Odd(entry.series, "incomplete", f"{entry.instances} were said")] if short else []
        return Fetched(tuple(files), (*odd, *unfit))

    def store(self, files: Sequence[Path]) -> Sequence[Odd]:
        for path in files:
            self._up()
            self.taken.setdefault(path.name, path.read_bytes())
            self.handed_over[path.name] += 1
        self._up()
        return ()


def worker(points: Points, state: Path) -> Callable[..., Made]:
    """Writes one file, whose name and content follow from the images, the time and what it supersedes."""

    def do(task: Task, images: Path, results: Path, earlier: Sequence[Result]) -> Made:
        points()
        texts = [path.read_text() for path in sorted(images.iterdir())]
        known = f"{task.series} {texts} {task.made_at} {[one.uid for one in earlier]}"
        uid = hashlib.sha256(known.encode()).hexdigest()[:12]
        (results / uid).write_text(known)
        points()
        file = (results / uid).relative_to(state).as_posix()
        own = f"9.{task.series}.{task.version}"
        return Made([Result(uid, "report", file, series_uid=own)], [{"score": len(texts)}], {"used": len(texts)}, [])

    return do


@contextmanager
def world(
    folder: Path, hospital: Hospital, clock: Iterator[datetime], do: Any = None, tries: int = 3
) -> Iterator[Desk]:
    db = worklist.open_worklist(folder / "worklist.sqlite")
    try:
        log = Log(folder / "log.jsonl", "1")
        do = do or worker(hospital.points, folder)
        yield Desk(db, folder, MODEL, hospital, hospital, do, log, tries=tries, now=lambda: next(clock))
    finally:
        db.close()


def ticking() -> Iterator[datetime]:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    while True:
        when += timedelta(seconds=1)
        yield when


def night(
    folder: Path, hospital: Hospital, clock: Iterator[datetime], do: Any = None, tries: int = 3, **also: Any
) -> Tonight:
    tonight = Tonight()
    with world(folder, hospital, clock, do, tries) as desk:
        find_series(desk, Query(), tonight, **also)
        for _ in advance_tasks(desk, tonight, Stop()):
            pass
    return tonight


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[Points], None]:
    """Makes the worklist's steps places at which a process may end: before they are on the disk, and after."""
    plain = worklist.step

    def install(points: Points) -> None:
        @contextmanager
        def step(db: Any) -> Iterator[None]:
            with plain(db):
                yield
                points()
            points()

        monkeypatch.setattr(worklist, "step", step)

    return install


SERIES = {"1.1": ["a", "b"], "1.2": ["c"], "1.3": ["d", "e", "f"]}


def finished_states(folder: Path) -> list[tuple[str, int, str]]:
    db = worklist.open_worklist(folder / "worklist.sqlite")
    found = [(task.series, task.version, task.state) for task in lookup.all_tasks(db)]
    db.close()
    return sorted(found)


def test_killed_at_every_point_the_next_night_ends_with_each_result_once(
    tmp_path: Path, cut: Callable[[Points], None]
) -> None:
    whole = Hospital(dict(SERIES), Points())
    cut(whole.points)
    night(tmp_path / "whole", whole, ticking())
    assert len(whole.taken) == len(SERIES)
    assert whole.points.passed > 30
    for at in range(1, whole.points.passed + 1):
        hospital, folder, clock = Hospital(dict(SERIES), Points(at)), tmp_path / f"{at}", ticking()
        cut(hospital.points)
        with pytest.raises(Killed):
            night(folder, hospital, clock)
        night(folder, hospital, clock)
        assert len(hospital.taken) == len(SERIES), at
        assert finished_states(folder) == [(name, 1, "stored") for name in SERIES], at


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=6), st.booleans())
def test_several_kills_and_a_series_that_grows_leave_one_result_for_each_version(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], grows: bool
) -> None:
    folder, clock = tmp_path_factory.mktemp("night"), ticking()
    hospital = Hospital({name: list(texts) for name, texts in SERIES.items()}, Points())
    for at in kills:
        hospital.points = Points(at)
        with suppress(Killed):
            night(folder, hospital, clock, tries=10)
    hospital.points = Points()
    night(folder, hospital, clock, tries=10)
    if grows:
        hospital.series["1.1"].append("late")
        night(folder, hospital, clock)
    expected = [(name, 1, "stored") for name in SERIES] + ([("1.1", 2, "stored")] if grows else [])
    assert finished_states(folder) == sorted(expected)
    assert len(hospital.taken) == len(expected)


def test_a_second_night_fetches_and_stores_nothing(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    night(tmp_path, hospital, clock)
    fetched, over = hospital.fetched.copy(), hospital.handed_over.copy()
    second = night(tmp_path, hospital, clock)
    assert (hospital.fetched, hospital.handed_over) == (fetched, over)
    assert second.seen == {"known": 3}
    assert not second.tasks


def test_our_own_results_are_no_work(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    night(tmp_path, hospital, clock)
    hospital.series |= {f"9.{name}.1": ["a report"] for name in SERIES}
    assert night(tmp_path, hospital, clock).seen == {"known": 3, "own": 3}
    assert len(hospital.taken) == 3


def test_new_series_cost_only_themselves(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    night(tmp_path, hospital, clock)
    hospital.series["1.9"] = ["z"]
    night(tmp_path, hospital, clock)
    assert hospital.fetched == {"1.1": 1, "1.2": 1, "1.3": 1, "1.9": 1}


def test_a_series_that_grew_is_done_again_and_its_result_knows_the_older_one(tmp_path: Path) -> None:
    hospital, clock = Hospital({"1.1": ["a"]}, Points()), ticking()
    night(tmp_path, hospital, clock)
    (first,) = hospital.taken
    hospital.series["1.1"].append("b")
    assert night(tmp_path, hospital, clock).seen == {"grew": 1}
    second = next(text for name, text in hospital.taken.items() if name != first)
    assert first in second.decode()
    db = worklist.open_worklist(tmp_path / "worklist.sqlite")
    older, newer = lookup.all_tasks(db)
    assert db.execute("SELECT superseded FROM task WHERE id = ?", (older.id,)).fetchone() == (newer.id,)
    assert night(tmp_path, hospital, clock).seen == {"known": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"promised": {"1.1": 5}},
        {"promised": {"1.1": 2}},  # one is missing, and the archive's word for that is no image
        {"promised": {"1.1": None}, "unfit": {"1.1": [Odd("1.1", "truncated", "the answer is cut off")]}},
        {"series": {"1.1": []}},
        {"series": {"1.1": []}, "promised": {"1.1": 0}},
    ],
)
def test_what_does_not_come_whole_is_tried_again_and_then_refused_by_name(tmp_path: Path, more: dict[str, Any]) -> None:
    hospital, clock = Hospital(**{"series": {"1.1": ["a"]}, "points": Points(), **more}), ticking()
    reasons = [dict(night(tmp_path, hospital, clock).ended) for _ in range(4)]
    reason = "nothing_came" if "series" in more else "incomplete"
    assert reasons == [{"later": 1}, {"later": 1}, {reason: 1}, {}]
    assert not hospital.taken


def test_a_file_that_is_of_no_use_has_come_and_is_counted(tmp_path: Path) -> None:
    unfit = {"1.1": [Odd("file 2", "not_dicom", "7 bytes without the mark DICM")]}
    hospital = Hospital({"1.1": ["a"]}, Points(), promised={"1.1": 2}, unfit=unfit)
    counts = night(tmp_path, hospital, ticking()).files
    assert counts == {"used": 1, "quarantined": 1, "received": 2}


def test_what_comes_late_is_done_when_it_is_there(tmp_path: Path) -> None:
    hospital, clock = Hospital({"1.1": ["a"]}, Points(), promised={"1.1": 2}), ticking()
    night(tmp_path, hospital, clock)
    hospital.series["1.1"].append("b")
    assert night(tmp_path, hospital, clock).ended == {"stored": 1}


def test_an_archive_that_counts_otherwise_is_not_asked_again_each_night(tmp_path: Path) -> None:
    hospital, clock = Hospital({"1.1": ["a", "b"]}, Points(), promised={"1.1": 1}), ticking()
    for _ in range(3):
        night(tmp_path, hospital, clock)
    assert hospital.fetched == {"1.1": 1}


@pytest.mark.parametrize("at", range(1, 14))
def test_an_archive_that_goes_away_loses_nothing(tmp_path: Path, at: int) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()

    class Leaving(Points):
        def __call__(self) -> None:
            super().__call__()
            hospital.down = hospital.down or self.passed == at

    hospital.points = Leaving()
    assert night(tmp_path, hospital, clock).unreachable
    hospital.points, hospital.down = Points(), False
    night(tmp_path, hospital, clock)
    assert finished_states(tmp_path) == [(name, 1, "stored") for name in SERIES]
    assert len(hospital.taken) == len(SERIES)


def test_redo_makes_a_new_version_of_what_is_named(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    night(tmp_path, hospital, clock)
    night(tmp_path, hospital, clock, redo=frozenset(["1.2"]))
    assert ("1.2", 2, "stored") in finished_states(tmp_path)
    assert len(hospital.taken) == len(SERIES) + 1


def test_images_and_results_that_vanished_are_made_again(tmp_path: Path) -> None:
    import shutil

    hospital, clock = Hospital({"1.1": ["a"]}, Points()), ticking()
    for folder, kill in (("images", 4), ("results", 6)):
        place = tmp_path / folder
        hospital.points, hospital.taken = Points(kill), {}
        with pytest.raises(Killed):
            night(place, hospital, clock)
        shutil.rmtree(place / folder, ignore_errors=True)
        hospital.points = Points()
        night(place, hospital, clock)
        assert finished_states(place) == [("1.1", 1, "stored")]
        assert len(hospital.taken) == 1


def test_a_damaged_worklist_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "worklist.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(worklist.Damaged, match="backup"):
        worklist.open_worklist(path)


def test_the_log_names_nobody(tmp_path: Path) -> None:
    hospital = Hospital({"1.2.840.77": ["a"], "1.2.840.78": []}, Points())
    night(tmp_path, hospital, ticking())
    text = (tmp_path / "log.jsonl").read_text()
    assert '"event": "stored"' in text
    assert "1.2.840" not in text


def test_retention_removes_what_is_old_and_keeps_what_is_open(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    with world(tmp_path, hospital, clock) as desk:
        tonight = Tonight()
        find_series(desk, Query(), tonight)
        for number, _ in enumerate(advance_tasks(desk, tonight, Stop())):
            if number == 1:
                break
        (tmp_path / "images" / "3").mkdir(parents=True)  # of the task that is open
        (tmp_path / "images" / "77").mkdir()  # of no task
        later = datetime(2026, 2, 15, tzinfo=UTC)
        remove_old_files(desk.db, tmp_path, Keep(results=60), later)
        assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["1", "2"]
        remove_old_files(desk.db, tmp_path, Keep(results=30), later)
        assert not list((tmp_path / "results").iterdir())
        assert [path.name for path in (tmp_path / "images").iterdir()] == ["3"]


@pytest.mark.parametrize("silent", [{"1.1"}, {"1.1", "1.2"}])
def test_a_series_that_is_never_answered_keeps_no_other_from_being_done(tmp_path: Path, silent: set[str]) -> None:
    hospital, clock = Hospital(dict(SERIES), Points(), silent=silent), ticking()
    nights = [night(tmp_path, hospital, clock) for _ in range(3)]
    assert len(hospital.taken) == len(SERIES) - len(silent)
    if len(silent) == 1:
        assert [dict(one.ended) for one in nights] == [{"later": 1, "stored": 2}, {"later": 1}, {"no_answer": 1}]
        assert not any(one.unreachable for one in nights)
    else:
        assert all(one.unreachable for one in nights)  # two in a row: it is not known whose fault it is


def test_an_archive_that_answers_nothing_costs_no_series_a_try(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points(), silent=set(SERIES)), ticking()
    for _ in range(4):
        assert night(tmp_path, hospital, clock).unreachable
    assert hospital.fetched.total() == 8
    hospital.silent = set()
    assert night(tmp_path, hospital, clock).ended == {"stored": 3}


@pytest.mark.parametrize("step", ["retrieved", "done"])
def test_a_series_that_grew_while_it_waited_here_leaves_nothing_behind(tmp_path: Path, step: str) -> None:
    hospital, clock = Hospital({"1.1": ["a"]}, Points()), ticking()
    with world(tmp_path, hospital, clock) as desk:
        tonight = Tonight()
        find_series(desk, Query(), tonight)
        _until(desk, step)
    hospital.series["1.1"].append("b")
    night(tmp_path, hospital, clock)
    versions = [("1.1", 1, "stored")] + ([("1.1", 2, "stored")] if step == "done" else [])
    assert finished_states(tmp_path) == versions
    assert len(hospital.taken) == len(versions)
    assert not list((tmp_path / "images").iterdir())


def _until(desk: Desk, state: str) -> None:
    """Advance the first task to a state, and stop there."""
    (task,) = lookup.open_tasks(desk.db, MODEL)
    loop._fetch_task(desk, task, Tonight())
    if state == "done":
        loop._work_on_task(desk, worklist.one_task(desk.db, task.id), Tonight())


@pytest.mark.parametrize("step", ["retrieved", "done"])
def test_a_series_that_moved_to_another_study_is_fetched_again_before_anything_is_handed_over(
    tmp_path: Path, step: str
) -> None:
    hospital, clock = Hospital({"1.1": ["a"]}, Points()), ticking()
    with world(tmp_path, hospital, clock) as desk:
        find_series(desk, Query(), Tonight())
        _until(desk, step)
    hospital.study = "1.3"
    assert night(tmp_path, hospital, clock).ended == {"stored": 1}
    assert hospital.fetched == {"1.1": 2}
    assert len(hospital.taken) == 1


def test_a_series_that_moved_after_it_was_done_is_told_and_left_to_a_person(tmp_path: Path) -> None:
    hospital, clock = Hospital({"1.1": ["a"]}, Points()), ticking()
    night(tmp_path, hospital, clock)
    hospital.study = "1.3"
    assert night(tmp_path, hospital, clock).seen == {"known": 1}
    with world(tmp_path, hospital, clock) as desk:
        assert [odd.reason for _, odd in lookup.odd_of(desk.db, datetime(2026, 1, 1, tzinfo=UTC))] == ["moved"]


def test_an_error_of_ours_ends_one_series_and_not_the_night(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    good, patient = worker(hospital.points, tmp_path), "JONES^MARY"

    def bad(task: Task, *more: Any) -> Made:
        if task.series == "1.1":
            raise RuntimeError(patient)
        return good(task, *more)

    first = night(tmp_path, hospital, clock, bad)
    assert (first.ended, first.bugs) == ({"later": 1, "stored": 2}, 1)
    assert [dict(night(tmp_path, hospital, clock, bad).ended) for _ in range(2)] == [{"later": 1}, {"not_foreseen": 1}]
    with world(tmp_path, hospital, clock) as desk:
        (told,) = lookup.odd_of(desk.db, datetime(2026, 1, 1, tzinfo=UTC))
    assert "RuntimeError" in told[1].detail
    assert "JONES" not in told[1].detail


def test_too_little_memory_for_a_series_is_no_error_of_ours_and_keeps_no_other_waiting(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    good = worker(hospital.points, tmp_path)

    def bad(task: Task, *more: Any) -> Made:
        if task.series == "1.1":
            raise MemoryError
        return good(task, *more)

    first = night(tmp_path, hospital, clock, bad)
    assert (first.ended, first.bugs, _exit_code(first, late=False)) == ({"later": 1, "stored": 2}, 0, Exit.MEMORY)
    assert [dict(night(tmp_path, hospital, clock, bad).ended) for _ in range(2)] == [{"later": 1}, {"short_memory": 1}]


def test_images_that_our_own_disk_does_not_give_back_are_fetched_again_before_a_refusal(
    tmp_path: Path,
) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    good = worker(hospital.points, tmp_path)

    def bad(task: Task, *more: Any) -> Made:
        if task.series == "1.2" or (task.series == "1.1" and hospital.fetched["1.1"] < 3):
            raise Unread("disk_error")
        return good(task, *more)

    first = night(tmp_path, hospital, clock, bad)
    assert (first.ended, first.bugs, _exit_code(first, late=False)) == ({"stored": 1, "later": 2}, 0, Exit.DISK)
    assert night(tmp_path, hospital, clock, bad).ended == {"later": 2}
    last = night(tmp_path, hospital, clock, bad)
    assert (last.ended, _exit_code(last, late=False)) == ({"stored": 1, "disk_error": 1}, Exit.DISK)
    assert (hospital.fetched["1.1"], hospital.fetched["1.2"], len(hospital.taken)) == (3, 3, 2)
    assert _exit_code(night(tmp_path, hospital, clock, bad), late=False) is Exit.OK


def test_a_series_that_kills_each_night_is_refused_and_the_others_are_done(tmp_path: Path) -> None:
    hospital, clock = Hospital(dict(SERIES), Points()), ticking()
    good = worker(hospital.points, tmp_path)

    def bad(task: Task, *more: Any) -> Made:
        if task.series == "1.1":
            raise Killed
        return good(task, *more)

    for _ in range(3):
        with pytest.raises(Killed):
            night(tmp_path, hospital, clock, bad)
    assert night(tmp_path, hospital, clock, bad).ended == {"cut_off": 1, "stored": 2}


def test_images_of_which_some_vanished_are_fetched_again(tmp_path: Path) -> None:
    hospital, clock = Hospital({"1.1": ["a", "b"]}, Points()), ticking()
    with world(tmp_path, hospital, clock) as desk:
        find_series(desk, Query(), Tonight())
        _until(desk, "retrieved")
    next((tmp_path / "images" / "1").iterdir()).unlink()
    assert night(tmp_path, hospital, clock).files == {"used": 2, "quarantined": 0, "received": 2}


def test_what_the_worklist_says_is_on_the_disk_was_written_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    plain = os.fsync

    def fsync(number: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        plain(number)

    monkeypatch.setattr(os, "fsync", fsync)
    hospital = Hospital({"1.1": ["a", "b"]}, Points())
    night(tmp_path, hospital, ticking())
    assert flushed == ["0.dcm", "1.dcm", "1", *hospital.taken, "1"]


def test_redo_names_what_the_archive_did_not_and_makes_no_second_version_of_what_is_open(tmp_path: Path) -> None:
    hospital, clock = Hospital({"1.1": ["a"]}, Points()), ticking()
    with world(tmp_path, hospital, clock) as desk:
        find_series(desk, Query(), Tonight())
        _until(desk, "done")
    tonight = night(tmp_path, hospital, clock, redo=frozenset(["1.1", "1.77"]))
    assert tonight.redo == {"1.77"}
    assert finished_states(tmp_path) == [("1.1", 1, "stored")]


def test_an_answer_that_is_not_whole_is_told(tmp_path: Path) -> None:
    hospital = Hospital({}, Points(), odd=[Odd("answers from 1", "no_json", "the answer is no JSON")])
    tonight = night(tmp_path, hospital, ticking())
    assert "no_json" in tonight.cut
    assert _exit_code(tonight, late=False) is Exit.SITE


def test_a_night_that_was_killed_is_told_of_by_the_next(tmp_path: Path) -> None:
    hospital, out = Hospital(dict(SERIES), Points()), tmp_path / "nights" / "2026-01-01T00_00_00+00_00"
    night(tmp_path, hospital, ticking())  # which writes no tables, as if it had been killed before
    for folder in (out, tmp_path / "nights" / "lost+found"):
        folder.mkdir(parents=True)
    with world(tmp_path, hospital, ticking()) as desk:
        tell_of_killed(desk.db, out.parent)
        assert sorted(path.name for path in out.iterdir()) == ["found.csv", "odd.csv", "series.csv"]
        assert (out / "series.csv").read_text().count("stored") == 3
        assert (out / "found.csv").read_text().count("\n") == 4
        (out / "found.csv").unlink()
        tell_of_killed(desk.db, out.parent)
        assert not (out / "found.csv").exists()


def test_of_results_that_the_archive_took_in_part_those_are_named_by_the_next_version(tmp_path: Path) -> None:
    clock, seen = ticking(), list[list[str]]()

    def two(task: Task, images: Path, results: Path, earlier: Sequence[Result]) -> Made:
        seen.append(sorted(one.uid for one in earlier))
        made = []
        for kind in ("report", "capture"):
            (results / f"{kind}{task.version}").write_text(kind)
            made.append(Result(f"{kind}{task.version}", "report", f"results/{task.id}/{kind}{task.version}"))
        return Made(made, [], {"used": 1}, [])

    class Refusing(Hospital):
        def store(self, files: Sequence[Path]) -> Sequence[Odd]:
            super().store([path for path in files if "capture" not in path.name])
            return [Odd(path.name, "refused", "no such class") for path in files if "capture" in path.name]

    hospital = Refusing({"1.1": ["a"]}, Points())
    for _ in range(3):
        night(tmp_path, hospital, clock, two)
    assert finished_states(tmp_path) == [("1.1", 1, "refused")]
    night(tmp_path, hospital, clock, two, redo=frozenset(["1.1"]))
    assert seen == [[], ["report1"]]
