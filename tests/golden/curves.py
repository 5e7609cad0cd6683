"""The golden curves: every method's validation loss, round by round, on three small hospitals, two of which answer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parents[1]), str(HERE.parent)]

import methods  # noqa: E402 - this file is a script too
import small_clip  # noqa: E402
from consilium.testing import testbed  # noqa: E402
from federation.descent import Work  # noqa: E402
from federation.rounds import Schedule  # noqa: E402

ADAM, SGD = Work(lr=0.02, batch=5), Work(optimizer="sgd", lr=0.05, batch=5)
TABLES = {
    "a": testbed.make_table(1),
    "b": testbed.make_table(2, shift=0.7),
    "c": testbed.make_table(3, n=10, shift=-0.4),
}
SCENES = {
    "a": testbed.make_scenes(1),
    "b": testbed.make_scenes(2, shift=0.1),
    "c": testbed.make_scenes(3, n=6, shift=-0.1),
}
VECTORS = {name: small_clip.table(k, shift=0.4 * k) for k, name in enumerate("abc")}
TOLERANCE = 1e-3
SCHEDULE = Schedule(rounds=4, participation=0.67, quorum=0.3)


def curve(one, task, sites) -> dict[str, float]:
    """Round -> the loss over all hospitals that scored."""
    work = methods.work_of(one, ADAM, SGD)
    crew = testbed.make_federation(one, sites, task=task, work=work)
    return dict(testbed.train(one, crew, task=task, work=work, schedule=SCHEDULE).totals)


def curves() -> Mapping[str, Mapping[str, float]]:
    """Of every method on tables; of those that need images on masks, and of those that learn prompts on vectors."""
    tables = {one.name: curve(one, testbed.make_task(), TABLES) for one in methods.fit(testbed.make_task())}
    others = [one for one in methods.fit(testbed.dense_task()) if one.name not in tables]
    prompts = [one for one in methods.fit(small_clip.task()) if one.name in methods.ON_PROMPTS]
    tables |= {one.name: curve(one, small_clip.task(), VECTORS) for one in prompts}
    return {**tables, **{one.name: curve(one, testbed.dense_task(), SCENES) for one in others}}


def same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two curves are one on different processors, whose rounding differs."""
    return one.keys() == other.keys() and all(math.isclose(one[k], other[k], rel_tol=TOLERANCE) for k in one)


if __name__ == "__main__":
    # Curves that are what they were stay as they are written, so that the change shows the methods that changed.
    known, found = json.loads((HERE / "curves.json").read_text()), curves()
    kept = {name: known[name] if name in known and same(known[name], new) else new for name, new in found.items()}
    (HERE / "curves.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
