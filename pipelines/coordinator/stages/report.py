"""The coordinator's page, made from sites' replies only; every site writes its own page, which stays there."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from evaluation.at_home import HomeComparison
from evaluation.choice import compute_optimism, select_primary
from evaluation.classes import Classes
from evaluation.findings import Several, list_finding_measures
from evaluation.floors import add_floor
from evaluation.grid import select_figure_sites
from evaluation.leaving import Left
from evaluation.metrics import Measure
from evaluation.numbers import Errors, Number, list_number_measures
from evaluation.oracle_gap import gap_rows
from evaluation.overlap import Overlaps, list_measures
from evaluation.protocols import Table
from evaluation.records import Command, Missing, OtherCode, RunPage, SiteCounts, SplitCount, StageState
from evaluation.report import render_coordinator_page
from evaluation.rivals import find_rivals
from evaluation.rows import ScoreRow, scores_csv
from evaluation.scoring import gain_rows, label_measures, outside_rows, pair_rows, score_rows
from evaluation.wording import READABLE, Words, format_count, format_moment
from federation.origins import list_origins
from federation.rounds import method_schedule
from pipelines.coordinator.artifacts import (
    PAGE,
    SITES,
    Counts,
    Refusal,
    RoundFigures,
    read_counts,
    read_refused,
    read_round_figures,
    write_results,
    write_statements,
)
from pipelines.coordinator.audits import Audits, read_audits
from pipelines.coordinator.report.asking import (
    ask_comparisons,
    ask_outside,
    ask_sites,
    build_lines,
    count_withdrawn,
    find_field_setting,
    find_untreated_line,
    list_oracle_comparisons,
    read_decisions,
    read_outside_counts,
    rejections_by_reason,
)
from pipelines.coordinator.report.asking import list_outside_counts as outside_counts
from pipelines.coordinator.report.at_home import compare_with_home
from pipelines.coordinator.report.figures import Tables, draw_figures, draw_round_scores, read_floor, read_tables
from pipelines.coordinator.report.harmonization import build_harmony, list_augmentation_rows
from pipelines.coordinator.report.methods import (
    build_inversion_rows,
    build_membership_row,
    compute_method_costs,
    describe_merging,
    list_models,
    list_outliers,
    spaces_by_label,
)
from pipelines.coordinator.trained import TrainedMethod, read_trained
from pipelines.coordinator.world import World
from pipelines.data.label_findings import name_finding_bands
from pipelines.hospital.hospital import SPLITS
from pipelines.hospital.numbers import describe_number
from pipelines.hospital.segmentation import words_of_kind
from pipelines.loader.validation import to_plain
from pipelines.models.file import READY
from pipelines.requests.holds import Holds
from pipelines.requests.ingest import Counted
from pipelines.requests.leaving import left_in
from pipelines.requests.report import Entry, Reported
from pipelines.runs.runner import Stage
from pipelines.runs.store import read_manifest
from pipelines.settings.config import Config
from pipelines.settings.learning import Training, list_trainings, name_training
from pipelines.settings.privacy import AnyPrivacy, PatientLevel
from pipelines.settings.task import Segmentation
from privacy.message import Json, as_list, as_mapping
from privacy.release.statement import Statement, from_json
from privacy.release.statement_markdown import render_markdown

VERSION = 31


def settings(world: World) -> Json:
    """Settings that change the page, besides the results."""
    config = world.config
    pages: dict[str, Json] = {"pages": config.pages} if config.pages != "some" else {}
    return {"title": config.title, "reference": config.evaluate.reference, "name": config.name} | pages


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Compute every score, have every site write its page and list its releases, and write the coordinator's page."""
    config, cohorts = world.config, read_counts(inputs["ingest"])
    trained = [read_trained(inputs["train"], label) for label in config.train.methods]
    evaluated = _read_evaluated(config, inputs)
    tables = evaluated.tables
    audits = read_audits(inputs["audit"]) if "audit" in inputs else Audits()
    lines = build_lines(world, inputs, trained)
    comparisons = ask_comparisons(world, lines, VERSION)
    at_home = compare_with_home(config, tables, cohorts, comparisons.scores, evaluated.repeats)
    reference, references = _name_references(config.evaluate.reference, at_home, tables)
    structures, classes, number, scored, findings = _choose_measures(config, tables)
    primary = select_primary(scored)
    rows = score_rows(
        add_floor(tables, evaluated.floor), reference=reference, measures=scored, repeats=evaluated.repeats
    )
    replies = ask_sites(world, inputs, lines, comparisons, references, VERSION, select_figure_sites(rows))
    external = ask_outside(world, inputs, VERSION)
    everybody = dict(sorted(replies.items())) | external
    (out / SITES).write_text(json.dumps({site: reply.page for site, reply in everybody.items()}))
    untouched, outside = _score_outside(config, inputs.get("route"), scored)
    shares = gap_rows(tables, list_oracle_comparisons(config), primary)
    usable, words = list_models(world, trained, replies), _describe_examples(config)
    use = read_decisions({site: reply.decision for site, reply in replies.items()}, usable, rows)
    statements = tuple(from_json(reply.statement) for reply in everybody.values())
    page = RunPage(
        title=config.title or config.name,
        run=config.name,
        date=world.now(),
        what=_describe_run(world),
        simulation=world.simulation,
        reference=reference or "",
        sites=tuple(_build_site_counts(site, counts, replies[site]) for site, counts in sorted(cohorts.items())),
        scores=rows,
        gains=gain_rows(tables, reference=reference, measures=scored, repeats=evaluated.repeats) if reference else (),
        methods=tuple(compute_method_costs(world, trained, replies, reference)),
        left=tuple(_build_left(site, entry) for site, reply in everybody.items() for entry in reply.left),
        missing=tuple(_count_missing(trained, evaluated.refused)),
        stages=(*(_build_stage_state(name, folder) for name, folder in inputs.items()), _build_own_state(world, out)),
        settings=json.dumps(without_patients(to_plain(config)), indent=1),
        commands=_list_commands(world),
        words=words,
        structures=structures,
        outside=outside,
        external_sites=tuple(outside_counts(read_outside_counts(inputs["route"]), external)) if external else (),
        field=find_field_setting(config) if external else "",
        statements=statements,
        audits=() if audits.mechanism is None else (audits.mechanism,),
        membership=tuple(map(build_membership_row, audits.membership)),
        inversion=tuple(row for attempt in audits.inversion for row in build_inversion_rows(attempt)),
        harmony=build_harmony(world, inputs),
        models=usable,
        optimism=compute_optimism(tables, sorted(cohorts), primary),
        spaces=spaces_by_label(world, trained),
        decisions=use,
        rivals=find_rivals(tables, use, usable, primary),
        classes=() if structures or findings.names else classes.several,
        shares=shares,
        untreated=untouched or "",
        augmented=list_augmentation_rows(world, inputs),
        others=tuple(OtherCode(*origin[:3]) for origin in list_origins(config)),
        at_home=at_home,
        outliers=tuple(list_outliers(world, trained)),
        merging=describe_merging(world, trained),
        number=number,
        ordered=config.task.ordered,
        findings=findings,
        pairs=pair_rows(tables, primary, repeats=evaluated.repeats, by_site=len(cohorts) <= READABLE),
    )
    _write_page(_add_pictures(page, evaluated, trained, classes, primary), everybody, out)
    return {"report": PAGE, "scores": len(rows)}


