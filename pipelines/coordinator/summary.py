"""The summary printed at the end of a run: tables of scores, and the paths of the pages."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evaluation.classes import KINDS, of_class
from evaluation.many import in_figures
from evaluation.metrics import FURTHER
from evaluation.rows import AT_ONE, ScoreRow
from evaluation.wording import READABLE, counted, listed
from pipelines.coordinator.artifacts import ANSWERS, PAGE
from pipelines.coordinator.stages.ingest import UnusableCohort
from pipelines.coordinator.tracking.sending import FOLDER, LAST
from pipelines.coordinator.world import World
from pipelines.hospital.overview import INSIDE
from pipelines.hospital.page.page import PAGE as SITE_PAGE
from pipelines.runs.runner import Results, StageFailed
from pipelines.runs.store import DiskFolder
from privacy.message import Json

FILES = ("files", "used_files", "quarantined_files", "unselected_files", "ignored_files", "patients_without_use")
WEAK = "* not assessable: under 20 positive or negative examples, under 5 positive patients, or too much noise for them"

ON_THE_PAGE = {measure.name for measure in FURTHER}
"""Measures with tables on the page only, not on the terminal."""


def results_table(results: Results, root: Path, console: Console) -> None:
    """Print each method's scores at its own sites, and the paths of the pages; before the report stage, artifacts."""
    folder = results.artifacts.get("report")
    if folder is None:
        console.print(f"done: {', '.join(results.artifacts)}; artifacts in {root}", highlight=False, soft_wrap=True)
        return
    page = json.loads((folder / "report.json").read_text())
    hidden = ON_THE_PAGE | {of_class(kind, name) for kind in KINDS for name in page["classes"]}
    rows = [row for row in json.loads((folder / "scores.json").read_text()) if row["measure"] not in hidden]
    shown = in_figures([_row(row) for row in rows])
    for measure in dict.fromkeys(row["measure"] for row in rows):
        console.print(_table(rows, measure, shown))
    if any(not row["assessable"] for row in rows):
        console.print(WEAK)
    for said in _missing(page["missing"]):
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    for line in _answers(json.loads((folder / ANSWERS).read_text())):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {root / PAGE}", highlight=False, soft_wrap=True)
    console.print(f"privacy statement: {root / 'statement.md'}", highlight=False, soft_wrap=True)
    pages = {site: root / "sites" / site / SITE_PAGE for row in rows for site in row["sites"]}
    if len(pages) > READABLE:
        where = root / "sites" / "NAME" / SITE_PAGE
        console.print(f"  each hospital's own page: {where}", markup=False, highlight=False, soft_wrap=True)
    for site, own in pages.items() if len(pages) <= READABLE else ():
        text = str(own) if own.exists() else f"{SITE_PAGE} in its folder, at the hospital"
        console.print(f"  {site}'s own page: {text}", markup=False, highlight=False, soft_wrap=True)


