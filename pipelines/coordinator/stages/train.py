"""Train every method of the YAML, each in its own conversation, so that adding a method trains only that one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count as count_up
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, cast

from federation.engine import Engine
from federation.membership import is_separable, regroup_sites
from federation.merging import MEAN
from federation.notices import find_outliers
from federation.outcome import Outcome, load_outcome
from federation.parameters import count_values, section, select_parameters
from federation.pretraining import start_task_with
from federation.randomness import derive_seed
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.rounds import Trust, conduct_training, method_schedule
from federation.spool import move_params_to_file
from federation.verdict import LARGEST_COUNT
from pipelines.coordinator.artifacts import CENTRAL, read_counts
from pipelines.coordinator.conversations import (
    build_opening,
    choose_upload,
    is_averaged,
    is_hidden_in_sums,
    pooled_engine,
    task_facts,
)
from pipelines.coordinator.paid_before import check_nothing_lost
from pipelines.coordinator.spaces import Cohorts, read_cohorts_of_method
from pipelines.coordinator.trained import Matrix, TrainedMethod, read_trainings, write_trained
from pipelines.coordinator.world import RoundEnded, World
from pipelines.loader.overrides import override_settings
from pipelines.loader.validation import to_plain
from pipelines.requests.asking import ask
from pipelines.requests.holds import HOLDS, Held, Holds
from pipelines.requests.ingest import Counted, CountedOnce
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.runs.store import DiskFolder, digest_json, short_digest
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW
from pipelines.settings.image_spaces import image_space, start_name
from pipelines.settings.learning import list_trainings, name_training
from pipelines.settings.run_settings import has_own_plans
from privacy.message import Json, Malformed, Message, Params, as_list, from_bytes

VERSION = 14
LEARNING = 4  # raise it, and VERSION, when a change alters what is trained: every method is then trained again
BEGUN = "begun"
MEMBERS = "members.json"
"""Of a run that sites may leave and join: site -> digest of what its own reply depends on, also of sites that left."""


def settings(world: World) -> Json:
    """Settings that change the result: everything about training, and each site's own part of it."""
    config = world.config
    sites: dict[str, Json] = {
        name: {
            "methods": to_plain(dict(site.methods)),
            "work": to_plain(dict(site.work)),
            **({"images": to_plain(dict(site.images))} if site.images else {}),
            **({"model": to_plain(dict(site.model))} if site.model else {}),
        }
        for name, site in config.sites.items()
    }
    averaged: list[Json] = [label for label in config.train.methods if is_averaged(config, label)]
    return {
        "train": to_plain(config.train),
        "model": to_plain(config.model),
        "privacy": to_plain(config.privacy),
        "public": config.evaluate.public if config.privacy != "none" else None,
        "seed": config.seed,
        "sites": sites,
        **({"averaged": averaged} if averaged else {}),
        **task_facts(config),
    }


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Train all methods, each as often as the settings say; write one JSON file per training.

    A method whose translation every hospital refused learns from the images of an earlier one: it is not trained again.
    """
    train, trained = world.config.train, dict[str, TrainedMethod]()
    rounds = {label: method_schedule(algorithm, train.schedule).rounds for label, algorithm in train.methods.items()}
    total, before = train.repeats * sum(rounds.values()), 0
    if world.config.privacy != "none":
        check_nothing_lost(world, find_lost_trainings(world, inputs))
    with show_progress("train") as step:
        for training, (label, rounds_of_method) in product(list_trainings(train.repeats), rounds.items()):
            name = name_training(label, training)

            def report_progress(
                done: int, name: str = name, rounds_of_method: int = rounds_of_method, before: int = before
            ) -> None:
                step(before + done, total, f"{name}, round {done} of {rounds_of_method}")

            seeded = seed_training(world, training)
            twin = find_trained_twin(seeded, inputs, label, [*rounds][: [*rounds].index(label)])
            if twin:
                space = image_space(world.config, label)
                trained[label] = replace(trained[twin], label=label, space=space, same_as=twin)
            else:
                begin, cohorts = read_start(world, inputs, label), read_cohorts_of_method(world.config, inputs, label)
                counts = count_examples(world, inputs, label)
                trained[label] = train_method(seeded, label, cohorts, report_progress, begin, counts, training)
                trained[label] = replace(trained[label], training=training)
            write_trained(out, trained[label])
            before += rounds_of_method
    return {"methods": list(rounds)}


def seed_training(world: World, training: int | None) -> World:
    """The world with the seed of a method's training of this number. Its patients, splits and spaces are the same."""
    if training is None:
        return world
    return replace(world, config=replace(world.config, seed=derive_seed(world.config.seed, "training", training)))


