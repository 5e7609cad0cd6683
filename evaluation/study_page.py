"""A study's page: scores, gains and losses, every case, every run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.common_sections import SIMULATION, build_commands_section, settings_fold
from evaluation.page import (
    Block,
    Cell,
    Column,
    Drawing,
    Fields,
    Fold,
    Heading,
    Page,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    compose_text,
    join_texts,
    make_subline,
    make_table,
    number_column,
)
from evaluation.rendering import render_page
from evaluation.rows import FLOORS
from evaluation.score_tables import DASH, NOT_ASSESSABLE, change_span, spread_fields
from evaluation.study import (
    ALL,
    MEAN,
    POOLED,
    ColumnRange,
    Key,
    Spread,
    StudyCase,
    StudyPage,
    StudyRun,
    Worth,
    Worths,
    build_cells,
    compute_balances,
    compute_column_ranges,
    compute_page_worths,
    deviation_range,
    find_weak_columns,
    list_compared_lines,
    outside_gains,
)
from evaluation.study import Cell as SeedCell
from evaluation.study_figures import draw_share_figures, draw_site_figures
from evaluation.wording import format_count, format_hundredths, format_moment, format_number, format_span

OVERALL_TITLE = compose_text("overall^†^")
TITLES: Mapping[str, Text] = {
    POOLED: OVERALL_TITLE,
    MEAN: "mean over assessable hospitals",
    ALL: "mean over every hospital",
}
"""Columns over several hospitals."""
MASKS_NOTE = compose_text(
    "^†^ *overall*: every patient of every hospital weighs the same, so large hospitals decide. *HD95* is better if "
    "it is lower, and a gain is positive if it fell; it has no value for a patient in whom the method found nothing."
)
LABELS_NOTE = compose_text(
    "^†^ *overall* mixes the offset between hospitals' scores into the result, and can lie outside the range of the "
    "single hospitals; for a method with a model for each hospital it pools the scores of different models in one "
    "sample. Below, every case lists each hospital."
)
WORTH_CAPTION = (
    "Share of the oracle gap: what a line gains over untranslated images, divided by what the oracle gains, which has "
    "the same patients on one scanner. Mean over seeds, with Fieller's 95 % interval; not known where the gap's own "
    "interval holds 0, or with one seed. Below, the line's gain: mean ± half of Student's 95 % interval."
)
RUNS_CAPTION = compose_text(
    "Every run of the study. Class activation maps show patients: they are on the hospitals' own pages, which stay "
    "with them, in `sites/HOSPITAL/report.html` of a run's folder."
)


@dataclass(frozen=True)
class _Numbers:
    """What is computed of all rows once. weak: (case, measure, column) in which nothing is assessable."""

    page: StudyPage
    cells: Mapping[Key, SeedCell]
    weak: set[tuple[str, str, str]]
    ranges: Mapping[tuple[str, str, str], ColumnRange]
    worths: Worths

    @property
    def floors(self) -> list[str]:
        """The baselines that were scored."""
        return [name for name in FLOORS if any(row.method == name for row in self.page.rows)]

    @property
    def order(self) -> list[str]:
        """All methods, in the order of the cases."""
        return list(dict.fromkeys(method for case in self.page.cases for method in case.methods))


def render_study_page(page: StudyPage) -> str:
    """The study in one page."""
    cells = build_cells(page.rows)
    numbers = _Numbers(
        page, cells, find_weak_columns(page.cases, cells), compute_column_ranges(cells), compute_page_worths(page)
    )
    runs = [run for case in page.cases for run in case.runs]
    done = len(_list_finished(runs))
    facts = compose_text(
        "Study **{name}** · {moment} · {cases} of {base}, {done} of {runs} done",
        name=page.name,
        moment=format_moment(page.date),
        cases=format_count(len(page.cases), "case", "cases"),
        base=page.base,
        done=done,
        runs=format_count(len(runs), "run", "runs"),
    )
    head: list[Block] = [Paragraph(page.what)] if page.what else []
    head.append(Paragraph((Span("Simulation.", "strong"), f" {SIMULATION}"), "banner"))
    if done < len(runs):
        missing = format_count(len(runs) - done, "run is", "runs are")
        unfinished = "**Not finished.** {missing} missing; means are over the finished runs. See [runs](#runs)."
        head.append(Paragraph(compose_text(unfinished, missing=missing), "banner"))
    fold = settings_fold(page.settings, "The study's settings", "The study's settings")
    sections = [
        _build_good_section(numbers),
        _build_gains_section(numbers),
        *(_build_case_section(numbers, case) for case in page.cases),
        _build_runs_section(page),
        Section("Settings", [fold], "settings", "Settings"),
        build_commands_section(page.commands),
    ]
    return render_page(Page(f"{page.title} – {page.name}", page.title, facts, sections, head))


def _list_finished(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs that have a page."""
    return [run for run in runs if run.page]


