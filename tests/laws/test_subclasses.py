"""A method under another name computes what it computed: no method asks what it is called."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest

import methods
import small_clip
from consilium.testing import testbed
from federation.descent import Work
from federation.promised import resolve_name
from federation.rounds import Schedule

ADAM, SGD = Work(lr=1e-2, batch=8, epochs=2), Work(optimizer="sgd", lr=1e-2, batch=8, epochs=2)


def renamed(algorithm: Any) -> Any:
    """The same settings of a subclass with a name of its own."""
    kind = type(algorithm)
    space = {"__annotations__": {"name": Literal["renamed"]}, "name": "renamed", "__module__": __name__}
    mine: Any = dataclass(frozen=True, kw_only=True)(type("Renamed", (kind,), space))
    return mine(**{one.name: getattr(algorithm, one.name) for one in fields(kind) if one.name != "name"})


CASES = [one for one in methods.ALL if one.name == next(field.default for field in fields(one) if field.name == "name")]


@pytest.mark.repeats(8)
@pytest.mark.parametrize("algorithm", [pytest.param(one, id=one.name) for one in CASES])
def test_a_subclass_with_another_name_trains_as_its_parent(algorithm: Any) -> None:
    work = methods.work_of(algorithm, ADAM, SGD)
    task, sites = testbed.make_task(), {"a": testbed.make_table(1), "b": testbed.make_table(2, shift=0.7)}
    if algorithm.name in methods.ON_PROMPTS:
        task, sites = small_clip.task(), {"a": small_clip.table(1, n=14), "b": small_clip.table(2, n=14)}
    elif algorithm.name not in {one.name for one in methods.fit(task)}:
        task, sites = testbed.mask_task(), {"a": testbed.make_scenes(1), "b": testbed.make_scenes(2, shift=0.1)}
    states = []
    for method in (algorithm, renamed(algorithm)):
        crew = testbed.make_federation(method, sites, task=task, work=work)
        outcome = testbed.train(method, crew, task=task, work=work, schedule=Schedule(rounds=2))
        finals = {
            f"{name}/{key}": value for name, one in crew.items() for key, value in testbed.newest_model(one).items()
        }
        states.append({**outcome.state.tensors, **finals})
    assert testbed.are_equal(*states) and len(states[0]) > 1


def test_a_method_of_none_of_the_names_is_said_to_be_none() -> None:
    with pytest.raises(KeyError, match="'fedavg' is none of fedadam, fedyogi, and nor is a base of FedAvg"):
        resolve_name(
            methods.SETTLED["fedavg"] if "fedavg" in methods.SETTLED else methods.ALL[3], ("fedyogi", "fedadam")
        )