def find_trained_twin(world: World, inputs: Mapping[str, Path], label: str, earlier: Sequence[str]) -> str:
    """The earlier method that equals this one in all but its image space, where no hospital has another cohort for this
    one, because each refused the translation; empty: there is none, or this one's own training has begun.

    Two methods of one space are two trainings: under privacy each draws its own noise.
    """
    space, cohorts = image_space(world.config, label), read_cohorts_of_method(world.config, inputs, label)
    digest = _training_digest(world, label, cohorts, read_start(world, inputs, label))
    if _conversation_folder(world, world.run(f"{label}-{digest}")).has(BEGUN):
        return ""
    for other in earlier:
        other_cohorts = read_cohorts_of_method(world.config, inputs, other)
        if (
            image_space(world.config, other) != space
            and other_cohorts == cohorts
            and _training_digest(world, other, cohorts, read_start(world, inputs, other)) == digest
        ):
            return other
    return ""


class Start(NamedTuple):
    """Parameters with which networks begin. told, for hospitals: a digest, and the public pictures on which they were
    trained, or that they are of a file.
    """

    params: Params
    told: dict[str, Json]


def read_start(world: World, inputs: Mapping[str, Path], label: str) -> Start | None:
    """A method's start, from the artifact of `pretrain`; None: it begins with random numbers."""
    name = start_name(world.config, label)
    if name is None:
        return None
    params = from_bytes((inputs["pretrain"] / f"{name}.safetensors").read_bytes()).tensors
    return Start(params, json.loads((inputs["pretrain"] / f"{name}.json").read_text()))


def count_examples(world: World, inputs: Mapping[str, Path], label: str) -> dict[str, dict[str, int]]:
    """Site -> split -> the examples that it released, as the method counts them; none where synthetic images are added,
    or where images are counted otherwise than in training.
    """
    config = world.config
    translated = {} if config.harmonize is None else config.harmonize.translate
    if config.train.methods[label].name == CENTRAL or image_space(config, label) not in (RAW, *translated):
        return {}
    unit: Literal["images", "patients"] = "images" if config.privacy == "none" else "patients"
    exact = Counted if config.privacy == "none" else CountedOnce
    return {
        site: {split: min(counted.splits[split][unit], LARGEST_COUNT) for split in counted.splits}
        for site, counted in read_counts(inputs["ingest"]).items()
        if isinstance(counted, exact)
    }


