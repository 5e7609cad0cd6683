"""What a method holds leads to no patient: whatever attribute it follows, whether access is plain or private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from consilium.testing import testbed
from federation.descent import Site, Work
from privacy.dp.access import Access, Rows, open_access
from privacy.dp.capability import restrict_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

WORK = Work(optimizer="sgd", lr=0.1, batch=5, epochs=None, steps=1)


def accesses() -> dict[str, Access]:
    rows = reference.TABLES["a"]
    splits = rows if isinstance(rows, Mapping) else {"train": rows}
    protection = Protection(noise=1.0, clip=1.0, sampling=0.5, views=1, validation_noise=1.0)
    return {"plain": open_access(splits, batch=5, seed=0), "private": open_private(splits, protection)}


def reached(thing: Any, depth: int = 8, seen: set[int] | None = None) -> Iterator[Any]:
    """Everything that public attributes, members and keys lead to; nothing is called."""
    seen = set() if seen is None else seen
    if depth == 0 or id(thing) in seen or isinstance(thing, str | bytes | int | float | bool | type(None) | type):
        return
    seen.add(id(thing))
    yield thing
    if isinstance(thing, Tensor):
        return
    inner: list[Any] = [getattr(thing, name, None) for name in dir(thing) if not name.startswith("_")]
    inner += [getattr(thing, "__self__", None)]  # the object of a bound method
    if isinstance(thing, Mapping):
        inner += list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        inner += list(thing)
    for each in inner:
        yield from reached(each, depth - 1, seen)


@pytest.mark.parametrize("which", ["plain", "private"])
def test_no_attribute_of_what_a_method_holds_leads_to_patients(which):
    access = accesses()[which]
    found = list(reached(Site("a", testbed.make_task(), WORK, restrict_access(access))))
    assert not [thing for thing in found if isinstance(thing, Rows | Tensor)]
    assert not any(thing is access or thing is access.events for thing in found)
    # The walk would have seen them: the access itself leads there.
    assert any(isinstance(thing, Rows) for thing in reached(Site("a", testbed.make_task(), WORK, access)))


def test_the_questions_are_answered_by_data_access():
    direct, asked = accesses()["plain"], restrict_access(accesses()["plain"])
    module = testbed.make_task().network()
    objective = testbed.make_task().objective
    assert (asked.epoch(), asked.size("train"), asked.device) == (direct.epoch(), direct.size("train"), direct.device)
    assert torch.equal(asked.shares(2), direct.shares(2))
    one = asked.gradient(module, objective, asked.draw())
    other = direct.gradient(module, objective, direct.draw())
    assert all(torch.equal(one.gradient[name], other.gradient[name]) for name in other.gradient)
    assert asked.measure(module, objective, "train") == direct.measure(module, objective, "train")
