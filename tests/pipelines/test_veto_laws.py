"""Who decides whether a translation is used, as a law over the real worker: the hospital's own limits where it has any,
else the coordinator's; what is vetoed is not the cohort that training is told of, and its name is told with the reason.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from harmonize.veto import Limits
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import cohort_of
from pipelines.loader.validation import to_plain
from privacy.message import Message
from privacy.release.policy import Budget, Policy
from small_site import SCALE, SIDE, ask, hospital

NEVER = Limits(**dict.fromkeys((field.name for field in fields(Limits)), None))
ALWAYS = Limits(**{**vars(NEVER), "edges": 2.0, "edges_centre": 2.0})  # no correlation is so high


def answered(own: Hospital, cohort: str, limits: Limits) -> Message:
    shared = {"images": torch.rand(8, 1, SIDE, SIDE) * 2 - 1, "labels": torch.arange(8) % 2}
    said = {"space": "s", "translator": {"name": "percentile"}, "veto": to_plain(limits), "is_target": False}
    facts = {"cohort": cohort, "scale": SCALE, "copies": 1, "seed": 0, "scanner": "P"}
    return ask(own, "translate", 0, shared, **{**facts, "private": False, **said})


@pytest.mark.repeats(3)
@pytest.mark.parametrize("asked", [NEVER, ALWAYS], ids=["never", "always"])
@pytest.mark.parametrize("own", [None, NEVER, ALWAYS], ids=["none", "never", "always"])
def test_a_translation_is_used_unless_the_limits_that_count_forbid_it(tmp_path, asked, own):
    made, raw = hospital(tmp_path, veto=own)
    told = answered(made, raw, asked).facts
    vetoed = (asked if own is None else own) is ALWAYS
    assert told["vetoed"] == (["edges"] if vetoed else [])
    assert (told["cohort"] == raw) is vetoed
    moved = cohort_of(made, str(told["cohort"])).images
    assert torch.equal(moved, cohort_of(made, raw).images) is vetoed


@pytest.mark.parametrize("asked", [NEVER, ALWAYS], ids=["never", "always"])
def test_under_a_budget_nothing_is_judged_and_nothing_vetoed(tmp_path, asked):
    strict = Policy(budget=Budget(epsilon=4.0), public=("counts",))
    made, raw = hospital(tmp_path, strict, veto=ALWAYS)
    told = answered(made, raw, asked).facts
    assert told["vetoed"] == [] and told["quality"] == {} and told["cohort"] != raw