def _add_pictures(
    page: RunPage, evaluated: _Evaluated, trained: Sequence[TrainedMethod], classes: Classes, primary: Measure
) -> RunPage:
    """The page with its figures, and with scores by round where hospitals told them."""
    reference = page.reference or None
    how = (page.decisions, page.words, classes, primary)
    drawn = draw_figures(evaluated.tables, page.scores, trained, reference, *how)
    labels, sites = [method.label for method in trained], select_figure_sites(page.scores)
    return replace(page, pictures=(*drawn, *draw_round_scores(evaluated.by_round, labels, reference, sites)))


def _score_outside(
    config: Config, folder: Path | None, scored: tuple[Measure, ...]
) -> tuple[str | None, tuple[ScoreRow, ...]]:
    """The line over which gains at external sites are computed, and the rows of these sites."""
    routed = {} if folder is None else read_tables(folder, copies=config.evaluate.copies, seed=config.seed)
    line = find_untreated_line(config)
    untouched = line if line in routed else None
    return untouched, outside_rows(routed, scored, untouched)


class _Measures(NamedTuple):
    """What a run predicts - structures of masks, classes, a number, or several findings - and by which measures that is
    scored.
    """

    structures: tuple[str, ...]
    classes: Classes
    number: Number | None
    scored: tuple[Measure, ...]
    findings: Several = Several()