def train_method(
    world: World,
    label: str,
    cohorts: Cohorts,
    report_progress: Callable[[int], None],
    begin: Start | None,
    counts: Mapping[str, Mapping[str, int]],
    training: int | None = None,
) -> TrainedMethod:
    """Train one method, continuing where an earlier run of the same settings stopped. counts: of `count_examples`.
    training: its number, as of `list_trainings`.
    """
    config, algorithm = world.config, world.config.train.methods[label]
    rounds = method_schedule(algorithm, config.train.schedule).rounds
    engine, site_cohorts = world.engine, cohorts
    if algorithm.name == CENTRAL:
        engine, site_cohorts = pooled_engine(world, cohorts)
    work = override_settings(config.train.work, config.train.method_work.get(label, {}))
    members = _digest_members(world, label, site_cohorts) if is_separable(algorithm) else {}
    name = _choose_conversation(
        world, engine, rounds, _conversation_base(world, label, site_cohorts, begin), members
    ).name
    folder = _conversation_folder(world, name)
    folder.write(BEGUN, b"")  # marks the conversation as this coordinator's
    if members:
        folder.write(MEMBERS, json.dumps({**_read_members(folder), **members}, indent=1).encode())
    task = config.task_of(label)
    initial = initial_parameters(
        algorithm, task if begin is None else start_task_with(task, begin.params), seed=config.seed
    )
    initial = move_params_to_file(initial, folder.root)
    start_facts: dict[str, Json] = {} if begin is None else {"start": begin.told}

    def check_and_report(outcome: Outcome) -> None:
        world.stop.check()
        done = min(outcome.round, rounds)
        report_progress(done)
        if done:
            method = name_training(label, training)
            world.on_round(RoundEnded(method, done, rounds, read_losses(outcome), read_totals(outcome)))

    openings = {
        site: Message({}, build_opening(world, label, site, site_cohorts[site].cohort) | start_facts)
        for site in engine.sites
    }
    forms = rehearse_forms(algorithm, task, work, initial)
    if is_separable(algorithm):
        scored = config.privacy == "none"
        regroup_sites(engine, algorithm, run=name, opening=openings, forms=forms, folder=folder, scored=scored)
    outcome = conduct_training(
        engine,
        algorithm,
        run=name,
        initial=select_parameters(initial, lambda name: task.shared is None or name in task.shared),
        opening=openings,
        forms=forms,
        schedule=config.train.schedule,
        seed=config.seed,
        folder=folder,
        between=check_and_report,
        trust=Trust(
            rule=MEAN if algorithm.name == CENTRAL else config.train.rule_of(label),
            counts=counts,
            secure_sum=is_hidden_in_sums(config, label),
            upload=choose_upload(config, label),
        ),
    )
    return _summarize_training(world, label, name, outcome, count_values(initial), begin)


def read_losses(outcome: Outcome) -> dict[str, dict[int, float]]:
    """Hospital -> round -> validation loss, of the rounds whose loss is a number."""
    return {
        site: {int(number): float(loss) for number, loss in losses.items() if isinstance(loss, int | float)}
        for site, losses in outcome.losses.items()
    }


def read_totals(outcome: Outcome) -> dict[int, float]:
    """Round -> mean validation loss, of the rounds whose loss is a number."""
    totals = outcome.totals.items()
    return {int(n): float(loss) for n, loss in totals if isinstance(loss, int | float) and math.isfinite(loss)}


def _summarize_training(
    world: World, label: str, conversation: str, outcome: Outcome, parameters: int, begin: Start | None
) -> TrainedMethod:
    """What later stages know of a training."""
    config, algorithm = world.config, world.config.train.methods[label]
    return TrainedMethod(
        label=label,
        name=algorithm.name,
        space=image_space(config, label),
        train_run=conversation,
        rounds=method_schedule(algorithm, config.train.schedule).rounds,
        best=outcome.best,
        losses=cast("Mapping[str, Mapping[str, float | None]]", outcome.losses),
        totals=cast("Mapping[str, float]", outcome.totals),
        missing=[*outcome.missing],
        parameters=parameters,
        received=max(outcome.received.values(), default=0),
        between=read_matrices(outcome.state),
        start=None if begin is None else begin.told,
        last=outcome.round if is_separable(algorithm) else None,
        outliers=[*find_outliers(outcome.updates)] or None,
    )


class Conversation(NamedTuple):
    """The name of a conversation. lost: why the one before it, in which hospitals took part, cannot go on, in words;
    empty: there is none, or somebody asked for a new one.
    """

    name: str
    lost: str = ""


def find_lost_trainings(world: World, inputs: Mapping[str, Path]) -> dict[str, str]:
    """Method -> what is lost of its training, finished or not, in words; only methods that would be trained again."""
    complaints, train = {}, world.config.train
    for label, algorithm in train.methods.items():
        rounds_of_method = method_schedule(algorithm, train.schedule).rounds
        cohorts = read_cohorts_of_method(world.config, inputs, label)
        if algorithm.name == CENTRAL:
            continue
        members = _digest_members(world, label, cohorts) if is_separable(algorithm) else {}
        base = _conversation_base(world, label, cohorts, read_start(world, inputs, label))
        complaints[label] = _choose_conversation(world, world.engine, rounds_of_method, base, members).lost
    return {label: complaint for label, complaint in complaints.items() if complaint}


