"""Every hospital translates its images into the spaces of the YAML and returns the names of the new cohorts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pipelines.coordinator.artifacts import SHARED, target_of, write_replies
from pipelines.coordinator.spaces import build_common_part, common_settings, find_cohort_complaint, read_cohorts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.requests.translate import TRANSLATE, Translate
from pipelines.requests.writing import to_message
from pipelines.runs.progress import make_counter, show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, AnySpace
from pipelines.settings.image_spaces import list_routed_spaces
from privacy.message import Json, Params, from_bytes, to_bytes
from privacy.release.form import ABSENT

VERSION = 3


def settings(world: World) -> Json:
    """Settings besides the shared images that change the result."""
    plan = world.config.harmonize_settings
    spaces: dict[str, Json] = {label: to_plain(translator) for label, translator in plan.translate.items()}
    vetoes: dict[str, Json] = {name: to_plain(site.veto) for name, site in world.config.sites.items()}
    return {"translate": spaces, "veto": to_plain(plan.veto), "own": vetoes, **common_settings(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request every site to translate into every space; write one JSON file per space."""
    cohorts, target = read_cohorts(inputs, RAW), target_of(inputs["score"])
    shared = from_bytes((inputs["sample"] / SHARED).read_bytes()).tensors
    spaces = world.config.harmonize_settings.translate
    vetoed: dict[str, Json] = {}
    with show_progress("translate") as step:
        for position, (space, translator) in enumerate(spaces.items()):
            done_before, total = position * len(cohorts), len(spaces) * len(cohorts)
            step(done_before, total, space)
            questions = {
                site: build_question(world, space, translator, site, target, cohorts[site].cohort, shared)
                for site in world.engine.sites
            }
            runs = {site: _name_run(world, question) for site, question in questions.items()}
            report_site = make_counter(step, total, done_before, f"{space}, ")
            replies = world.ask_each(TRANSLATE, runs, questions, report_site=report_site)
            write_replies(out / f"{space}.json", replies)
            vetoed[space] = {site: [*reply.vetoed] for site, reply in sorted(replies.items())}
    return {"vetoed": vetoed}


def build_question(
    world: World, space: str, translator: AnySpace, site: str, target: str, cohort: str, shared: Params
) -> Translate:
    """What one site is asked for one space. shared: the tensors `images` and `labels`. An external site's translator
    learns without labels.
    """
    source = world.config.sites[target].source
    return Translate(
        space=space,
        translator=translator,
        veto=world.config.sites[site].veto or world.config.harmonize_settings.veto,
        is_target=site == target,
        scanner=getattr(source, "scanner", None),
        unlabelled=True if site in world.config.outside else ABSENT,
        cohort=cohort,
        tensors=shared,
        **build_common_part(world),
    )


def translate_outside(
    world: World, inputs: Mapping[str, Path], cohorts: Mapping[str, str], out: Path
) -> dict[str, dict[str, str]]:
    """Have every external site train a translator of its own on the shared images, without labels, into each space in
    which a routed method learns (VAFL, section II.A); write one JSON file per space.

    cohorts: raw ones by site. Returns: space -> site -> its cohort there, which is the raw one where it refused.
    """
    by_space: dict[str, dict[str, str]] = {RAW: dict(cohorts)}
    spaces, far = list_routed_spaces(world.config), world.outside_world()
    if not spaces:
        return by_space
    target = target_of(inputs["score"])
    shared = from_bytes((inputs["sample"] / SHARED).read_bytes()).tensors
    for space in spaces:
        translator = world.config.harmonize_settings.translate[space]
        questions = {
            site: build_question(world, space, translator, site, target, cohorts[site], shared)
            for site in far.engine.sites
        }
        replies = far.ask_each(TRANSLATE, {site: _name_run(world, each) for site, each in questions.items()}, questions)
        write_replies(out / f"{space}.json", replies)
        by_space[space] = {site: reply.cohort for site, reply in replies.items()}
    return by_space


def _name_run(world: World, question: Translate) -> str:
    """The run to which a site's translation belongs: the same for the same shared images."""
    asked_for = hashlib.sha256(to_bytes(to_message(question))).hexdigest()
    return world.run(world.name_question("translate", "translate", VERSION, {"asked": asked_for}))


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its translated cohorts."""
    files = (artifact / f"{space}.json" for space in world.config.harmonize_settings.translate)
    return next((complaint for file in files if (complaint := find_cohort_complaint(world, file))), None)


STAGE = Stage("translate", VERSION, ("ingest", "score", "sample"), settings, run, intact=intact)
