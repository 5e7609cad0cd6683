"""Every method that a YAML can name, fit for a network with one part before its head, for the contract suites.

The unions in `federation/__init__.py` and `personalize/__init__.py` are the one list of methods: what stands there is
tested here.
"""

from __future__ import annotations

import typing

import pytest

import rig
from federation.descent import Work
from federation.feddg import FedDG
from federation.fedprox import FedProx
from federation.fedsld import FedSld
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.cusfl import CusFL
from personalize.fedrep import FedRep
from personalize.partial import Partial
from personalize.pgfed import PGFed

SETTLED = {
    "fedprox": FedProx(mu=0.5),
    "fedsld": FedSld(share="site"),
    "feddg": FedDG(rim=2),
    "splitnn": Partial(name="splitnn", depth=1),
    "fedrep": FedRep(head_epochs=1),
    "cusfl": CusFL(depth=1),
    "pgfedmo": PGFed(name="pgfedmo", beta=0.5),
}
"""Methods whose defaults do not suit so small a network, or would do nothing that a test could see."""


def names() -> set[str]:
    """What a YAML can say for `name`. `central` is `local` on pooled images."""
    return {name for kind in typing.get_args(AnyAlgorithm) for name in _names(kind)} - {"central"}


def _names(kind: type) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(kind)["name"])


ALL = [
    SETTLED.get(name, kind(name=name))
    for kind in typing.get_args(AnyAlgorithm)
    for name in _names(kind)
    if name != "central"
]
SHAPED = {"moon", "fedrod", "apfl", "moe", "fenda", "perfcl", "cusfl", "feddg"}
"""Methods whose own code sees logits or features, and so whether there is one an example or one a pixel."""
PRIVATELY = {"pgfed": PGFed(eta_2=0.0), "pgfedmo": PGFed(name="pgfedmo", beta=0.5, eta_2=0.0)}
"""Settings with which a method may run privately, where its own are refused."""


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