def _build_good_section(numbers: _Numbers) -> Section:
    """Scores over all hospitals, a column for each case."""
    page = numbers.page
    folds: list[Block] = [
        Fold(measure, [_build_overall_table(numbers, measure)], is_open=not place)
        for place, measure in enumerate(page.measures)
    ]
    notes = [Paragraph(MASKS_NOTE if page.masks else LABELS_NOTE, "note"), Paragraph(_doubt_seeds(numbers), "note")]
    return Section("How good, overall", [*folds, *notes], "good", "How good")


def _build_overall_table(numbers: _Numbers, measure: str) -> Table:
    """One measure over all hospitals."""
    page = numbers.page
    sample = (
        "all patients of all hospitals, each weighing the same"
        if page.masks
        else "all hospitals' predictions as one sample"
    )
    gain = "; below, the gain over the reference" if any(case.reference for case in page.cases) else ""
    caption = compose_text(
        "{measure}, overall^†^: {sample}. Mean ± standard deviation over seeds, and half of Student's 95 % interval "
        "of the mean{gain}.",
        measure=measure,
        sample=sample,
        gain=gain,
    )
    methods = [*numbers.order, *numbers.floors]

    def name_case(case: StudyCase) -> Column:
        seeds = make_subline(format_count(len(_list_finished(case.runs)), "seed", "seeds"))
        weak = NOT_ASSESSABLE if (case.name, measure, POOLED) in numbers.weak else ""
        return number_column((case.name, seeds, weak))

    def say_score(case: StudyCase, method: str) -> Cell:
        return _seed_cell(numbers, case, method, measure, POOLED)

    fields: Fields = [("method", str), *spread_fields(page.cases, name_case, say_score)]
    look = "lead" if len(methods) <= 12 else "grid"
    return make_table(f"{measure}, overall, by case", caption, methods, fields, look=look)


def _doubt_seeds(numbers: _Numbers) -> Text:
    """How little few seeds say."""
    seeds = sorted({cell.value.n for cell in numbers.cells.values()}) or [0]
    doubts = [f"{numbers.page.varies} "]
    if seeds[-1] < 2:
        doubts.append("With one seed there is no spread: a difference may be due to one training. ")
    for n in sorted({seeds[0], seeds[-1]}):
        if n > 1:
            low, high = deviation_range(n)
            doubts.append(
                f"With {n} seeds the true deviation lies between {low:.2g} and {high:.2g} times the printed one (95 "
                "%, for normal values). "
            )
    if seeds[0] < 2 <= seeds[-1]:
        doubts.append("A case with one seed has no deviation. ")
    end = (
        "No test of significance is made: a mean gain smaller than its deviation is no finding, and neither is the "
        "best of many cases."
    )
    return (Span("Seeds are few.", "strong"), " ", *doubts, end)


def _build_gains_section(numbers: _Numbers) -> Section:
    """Where methods gain over the reference, and where they lose."""
    title, page = "Who gains, who loses", numbers.page
    fields: Fields = [
        ("case", lambda balance: balance.case),
        ("method", lambda balance: balance.method),
        (number_column("overall"), lambda balance: _deviation_text(balance.pooled)),
        (number_column("hospitals better off"), lambda balance: "{} of {}".format(*balance.sites)),
        (number_column("hospitals × seeds"), lambda balance: "{} of {}".format(*balance.times)),
        ("gains least", lambda balance: balance.worst),
        (number_column("its gain"), lambda balance: _deviation_text(balance.least)),
    ]
    folds: list[Block] = []
    for place, measure in enumerate(page.measures):
        balances = compute_balances(page.cases, numbers.cells, measure)
        caption = (
            f"Gain in {measure} over the reference. Hospitals better off: by their mean over seeds. Hospitals × "
            "seeds: every pair counted separately."
        )
        empty = "No gain was computed: there is no reference, or no run is done."
        table = make_table(f"{title}, by {measure}", caption, balances, fields, empty=empty)
        folds.append(Fold(measure, [table], is_open=not place))
    return Section(title, [*folds, *draw_share_figures(page, numbers.cells, numbers.order)], "gains", title)


