"""The summary printed at the end of a run: tables of scores, and the paths of the pages."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from evaluation.answers import Answers
from evaluation.classes import KINDS, class_measure_name
from evaluation.grid import select_figure_sites
from evaluation.metrics import FURTHER
from evaluation.page import Span, join_texts
from evaluation.records import Missing
from evaluation.rendering import write_text
from evaluation.rows import AT_ONE, ScoreRow
from evaluation.wording import READABLE, format_count, format_list
from pipelines.coordinator.artifacts import (
    ANSWERS,
    PAGE,
    REPORT,
    ROWS,
    SITES,
    STATEMENTS,
    read_answers,
    read_counts,
    read_page,
    read_scores,
)
from pipelines.coordinator.stages.ingest import UnusableCohort
from pipelines.coordinator.tracking.sending import FOLDER, LAST, MARK
from pipelines.coordinator.world import World
from pipelines.hospital.overview import INSIDE
from pipelines.hospital.page.page import PAGE as SITE_PAGE
from pipelines.runs.holdings import OVERVIEW
from pipelines.runs.runner import Results, StageFailed
from pipelines.runs.store import DiskFolder
from privacy.message import Json

FILES = ("files", "used_files", "quarantined_files", "unselected_files", "ignored_files", "patients_without_use")
WEAK = "* not assessable: under 20 positive or negative examples, under 5 positive patients, or too much noise for them"

ON_THE_PAGE = {measure.name for measure in FURTHER}
"""Measures with tables on the page only, not on the terminal."""


def results_table(results: Results, root: Path, console: Console) -> None:
    """Print each method's scores at its own sites, and the paths of the pages; before the report stage, artifacts."""
    if (folder := results.artifacts.get("report")) is None:
        console.print(f"done: {', '.join(results.artifacts)}; artifacts in {root}", highlight=False, soft_wrap=True)
    else:
        _print_results(folder, root, console)
    if (page := root.parent / OVERVIEW).is_file():
        console.print(f"all runs: {page}", markup=False, highlight=False, soft_wrap=True)


