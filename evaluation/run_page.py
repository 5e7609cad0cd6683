"""The coordinator's page, from messages only: its sections in their order."""

from __future__ import annotations

from evaluation.answers import run_answers
from evaluation.answers_section import build_answers, build_banners
from evaluation.common_sections import SIMULATION, build_commands_section, build_figures_section, settings_fold
from evaluation.page import Block, Page, Paragraph, Section, SideBySide, compose_text
from evaluation.privacy_blocks import build_privacy_section
from evaluation.records import RunPage
from evaluation.run_cost import build_code_section, build_cost_section, build_stages_section
from evaluation.run_left import build_left_section, build_sent_section
from evaluation.run_patients import build_patients_section
from evaluation.run_scores import (
    RunScores,
    arrange_scores,
    build_further_section,
    build_leading_section,
    build_outside_section,
    build_pairs_section,
    build_parts_section,
    build_scores_section,
)
from evaluation.run_spaces import build_spaces_section, build_synthetic_section
from evaluation.wording import format_moment

NOTES_STAY = (
    "Notes of methods at a hospital during training, as APPLE's relationships to the other hospitals, are not sent: "
    "they are drawn on each hospital's own page."
)
SIZES_STAY = (
    "How large masks are, patient by patient, and the outlines of the worst cases are on each hospital's own page. "
    "Neither is sent."
)
TRACKING = "tracking"
"""Where the shell puts a warning in the page, see `pipelines/coordinator/tracking`."""


def build_run_page(page: RunPage) -> Page:
    """The run in one page: scores, patients, what left."""
    answers, scores = run_answers(page), arrange_scores(page)
    facts = compose_text(
        "Run **{run}** · {moment} · {what}", run=page.run, moment=format_moment(page.date), what=page.what
    )
    simulation = compose_text(
        f"**Simulation.** {SIMULATION} Where this page says that something left a hospital, it would have left a real "
        "one."
    )
    head: list[Block] = [Paragraph(simulation, "banner")] if page.simulation else []
    head += build_banners(answers)
    has_models = bool(page.methods or page.scores or not page.harmony)
    models = build_leading_section(scores) if has_models else []
    fold = settings_fold(page.settings, "The settings of this run, with every default", "The settings of this run")
    sections: list[Section | SideBySide] = [
        build_answers(answers, "each hospital", is_run=True),
        *([Section("The scores in one figure", page.pictures[:1], "figure")] if has_models and page.pictures else []),
        SideBySide(
            [*models, build_patients_section(page, is_many=scores.is_many), build_sent_section(page, scores.is_many)]
        ),
        *build_further_section(scores),
        *(_build_model_sections(scores) if has_models else []),
        *build_spaces_section(page, scores.notes),
        *build_synthetic_section(page),
        build_left_section(page, is_many=scores.is_many),
        build_privacy_section(page.statements, page.audits, page.membership, page.inversion, is_run=True),
        *(build_cost_section(page) if has_models else []),
        build_stages_section(page.stages),
        *build_code_section(page.others),
        Section("Settings", [fold], "settings", "Settings"),
        build_commands_section(page.commands),
    ]
    return Page(f"{page.title} – {page.run}", page.title, facts, sections, head, mark=TRACKING)


def _build_model_sections(scores: RunScores) -> list[Section]:
    """What is said of models only where there are some."""
    builders = (build_scores_section, build_pairs_section, build_parts_section, build_outside_section)
    page = scores.page
    notes = [*([NOTES_STAY] if page.methods else []), *([SIZES_STAY] if page.structures else [])]
    return [*(section for build in builders for section in build(scores)), build_figures_section(page.pictures, notes)]
