"""Whether adapting is tried: a rule on what models say of unlabelled images, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personalize.adaptation_baselines import Tent
from personalize.adaptation_doubt import agreement, describe_distrust
from personalize.routing_outside import Routing


def drawn(seed, models, n=4, classes=3):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(classes, (n, 5, 4), generator=g, dtype=torch.uint8) for _ in range(models)]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.integers(2, 5))
def test_agreement_is_a_share_that_knows_no_order_of_models_or_images(seed, models):
    found = drawn(seed, models)
    told = agreement(found, masks=True)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    assert 0 <= told < 1
    assert agreement([one[order] for one in reversed(found)], masks=True) == pytest.approx(told)
    assert agreement([found[0]] * models, masks=True) == 1.0
    assert agreement(found[:1], masks=True) == 1.0


def test_agreement_of_a_pair_is_the_dice_score_of_what_both_call_the_same():
    one, two = torch.tensor([[[0, 1], [2, 2]], [[0, 0], [0, 0]]]), torch.tensor([[[1, 1], [1, 2]], [[0, 0], [0, 0]]])
    assert agreement([one, two], masks=True) == pytest.approx((2 * 2 / (3 + 4) + 1) / 2)
    assert agreement([torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])], masks=False) == 0.75


def test_below_the_limit_adapting_is_tried_and_nowhere_else():
    assert describe_distrust(0.9, None) == ""
    limits = [0.0, 0.5, 0.89, 0.9, 0.91, 1.0]
    assert [bool(describe_distrust(0.9, limit)) for limit in limits] == [True, True, True, True, False, False]
    assert "0.900, not less than 0.5: adapting was not tried" in describe_distrust(0.9, 0.5)


@pytest.mark.parametrize("way", [Routing, Tent])
def test_a_limit_that_is_no_share_is_refused(way):
    with pytest.raises(ValueError, match=r"tried_below must be in \[0, 1\] or null, found 1.5"):
        way(tried_below=1.5)
