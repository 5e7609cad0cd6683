"""Every method that a YAML can name, with settings for a network with one layer before its head, for contract tests.

The unions in `federation/__init__.py` and `personalize/__init__.py` are the only list of methods: all their members are
tested.
"""

from __future__ import annotations

import typing

import pytest

import small_clip
from consilium.testing import testbed
from federation.descent import Work
from federation.feddg import FedDG
from federation.fedprox import FedProx
from federation.fedsld import FedSld
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.at_home import AtHome
from personalize.cusfl import CusFL
from personalize.fedrep import FedRep
from personalize.fenda import Fenda
from personalize.moments import Moments
from personalize.partial import Partial
from personalize.pfedmoap import PFedMoAP
from personalize.pgfed import PGFed
from personalize.prompts import no_prompt

SETTLED = {
    "fedprox": FedProx(mu=0.5),
    "fedsld": FedSld(share="site"),
    "feddg": FedDG(rim=2),
    "splitnn": Partial(name="splitnn", depth=1),
    "fedrep": FedRep(head_epochs=1),
    "cusfl": CusFL(depth=1),
    "at_home": AtHome(of=Fenda()),
    "pgfedmo": PGFed(name="pgfedmo", beta=0.5),
    "moments": Moments(radius=4.0),
    "pfedmoap": PFedMoAP(d=4, heads=2),
}
"""Methods whose defaults do not fit such a small network, or have no effect in it."""


def names() -> set[str]:
    """All values of `name` in a YAML. `central` is `local` on pooled images."""
    return {name for kind in typing.get_args(AnyAlgorithm) for name in _names(kind)} - {"central"}


def _names(kind: type) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(kind)["name"])


ALL = [
    SETTLED[name] if name in SETTLED else kind(name=name)
    for kind in typing.get_args(AnyAlgorithm)
    for name in _names(kind)
    if name != "central"
]
SHAPED = {"moon", "fedrod", "apfl", "moe", "fenda", "perfcl", "cusfl", "feddg"}
"""Methods whose code uses logits or features, so that it matters whether there is one per example or per pixel."""
ON_PROMPTS = {"pfedmoap", "zero_shot"}
"""Methods that learn the prompt of a frozen CLIP (`small_clip.task`), and refuse every other network."""
PRIVATELY = {
    "cusfl": CusFL(depth=1, normalize="none"),
    "pgfed": PGFed(eta_2=0.0),
    "pgfedmo": PGFed(name="pgfedmo", beta=0.5, eta_2=0.0),
}
"""Settings for private training of methods whose defaults are refused there."""


def with_work(algorithms, adam: Work, sgd: Work) -> list:
    """(method, local work that it accepts) as pytest parameters."""
    return [pytest.param(one, work_of(one, adam, sgd), id=one.name) for one in algorithms]


def work_of(one, adam: Work, sgd: Work) -> Work:
    """The local work that a method accepts."""
    task = small_clip.task() if one.name in ON_PROMPTS else testbed.make_task()
    return sgd if any("sgd" in text for text in one.complaints(one.network(task), adam, False)) else adam


def private(task: Task | None = None) -> list:
    """Methods that may be trained privately on a network without buffers."""
    work, task = Work(optimizer="sgd", lr=0.05), task or testbed.make_task()
    settled = [PRIVATELY.get(one.name, one) for one in ALL]
    return [one for one in settled if not one.complaints(one.network(task), work, True)]


def fit(task: Task) -> list:
    """Methods that accept the task."""
    work = Work(optimizer="sgd", lr=0.05)
    known = [one for one in ALL if not no_prompt(one, task)]
    return [one for one in known if not one.complaints(one.network(task), work, False)]
