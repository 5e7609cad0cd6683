"""Evaluate every method's models on every site's test patients, from counts that the sites release."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from federation.matching import ChannelMoments
from federation.participant import Checkpoint
from pipelines.coordinator.artifacts import CENTRAL, Refusal, ScoredFile, write_index, write_refused
from pipelines.coordinator.channels import average_moments
from pipelines.coordinator.conversations import build_opening, pooled_engine
from pipelines.coordinator.spaces import Cohorts, read_cohorts_of_method, window_of
from pipelines.coordinator.stages.train import seed_training
from pipelines.coordinator.trained import TrainedMethod, read_trained
from pipelines.coordinator.world import SitesMissing, World
from pipelines.loader.validation import to_plain
from pipelines.requests.asking import ask
from pipelines.requests.evaluate import EVALUATE, Evaluate
from pipelines.requests.evaluate import Scored as Reply
from pipelines.requests.export import EXPORT, Export
from pipelines.requests.writing import to_facts, to_message
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.learning import list_trainings, name_training
from pipelines.settings.route import Matched
from pipelines.settings.variants import Variant
from privacy.message import Json, Message, Params, to_bytes
from privacy.release.form import ABSENT
from privacy.release.gate import BUDGET

VERSION = 11
Line: TypeAlias = tuple[str, Variant | None]
"""A label in the tables of results, and how its models are calibrated; None: not calibrated."""


def settings(world: World) -> Json:
    """Settings besides training's that change the result."""
    return {"evaluate": to_plain(replace(world.config.evaluate, rounds=False))}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Collect counts for each (method or variant, model site, test site); write them with an index."""
    methods, further = world.config.train.methods, list_trainings(world.config.train.repeats)[1:]
    order = [*methods, *world.config.evaluate.variants]
    order += [name_training(method, training) for method in methods for training in further]
    index: list[ScoredFile] = []
    refused: list[Refusal] = []
    done = 0
    floor = _floor_of(world)
    with show_progress("evaluate") as step:
        for method in methods:
            trained = read_trained(inputs["train"], method)
            cohorts = read_cohorts_of_method(world.config, inputs, method)
            models = cache(partial(_export_models, world, trained, cohorts))  # exported once per checkpoint
            for line in _list_lines(world, method):
                step(done, len(order), line[0])
                done += 1
                for scored in _score_line(world, trained, cohorts, line, models, line[0] == floor):
                    if scored.reply is None:
                        refused.append(Refusal(scored.test_site, f"evaluate {line[0]}", BUDGET))
                    else:
                        index.append(_write_scored(out, line[0], scored))
            for training in further:
                step(done, len(order), name_training(method, training))
                done += 1
                index += _score_training(world, inputs, method, training, out)
    if not index:
        raise SitesMissing(
            "evaluate", dict.fromkeys(world.engine.sites, BUDGET), where=world.log_paths(*world.engine.sites)
        )
    index.sort(key=lambda entry: order.index(entry.label))  # methods look the same with and without variants
    write_index(out, index)
    write_refused(out, refused)
    return {"scored": len(index), "refused": len(refused)}


def _score_training(
    world: World, inputs: Mapping[str, Path], method: str, training: int | None, out: Path
) -> Iterator[ScoredFile]:
    """Score a further training of a method, without variants; write the replies, and return their entries."""
    seeded, name = seed_training(world, training), name_training(method, training)
    trained = read_trained(inputs["train"], method, training)
    cohorts = read_cohorts_of_method(world.config, inputs, method)
    models = cache(partial(_export_models, seeded, trained, cohorts))
    for scored in _score_line(seeded, trained, cohorts, (method, None), models, False):
        if scored.reply is not None:
            yield _write_scored(out, name, scored)


def _write_scored(out: Path, label: str, scored: Scored) -> ScoredFile:
    """Write a reply, once for all sites that have the same model, and return its entry."""
    file = f"{label}.{scored.source}.{scored.test_site}.safetensors"
    if scored.source == scored.model_site and scored.reply is not None:
        (out / file).write_bytes(to_bytes(to_message(scored.reply)))
    return ScoredFile(label, scored.model_site, scored.test_site, file)


def _floor_of(world: World) -> str | None:
    """The method whose evaluation also scores the mean mask, or the median guess, at each site; None in classification,
    whose floor follows from counts, and in a private run, where it would cost as much as a model.
    """
    methods = world.config.train.methods
    if world.config.task.kind in ("classification", "findings") or world.config.privacy != "none":
        return None
    return next((label for label, method in methods.items() if method.name != CENTRAL), next(iter(methods)))


def _list_lines(world: World, method: str) -> list[Line]:
    """The method itself, and its variants."""
    variants = world.config.evaluate.variants
    return [(method, None), *((label, variant) for label, variant in variants.items() if variant.of == method)]


Models: TypeAlias = Callable[[Checkpoint], Mapping[str, Params]]
"""A method's models of a checkpoint, by site."""


