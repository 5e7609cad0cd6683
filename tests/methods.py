"""Every method that a YAML can name, fit for a network with one part before its head, for the contract suites."""

from __future__ import annotations

import typing

import pytest

import rig
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.feddg import FedDG
from federation.feddyn import FedDyn
from federation.fedopt import FedOpt
from federation.fedprox import FedProx
from federation.fedsld import FedSld
from federation.local import Local
from federation.moon import Moon
from federation.scaffold import Scaffold
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.adaptation_rotation import FedTurns
from personalize.apfl import Apfl
from personalize.apple import Apple
from personalize.cusfl import CusFL
from personalize.ditto import Ditto
from personalize.fedavg_local import FedAvgLocal
from personalize.fedbabu import FedBabu
from personalize.fedfomo import FedFomo
from personalize.fedrep import FedRep
from personalize.fedrod import FedRod
from personalize.fenda import Fenda
from personalize.heurfedamp import HeurFedAMP
from personalize.iopfl import IopFL
from personalize.moe import MoE
from personalize.partial import Partial
from personalize.perfcl import PerFCL
from personalize.perfedavg import PerFedAvg
from personalize.pfedme import PFedMe
from personalize.pgfed import PGFed

ALL = [
    FedAvg(),
    FedProx(mu=0.5),
    FedOpt(name="fedadam"),
    FedOpt(name="fedyogi"),
    FedOpt(name="fedadagrad"),
    Scaffold(),
    Moon(),
    FedDyn(),
    FedSld(share="site"),
    FedDG(rim=2),
    Local(),
    Partial(name="fedper"),
    Partial(name="lg_fedavg"),
    Partial(name="splitnn", depth=1),
    Partial(name="private_intercept"),
    Partial(name="fedbn"),
    FedRep(head_epochs=1),
    FedRod(),
    FedBabu(),
    FedAvgLocal(),
    Ditto(),
    Apfl(),
    PFedMe(),
    PerFedAvg(),
    MoE(),
    Fenda(),
    PerFCL(),
    CusFL(depth=1),
    Apple(),
    PGFed(),
    PGFed(name="pgfedmo", beta=0.5),
    FedFomo(),
    HeurFedAMP(),
    IopFL(),
    FedTurns(),
]
SHAPED = {"moon", "fedrod", "apfl", "moe", "fenda", "perfcl", "cusfl", "feddg"}
"""Methods whose own code sees logits or features, and so whether there is one an example or one a pixel."""
PRIVATELY = {"pgfed": PGFed(eta_2=0.0), "pgfedmo": PGFed(name="pgfedmo", beta=0.5, eta_2=0.0)}
"""Settings with which a method may run privately, where its own are refused."""


def names() -> set[str]:
    """What a YAML can say for `name`. `central` is `local` on pooled images."""
    found = set()
    for kind in typing.get_args(AnyAlgorithm):
        found |= set(typing.get_args(typing.get_type_hints(kind)["name"]))
    return found - {"central"}


def with_work(algorithms, adam: Work, sgd: Work) -> list:
    """(method, local work that it accepts) as pytest parameters."""
    return [pytest.param(one, work_of(one, adam, sgd), id=one.name) for one in algorithms]


def work_of(one, adam: Work, sgd: Work) -> Work:
    """The local work that a method accepts."""
    return sgd if any("sgd" in text for text in one.complaints(one.network(rig.task()), adam, False)) else adam


def private(task: Task | None = None) -> list:
    """Those that may be trained privately on a network without buffers."""
    work, task = Work(optimizer="sgd", lr=0.05), task or rig.task()
    settled = [PRIVATELY.get(one.name, one) for one in ALL]
    return [one for one in settled if not one.complaints(one.network(task), work, True)]


def fit(task: Task) -> list:
    """Those that take such a task."""
    work = Work(optimizer="sgd", lr=0.05)
    return [one for one in ALL if not one.complaints(one.network(task), work, False)]