def _missing(missing: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each request that hospitals did not answer, with those of one code together."""
    alike: dict[tuple[str, str, int], list[str]] = {}
    for one in missing:
        alike.setdefault((one["request"], one["code"], one["times"]), []).append(one["site"])
    for (request, code, times), sites in alike.items():
        yield f"! {listed(sites)} did not answer {request}: {code}{f', {times} times' if times > 1 else ''}"


def _answers(said: Mapping[str, Any]) -> Iterator[str]:
    """What harmonization did, and the three answers at the top of the page, shortened."""
    if said["harmonized"]:
        yield "harmonization:"
    for text in said["harmonized"]:
        yield f"  {text}"
    yield "which model:"
    if len(said["use"]) > READABLE:
        named = Counter(_named(one) for one in said["use"]).items()
        yield "  " + "; ".join(f"{method}: {counted(times, 'hospital', 'hospitals')}" for method, times in named)
    for one in said["use"] if len(said["use"]) <= READABLE else ():
        against = one["said"][1] if len(one["said"]) > 1 else ""
        yield f"  {one['site']}: {_named(one)}. {one['said'][0]} {against}".rstrip()
    how = {
        "recommended": "by validation patients, and only where a gain over the model to stay with is likely",
        "validation": "by validation loss",
        "test": "by the test patients: the best of several looks too good",
    }
    if by := [how[name] for name in dict.fromkeys(one["by"] for one in said["use"]) if name]:
        yield f"  chosen {'; '.join(by)}"
    yield "what left:"
    for one in said["left"]:
        yield f"  {listed(one['sites'])}: ε = {one['epsilon']}. {one['said'][0]}"
    yield "to look at:" if said["look"] else "to look at: nothing was found"
    for one in said["look"]:
        yield f"  {one['what']}: {one['text']}"


def _named(one: Mapping[str, Any]) -> str:
    return str(one["method"]) or ("none" if one["final"] else "see its own page")


def publish(results: Results, root: Path) -> None:
    """Copy this run's page to the top of its folder, over an earlier run's page."""
    folder = results.artifacts.get("report")
    if folder is not None:
        for name in (PAGE, "statement.md", "statement.json"):
            DiskFolder(root).write(name, (folder / name).read_bytes())


def inside_lines(world: World) -> Iterator[str]:
    """One line per site on its files: in a simulation the site's own summary, otherwise where to find it."""
    for site in (*world.engine.sites, *world.outside.sites):
        path = world.root / "sites" / site / INSIDE
        if not world.simulation:
            yield f"{site}: what its files hold stands in {INSIDE} in its folder, at the hospital"
        elif path.exists():
            yield f"{site}: {path.read_text(encoding='utf-8').strip()}"


def tell_inside(world: World, console: Console) -> None:
    """Print a line per site on its files."""
    for text in inside_lines(world):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def refused_told(world: World, console: Console) -> Iterator[None]:
    """Print these lines also if ingest fails because of a hospital's files: they help to find the reason."""
    try:
        yield
    except StageFailed as error:
        if isinstance(error.cause, UnusableCohort):
            tell_inside(world, console)
        raise


def _files(folder: Path | None) -> dict[str, Json]:
    """How many files of each site were used, quarantined, not selected, or no images."""
    if folder is None or not (folder / "sites.json").exists():
        return {}
    found = json.loads((folder / "sites.json").read_text())
    return {site: {name: facts.get(name) for name in FILES} for site, facts in found.items()}


def as_json(results: Results, root: Path) -> Mapping[str, Json]:
    """The results of a run as one JSON object."""
    folder = results.artifacts.get("report")
    return {
        "exit": 0,
        "ran": list(results.ran),
        "kept": list(results.kept),
        "seconds": dict(results.seconds),
        "artifacts": {stage: str(one.relative_to(root)) for stage, one in results.artifacts.items()},
        "report": None if folder is None else str(root / PAGE),
        "answers": None if folder is None else json.loads((folder / ANSWERS).read_text()),
        **({"tracked": json.loads((root / FOLDER / LAST).read_text())} if _tracked(results, root) else {}),
        "files": _files(results.artifacts.get("ingest")),
        "shares": [] if folder is None else json.loads((folder / "report.json").read_text())["shares"],
        "scores": [] if folder is None else json.loads((folder / "scores.json").read_text()),
    }


def _tracked(results: Results, root: Path) -> bool:
    """Whether this run's figures were copied to tracking tools, or should have been."""
    return "track" in results.artifacts and (root / FOLDER / LAST).is_file()


def _row(row: Mapping[str, Any]) -> ScoreRow:
    """A row as it was before it became JSON."""
    numbers = {field: math.nan for field, value in row.items() if value is None and field != "defined"}
    return ScoreRow(**{**row, **numbers, "sites": tuple(row["sites"])})


def _table(rows: list[dict[str, Any]], measure: str, shown: Collection[str]) -> Table:
    """A row per method and a column per site: value with its interval. Where there are more sites than can be read, a
    row per site instead, of those that figures show too, and of what is over all sites.
    """
    chosen = [row for row in rows if row["measure"] == measure]
    places, methods = ([*dict.fromkeys(found)] for found in (map(_column, chosen), (row["method"] for row in chosen)))
    cells = {(row["method"], _column(row)): _cell(row) for row in chosen}
    sites = {_column(row) for row in chosen if row["protocol"] in AT_ONE}
    title = f"{measure} (95 % interval over patients)"
    if len(sites) <= READABLE:
        return _filled("method", title, places, {m: [cells.get((m, place), "") for place in places] for m in methods})
    title += f", {len(shown)} of {len(sites)} hospitals; the page has all"
    lines = [*shown, *(place for place in places if place not in sites)]
    return _filled("hospital", title, methods, {one: [cells.get((m, one), "") for m in methods] for one in lines})


def _filled(first: str, title: str, heads: Iterable[str], lines: Mapping[str, Sequence[str]]) -> Table:
    table = Table(first, title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _column(row: Mapping[str, Any]) -> str:
    return str(row["sites"][0]) if row["protocol"] in AT_ONE else str(row["protocol"])


def _cell(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return "–"
    mark = "" if row["assessable"] else "*"
    between = "" if row["low"] is None else f" [dim]{row['low']:.2f}-{row['high']:.2f}[/dim]"
    return f"{row['value']:.3f}{mark}{between}"
