"""FedAvg-local: FedAvg's training, and each site's own model before it is averaged."""

from __future__ import annotations

import pytest

import reference
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.parameters import section
from personalize.fedavg_local import FedAvgLocal
from reference import recorded_training


@pytest.mark.parametrize(
    ("task", "sites"),
    [(reference.CNN, reference.IMAGES), (testbed.make_task(), reference.TABLES)],
    ids=["images", "tables"],
)
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("keep", [True, False])
def test_what_travels_is_fedavgs_bit_for_bit(task, sites, weights, keep):
    """Every state and every reply, with sites away and replies lost."""
    work = Work(optimizer="adam", lr=0.02, batch=4, keep_optimizer=keep)
    options = {"lost": frozenset({(1, "a"), (3, "a")}), "participation": reference.PARTICIPATION, "work": work}
    states, replies, _ = recorded_training(FedAvgLocal(weights=weights), task, sites, **options)
    expected, sent, _ = recorded_training(FedAvg(weights=weights), task, sites, **options)
    assert len(states) == len(expected) == 5
    assert all(testbed.are_equal(one, two) for one, two in zip(states, expected, strict=True))
    assert replies.keys() == sent.keys() and all(testbed.are_equal(replies[key], sent[key]) for key in sent)


@pytest.mark.parametrize("lost", [frozenset(), frozenset({(3, "a"), (4, "a"), (2, "b")})], ids=["", "lost"])
def test_a_site_diagnoses_with_its_newest_model_that_was_merged(lost):
    states, _, found = recorded_training(FedAvgLocal(), lost=lost)
    _, sent, _ = recorded_training(FedAvg(), lost=lost)
    for site in reference.IMAGES:
        newest = max(round_ for round_, name in sent if name == site)
        assert testbed.are_equal(found[site], sent[newest, site])
        assert not testbed.are_equal(found[site], section(states[-1], "model"))


def test_alone_it_is_local_training():
    one = {"a": reference.IMAGES["a"]}
    assert testbed.are_equal(
        recorded_training(FedAvgLocal(), sites=one)[2]["a"], recorded_training(Local(), sites=one)[2]["a"]
    )


def test_a_site_that_never_took_part_diagnoses_with_what_it_receives():
    lost = frozenset((r, "a") for r in range(1, 5))
    states, _, found = recorded_training(FedAvgLocal(), lost=lost)
    assert testbed.are_equal(found["a"], section(states[-1], "model"))


def test_it_makes_sense_everywhere():
    assert FedAvgLocal().complaints(reference.CNN.network(), reference.ADAM, True) == []
