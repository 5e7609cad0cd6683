"""What a tracking tool may show of a run: read from artifacts of the coordinator, which hold what has left hospitals.

No value is computed here. Each is a number or a text of an artifact's file, so a tracker knows no more than the
coordinator. A test takes every value that is sent and looks for it in the artifacts, and does the same with the
hospitals' folders taken away.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.rows import AT_ONE, ScoreRow
from pipelines.coordinator.artifacts import (
    ANSWERS,
    CENTRAL,
    PAGE,
    ROWS,
    STATEMENTS,
    RoundFigures,
    read_page,
    read_round_figures,
    read_scores,
    read_statements,
)
from pipelines.coordinator.trained import read_trainings
from pipelines.runs.store import digest_json, read_manifest
from privacy.message import Json
from privacy.release.statement import Statement

FILES = (PAGE, "scores.csv", ROWS, "statement.md", STATEMENTS, ANSWERS)
"""Files of the report that are copied as they are."""
ALL = "all"
"""In the place of a site, in names of figures over several."""
SETTLED = ("privacy", "seed", "images", "task", "split", "model", "evaluate")
"""Keys of the settings that are shown as parameters of the run."""
ODD = re.compile(r"[^A-Za-z0-9_./ -]+")
"""What a name in a tracker may not hold."""
LONGEST = 500  # characters of a parameter


@dataclass(frozen=True)
class Point:
    """A number in a tracker. step: the round; 0 for what has none. sites: whose figures it rests on."""

    name: str
    step: int
    value: float
    sites: frozenset[str]


@dataclass(frozen=True)
class Figures:
    """points: in a fixed order. settings: name -> text. files: name -> file, which rest on all sites. made: when the
    report was finished, seconds since 1970. sites: all that the run asked.
    """

    points: tuple[Point, ...]
    settings: Mapping[str, str]
    files: Mapping[str, Path]
    made: float
    sites: frozenset[str]

    @property
    def digest(self) -> str:
        """Of all points and settings. A page that was made again, with another date, changes nothing in it."""
        rows: list[Json] = [[point.name, point.step, repr(point.value)] for point in self.points]
        return digest_json([rows, {**self.settings}])


def collect_figures(artifacts: Mapping[str, Path], sites: Iterable[str], *, pages: bool) -> Figures:
    """The figures of a finished run. artifacts: stage -> folder, with `train` and `report`. sites: all of the run.

    Raises:
        ArtifactError: a manifest is missing or was changed.
        OSError: a file cannot be read.
    """
    everybody, report = frozenset(sites), artifacts["report"]
    points = (
        *_read_curves(artifacts["train"], everybody),
        *_list_round_points(read_round_figures(artifacts.get("figures"))),
        *_list_score_points(read_scores(report)),
        *_losses_of_privacy(read_statements(report)),
    )
    return Figures(
        points=tuple(replace(point, name=ODD.sub("_", point.name)) for point in points),
        settings=_select_settings(artifacts),
        files={name: report / name for name in FILES} if pages else {},
        made=float(read_manifest(report)["finished"]),
        sites=everybody,
    )


def select_allowed(figures: Figures, agreed: Collection[str]) -> Figures:
    """What the hospitals that agreed let go: figures that rest on theirs alone; files only if all agreed."""
    points = tuple(point for point in figures.points if point.sites <= set(agreed))
    return replace(figures, points=points, files=figures.files if figures.sites <= set(agreed) else {})


def _read_curves(train: Path, everybody: frozenset[str]) -> Iterator[Point]:
    """Validation losses by round: of each site, and the mean over all. `loss/METHOD/SITE`; of a further training
    `loss/METHOD--2/SITE`.
    """
    for name, method in read_trainings(train).items():
        for site, series in method.losses.items():
            whose = everybody if site == CENTRAL else frozenset({site})
            yield from _list_points(f"loss/{name}/{site}", series, whose)
        yield from _list_points(f"loss/{name}/{ALL}", method.totals, everybody)


def _list_points(name: str, series: Mapping[str, float | None], sites: frozenset[str]) -> Iterator[Point]:
    """The finite values of a series as points of a curve."""
    for round_, value in sorted(series.items(), key=lambda item: int(item[0])):
        if value is not None and math.isfinite(value):
            yield Point(name, int(round_), value, sites)


def _list_round_points(figures: Iterable[RoundFigures]) -> Iterator[Point]:
    """What hospitals told of rounds: `validation MEASURE/METHOD/SITE`, `seconds/METHOD/SITE`, and numbers of examples
    as `true 0 as 1/METHOD/SITE`, of several findings `finding 2 true 0 as 1/METHOD/SITE`, the first being 1.
    """
    for each in figures:
        where, sites = f"{each.training}/{each.site}", frozenset({each.site})
        values: dict[str, float | None] = {f"validation {name}": value for name, value in each.scores.items()}
        values["seconds"] = each.seconds
        for number, table in enumerate(each.confusion, start=1):
            prefix = f"finding {number} true" if len(each.confusion) > 1 else "true"
            values |= {f"{prefix} {i} as {j}": count for i, row in enumerate(table) for j, count in enumerate(row)}
        for name, value in values.items():
            if value is not None:
                yield Point(f"{name}/{where}", each.round, value, sites)


def _list_score_points(rows: Iterable[ScoreRow]) -> Iterator[Point]:
    """Each score with its interval: `MEASURE/METHOD/SITE`, `.../SITE.low` and `.../SITE.high`; over several sites the
    protocol stands in the place of the site.
    """
    for row in rows:
        at = row.sites[0] if row.protocol in AT_ONE else row.protocol
        name, sites = f"{row.measure}/{row.method}/{at}", frozenset(row.sites)
        for suffix, value in (("", row.value), (".low", row.widest[0]), (".high", row.widest[1])):
            if math.isfinite(value):
                yield Point(f"{name}{suffix}", 0, float(value), sites)


def _losses_of_privacy(statements: Mapping[str, Statement]) -> Iterator[Point]:
    """ε and δ of each hospital, where ε is finite: `epsilon/SITE`, `delta/SITE`."""
    for site, statement in statements.items():
        if math.isfinite(statement.epsilon):
            yield Point(f"epsilon/{site}", 0, statement.epsilon, frozenset({site}))
            yield Point(f"delta/{site}", 0, statement.delta, frozenset({site}))


def _select_settings(artifacts: Mapping[str, Path]) -> dict[str, str]:
    """Settings and digests, as texts: nothing of them depends on patients, and nothing names a hospital's files."""
    page = read_page(artifacts["report"])
    chosen = json.loads(page.settings)
    train = chosen["train"]
    values = {key: chosen[key] for key in SETTLED if key in chosen}
    values |= {f"train.{key}": train[key] for key in ("schedule", "work")}
    values |= {f"method.{label}": method for label, method in train["methods"].items()}
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for key, value in values.items()
    }
    texts |= {f"digest.{stage}": folder.name for stage, folder in artifacts.items()}
    texts |= {"run": page.run, "consilium": str(read_manifest(artifacts["report"])["versions"]["consilium"])}
    return {key: text[:LONGEST] for key, text in texts.items()}
