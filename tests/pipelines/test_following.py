"""`progress.html`: what it says while a run works, how it ends, and that it says and costs nothing more than that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import PRIVATE, smallest

from evaluation.wording import format_number
from pipelines.coordinator import following
from pipelines.coordinator.stages import evaluate
from pipelines.run import main
from pipelines.runs import progress
from pipelines.runs.progress import TaskProgress, show_progress, watch_progress
from pipelines.runs.stopping import Stopped
from pipelines.runs.summaries import summarize_run
from privacy.message import as_mapping, glance_at_facts

ROUNDS = {"schedule": {"rounds": 3}}
Follow = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Runs settings, and gives the code and every page that was written, in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(following, "EVERY_S", 0.0)
    pages, write = list[str](), following.replace_file

    def keep(path: Path, data: bytes) -> None:
        pages.append(data.decode())
        write(path, data)

    monkeypatch.setattr(following, "replace_file", keep)

    def followed(settings: dict[str, Any], *options: str) -> tuple[int, list[str]]:
        pages.clear()
        Path("small.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        return main(["small.yaml", *options]), list(pages)

    return followed


def with_rounds(settings: dict[str, Any]) -> dict[str, Any]:
    """The same with three rounds."""
    return {**settings, "train": {**settings["train"], **ROUNDS}}


def read_stages(page: str) -> dict[str, str]:
    """Stage -> state, as a page has them."""
    table = page.partition('aria-label="Stages"')[2].partition("</table>")[0]
    return dict(re.findall(r'<th scope="row">(\w+)</th><td>([\w ]+)</td>', table))


def read_loss(page: str) -> str:
    (cell,) = re.findall(r'<tr><th scope="row">fedavg</th><td class="num">\d of 3</td><td class="num">(.*?)</td>', page)
    return str(cell)


def read_totals() -> dict[int, float]:
    """Round -> mean validation loss, as the coordinator stored it."""
    (state,) = Path("runs/tiny/federation").glob("*/state")
    return {int(n): float(str(loss)) for n, loss in as_mapping(glance_at_facts(state)["totals"]).items()}


def test_stages_wait_work_and_are_done_in_their_order_and_the_last_page_links_the_report(follow):
    code, pages = follow(with_rounds(smallest()))
    assert code == 0 and (Path("runs/tiny/progress.html")).read_text() == pages[-1]
    names, order = list(read_stages(pages[0])), ["waits", "at work", "done"]
    assert names == ["ingest", "train", "evaluate", "audit", "report"]
    for name in names:
        states = [order.index(read_stages(page)[name]) for page in pages]
        assert states == sorted(states) and states[-1] == 2
    assert all(sum(state == "at work" for state in read_stages(page).values()) <= 1 for page in pages)
    refresh = '<meta http-equiv="refresh"'
    assert all(refresh in page and 'href="report.html"' not in page for page in pages[:-1])
    assert refresh not in pages[-1] and 'href="report.html"' in pages[-1] and (Path("runs/tiny/report.html")).exists()
    assert not list(Path("runs/tiny").glob(".progress*")) and "At work</h2>" not in pages[-1]


def test_rounds_losses_and_who_is_waited_for_are_those_of_the_coordinator(follow):
    _, pages = follow(with_rounds(smallest()))
    rounds = [int(n) for page in pages for n in re.findall(r'<td class="num">(\d) of 3</td>', page)]
    assert rounds == sorted(rounds) and set(rounds) == {0, 1, 2, 3}
    totals, shown = read_totals(), [read_loss(page) for page in pages]
    assert len(totals) == 3 and set(shown) <= {"–", *map(format_number, totals.values())}
    assert shown[0] == "–" and shown[-1] == format_number(totals[2]), "that of the last model comes after training"
    assert 'aria-label="validation loss by round' in pages[-1]
    assert any("This round waits for b." in page and "1 hospital has answered" in page for page in pages)
    assert any("This round waits for a, b." in page for page in pages)
    assert "This round waits" not in pages[-1]
    assert any(re.search("tiny › train</th><td>fedavg, round 1 of 3</td><td .*?>33 %</td>", page) for page in pages)


def test_of_a_run_with_a_budget_nothing_is_shown_that_was_not_released(follow):
    """Neither losses that hospitals keep, nor how long one of them takes."""
    code, pages = follow(with_rounds(PRIVATE))
    assert code == 0
    released = {"–", *(format_number(loss) for loss in read_totals().values())}
    assert {read_loss(page) for page in pages} <= released
    assert not any("This round waits" in page or 'id="hospitals"' in page for page in pages)


def test_what_hospitals_do_for_a_stage_is_not_shown(monkeypatch):
    told = list[TaskProgress]()
    made = following.Followed.__new__(following.Followed)
    made.tasks, made.depth = {}, 0
    monkeypatch.setattr(following.Followed, "write_if_due", lambda self: told.append(TaskProgress(())))
    for titles in (("run",), ("run", "train"), ("run", "train", "north"), ("run", "train", "north", "epoch")):
        made.note_progress(TaskProgress(titles, 1.0, 2.0, "loss 0.3"))
    assert list(made.tasks) == [("run",), ("run", "train")]


def test_a_run_that_fails_or_is_stopped_says_so_and_how_to_go_on(follow, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("a patient's name")

    broken = evaluate.STAGE.__class__(**{**vars(evaluate.STAGE), "run": fail})
    with monkeypatch.context() as patch:
        stages = importable("pipelines.coordinator.run")
        patch.setattr(stages, "STAGES", tuple(broken if s.name == "evaluate" else s for s in stages.STAGES))
        code, pages = follow(smallest())
        assert code != 0 and "<strong>Failed.</strong>" in pages[-1] and 'http-equiv="refresh"' not in pages[-1]
        assert "pipelines.run small.yaml" in pages[-1] and "a patient&#39;s name" not in pages[-1]
        assert read_stages(pages[-1])["evaluate"] == "at work" and read_stages(pages[-1])["report"] == "waits"

        def stop(*_: object) -> None:
            raise Stopped("SIGTERM")

        stopped = evaluate.STAGE.__class__(**{**vars(evaluate.STAGE), "run": stop})
        patch.setattr(stages, "STAGES", tuple(stopped if s.name == "evaluate" else s for s in stages.STAGES))
        code, pages = follow(smallest())
        assert code == 8 and "<strong>Stopped.</strong>" in pages[-1] and read_stages(pages[-1])["train"] == "kept"
    code, pages = follow(smallest())
    assert code == 0 and read_stages(pages[-1]) == {
        "ingest": "kept", "train": "kept", "evaluate": "done", "audit": "done", "report": "done"}  # fmt: skip
    assert 'id="trainings"' not in pages[-1], "of a training that was kept it saw no round"


def importable(name: str) -> Any:
    """A module by its name."""
    from importlib import import_module

    return import_module(name)


def test_a_page_that_cannot_be_written_ends_no_run_and_changes_nothing(follow, tmp_path):
    (tmp_path / "runs" / "tiny" / "progress.html").mkdir(parents=True)
    code, _ = follow(smallest())
    assert code == 0
    without = digest_results(tmp_path / "runs" / "tiny")
    (tmp_path / "runs" / "tiny").rename(tmp_path / "elsewhere")
    code, pages = follow(smallest())
    assert code == 0 and pages and digest_results(tmp_path / "runs" / "tiny") == without


def digest_results(run: Path) -> dict[str, bytes]:
    """The content of the trained models and scores of a run."""
    files = [*run.glob("federation/*/state"), *run.glob("sites/*/scores/*")]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_it_is_written_no_more_often_than_every_few_seconds(monkeypatch, tmp_path):
    now, written = [0.0], list[float]()
    made = following.Followed.__new__(following.Followed)
    made.tasks, made.depth, made.written, made.clock = {}, 0, float("-inf"), lambda: now[0]
    monkeypatch.setattr(
        following.Followed, "write", lambda self, state: (written.append(now[0]), setattr(self, "written", now[0]))
    )
    for tenth in range(200):
        now[0] = tenth / 10
        made.note_progress(TaskProgress(("run",), tenth, 200.0))
    assert written == pytest.approx([0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0], abs=0.11)


def test_a_watcher_hears_what_the_terminal_shows_and_when_a_task_ends():
    now, heard = [100.0], list[TaskProgress]()
    console = progress.Console(file=open("/dev/null", "w"), force_terminal=False)  # noqa: SIM115
    with watch_progress(heard.append), show_progress("run", console=console, clock=lambda: now[0]) as outer:
        outer(0, 2)
        with show_progress("train") as step:
            step(10, 100, "round 10")  # it goes on in the middle
            now[0] += 20
            step(30, 100, "round 30")
    left = 20 / 20 * 70
    assert [(t.titles, t.done, t.text, t.seconds_left, t.has_ended) for t in heard] == [
        (("run",), 0.0, "", None, False),
        (("run",), 0, "", None, False),
        (("run", "train"), 0.0, "", None, False),
        (("run", "train"), 10, "round 10", None, False),
        (("run", "train"), 30, "round 30", left, False),
        (("run", "train"), 0.0, "", None, True),
        (("run",), 0.0, "", None, True),
    ]


def test_the_page_of_all_runs_links_a_run_at_work_by_its_progress(follow, tmp_path, monkeypatch):
    follow(smallest())
    run = tmp_path / "runs" / "tiny"
    assert summarize_run(run).page == "tiny/report.html"
    monkeypatch.setattr("pipelines.runs.summaries.is_at_work", lambda *_: True)
    assert summarize_run(run).page == "tiny/progress.html"
    assert json.loads(json.dumps(summarize_run(run).state)) == "at work"