def _build_case_section(numbers: _Numbers, case: StudyCase) -> Section:
    """A case: all scores by hospital, and what harmonization is worth."""
    finished = _list_finished(case.runs)
    measures = numbers.page.measures
    blocks: list[Block] = [Paragraph(_describe_case(case, finished))]
    if finished:
        several = [POOLED, MEAN, ALL] if len(case.sites) > 1 else []
        columns = [*several, *case.sites]
        pictures = draw_site_figures(case, numbers.cells, numbers.order, measures)
        for place, measure in enumerate(measures):
            table = _build_case_table(numbers, case, measure, columns)
            figures = [Drawing(pictures[measure], "after")] if measure in pictures else []
            blocks.append(Fold(measure, [table, *figures], is_open=not place))
        for measure, lines in list_compared_lines(case, numbers.worths, measures).items():
            blocks.append(Heading(f"{measure}: what harmonization is worth"))
            blocks.append(_build_worth_table(numbers, case, measure, lines, columns))
        blocks += _build_outside_tables(numbers, case)
    else:
        blocks.append(Paragraph("No run of this case is done.", "note"))
    blocks += [Paragraph(_describe_target(run), "note") for run in finished if run.target or run.unused]
    return Section(case.name, blocks, f"case-{case.name}", case.name)


def _describe_case(case: StudyCase, finished: Sequence[StudyRun]) -> Text:
    """A case and its runs, in sentences."""
    what = f"{case.what}. " if case.what else ""
    sites = format_count(len(case.sites), "hospital", "hospitals")
    seeds = format_count(len(case.runs), "seed", "seeds")
    reference = f", reference {case.reference}" if case.reference else ""
    share = f"{100 * case.share:g} % of the patients in training"
    text = f"{what}{sites}, {share}, {len(finished)} of {seeds} done{reference}."
    if not finished:
        return text
    return (text, " Pages: ", join_texts(Span(f"seed {run.seed}", href=run.page) for run in finished), ".")


def _describe_target(run: StudyRun) -> str:
    """The target of a run, and translations that it did not use."""
    facts = [f"target {run.target}"] if run.target else []
    if run.unused:
        facts.append(
            "translations that were not used, so that the method was trained on images as they were read: "
            f"{'; '.join(run.unused)}"
        )
    return f"Seed {run.seed}: {'; '.join(facts)}."


def _build_case_table(numbers: _Numbers, case: StudyCase, measure: str, columns: Sequence[str]) -> Table:
    """One measure of a case, by method and hospital."""
    seeds = format_count(len(_list_finished(case.runs)), "seed", "seeds")
    caption = (
        f"{measure}: mean ± standard deviation over {seeds}, and half of Student's 95 % interval of the mean; below, "
        f"the gain over {case.reference or 'no reference'}."
    )

    def name_column(column: str) -> Column:
        title: list[Text] = [TITLES.get(column, column)]
        if known := numbers.ranges.get((case.name, measure, column)):
            which = "with the structure" if numbers.page.masks else "positive"
            title.append(make_subline(f"{format_span(known.patients)} patients"))
            title.append(make_subline(f"{format_span(known.positives)} {which}"))
        weak = NOT_ASSESSABLE if (case.name, measure, column) in numbers.weak else ""
        # A line before the first hospital, where columns over several hospitals stand before it.
        look = "sep" if len(columns) > len(case.sites) and column == case.sites[0] else ""
        return Column((*title, weak), is_number=True, look=look)

    def say_score(column: str, method: str) -> Cell:
        return _seed_cell(numbers, case, method, measure, column)

    fields: Fields = [("method", str), *spread_fields(columns, name_column, say_score)]
    return make_table(f"{measure} in {case.name}", caption, [*case.methods, *numbers.floors], fields, look="grid")


def _build_worth_table(
    numbers: _Numbers, case: StudyCase, measure: str, lines: Sequence[str], columns: Sequence[str]
) -> Table:
    """Shares of the oracle gap."""

    def find_worth(column: str, line: str) -> Worth | None:
        return numbers.worths.get((case.name, line, measure, column))

    def name_line(line: str) -> Text:
        first = find_worth(columns[0], line)
        return (line, make_subline(f"{first.untranslated} to {first.oracle}") if first else "")

    fields: Fields = [
        ("line", name_line),
        *spread_fields(
            columns, lambda column: number_column(TITLES.get(column, column)), lambda *of: _worth_text(find_worth(*of))
        ),
    ]
    label = f"What harmonization is worth in {case.name}, {measure}"
    return make_table(label, WORTH_CAPTION, lines, fields, look="grid")