def _conversation_base(world: World, label: str, cohorts: Cohorts, begin: Start | None) -> str:
    """How the names of a method's conversations begin."""
    return f"{label}-{_training_digest(world, label, cohorts, begin)}"


def _training_digest(world: World, label: str, cohorts: Cohorts, begin: Start | None) -> str:
    """The digest of all that a method's result depends on."""
    return short_digest(digest_json(_training_identity(world, label, cohorts, begin)))


def read_matrices(state: Message) -> dict[str, Matrix]:
    """Matrices between sites in a method's state, by name; only finite ones."""
    sites = [str(site) for site in as_list(state.facts.get("sites", []))]
    matrix_by_name = dict[str, Matrix]()
    for name, value in section(state.tensors, "between").items():
        if value.shape == (len(sites), len(sites)) and bool(value.isfinite().all()):
            matrix_by_name[name] = {"sites": sites, "values": value.tolist()}
    return matrix_by_name


def _choose_conversation(
    world: World, engine: Engine, rounds: int, base: str, members: Mapping[str, str]
) -> Conversation:
    """The name of the conversation to continue, or of a new one. rounds: of the method. members: of one that sites may
    leave and join; it does not continue if the reply of a site would now be another.

    A new one is begun with `--fresh`, if the coordinator's state is corrupt, if a site lost its models of a finished
    one, and if sites know a conversation that the coordinator has lost: no round is ever requested twice.
    """
    lost = ""
    for attempt in count_up():
        name = world.run(f"{base}-{attempt}" if attempt else base)
        folder = _conversation_folder(world, name)
        mine = folder.has(BEGUN) or _has_outcome(folder, name)
        state = _read_state(folder, name, rounds)
        question = Holds(runs={name: state})
        questions = dict.fromkeys(engine.sites, question)
        replies = ask(engine, HOLDS, dict.fromkeys(questions, world.run(HOLDS.name)), questions).replies
        if not mine and not any(reply.known for reply in replies.values()):
            return Conversation(name, lost)
        later = _conversation_folder(world, world.run(f"{base}-{attempt + 1}")).has(BEGUN)
        known = _read_members(folder)
        same = all(known.get(site, code) == code for site, code in members.items())
        old = {site: reply for site, reply in replies.items() if not members or site in known}
        if not later and not world.fresh and same:
            if mine and _is_usable(folder, name, old):
                return Conversation(name)
            lost = _describe_loss(folder, name, state, old if mine else replies) or lost
    raise RuntimeError("unreachable")


def _describe_loss(
    folder: DiskFolder, name: str, state: int | Literal["begun"] | None, replies: Mapping[str, Held]
) -> str:
    """What is lost of a conversation in which hospitals took part, in words; empty: nothing that anybody knows of.

    A hospital whose folder was begun anew knows nothing of the training, nor does its ledger; of one that is not
    finished it has no complaint, since it has no file.
    """
    complaints = {
        site: reply.complaint
        for site, reply in sorted(replies.items())
        if reply.complaint and (reply.known or state == BEGUN)
    }
    if complaints or not any(reply.known for reply in replies.values()):
        return next((f"{site}: {complaint}" for site, complaint in complaints.items()), "")
    return "" if _has_outcome(folder, name) else f"the coordinator's records of {name} are gone or damaged"


def _has_outcome(folder: DiskFolder, name: str) -> bool:
    """Whether the coordinator has its records of a conversation."""
    try:
        return load_outcome(folder, name) is not None
    except Malformed:
        return False


def _digest_members(world: World, label: str, cohorts: Cohorts) -> dict[str, str]:
    """Site -> digest of what its own reply depends on, besides the settings of all sites."""
    config = world.config
    return {
        site: short_digest(
            digest_json(
                [
                    to_plain(config.method(label, site)),
                    to_plain(config.work(label, site)),
                    cohort.cohort,
                    cohort.sha256,
                ]
            )
        )
        for site, cohort in cohorts.items()
    }