def _choose_measures(config: Config, tables: Tables) -> _Measures:
    """The measures of a run's task."""
    task = config.task
    structures = task.structures if isinstance(task, Segmentation) else ()
    classes = Classes(task.names, task.ordered)
    if task.number is not None:
        number = describe_number(task.number)
        return _Measures((), classes, number, list_number_measures(number))
    if task.findings:
        exact = not any(evidence.noise for table in tables.values() for evidence in table.values())
        scored = list_finding_measures(task.findings, exact=exact)
        return _Measures((), classes, None, scored, Several(task.findings, name_finding_bands(len(task.findings))))
    scored = list_measures(structures) if structures else label_measures(tables, classes)
    return _Measures(structures, classes, None, scored)


def _describe_examples(config: Config) -> Words:
    """The words for examples, and the unit of what is predicted."""
    unit = "" if config.task.number is None else config.task.number.shown_unit
    return replace(words_of_kind(config.images.kind), unit=unit)


def _name_references(named: str | None, at_home: HomeComparison, tables: Tables) -> tuple[str | None, str | None]:
    """Over which line gains are on the coordinator's page, and on hospitals'. named: in the settings.

    A hospital of a private run knows more of its own lines than others do, and chooses by that.
    """
    reference = named or at_home.reference
    usable = reference if reference in tables else None
    return usable, named if named or at_home.home_floors else usable


def _write_page(page: RunPage, replies: Mapping[str, Reported], out: Path) -> None:
    """Write the page, what it holds for other programs, and hospitals' statements."""
    _write_statements(replies, page.statements, out)
    (out / PAGE).write_text(render_coordinator_page(page))
    (out / "scores.csv").write_text(scores_csv((*page.scores, *page.outside)))
    write_results(out, page)


class _Evaluated(NamedTuple):
    """What the evaluate stage wrote; nothing where a run trains nothing. repeats: further trainings' tables, by
    method. floor: the mean mask's overlaps, or the median guess's errors, by site. by_round: what hospitals told of
    rounds.
    """

    tables: Tables = MappingProxyType({})
    repeats: Mapping[str, Sequence[Table]] = MappingProxyType({})
    floor: Mapping[str, Overlaps | Errors] = MappingProxyType({})
    refused: Sequence[Refusal] = ()
    by_round: Sequence[RoundFigures] = ()


def _read_evaluated(config: Config, inputs: Mapping[str, Path]) -> _Evaluated:
    """The tables of scores, from the evaluate stage's folder, and what the stage `figures` wrote."""
    folder, figures = inputs.get("evaluate"), inputs.get("figures")
    if folder is None:
        return _Evaluated()
    every_table = read_tables(folder, copies=config.evaluate.copies, seed=config.seed)
    names = {label: [name_training(label, k) for k in list_trainings(config.train.repeats)] for label in every_table}
    repeats = {label: [every_table[name] for name in each[1:] if name in every_table] for label, each in names.items()}
    further = {name for each in names.values() for name in each[1:]}
    tables = {label: table for label, table in every_table.items() if label not in further}
    return _Evaluated(
        tables,
        {label: each for label, each in repeats.items() if each},
        read_floor(folder),
        [*read_refused(folder), *([] if figures is None else read_refused(figures))],
        read_round_figures(figures),
    )


def _write_statements(everybody: Mapping[str, Reported], statements: Sequence[Statement], out: Path) -> None:
    """Write the privacy statements as JSON and as text, and the heads of the ledgers."""
    write_statements(out, {site: reply.statement for site, reply in everybody.items()})
    (out / "statement.md").write_text("\n".join(map(render_markdown, statements)))
    heads = {site: reply.ledger for site, reply in everybody.items()}
    (out / "ledgers.json").write_text(json.dumps(heads, indent=1))


def without_patients(settings: Json) -> Json:
    """Settings without private parts: of files only the kind, of named patients only the number."""
    if not isinstance(settings, dict):
        return settings
    return {
        **settings,
        "sites": {
            site: _remove_names(site_settings) for site, site_settings in as_mapping(settings.get("sites")).items()
        },
    }


def _remove_names(site: Json) -> Json:
    """A site's settings without files and named patients."""
    settings = as_mapping(site)
    kinds: dict[str, Json] = {
        name: {"kind": as_mapping(settings[name]).get("kind")} for name in ("source", "labels") if settings.get(name)
    }
    lists: dict[str, Json] = {
        name: f"{len(as_list(settings[name]))} names" for name in ("exclude", "test") if settings.get(name)
    }
    return {name: value for name, value in {**settings, **kinds, **lists}.items() if name != "gland"}


