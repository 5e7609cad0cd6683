"""Test-time routing: external sites get a model without training. See `pipelines.hospital.route`.

The models exported for them are also written to a file, for external sites that are not in these settings: see
`pipelines.external.offer`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from federation.matching import ChannelMoments
from federation.models import OnFeatures
from pipelines.coordinator.artifacts import OUTSIDE_FOLDER, Counts, ScoredFile, read_counts, write_index
from pipelines.coordinator.channels import average_moments
from pipelines.coordinator.conversations import build_opening
from pipelines.coordinator.spaces import find_cohort_complaint
from pipelines.coordinator.stages import ingest
from pipelines.coordinator.stages.features import ask_features_outside
from pipelines.coordinator.stages.translate import translate_outside
from pipelines.coordinator.trained import TrainedMethod, read_trained
from pipelines.coordinator.world import World
from pipelines.external.offer import write_offers
from pipelines.loader.validation import to_plain
from pipelines.requests import route as requests
from pipelines.requests.export import EXPORT, Export, Exported
from pipelines.requests.scores import LabelScores, MaskScores
from pipelines.requests.writing import to_facts, to_message
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.checks.partition import find_partition_differences
from pipelines.settings.image_spaces import find_line_spaces, image_space, list_routed_spaces
from pipelines.settings.route import PERSONAL, SHARED, Line, Matched, Route
from privacy.message import Json, Message, Params, to_bytes
from privacy.release.form import ABSENT
from privacy.release.policy import OUTSIDE

VERSION = 9


def settings(world: World) -> Json:
    """Settings besides training's that change the result."""
    config = world.config
    return {
        "route": to_plain(config.route),
        "outside": list(config.outside),
        "evaluate": {"checkpoint": config.evaluate.checkpoint, "copies": config.evaluate.copies},
        "seed": config.seed,
        "ingest": ingest.settings(world),
    }


def digest_outside_files(world: World) -> Mapping[str, str]:
    """Digests of the external sites' files."""
    return ingest.outside(world.outside_world())


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Have every external site ingest, send it the models, and write the scores with an index."""
    plan = world.config.route
    if plan is None or not world.config.outside:
        raise ValueError("route: missing, or nobody is outside; say who and how")
    homes_at = out / OUTSIDE_FOLDER
    homes_at.mkdir()
    counts = ingest.ingest_sites(world.outside_world(), homes_at)
    _check_partitions(world, inputs["ingest"], counts)
    translated = translate_outside(world, inputs, {site: each.cohort for site, each in counts.items()}, homes_at)
    models: dict[str, dict[str, Params]] = {}
    index: list[ScoredFile] = []
    with show_progress("route") as step:
        for position, (label, line) in enumerate(plan.lines.items()):
            step(position, len(plan.lines), label)
            for method in plan.methods(line).values():
                if method not in models:
                    models[method] = _export_to_outside(world, read_trained(inputs["train"], method))
            cohorts = {site: _cohort_of_line(world, inputs, line, site, translated) for site in world.outside.sites}
            moments = _ask_moments(world, inputs["train"], plan, line)
            for site, run_, reply in _ask_routes(world, plan, label, line, models, cohorts, moments):
                name = f"{label}.{site}.safetensors"
                (out / name).write_bytes(to_bytes(to_message(reply)))
                index.append(ScoredFile(label, site, site, name, run_))
    write_index(out, index)
    return {"scored": len(index), "models": write_offers(world.config, plan, models, out)}


def _check_partitions(world: World, ingested: Path, outside_counts: Mapping[str, Counts]) -> None:
    """Check that parts of one source on both sides were divided alike, so that no training patient is scored."""
    dealings = ingest.partition_digests({**read_counts(ingested), **outside_counts})
    if problems := find_partition_differences(world.config.sites, dealings):
        raise ingest.UnusableCohort("; ".join(problems))


def _shared_model(models: Mapping[str, Params], label: str) -> Params:
    """The one model that all sites share. Raises: ValueError: the sites have different models."""
    if len({hashlib.sha256(to_bytes(Message(params))).hexdigest() for params in models.values()}) > 1:
        raise ValueError(
            f"route: {label} stands for one model of all hospitals, and theirs differ; name a method with one model, "
            "and a checkpoint that is the same everywhere (global or latest; average where nobody missed a round)"
        )
    return next(iter(models.values()))


def _export_to_outside(world: World, trained: TrainedMethod) -> dict[str, Params]:
    """A method's models by site: a release to external sites."""
    return {site: reply.parameters for site, reply in _ask_exports(world, trained).items()}


