"""Small whole runs of a method, kept so that every law looks at the same ones."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilium.testing import testbed
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.outcome import Outcome
from federation.rehearsal import Forms, find_form_differences, initial_parameters, rehearse_forms
from federation.rounds import Schedule
from federation.task import Task
from federation.upload import packed_form
from privacy.dp.access import Rows, Split
from privacy.folder import Folder
from privacy.message import Call, Message, as_mapping

ADAM = Work(optimizer="adam", lr=0.02, batch=5)
SGD = Work(optimizer="sgd", lr=0.05, batch=5)
SCHEDULE = Schedule(rounds=5, quorum=0.3)
PARTLY = Schedule(rounds=6, quorum=0.3, participation=0.67)
"""Of sites a, b and c it asks a and b, a and c, then four times b and c."""
LOST = frozenset({(1, "b"), (2, "a"), (3, "b"), (5, "c")})
"""Replies that a lossy run loses."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What is learnt, and on which sites. Equal to itself alone, so that runs on it can be kept."""

    task: Task
    sites: Mapping[str, Mapping[Split, Rows]]


TABLES = Ground(
    testbed.make_task(),
    {
        "a": testbed.make_table(1, n=14),
        "b": testbed.make_table(2, n=14, shift=0.7),
        "c": testbed.make_table(3, n=8, shift=-0.4),
    },
)
MASKS = Ground(
    testbed.mask_task(),
    {"a": testbed.make_scenes(1), "b": testbed.make_scenes(2, shift=0.1), "c": testbed.make_scenes(3, n=6, shift=-0.1)},
)


class Case(NamedTuple):
    """A method, local work that it accepts, what it learns, and whether its replies are quantized."""

    algorithm: Algorithm
    work: Work
    ground: Ground
    upload: bool = False


def make_hospitals(case: Case) -> dict[str, testbed.Hospital]:
    """New hospitals of a case, with empty disks."""
    made = testbed.make_federation(case.algorithm, case.ground.sites, task=case.ground.task, work=case.work)
    return {name: replace(hospital, upload=case.upload) for name, hospital in made.items()}


def train_case(case: Case, hospital_by_name: Mapping[str, testbed.Hospital], **options: Any) -> Outcome:
    """Train with these hospitals. options: of `testbed.train`."""
    options = {"schedule": SCHEDULE, "task": case.ground.task, "upload": case.upload, **options}
    return testbed.train(case.algorithm, hospital_by_name, work=case.work, **options)


def copy_hospitals(hospital_by_name: Mapping[str, testbed.Hospital]) -> dict[str, testbed.Hospital]:
    """The hospitals with a copy of what lies on their disks now."""

    def copy_folder(folder: Folder) -> testbed.MemoryFolder:
        return testbed.MemoryFolder({name: folder.read(name) for name in folder.names()})

    return {
        name: replace(h, disk=copy_folder(h.disk), models=copy_folder(h.models), events=[])
        for name, h in hospital_by_name.items()
    }


def newest_models(hospital_by_name: Mapping[str, testbed.Hospital]) -> dict[str, dict[str, Tensor]]:
    """Site -> its newest model."""
    return {name: testbed.newest_model(hospital) for name, hospital in hospital_by_name.items()}


@dataclass(frozen=True)
class Run:
    """A finished run. stops: after each round, the coordinator's disk, and the hospitals with what was on theirs."""

    outcome: Outcome
    hospitals: Mapping[str, testbed.Hospital]
    stops: tuple[tuple[Mapping[str, bytes], Mapping[str, testbed.Hospital]], ...]

    def stopped(self, after: int) -> tuple[testbed.MemoryFolder, dict[str, testbed.Hospital]]:
        """The disks of a coordinator that was stopped after this round, and its hospitals: both are the caller's."""
        files, hospital_by_name = self.stops[after]
        return testbed.MemoryFolder(dict(files)), copy_hospitals(hospital_by_name)


@functools.cache
def run_undisturbed(case: Case) -> Run:
    """The run in which nothing goes wrong. It is cached for all laws: do not change it."""
    hospital_by_name, folder = make_hospitals(case), testbed.MemoryFolder()
    stops: list[tuple[Mapping[str, bytes], Mapping[str, testbed.Hospital]]] = []
    outcome = train_case(
        case,
        hospital_by_name,
        folder=folder,
        between=lambda _: stops.append((dict(folder.files), copy_hospitals(hospital_by_name))),
    )
    return Run(outcome, hospital_by_name, tuple(stops))


@functools.cache
def run_lossy(case: Case) -> Run:
    """A run that asks a part of the sites, and loses replies that they committed. It is cached: do not change it."""
    hospital_by_name = make_hospitals(case)
    return Run(
        train_case(
            case, hospital_by_name, engine=testbed.LossyEngine(InProcess(hospital_by_name), LOST), schedule=PARTLY
        ),
        hospital_by_name,
        (),
    )


@dataclass
class Watched:
    """A wire that records the requests, the bytes sent to each site, and what is odd in the replies."""

    hospitals: Mapping[str, testbed.Hospital]
    forms: Forms
    upload: bool = False
    heard: dict[str, int] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)
    odd: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(sorted(self.hospitals))

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """Ask all sites, and record what was sent and received."""
        answers = testbed.SerializingEngine(self.hospitals).ask(call, messages, deadline_s=deadline_s)
        self.requests.add(call.request)
        for site, message in messages.items():
            if call.request != "introduce":
                tensors = sum(t.numel() * t.element_size() for t in message.tensors.values())
                self.heard[site] = self.heard.get(site, 0) + tensors + len(json.dumps(dict(message.facts)))
            self._look_at(call.request, message, answers.replies[site])
        return answers

    def _look_at(self, request: str, message: Message, reply: Message) -> None:
        """Note what is odd in a reply, and whether an undeclared tensor or fact would go unnoticed."""
        reply_form = packed_form(self.forms.reply, message) if self.upload else self.forms.reply
        known = {"introduce": self.forms.introduction, "train": reply_form}
        form = known.get(request, Message({}, {"algorithm": {}}))
        received = Message({}, as_mapping(message.facts.get("algorithm")))
        wrong = find_form_differences(reply, form, received, first=request != "introduce")
        self.odd += [(request, wrong)] if wrong else []
        odd = Message({**reply.tensors, "odd": torch.zeros(1)}, reply.facts)
        changed_facts = {**as_mapping(reply.facts["algorithm"]), "odd": 1.0}
        more = Message(reply.tensors, {**reply.facts, "algorithm": changed_facts})
        if not (find_form_differences(odd, form, received) and find_form_differences(more, form, received)):
            self.odd.append((request, ["what is too much is not noticed"]))


@functools.cache
def run_watched(case: Case) -> tuple[Run, Watched]:
    """The same run over a wire, with its sites named in another order. It is cached for all laws: do not change it."""
    turned = case._replace(ground=replace(case.ground, sites=dict(reversed(list(case.ground.sites.items())))))
    hospital_by_name, task = make_hospitals(turned), case.ground.task
    forms = rehearse_forms(case.algorithm, task, case.work, initial_parameters(case.algorithm, task, seed=1))
    wire, folder = Watched(hospital_by_name, forms, case.upload), testbed.MemoryFolder()
    outcome = train_case(turned, hospital_by_name, engine=wire, folder=folder)
    return Run(outcome, hospital_by_name, ((folder.files, hospital_by_name),)), wire