def _describe_run(world: World) -> str:
    """Hospitals, methods, rounds and the promise to patients, in a sentence."""
    config = world.config
    outside_words = f" and {len(config.outside)} outside the federation" if config.outside else ""
    inside = format_count(len(config.sites) - len(config.outside), "hospital", "hospitals")
    methods = "no model is trained"
    if config.train.methods:
        methods = (
            f"{format_count(len(config.train.methods), 'method', 'methods')} ({', '.join(config.train.methods)}), "
            f"{_describe_rounds(config.train)}, checkpoint {config.evaluate.checkpoint}"
        )
    return f"{inside}{outside_words}, {methods}. {_describe_promise(config.privacy)}"


def _describe_rounds(train: Training) -> str:
    """How many rounds, in words: a method may have a number of its own."""
    known = {label: method_schedule(method, train.schedule).rounds for label, method in train.methods.items()}
    usual = train.schedule.rounds
    other_rounds = [f"{label} {rounds}" for label, rounds in known.items() if rounds != usual]
    if len(set(known.values())) == 1:
        usual, other_rounds = next(iter(known.values())), []
    return f"{usual} round{'s' * (usual != 1)}{' (' + ', '.join(other_rounds) + ')' if other_rounds else ''}"


def _describe_promise(privacy: AnyPrivacy) -> str:
    """The privacy that the settings promise, in a sentence."""
    if not isinstance(privacy, PatientLevel):
        return "Privacy: none; no formal guarantee is given."
    strength = f"noise {privacy.noise:g}" if privacy.epsilon is None else f"ε = {privacy.epsilon:g}"
    return (
        f"Patient-level differential privacy: {strength} at δ = {privacy.delta:g} for each method; see the statement."
    )


def _build_site_counts(site: str, counts: Counts, reply: Reported) -> SiteCounts:
    """A hospital's counts for the page."""
    splits = tuple(SplitCount(split, **counts.splits[split]) for split in SPLITS)
    return SiteCounts(
        site, splits, rejections_by_reason(counts), count_withdrawn(counts, reply), describe_release(counts)
    )


def describe_release(counts: Counts) -> str:
    """How a hospital with a budget counted its patients; empty without a budget."""
    if isinstance(counts, Counted):
        return ""
    noise = counts.released["noise"]
    how = f"noise of {noise:.2g} in each cell" if noise else "exact"
    return f"patients counted once, {counts.released['date'][:10]}, {how}"


def _build_left(site: str, entry: Entry) -> Left:
    """What left a hospital in answer to one request."""
    left = left_in(site, entry["request"], entry["content"], entry["records"], entry["messages"], entry["bytes"])
    return replace(left, epsilon=entry["epsilon"])


def _count_missing(trained: Sequence[TrainedMethod], refused: Sequence[Refusal]) -> list[Missing]:
    """How often each request of each site was not answered, by code."""
    lost = Counter((site, f"train {result.label}", code) for result in trained for _, site, code in result.missing)
    lost.update((refusal.site, refusal.request, refusal.code) for refusal in refused)
    return [Missing(site, request, code, times) for (site, request, code), times in sorted(lost.items())]


def _build_stage_state(name: str, folder: Path) -> StageState:
    """When a stage ended, how long it took, and where its artifact is."""
    manifest = read_manifest(folder)
    when = datetime.fromtimestamp(float(manifest["finished"]), UTC).isoformat(timespec="seconds")
    return StageState(name, format_moment(when), float(manifest["seconds"]), f"{name}/{folder.name}")


def _build_own_state(world: World, out: Path) -> StageState:
    """The state of this stage, which cannot know its own duration yet."""
    return StageState("report", format_moment(world.now()), math.nan, f"{out.parent.name}: this page")


def _list_commands(world: World) -> tuple[Command, ...]:
    """Commands that a reader of the page may need next."""
    model = world.root / "sites" / "SITE" / READY / "METHOD.safetensors"
    return (
        Command(
            "Use a finished model on new patients, at the hospital that trained it",
            f"python -m pipelines.predict {model} FOLDER",
        ),
        Command("Why each stage ran or was kept", f"{world.command} --explain"),
        Command("Train again, and everything after it", f"{world.command} --from train --fresh"),
        Command("All of it again", f"{world.command} --fresh"),
    )


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site's own page is the one of this report; another run may have replaced it."""
    pages = json.loads((artifact / SITES).read_text())
    return world.find_complaint({site: Holds(page=page) for site, page in pages.items()})


STAGE = Stage(
    "report",
    VERSION,
    (),  # all that come before it: see `pipelines.coordinator.run.STAGES`
    settings,
    run,
    intact=intact,
)