def _ask_moments(world: World, trained_at: Path, plan: Route, line: Line) -> ChannelMoments | None:
    """The moments that a line's shared model has on the training hospitals' images; None for a line without need."""
    if not isinstance(line.how, Matched):
        return None
    trained = read_trained(trained_at, plan.methods(line)[SHARED])
    return average_moments(_ask_exports(world, trained, line.how))


def _ask_exports(world: World, trained: TrainedMethod, moments: Matched | None = None) -> Mapping[str, Exported]:
    """Every hospital's model of a method, for external sites, and how its channels lie at that hospital."""
    question = Export(
        label=trained.label,
        train_run=trained.train_run,
        checkpoint=world.config.evaluate.checkpoint,
        best=trained.best,
        recipient=OUTSIDE,
        moments=ABSENT if moments is None else moments,
    )
    runs = {
        site: world.run(world.name_question("handed", "route", VERSION, {**to_facts(question), "site": site}))
        for site in world.engine.sites
    }
    replies = world.ask_each(EXPORT, runs, world.same_for_all(question))
    return {site: replies[site] for site in runs}


def _cohort_of_line(
    world: World, inputs: Mapping[str, Path], line: Line, site: str, translated: Mapping[str, Mapping[str, str]]
) -> str:
    """An external site's cohort for a line: its images in the space of the line's models, or the features of them on
    which these are. translated: cohorts by space and site.
    """
    spaces = find_line_spaces(world.config, line)  # all equal, which the settings were checked for
    for label, space in spaces.items():
        model = world.config.model_of(label)
        if isinstance(model, OnFeatures):  # such a line has one method only
            named = image_space(world.config, label)
            return ask_features_outside(world, inputs["features"], site, translated[space][site], model, named)
    return translated[next(iter(spaces.values()))][site]


def _ask_routes(
    world: World,
    plan: Route,
    label: str,
    line: Line,
    models: Mapping[str, Mapping[str, Params]],
    cohorts: Mapping[str, str],
    moments: ChannelMoments | None,
) -> Iterator[tuple[str, str, LabelScores | MaskScores]]:
    """Each external site, the conversation with it, and its scores by one line. moments: of the shared model's
    channels, where the line matches them.
    """
    needed, experts = plan.methods(line), dict[str, Params]()
    if PERSONAL in needed:
        experts |= models[needed[PERSONAL]]
    if SHARED in needed:
        experts["*"] = _shared_model(models[needed[SHARED]], needed[SHARED])
    tensors = {f"{name}/{key}": value for name, params in experts.items() for key, value in params.items()}
    for site in world.outside.sites:
        openings = {part: build_opening(world, method, site, cohorts[site]) for part, method in needed.items()}
        question = requests.Route(
            shared=openings.get(SHARED, ABSENT),
            personal=openings.get(PERSONAL, ABSENT),
            experts=list(experts),
            how=line.how,
            line=label,
            scored=plan.scored_patients,
            cohort=cohorts[site],
            copies=world.config.evaluate.copies,
            seed=world.config.seed,
            tensors=tensors,
            channel_mean=ABSENT if moments is None else moments.mean,
            channel_square=ABSENT if moments is None else moments.square,
            channel_noise=ABSENT if moments is None else moments.deviation,
        )
        models_digest = hashlib.sha256(to_bytes(Message(to_message(question).tensors))).hexdigest()
        about = {**to_facts(question), "models": models_digest, "site": site}
        run_ = world.run(world.name_question("route", "route", VERSION, about))
        yield site, run_, world.outside_world().ask_one(requests.ROUTE, run_, site, question)


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless the external sites still hold their cohorts, translated ones too."""
    files = (artifact / OUTSIDE_FOLDER / f"{space}.json" for space in list_routed_spaces(world.config))
    complaint = ingest.intact(world.outside_world(), artifact / OUTSIDE_FOLDER)
    return complaint or next((text for file in files if (text := find_cohort_complaint(world, file))), None)


NEEDS = ("ingest", "score", "sample", "translate", "augment", "features", "train")
STAGE = Stage("route", VERSION, NEEDS, settings, run, outside=digest_outside_files, intact=intact)
