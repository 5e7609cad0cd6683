"""FedAvg-local: FedAvg's training, and each site's own model before it is averaged."""

from __future__ import annotations

import pytest

import by_hand
import rig
from by_hand import tapped
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.parameters import section
from personalize.fedavg_local import FedAvgLocal


@pytest.mark.parametrize(
    ("task", "sites"), [(by_hand.CNN, by_hand.IMAGES), (rig.task(), by_hand.TABLES)], ids=["images", "tables"]
)
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("keep", [True, False])
def test_what_travels_is_fedavgs_bit_for_bit(task, sites, weights, keep):
    """Every state and every reply, with sites away and replies lost."""
    work = Work(optimizer="adam", lr=0.02, batch=4, keep_optimizer=keep)
    options = {"lost": frozenset({(1, "a"), (3, "a")}), "participation": by_hand.PARTICIPATION, "work": work}
    states, replies, _ = tapped(FedAvgLocal(weights=weights), task, sites, **options)
    expected, sent, _ = tapped(FedAvg(weights=weights), task, sites, **options)
    assert len(states) == len(expected) == 5
    assert all(rig.equal(one, two) for one, two in zip(states, expected, strict=True))
    assert replies.keys() == sent.keys() and all(rig.equal(replies[key], sent[key]) for key in sent)


@pytest.mark.parametrize("lost", [frozenset(), frozenset({(3, "a"), (4, "a"), (2, "b")})], ids=["", "lost"])
def test_a_site_diagnoses_with_its_newest_model_that_was_merged(lost):
    states, _, found = tapped(FedAvgLocal(), lost=lost)
    _, sent, _ = tapped(FedAvg(), lost=lost)
    for site in by_hand.IMAGES:
        newest = max(round_ for round_, name in sent if name == site)
        assert rig.equal(found[site], sent[newest, site])
        assert not rig.equal(found[site], section(states[-1], "model"))


def test_alone_it_is_local_training():
    one = {"a": by_hand.IMAGES["a"]}
    assert rig.equal(tapped(FedAvgLocal(), sites=one)[2]["a"], tapped(Local(), sites=one)[2]["a"])


def test_a_site_that_never_took_part_diagnoses_with_what_it_receives():
    lost = frozenset((r, "a") for r in range(1, 5))
    states, _, found = tapped(FedAvgLocal(), lost=lost)
    assert rig.equal(found["a"], section(states[-1], "model"))


def test_it_makes_sense_everywhere():
    assert FedAvgLocal().complaints(by_hand.CNN.network(), by_hand.ADAM, True) == []