class Scored(NamedTuple):
    """Counts of one site's model at one site. source: the site in whose name these counts are kept: the model's, or one
    that has the same model and comes before it. reply: None where the budget of the test patients is spent.
    """

    model_site: str
    test_site: str
    source: str
    reply: Reply | None


def _score_line(
    world: World,
    trained: TrainedMethod,
    cohorts: Cohorts,
    line: Line,
    models: Models,
    floor: bool,
) -> Iterator[Scored]:
    """Scores of every site's model on its own test patients and, in the public protocol, at every site. Calibration
    uses the test site's patients; a model tuned at a site is scored only there. floor: also score the mean mask.
    """
    checkpoint, sites = _checkpoint_of_line(world, line), world.engine.sites
    if trained.name == CENTRAL:
        params = models(checkpoint)[CENTRAL]
        replies = _ask_scores(
            world, trained, cohorts, line, dict.fromkeys(sites, CENTRAL), dict.fromkeys(sites, params), floor
        )
        yield from (Scored(CENTRAL, site, CENTRAL, replies[site]) for site in sites)
        return
    moments = _ask_moments(world, trained, line)
    home_replies = _ask_scores(world, trained, cohorts, line, {site: site for site in sites}, {}, floor, moments)
    yield from (Scored(site, site, site, home_replies[site]) for site in sites)
    tuned = line[1] is not None and line[1].tuning is not None
    if not world.config.evaluate.public or len(home_replies) == 1 or tuned:
        return
    same = {site: hashlib.sha256(to_bytes(Message(params))).hexdigest() for site, params in models(checkpoint).items()}
    for model_site, params in models(checkpoint).items():
        # One global model was scored at the other site already.
        other_sites = [site for site in home_replies if site != model_site and same[site] != same[model_site]]
        by = dict.fromkeys(other_sites, model_site), dict.fromkeys(other_sites, params)
        replies = _ask_scores(world, trained, cohorts, line, *by, moments=moments) if other_sites else {}
        for site, reply in home_replies.items():
            if site != model_site:
                source = model_site if site in replies else site
                yield Scored(model_site, site, source, replies.get(site, reply))


def _checkpoint_of_line(world: World, line: Line) -> Checkpoint:
    """Which checkpoint a line scores."""
    _, variant = line
    return (variant and variant.checkpoint) or world.config.evaluate.checkpoint