def _print_results(folder: Path, root: Path, console: Console) -> None:
    """Print the scores of a report, its answers, and the paths of its pages."""
    page = read_page(folder)
    hidden = ON_THE_PAGE | {class_measure_name(kind, name) for kind in KINDS for name in page.scored_parts}
    rows = [row for row in read_scores(folder) if row.measure not in hidden]
    shown = select_figure_sites(rows)
    for measure in dict.fromkeys(row.measure for row in rows):
        console.print(_build_table(rows, measure, shown))
    if any(not row.assessable for row in rows):
        console.print(WEAK)
    for sentence in _describe_missing(page.missing):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for line in _describe_answers(read_answers(folder)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {root / PAGE}", highlight=False, soft_wrap=True)
    console.print(f"privacy statement: {root / 'statement.md'}", highlight=False, soft_wrap=True)
    pages = {site: root / "sites" / site / SITE_PAGE for row in rows for site in row.sites}
    if len(pages) > READABLE:
        where = root / "sites" / "NAME" / SITE_PAGE
        console.print(f"  each hospital's own page: {where}", markup=False, highlight=False, soft_wrap=True)
    for site, site_page in pages.items() if len(pages) <= READABLE else ():
        text = str(site_page) if site_page.exists() else f"{SITE_PAGE} in its folder, at the hospital"
        console.print(f"  {site}'s own page: {text}", markup=False, highlight=False, soft_wrap=True)


def _describe_missing(missing: Sequence[Missing]) -> Iterator[str]:
    """A line for each request that hospitals did not answer, with those of one code together."""
    sites_by_code: dict[tuple[str, str, int], list[str]] = {}
    for reply in missing:
        sites_by_code.setdefault((reply.request, reply.code, reply.times), []).append(reply.site)
    for (request, code, times), sites in sites_by_code.items():
        yield f"! {format_list(sites)} did not answer {request}: {code}{f', {times} times' if times > 1 else ''}"


def _describe_answers(answers: Answers) -> Iterator[str]:
    """What is gained over home, what harmonization did, and the three answers at the top of the page, shortened."""
    if answers.at_home:
        yield "at home and together:"
    for text in answers.at_home:
        yield f"  {text}"
    if answers.harmonized:
        yield "harmonization:"
    for text in answers.harmonized:
        yield f"  {text}"
    if answers.use:
        yield "which model:"
    if len(answers.use) > READABLE:
        named = Counter(answer.named for answer in answers.use).items()
        yield "  " + "; ".join(f"{method}: {format_count(times, 'hospital', 'hospitals')}" for method, times in named)
    for answer in answers.use if len(answers.use) <= READABLE else ():
        against = answer.said[1] if len(answer.said) > 1 else ""
        yield f"  {answer.site}: {answer.named}. {answer.said[0]} {against}".rstrip()
    how = {
        "recommended": "by validation patients, and only where a gain over the model to stay with is likely",
        "validation": "by validation loss",
        "test": "by the test patients: the best of several looks too good",
    }
    if by := [how[name] for name in dict.fromkeys(answer.by for answer in answers.use) if name]:
        yield f"  chosen {'; '.join(by)}"
    yield "what left:"
    for departure in answers.left:
        yield f"  {format_list(departure.sites)}: ε = {departure.epsilon}. {departure.said[0]}"
    yield "to look at:" if answers.look else "to look at: nothing was found"
    for notice in answers.look:
        yield f"  {notice.what}: {notice.text}"


def publish_page(results: Results, root: Path) -> None:
    """Copy this run's page to the top of its folder, over an earlier run's page, with links to pages near it."""
    folder = results.artifacts.get("report")
    if folder is not None:
        for name in ("statement.md", STATEMENTS):
            DiskFolder(root).write(name, (folder / name).read_bytes())
        sites = json.loads((folder / SITES).read_text())
        DiskFolder(root).write(PAGE, add_links((folder / PAGE).read_bytes(), root, sites))


def add_links(page: bytes, root: Path, sites: Iterable[str]) -> bytes:
    """The coordinator's page with links to those hospitals' pages, and to that overview of all runs, that are there.

    Only the run knows where its page will lie, and what lies near it: so links are put in here, where the page comes to
    the top of the run's folder, and each leads to a file that exists now. The page of a hospital on another machine has
    none; the artifact below `report/`, which may be sent away and comes to lie anywhere, has no links at all. In a
    simulation a hospital's own page leads back (`evaluation.site_page`), because the run lays both into one folder.
    """
    near = {f"hospital {site}": f"sites/{site}/{SITE_PAGE}" for site in sites}
    near["all runs"] = f"../{OVERVIEW}"
    links = [Span(name, href=quote(place)) for name, place in near.items() if (root / place).is_file()]
    text = write_text(("Pages beside this one: ", join_texts(links), "."))
    line = f'<p class="facts">{text}</p>\n' if links else ""
    return page.replace(MARK.encode(), f"{line}{MARK}".encode(), 1)


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


def _count_files(folder: Path | None) -> dict[str, Json]:
    """How many files of each site were used, quarantined, not selected, or no images."""
    if folder is None or not (folder / SITES).exists():
        return {}
    return {site: {name: getattr(counts, name, None) for name in FILES} for site, counts in read_counts(folder).items()}


def as_json(results: Results, root: Path) -> Mapping[str, Json]:
    """The results of a run as one JSON object."""
    folder = results.artifacts.get("report")
    return {
        "exit": 0,
        "ran": list(results.ran),
        "kept": list(results.kept),
        "seconds": dict(results.seconds),
        "artifacts": {stage: str(folder.relative_to(root)) for stage, folder in results.artifacts.items()},
        "report": None if folder is None else str(root / PAGE),
        "all_runs": str(page) if (page := root.parent / OVERVIEW).is_file() else None,
        "answers": None if folder is None else json.loads((folder / ANSWERS).read_text()),
        **({"tracked": json.loads((root / FOLDER / LAST).read_text())} if _is_tracked(results, root) else {}),
        "files": _count_files(results.artifacts.get("ingest")),
        "shares": [] if folder is None else json.loads((folder / REPORT).read_text())["shares"],
        "scores": [] if folder is None else json.loads((folder / ROWS).read_text()),
    }


def _is_tracked(results: Results, root: Path) -> bool:
    """Whether this run's figures were copied to tracking tools, or should have been."""
    return "track" in results.artifacts and (root / FOLDER / LAST).is_file()


def _build_table(rows: Sequence[ScoreRow], measure: str, shown: Collection[str]) -> Table:
    """A row per method and a column per site: value with its interval. Where there are more sites than can be read, a
    row per site instead, of those that figures show too, and of what is over all sites.
    """
    chosen = [row for row in rows if row.measure == measure]
    places, methods = (
        [*dict.fromkeys(columns)] for columns in (map(_column_name, chosen), (row.method for row in chosen))
    )
    cells = {(row.method, _column_name(row)): _format_cell(row) for row in chosen}
    sites = {_column_name(row) for row in chosen if row.protocol in AT_ONE}
    trainings = max(row.trainings for row in chosen)
    over = "patients" if trainings == 1 else f"patients or {trainings} trainings, whichever is wider"
    title = f"{measure} (95 % interval over {over})"
    if len(sites) <= READABLE:
        return _fill_table(
            "method", title, places, {m: [cells.get((m, place), "") for place in places] for m in methods}
        )
    title += f", {len(shown)} of {len(sites)} hospitals; the page has all"
    lines = [*shown, *(place for place in places if place not in sites)]
    return _fill_table(
        "hospital", title, methods, {line: [cells.get((m, line), "") for m in methods] for line in lines}
    )


def _fill_table(first: str, title: str, heads: Iterable[str], lines: Mapping[str, Sequence[str]]) -> Table:
    """A table for the terminal with a line per name."""
    table = Table(first, title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _column_name(row: ScoreRow) -> str:
    """The hospital of a row, or the protocol of one over several hospitals."""
    return row.sites[0] if row.protocol in AT_ONE else row.protocol


def _format_cell(row: ScoreRow) -> str:
    """A value with its interval and a mark where it cannot be assessed."""
    if math.isnan(row.value):
        return "–"
    mark = "" if row.assessable else "*"
    low, high = row.widest
    between = f" [dim]{low:z.2f}-{high:z.2f}[/dim]" if math.isfinite(low) else ""
    return f"{row.value:z.3f}{mark}{between}"