def _read_members(folder: DiskFolder) -> dict[str, str]:
    """Who takes part; nobody where the list is damaged, so that a new conversation begins."""
    try:
        members = json.loads(folder.read(MEMBERS)) if folder.has(MEMBERS) else {}
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def _read_state(folder: DiskFolder, name: str, rounds: int) -> int | Literal["begun"] | None:
    """The state sent to sites so that they check their files of a conversation: "begun", or the best round if done."""
    try:
        outcome = load_outcome(folder, name)
    except Malformed:
        return "begun"
    return outcome.best if outcome is not None and outcome.round > rounds else "begun"


def _is_usable(folder: DiskFolder, name: str, replies: Mapping[str, Held]) -> bool:
    """Whether a conversation can continue: the coordinator's state and every site's memory are intact."""
    try:
        outcome = load_outcome(folder, name)
    except Malformed:
        return False
    if outcome is None and any(reply.known for reply in replies.values()):
        return False
    return not any(reply.complaint for reply in replies.values())


def _conversation_folder(world: World, name: str) -> DiskFolder:
    """The coordinator's folder of a conversation."""
    return DiskFolder(world.root / "federation" / name.rpartition("/")[2])


def _training_identity(world: World, label: str, cohorts: Cohorts, begin: Start | None) -> Json:
    """Everything that this method's result depends on; an equal digest means the same conversation."""
    config = world.config
    public: Json = config.evaluate.public if config.privacy != "none" else None  # how many evaluations share epsilon
    if is_separable(config.train.methods[label]):  # who takes part is no part of it: see `_digest_members`
        public, cohorts = len(cohorts) if public else public, {}
    sites = [site for site in cohorts if site != CENTRAL]
    return {
        "version": world.version("learning", LEARNING),
        "method": to_plain(config.train.methods[label]),
        "sites": {site: [to_plain(config.method(label, site)), to_plain(config.work(label, site))] for site in sites},
        "work": to_plain(override_settings(config.train.work, config.train.method_work.get(label, {}))),
        "schedule": to_plain(config.train.schedule),
        "model": to_plain(config.task_of(label).model),
        "seed": config.seed,
        "privacy": to_plain(config.privacy),
        "public": public,
        **task_facts(config),
        **({} if begin is None else {"start": begin.told}),
        **_identify_plans(config, label, sites),
        **({"secure_sum": True} if is_hidden_in_sums(config, label) else {}),
        **({} if (upload := choose_upload(config, label)) is None else {"upload": to_plain(upload)}),
        **({"averaged": True} if is_averaged(config, label) else {}),
        **({} if (rule := config.train.rule_of(label)).name == MEAN.name else {"merge": to_plain(rule)}),
        "cohorts": {site: [cohort.cohort, cohort.sha256] for site, cohort in cohorts.items()},
    }


def _identify_plans(config: Config, label: str, sites: Sequence[str]) -> dict[str, Json]:
    """The networks of hospitals with plans of their own; empty where all have the same."""
    if not has_own_plans(config):
        return {}
    tasks = {site: config.task_of(label, site) for site in sites}
    return {"plans": {site: [to_plain(task.model), list(task.inputs)] for site, task in tasks.items()}}


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds the models that this artifact names."""
    methods = [*read_trainings(artifact).values()]
    for method in methods:
        if method.last is not None:
            outcome = load_outcome(_conversation_folder(world, method.train_run), method.train_run)
            if outcome is None or outcome.round != method.last:
                return f"hospitals left {method.label} since, or joined it"
    question = Holds(runs={method.train_run: method.best for method in methods if method.name != CENTRAL})
    replies = world.ask_all(HOLDS, world.run(HOLDS.name), world.same_for_all(question))
    complaints = {site: reply.complaint for site, reply in replies.items()}
    return next((f"{site}: {complaint}" for site, complaint in sorted(complaints.items()) if complaint), None)


STAGE = Stage(
    "train", VERSION, ("ingest", "translate", "augment", "features", "pretrain"), settings, run, intact=intact
)