def _ask_scores(
    world: World,
    trained: TrainedMethod,
    cohorts: Cohorts,
    line: Line,
    scored: Mapping[str, str],
    params: Mapping[str, Params],
    floor: bool = False,
    moments: Mapping[str, ChannelMoments] = MappingProxyType({}),
) -> dict[str, Reply | None]:
    """Request sites to score models, all at once. scored: test site -> site of the model. params: of the models that
    are not the test site's own. moments: of models' channels by site of the model, where they are matched. None: the
    budget of a site's patients is spent.
    """
    label, variant = line
    runs, questions = dict[str, str](), dict[str, Evaluate]()
    window = window_of(world)
    for test_site, model_site in scored.items():
        cohort = cohorts[test_site].cohort
        question = Evaluate(
            label=name_training(trained.label, trained.training),
            train_run=trained.train_run,
            checkpoint=_checkpoint_of_line(world, line),
            best=trained.best,
            cohort=cohort,
            copies=world.config.evaluate.copies,
            floor=True if floor else ABSENT,
            window=ABSENT if window is None else [*window],
            calibration=ABSENT if variant is None else variant,
            variant=ABSENT if variant is None else label,
            opening=build_opening(world, trained.label, test_site, cohort) if params else ABSENT,
            central=model_site == CENTRAL if params else ABSENT,
            channel_mean=moments[model_site].mean if model_site in moments else ABSENT,
            channel_square=moments[model_site].square if model_site in moments else ABSENT,
            tensors=params.get(test_site, ABSENT),
        )
        about = {**to_facts(question), "model": model_site, "test": test_site}
        runs[test_site] = world.run(world.name_question("score", "evaluate", VERSION, about))
        # The rounds are for the model's file: no part of the question's name.
        questions[test_site] = replace(question, rounds=trained.rounds)
    replies = world.ask_each(EVALUATE, runs, questions, spared=lambda code: code == BUDGET)
    return {site: replies.get(site) for site in scored}


def _export_models(
    world: World, trained: TrainedMethod, cohorts: Cohorts, checkpoint: Checkpoint
) -> Mapping[str, Params]:
    """A method's models by site, exported so that other sites can score them: a release, for public testing only."""
    question = Export(label=trained.label, train_run=trained.train_run, checkpoint=checkpoint, best=trained.best)
    if trained.name == CENTRAL:
        return {CENTRAL: _export_central(world, question, cohorts)}
    runs = {site: _name_export(world, question, site) for site in world.engine.sites}
    replies = world.ask_each(EXPORT, runs, world.same_for_all(question))
    return {site: replies[site].parameters for site in runs}


def _ask_moments(world: World, trained: TrainedMethod, line: Line) -> dict[str, ChannelMoments]:
    """The moments of each site's model over all sites that have the same one; none for a line without need."""
    if line[1] is None or line[1].calibration != "matched":
        return {}
    checkpoint = _checkpoint_of_line(world, line)
    question = Export(
        label=trained.label, train_run=trained.train_run, checkpoint=checkpoint, best=trained.best, moments=Matched()
    )
    runs = {site: _name_export(world, question, site) for site in world.engine.sites}
    replies = world.ask_each(EXPORT, runs, world.same_for_all(question))
    models = {site: hashlib.sha256(to_bytes(Message(replies[site].parameters))).digest() for site in runs}
    equal_models = {site: {other: replies[other] for other in runs if models[other] == models[site]} for site in runs}
    return {site: average_moments(same) for site, same in equal_models.items()}


def _name_export(world: World, question: Export, site: str) -> str:
    """The conversation in which a site exports this model."""
    return world.run(world.name_question("export", "evaluate", VERSION, {**to_facts(question), "site": site}))


def _export_central(world: World, question: Export, cohorts: Cohorts) -> Params:
    """The central baseline's model, from the pooled site. Raises: SitesMissing."""
    engine, _ = pooled_engine(world, cohorts)
    answers = ask(engine, EXPORT, {CENTRAL: _name_export(world, question, CENTRAL)}, {CENTRAL: question})
    if answers.missing:  # perhaps its models were removed; train --fresh makes them again
        raise SitesMissing(EXPORT.name, answers.missing, where=str(world.root / "pooled" / "log.txt"))
    return answers.replies[CENTRAL].parameters


STAGE = Stage("evaluate", VERSION, ("ingest", "translate", "augment", "features", "train"), settings, run)