def _worth_text(worth: Worth | None) -> Text:
    """A share of the oracle gap, the gain and the gap."""
    if worth is None:
        return DASH
    share: list[Text] = [Span("not known", "note")]
    if not math.isnan(worth.share.share):
        low, high = format_hundredths(worth.share.low), format_hundredths(worth.share.high)
        share = [Span(format_hundredths(worth.share.share), "value"), make_subline(f"{low} – {high}")]
    return (*share, Span(_interval_text(worth.gain), "sub gain"), make_subline("of ", _interval_text(worth.gap)))


def _build_outside_tables(numbers: _Numbers, case: StudyCase) -> list[Block]:
    """Gains of hospitals outside, by measure."""
    gains = outside_gains(numbers.page.rows)
    caption = (
        "Gain over the model as it was trained on images as they were read: mean ± half of Student's 95 % interval "
        "over seeds."
    )
    blocks: list[Block] = []
    for measure in numbers.page.measures:
        lines = gains.get((case.name, measure))
        if not lines:
            continue

        def say_gain(column: str, line: str, lines: Mapping[str, Mapping[str, Spread]] = lines) -> Text:
            return _interval_text(lines[line][column]) if column in lines[line] else DASH

        columns = next(iter(lines.values()))
        titles = spread_fields(columns, lambda column: number_column(column.replace("/", "")), say_gain)
        fields: Fields = [("line", str), *titles]
        label = f"Hospitals outside in {case.name}, {measure}"
        blocks.append(Heading(f"{measure}: gain of hospitals outside"))
        blocks.append(make_table(label, caption, lines, fields, look="narrow"))
    return blocks


def _build_runs_section(page: StudyPage) -> Section:
    """Every run."""
    runs = [(case.name, run) for case in page.cases for run in case.runs]
    fields: Fields = [
        ("run", lambda pair: Span(pair[1].run, href=pair[1].page)),
        ("case", lambda pair: pair[0]),
        (number_column("seed"), lambda pair: str(pair[1].seed)),
        (Column("state", look="told"), lambda pair: pair[1].state),
    ]
    return Section("Runs", [make_table("Runs", RUNS_CAPTION, runs, fields)], "runs", "Runs")


def _change_text(spread: Spread, deviation: float) -> Text:
    """A mean gain, coloured by its interval, with what stands beside it."""
    if not spread.n:
        return DASH
    change = change_span(spread.mean, spread.mean - spread.half, spread.mean + spread.half)
    return change if math.isnan(deviation) else (change, f" ± {format_number(deviation)}")


def _deviation_text(spread: Spread) -> Text:
    """A mean gain ± its standard deviation over seeds."""
    return _change_text(spread, spread.std)


def _interval_text(spread: Spread) -> Text:
    """A mean gain ± half of its interval."""
    return _change_text(spread, spread.half)


def _seed_cell(numbers: _Numbers, case: StudyCase, method: str, measure: str, column: str) -> Cell:
    """A score over the seeds of a case."""
    cell, seeds = numbers.cells.get((case.name, method, measure, column)), len(_list_finished(case.runs))
    if cell is None:
        return Cell(DASH)
    value, gain = cell.value, cell.gain
    parts: list[Text] = [Span(format_number(value.mean), "value")]
    if not math.isnan(value.std):
        parts += [f" ± {format_number(value.std)} ", make_subline(f"95 %: ± {format_number(value.half)}")]
    if method != case.reference and gain.n:
        parts += [" ", Span(_deviation_text(gain), "sub gain")]
        if gain.n > 1:
            parts += [" ", make_subline(f"better in {gain.better} of {gain.n}")]
    if value.n < seeds:
        parts += [" ", make_subline(f"{format_count(value.n, 'seed has', 'seeds have')} a value")]
    if not cell.assessable:
        parts += [] if (case.name, measure, column) in numbers.weak else [" ", NOT_ASSESSABLE]
    elif cell.assessable < seeds:
        parts += [" ", make_subline(f"assessable in {cell.assessable} of {seeds}")]
    return Cell(tuple(parts), "" if cell.assessable == seeds else "weak")
