from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    DECLARATIONS,
    NON_PRIVATE,
    NOTHING,
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    UnknownEvent,
    compose_events,
    describe_event,
    parse_event,
)

size = st.floats(0, 1e6, allow_nan=False)
leaves: st.SearchStrategy[Event] = st.one_of(
    st.just(NON_PRIVATE),
    st.just(NOTHING),
    st.sampled_from(DECLARATIONS).map(Declared),
    size.map(Gaussian),
    size.map(Laplace),
    size.map(Pure),
)


def nested(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.one_of(
        st.builds(PoissonSampled, st.floats(0, 1), inner),
        st.builds(SelfComposed, inner, st.integers(0, 10**6)),
        st.lists(inner, max_size=4).map(lambda some: Composed(tuple(some))),
        st.builds(Part, st.text(max_size=5), st.text(max_size=5), inner),
    )


events = st.recursive(leaves, nested, max_leaves=8)

# What sites book: few different mechanisms, so that most of their distributions are computed once.
steps: st.SearchStrategy[Event] = st.sampled_from(
    [PoissonSampled(0.1, SelfComposed(Gaussian(3.0), 2)), PoissonSampled(0.2, Gaussian(4.0)), Gaussian(5.0), Pure(0.2)]
)
booked: st.SearchStrategy[Event] = st.one_of(
    steps,
    st.builds(SelfComposed, steps, st.integers(1, 4)),
    st.builds(Part, st.just("round 1"), st.sampled_from(["train", "validation"]), steps),
    st.sampled_from([NOTHING, Declared("counts"), Laplace(10.0)]),
)


@given(events)
def test_an_event_is_read_as_it_was_described_also_after_a_trip_through_json(event: Event) -> None:
    assert parse_event(describe_event(event)) == event
    assert parse_event(json.loads(json.dumps(describe_event(event), allow_nan=False))) == event


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"kind": "telepathy"}, "telepathy"),
        ({}, "known kinds"),
        ([], "known kinds"),
        ("gaussian", "known kinds"),
        ({"kind": "gaussian", "noise": 1.0}, "noise"),
        ({"kind": "gaussian"}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": 1.0, "event": {"kind": "nothing"}}, "event"),
        ({"kind": "gaussian", "noise_multiplier": -1.0}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": math.nan}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": math.inf}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": "1"}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": True}, "noise_multiplier"),
        ({"kind": "laplace", "noise_multiplier": -1.0}, "noise_multiplier"),
        ({"kind": "pure", "epsilon": -0.1}, "epsilon"),
        ({"kind": "poisson_sampled", "probability": 1.5, "event": {"kind": "nothing"}}, "probability"),
        ({"kind": "poisson_sampled", "probability": math.nan, "event": {"kind": "nothing"}}, "probability"),
        ({"kind": "poisson_sampled", "probability": 0.5}, "event"),
        ({"kind": "poisson_sampled", "probability": 0.5, "event": "nothing"}, "known kinds"),
        ({"kind": "self_composed", "count": 1.5, "event": {"kind": "nothing"}}, "count"),
        ({"kind": "self_composed", "count": -1, "event": {"kind": "nothing"}}, "count"),
        ({"kind": "self_composed", "count": 2, "event": {"kind": "pure", "epsilon": -1}}, "epsilon"),
        ({"kind": "composed", "events": {"kind": "nothing"}}, "events"),
        ({"kind": "composed", "events": [], "more": 1}, "nothing else"),
        ({"kind": "composed", "events": [{"kind": "telepathy"}]}, "telepathy"),
        ({"kind": "composed"}, "events"),
        ({"kind": "declared", "what": "diagnoses"}, "diagnoses"),
        ({"kind": "part", "cut": "a", "event": {"kind": "nothing"}}, "split"),
    ],
)
def test_what_is_no_event_is_refused_by_the_name_of_what_is_wrong(said: object, named: str) -> None:
    with pytest.raises(UnknownEvent, match=named):
        parse_event(said)  # type: ignore[arg-type]


def test_an_event_of_another_make_is_not_described() -> None:
    class Better(Gaussian):
        pass

    with pytest.raises(UnknownEvent, match="does not know"):
        describe_event(Better(1.0))
    with pytest.raises(UnknownEvent, match="does not know"):
        describe_event(Composed((Better(1.0),)))


@settings(max_examples=25, deadline=None)
@given(st.lists(booked, max_size=6))
def test_events_composed_cost_what_the_list_costs(some: list[Event]) -> None:
    assert compute_cost([compose_events(some)], 1e-5).epsilon == pytest.approx(
        compute_cost(some, 1e-5).epsilon, rel=1e-6
    )


@given(st.lists(booked, max_size=8), st.lists(booked, max_size=8))
def test_composing_again_changes_nothing_and_a_ledger_may_be_composed_piece_by_piece(
    early: list[Event], late: list[Event]
) -> None:
    whole = compose_events([*early, *late])
    assert compose_events([whole]) == whole
    assert compose_events([compose_events(early), *late]) == whole
    assert compose_events([NOTHING, whole, NOTHING]) == whole


@given(st.lists(events, max_size=4), st.integers(0, 4), events.map(lambda inner: Composed((inner, NON_PRIVATE))))
def test_one_non_private_part_makes_the_whole_non_private(some: list[Event], where: int, bad: Event) -> None:
    for hidden in (bad, SelfComposed(bad, 2), PoissonSampled(0.1, bad), Part("cut", "split", bad)):
        assert compose_events([*some[:where], hidden, *some[where:]]) == NON_PRIVATE


def test_no_event_and_nothing_else_are_nothing() -> None:
    assert (
        compose_events([])
        == compose_events([NOTHING, NOTHING])
        == compose_events([SelfComposed(Gaussian(1.0), 0)])
        == NOTHING
    )


def test_equal_events_are_counted_and_a_declaration_stands_once() -> None:
    step = PoissonSampled(0.1, Gaussian(2.0))
    assert compose_events([step, NOTHING, SelfComposed(step, 3), step]) == SelfComposed(step, 5)
    assert compose_events([Declared("counts")] * 3) == Declared("counts")


@pytest.mark.parametrize(
    "said",
    [
        {"kind": []},
        {"kind": None},
        {"kind": "gaussian", "noise_multiplier": 10**400},
        {"kind": "poisson_sampled", "probability": True, "event": {"kind": "gaussian", "noise_multiplier": 1.0}},
        {"kind": "part", "cut": [], "split": "train", "event": {"kind": "nothing"}},
        {"kind": "part", "cut": "c", "split": 3, "event": {"kind": "nothing"}},
    ],
)
def test_whatever_stands_in_a_ledger_is_an_event_or_is_refused_as_one(said):
    with pytest.raises(UnknownEvent):
        parse_event(said)


def test_compositions_of_compositions_have_one_form():
    a = Gaussian(1.0)
    twice = SelfComposed(a, 2)
    for nested in (
        Composed((Composed((a, a)),)),
        SelfComposed(Composed((a, a)), 1),
        SelfComposed(SelfComposed(a, 2), 1),
    ):
        assert compose_events([nested]) == twice
