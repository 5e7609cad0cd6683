"""Ask each hospital for the scores, the confusion and the seconds of each round that it measured while it trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from federation.verdict import MALFORMED
from pipelines.coordinator.artifacts import CENTRAL, Refusal, RoundFigures, write_refused, write_round_figures
from pipelines.coordinator.trained import TrainedMethod, read_trainings
from pipelines.coordinator.world import SitesMissing, World
from pipelines.requests.asking import is_refusal
from pipelines.requests.figures import FIGURES, Figures, Told
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.learning import list_trainings, name_training
from privacy.message import Json
from privacy.release.form import value_or_none

VERSION = 1
SILENT = ("no_figures", "unprotected_figures", "unknown_request")
"""Codes with which a hospital has nothing to tell: the training began without the question, or is private, or its
program is older.
"""


def settings(world: World) -> Json:
    """Nothing: what is asked follows from the trainings."""
    return {}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Ask of every training but the central one; write what was told, and who refused with which code."""
    figures, refused = list[RoundFigures](), list[Refusal]()
    train, trainings = world.config.train, read_trainings(inputs["train"])
    names = [name_training(label, k) for label in train.methods for k in list_trainings(train.repeats)]
    with show_progress("figures") as step:
        for position, (name, trained) in enumerate((name, trainings[name]) for name in names):
            step(position, len(names), name)
            if trained.name == CENTRAL:
                continue
            replies, codes = _ask_training(world, trained)
            figures += [each for site, reply in replies.items() for each in list_figures(name, site, reply)]
            refused += [Refusal(site, f"{FIGURES.name} {name}", code) for site, code in codes.items()]
    write_round_figures(out, figures)
    write_refused(out, refused)
    return {"rounds": len(figures), "refused": len(refused)}


def _ask_training(world: World, trained: TrainedMethod) -> tuple[Mapping[str, Told], dict[str, str]]:
    """Site -> what it told of a training; and site -> with which code it refused. Raises: SitesMissing: a hospital did
    not answer.
    """
    scored = [int(number) for series in trained.losses.values() for number in series]
    question = Figures(train_run=trained.train_run, last=max(scored, default=0))
    about: dict[str, Json] = {"train_run": question.train_run, "last": question.last}
    name = world.run(world.name_question(FIGURES.name, "figures", VERSION, about))
    questions = world.same_for_all(question)
    answers = world.ask(FIGURES, dict.fromkeys(questions, name), questions)
    lost = {site: code for site, code in answers.missing.items() if not (is_refusal(code) or code in SILENT)}
    if lost:
        raise SitesMissing(FIGURES.name, lost, where=world.log_paths(*lost))
    odd = {site: MALFORMED for site, reply in answers.replies.items() if not _has_one_length(reply)}
    replies = {site: reply for site, reply in answers.replies.items() if site not in odd}
    return replies, {**answers.missing, **odd}


def _has_one_length(reply: Told) -> bool:
    """Whether all parts of a reply are of the same rounds, and scores of the named measures."""
    rounds, tables = len(reply.rounds), value_or_none(reply.confusion)
    shapes = tuple(reply.scores.shape) == (rounds, len(reply.measures)) and tuple(reply.seconds.shape) == (rounds,)
    return shapes and (tables is None or (tables.dim() == 4 and len(tables) == rounds))


def list_figures(training: str, site: str, reply: Told) -> Iterator[RoundFigures]:
    """One hospital's figures of a training, by round."""
    tables = value_or_none(reply.confusion)
    for place, number in enumerate(reply.rounds):
        values = dict(zip(reply.measures, reply.scores[place].tolist(), strict=True))
        yield RoundFigures(
            training=training,
            site=site,
            round=number,
            scores={name: value if math.isfinite(value) else None for name, value in values.items()},
            confusion=[] if tables is None else tables[place].tolist(),
            seconds=seconds if math.isfinite(seconds := float(reply.seconds[place])) else None,
        )


STAGE = Stage("figures", VERSION, ("train",), settings, run)
