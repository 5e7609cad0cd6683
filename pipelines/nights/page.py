"""One page on all nights: whether what comes in is still like what the model learnt from, week by week."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from evaluation.page import Bar, Column, Fields, Page, Paragraph, Section, compose_text, make_table, number_column
from evaluation.rendering import render_page
from evaluation.wording import format_moment, format_number
from pipelines.nights import lookup, worklist
from privacy.durable import write_whole
from privacy.message import Json, as_mapping

EXPECTED = 0.05
"""Share of unlike studies that a hospital like those of the training may have: 1 % is aimed at, up to 5 % were measured
(docs/results/unlike-studies.md)."""
FEWEST = 10  # scored stacks in the last week, to judge it
WEEKS = 26


@dataclass
class Week:
    """Numbers of a week. judged: stacks of which it is known whether they are unlike. low, high: Wilson's interval."""

    name: str
    scored: int = 0
    judged: int = 0
    unlike: int = 0
    positive: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Of unlike stacks."""
        return self.unlike / self.judged

    @property
    def low(self) -> float:
        """Lower end of the share's interval."""
        return wilson_interval(self.unlike, self.judged)[0]

    @property
    def high(self) -> float:
        """Upper end of the share's interval."""
        return wilson_interval(self.unlike, self.judged)[1]

    @property
    def reason(self) -> str:
        """The most frequent reason of a refusal."""
        return next((name for name, _ in self.reasons.most_common(1)), "")


class WeekJudgement(NamedTuple):
    """The first line of the page, and what to do."""

    conclusion: str
    advice: str


def wilson_interval(successes: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    result = stats.binomtest(successes, of).proportion_ci(method="wilson")
    return float(result.low), float(result.high)


def group_by_week(db: sqlite3.Connection, model: str) -> list[Week]:
    """The last weeks with tasks that ended, the newest first."""
    weeks: dict[str, Week] = {}
    for task, changed, rows in lookup.list_ended_tasks(db, model):
        year, number, _ = changed.isocalendar()
        name = f"{year}-W{number:02}"
        week = weeks.setdefault(name, Week(name))
        if task.state == "refused":
            week.refused += 1
            week.reasons[task.reason] += 1
        for row in map(as_mapping, rows):
            _add_row(week, row)
    return sorted(weeks.values(), key=lambda week: week.name, reverse=True)[:WEEKS]


def _add_row(week: Week, row: Mapping[str, Json]) -> None:
    week.scored += 1
    week.positive += str(row.get("positive", "")) == "1" or bool(row.get("findings"))  # of several, any
    if (unlike := str(row.get("unlike_training", ""))) in ("0", "1"):
        week.judged += 1
        week.unlike += unlike == "1"


def judge_newest_week(weeks: Sequence[Week]) -> WeekJudgement:
    """What the page says first."""
    week = next((week_judged for week_judged in weeks if week_judged.judged), None)
    if week is None:
        return WeekJudgement(
            "Whether images are like the training's is not known",
            "No statistics of its training studies lie beside the model: docs/how-to/predict.md says what they are.",
        )
    seen = f"{week.unlike} of {week.judged} stacks in {week.name}"
    if week.judged < FEWEST:
        return WeekJudgement(f"Too few images to judge: {seen} unlike", f"At least {FEWEST} in a week are needed.")
    if week.low > EXPECTED:
        return WeekJudgement(
            f"Images have changed: {seen} are unlike what the model learnt from",
            "Do not rely on their scores. Ask whether a scanner, a protocol or an export has changed; look at the rows "
            "of the newest found.csv with unlike_training 1.",
        )
    return WeekJudgement(f"Images are as they were: {seen} are unlike what the model learnt from", "Nothing to do.")


def build_page(
    weeks: Sequence[Week], states: Mapping[worklist.State, int], *, model: str, label: str, written: str
) -> Page:
    """The page. states: of the worklist -> series. model: digest of its file."""
    conclusion, advice = judge_newest_week(weeks)
    caption = (
        "Stacks of images that were scored, by the week in which it was done, and how many of them are unlike those "
        "that the model learnt from. Of studies like those of the training about one in a hundred is marked; the "
        "interval is Wilson's, 95 %."
    )
    fields: Fields = [
        ("week", lambda week: week.name),
        (number_column("scored"), lambda week: str(week.scored)),
        (number_column("unlike"), lambda week: str(week.unlike)),
        (number_column("share (95 %)"), _describe_share),
        ("share", _draw_share),
        (number_column("positive"), lambda week: str(week.positive)),
        (number_column("series refused"), lambda week: str(week.refused)),
        (Column("most frequent reason", look="told"), lambda week: week.reason or "–"),
    ]
    series: Fields = [("state", str), (number_column("series"), lambda state: str(states.get(state, 0)))]
    state_table = make_table("What stands in the worklist", "", worklist.STATES, series)
    week_table = make_table("Week by week", caption, weeks, fields)
    return Page(
        f"Nights: {label}",
        f"Nights with {label}",
        compose_text(
            "Written {moment}, for this hospital alone. Model **{model}**.", moment=format_moment(written), model=model
        ),
        [
            Section(conclusion, [Paragraph(advice)], "first", look="answers"),
            Section("Week by week", [week_table], "weeks"),
            Section("What stands in the worklist", [state_table], "states"),
        ],
    )


def _describe_share(week: Week) -> str:
    """The share of unlike stacks with its interval."""
    if not week.judged:
        return "–"
    return f"{format_number(week.share)} ({format_number(week.low)} to {format_number(week.high)})"


def _draw_share(week: Week) -> Bar:
    """The same as a bar."""
    if not week.judged:
        return Bar(None, "unknown")
    return Bar((week.share, week.low, week.high), format_number(week.share), week.low > EXPECTED)


def write_page(path: Path, db: sqlite3.Connection, model: str, label: str, now: datetime) -> None:
    """Write the page. model: digest of its file.

    Raises:
        OSError: the disk.
    """
    states = Counter(task.state for task in lookup.all_tasks(db, model))
    written = now.isoformat(timespec="minutes")
    page = build_page(group_by_week(db, model), states, model=model, label=label, written=written)
    write_whole(path, render_page(page).encode())
