"""The statement: what a ledger comes to, the bounds it quotes, and the words where there is no guarantee."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.dp import accounting
from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    NON_PRIVATE,
    NOTHING,
    Declared,
    Gaussian,
    Laplace,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    compose_events,
    describe_event,
)
from privacy.release import ledger, meaning
from privacy.release.build_statement import build_statement
from privacy.release.statement import Audit, Details, from_json, to_json
from privacy.release.statement_markdown import render_markdown

DELTA, CUT = 1e-5, "0123456789abcdef"
STEP = Part(CUT, "train", PoissonSampled(0.25, Gaussian(4.0)))
VALIDATION = Part(CUT, "validation", Gaussian(20.0))


def line(request, event, *, run="fedavg", number=0, sha=None, **more):
    said = {"time": "2026-11-21T12:07:40+00:00", "run": run, "round": number, "request": request}
    said |= {"recipient": "coordinator", "event": describe_event(event), "sha256": sha or f"{run}/{request}/{number}"}
    return said | {"bytes": 1000, "again": False, "refused": None, "previous": "0" * 64} | more


def rounds(count=3, run="fedavg"):
    """A private run: in each round ten steps, and one measurement on other patients."""
    return [
        line("train", compose_events([SelfComposed(STEP, 10), VALIDATION, Declared("counts")]), run=run, number=number)
        for number in range(1, count + 1)
    ]


def stated(lines, **more):
    return build_statement(lines, **{"site": "a", "delta": DELTA} | more)


# What ε means.


def edge(epsilon, delta):
    """A pair of outputs that reaches the edge of (ε, δ): P and Q over four outcomes (Kairouz et al. 2015)."""
    big = (1 - delta) / (1 + math.exp(-epsilon))
    small = (1 - delta) / (1 + math.exp(epsilon))
    return (delta, big, small, 0.0), (0.0, small, big, delta)


def best(p, q, *, alarms=None):
    """By trying every test: the largest share of right guesses, or of true alarms at no more than `alarms` false."""
    tests = list(itertools.product((0, 1), repeat=len(p)))
    points = [tuple(sum(a for a, t in zip(world, one, strict=True) if t) for world in (q, p)) for one in tests]
    if alarms is None:
        return max((1 - f + t) / 2 for f, t in points)
    mixed = [  # a test may toss a coin between two others
        t0 + (t1 - t0) * (alarms - f0) / (f1 - f0)
        for (f0, t0), (f1, t1) in itertools.product(points, repeat=2)
        if f0 < alarms <= f1
    ]
    return max([*mixed, *(t for f, t in points if f <= alarms)])


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 12), st.floats(0, 0.3), st.floats(0, 1))
def test_the_bounds_are_those_of_the_best_attack_on_the_worst_mechanism(epsilon, delta, alarms):
    p, q = edge(epsilon, delta)
    assert meaning.attack_success(epsilon, delta) == pytest.approx(best(p, q), abs=1e-12)
    assert meaning.true_positive_rate(epsilon, delta, alarms) == pytest.approx(best(p, q, alarms=alarms), abs=1e-9)


@pytest.mark.parametrize(("epsilon", "delta", "right"), [(0, 0, 0.5), (math.inf, 0, 1), (800, 1e-5, 1), (0, 1, 1)])
def test_the_ends_of_the_bounds_are_chance_and_certainty(epsilon, delta, right):
    assert meaning.attack_success(epsilon, delta) == right
    assert meaning.true_positive_rate(epsilon, delta, 1.0) == 1
    assert 0 <= meaning.true_positive_rate(epsilon, delta, 0.0) <= max(delta, 1 - math.exp(-epsilon) + delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(-1, 0), (math.nan, 0), (1, -0.1), (1, 1.1), (1, math.nan)])
def test_bounds_of_nonsense_are_refused(epsilon, delta):
    with pytest.raises(ValueError, match="must be"):
        meaning.attack_success(epsilon, delta)


@given(st.floats(1e-12, 1e12))
def test_rounding_goes_to_the_side_that_promises_less(value):
    assert value <= meaning.round_up(value) <= value * 1.01
    assert value * 0.99 <= meaning.round_down(value) <= value
    assert meaning.round_up(meaning.round_up(value)) == meaning.round_up(value)


@given(st.floats(0, 1))
def test_a_share_below_one_is_never_printed_as_all_nor_rounded_down(share):
    said = float(meaning.format_percent(share).removesuffix(" %"))
    assert said >= 100 * share * (1 - 1e-15)
    assert (said == 100) == (share > 1 - 1e-14)


def test_ten_is_called_weak_and_said_with_its_numbers():
    assert "formal but weak" in meaning.describe_meaning(10, DELTA) and "99.996 %" in meaning.describe_meaning(
        10, DELTA
    )
    assert ": strong. " in meaning.describe_meaning(1, DELTA) and "73.2 %" in meaning.describe_meaning(1, DELTA)
    assert ": moderate. " in meaning.describe_meaning(3, DELTA)
    assert "no formal guarantee" in meaning.describe_meaning(math.inf, DELTA)
    assert not any(word in meaning.describe_meaning(math.inf, DELTA) for word in ("strong", "moderate", "weak"))


# What a ledger comes to.


def test_a_run_is_told_by_mechanism_with_the_cost_of_each_alone_and_of_all():
    made = stated(rounds(), details={"fedavg": Details(1.0, 4, 30.0)}, contents={"train": "parameters"})
    [run] = made.runs
    assert [(r.request, r.split, r.mechanism, r.probability, r.noise, r.times) for r in run.rows] == [
        ("train", "train", "Gaussian noise", 0.25, 4.0, 30),
        ("train", "validation", "Gaussian noise", 1.0, 20.0, 3),
    ]
    steps, measured = (
        compute_cost([SelfComposed(STEP, 30)], DELTA).epsilon,
        compute_cost([SelfComposed(VALIDATION, 3)], DELTA).epsilon,
    )
    assert [r.epsilon for r in run.rows] == [meaning.round_up(steps), meaning.round_up(measured)]
    assert run.epsilon == run.noised == made.epsilon == meaning.round_up(max(steps, measured))
    assert {s.split: s.epsilon for s in made.splits} == {row.split: row.epsilon for row in run.rows}
    assert run.details == Details(1.0, 4, 30.0)
    [train] = made.released
    assert (train.request, train.content, train.times, train.again, train.bytes) == ("train", "parameters", 3, 0, 3000)
    assert [(s.what, s.times, s.requests) for s in made.stated] == [("counts", 3, ("train",))]


def test_the_total_is_what_the_gate_compares_with_the_budget():
    lines = [*rounds(), *rounds(run="scaffold"), line("evaluate", Part(CUT, "test", Gaussian(5.0)), run="evaluate")]
    made = stated(lines, budget=(4.0, 1e-6))
    charged = ledger.spent_events(lines)
    assert made.epsilon == meaning.round_up(compute_cost(charged, DELTA).epsilon)
    assert made.budget.spent == meaning.round_up(compute_cost(charged, 1e-6).epsilon)
    assert made.budget.remaining == pytest.approx(4 - made.budget.spent, abs=0.01)
    for limit in (4.0, 12.3456, 123.4567):
        budget = stated(lines, budget=(limit, 1e-6)).budget
        assert limit - 1 < budget.spent + budget.remaining <= limit
    assert stated(lines, budget=(0.5, 1e-6)).budget.remaining == 0


def test_several_uses_of_one_sample_are_one_row_that_says_so():
    twice = Part(CUT, "train", PoissonSampled(0.25, SelfComposed(Gaussian(6.0), 2)))
    [row] = stated([line("train", SelfComposed(twice, 10))]).runs[0].rows
    assert (row.mechanism, row.times, row.noise) == ("Gaussian noise, 2 times on one sample", 10, 6.0)


def test_other_mechanisms_are_named():
    event = compose_events([Laplace(20.0), Pure(0.05)])
    rows = stated([line("introduce", event)]).runs[0].rows
    assert [(r.mechanism, r.noise, r.epsilon) for r in rows] == [
        ("Laplace noise", 20.0, 0.05),
        ("pure, ε = 0.05 each", None, pytest.approx(0.05, rel=0.01)),
    ]


def test_a_reply_sent_again_costs_nothing_more_and_is_said():
    lines = rounds()
    again = [*lines, lines[-1] | {"again": True}]
    once, twice = stated(lines), stated(again)
    assert (once.epsilon, once.runs) == (twice.epsilon, twice.runs)
    assert [(r.times, r.again, r.bytes) for r in twice.released] == [(3, 1, 4000)]


def test_what_left_without_noise_is_listed_and_makes_the_whole_infinite():
    lines = [*rounds(), line("export", NON_PRIVATE, run="test"), line("export", NON_PRIVATE, run="test", number=1)]
    made = stated(lines, contents={"export": "its model"}, budget=(8.0, DELTA))
    assert made.epsilon == math.inf and made.noised == stated(rounds()).epsilon
    assert [(u.request, u.content, u.times, u.bytes) for u in made.unprotected] == [("export", "its model", 2, 2000)]
    assert [math.isinf(run.epsilon) for run in made.runs] == [False, True]
    assert (made.budget.spent, made.budget.remaining) == (math.inf, 0)
    assert "PLD" in made.accountant


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "magic"},
        None,
        describe_event(PoissonSampled(0.2, Gaussian(0.0))),
        describe_event(Part(CUT, "train", NON_PRIVATE)),
        describe_event(SelfComposed(Laplace(0.0), 3)),
    ],
)
def test_what_nobody_can_read_and_what_has_no_noise_has_no_guarantee(event):
    made = stated([*rounds(), line("train", NOTHING, number=9) | {"event": event}])
    assert made.epsilon == math.inf and [u.times for u in made.unprotected] == [1]
    assert "## No formal guarantee" in render_markdown(made) and "ε = ∞: no formal guarantee" in render_markdown(made)


def test_a_mechanism_that_no_accountant_knows_is_told_and_infinite():
    odd = PoissonSampled(0.2, compose_events([Gaussian(1.0), Pure(0.1)]))
    made = stated([line("train", odd)])
    assert made.epsilon == math.inf and made.runs[0].rows[0].epsilon == math.inf
    assert made.runs[0].rows[0].mechanism == "Gaussian noise (σ = 1), then pure, ε = 0.1 each"


def test_refusals_and_torn_lines_are_counted():
    failed = line("train", Declared("failure"), number=4, refused="failed", sha256=None, bytes=0)
    withheld = line("train", NOTHING, number=5, refused="budget", bytes=0)
    made = stated([*rounds(), failed, withheld, {"torn": True, "line": 6}])
    assert (made.lines, made.torn, made.refused) == (6, 1, 2)
    assert [(s.what, s.times) for s in made.stated] == [("counts", 3), ("failure", 1)]
    assert made.epsilon == stated(rounds()).epsilon
    told = line("train", NON_PRIVATE, number=6, refused="failed", bytes=0)
    assert [(u.content, u.times) for u in stated([told]).unprotected] == [("a code instead of a reply", 1)]


def test_an_empty_ledger_has_cost_nothing():
    made = stated([])
    assert (made.epsilon, made.noised, made.runs, made.released, made.unprotected) == (0, 0, (), (), ())
    assert "Nothing: everything that left" in render_markdown(
        made
    ) and "ε = 0. Nothing that left depends" in render_markdown(made)


@pytest.mark.parametrize(
    ("delta", "budget", "said"),
    [(0.0, None, "delta"), (1.0, None, "delta"), (0.5, (-1.0, 2.0), r"budget's delta.*; the budget's epsilon")],
)
def test_wrong_limits_are_all_named(delta, budget, said):
    with pytest.raises(ValueError, match=said):
        stated([], delta=delta, budget=budget)


# Laws, over any ledger, with an accountant that only adds.

events = st.sampled_from(
    [
        NOTHING,
        NON_PRIVATE,
        Declared("counts"),
        STEP,
        SelfComposed(STEP, 7),
        compose_events([SelfComposed(STEP, 2), VALIDATION, Declared("counts")]),
        Pure(0.1),
        Laplace(3.0),
    ]
)
ledgers = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["train", "evaluate"]), st.integers(0, 2), events, st.booleans()),
    max_size=12,
)


def simple(said, delta):
    """ε as the sum of 1 per mechanism: additive, so that rows, runs and total must agree exactly."""

    def price(event, times=1):
        inner = getattr(event, "event", None)
        if isinstance(event, SelfComposed):
            return price(inner, times * event.count)
        if event == NON_PRIVATE:
            return math.inf
        if hasattr(event, "events"):
            return sum(price(one, times) for one in event.events)
        if isinstance(event, Part | PoissonSampled):
            return price(inner, times)
        return 0 if event == NOTHING or isinstance(event, Declared) else times

    return accounting.Cost(float(sum(price(event) for event in said)), delta, "counting")


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(accounting, "compute_cost", simple)
    monkeypatch.setattr(accounting, "by_split", lambda said, delta: {})
    monkeypatch.setattr(meaning, "round_up", float)
    monkeypatch.setattr("privacy.release.build_statement.round_up", float)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ledgers)
def test_rows_runs_and_total_count_the_same_and_nothing_is_left_out(counting, drawn):
    lines = [line(r, e, run=run, number=n, again=again) for run, r, n, e, again in drawn]
    made = stated(lines)
    assert made.noised == sum(run.noised for run in made.runs) == sum(r.epsilon for run in made.runs for r in run.rows)
    assert made.epsilon == simple(ledger.spent_events(lines), DELTA).epsilon
    assert math.isinf(made.epsilon) == bool(made.unprotected)
    told = sum(r.times + r.again for r in made.released) + sum(u.times for u in made.unprotected)
    only = [one for one, event in ledger.charged_lines(lines) if isinstance(event, Declared)]
    assert told + len(only) == len(lines)
    assert from_json(json.loads(json.dumps(to_json(made), allow_nan=False))) == made
    assert render_markdown(made).count("no formal guarantee") >= math.isinf(made.epsilon)


# Form.


def test_a_statement_survives_json_and_strangers_in_it_are_refused():
    audit = Audit(1.0, 0.14, 1000, 200, DELTA, 0.95)
    made = stated([*rounds(), line("export", NON_PRIVATE)], budget=(8.0, DELTA), audit=audit)
    said = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert said["epsilon"] == "Infinity" and from_json(said) == made
    with pytest.raises(ValueError, match="stranger"):
        from_json(said | {"stranger": 1})
    with pytest.raises(ValueError, match="site"):
        from_json({name: value for name, value in said.items() if name != "site"})


def test_the_page_holds_what_a_claim_needs():
    audit = Audit(1.0, 0.14, 1000, 200, DELTA, 0.95)
    more = {"details": {"fedavg": Details(1.5, 4, 30.0)}, "budget": (8.0, DELTA), "audit": audit}
    text = render_markdown(stated(rounds(), pretraining="ImageNet-1k, non-commercial", **more))
    for said in (
        *(
            "| Unit | patient |",
            "two data sets that differ in one patient",
            "| δ | 1e-05 |",
            "dp-accounting",
            "Poisson sampling",
        ),
        *("C = 1.5", "K = 4", "| train | train | Gaussian noise | 0.25 | 4 | 30 |", "secure aggregation", "os.urandom"),
        *("same patient at another hospital", "several identifiers", "settings were chosen", "how large the reply is"),
        *("pages, logs and files", "without noise for its own use", "ImageNet-1k", "at least 0.14", "not refuted"),
        *("ε = 8 at δ = 1e-05", "counts of files"),
    ):
        assert said in text, said
    assert "This refutes the claim" in render_markdown(stated(rounds(), audit=replace(audit, bound=1.5)))
    assert "no model was pretrained" in render_markdown(stated(rounds()))


def test_names_cannot_break_a_table():
    text = render_markdown(stated([line("train", STEP, run="a | b\n# c")]))
    assert "### a \\| b # c" in text and "\n# c" not in text
    rows = [one for one in text.splitlines() if one.startswith("| train")]
    assert all(one.replace("\\|", "").count("|") in (6, 8) for one in rows)


HOSTILE = "<script>alert(1)</script>\n# head [a](http://x) ![b](y) `c` **d** | e ~f~ _g_ \x1b[2J\u202e"


def test_no_text_in_a_statement_acts_in_markdown_or_html():
    """Whoever chose it, the hospital or a coordinator: every text of a statement, made hostile, stays text."""
    plain = to_json(
        stated([*rounds(), line("ingest", Declared("counts")), line("export", NON_PRIVATE)], budget=(9.0, DELTA))
    )

    def made(value):
        if isinstance(value, dict):
            return {name: made(one) for name, one in value.items()}
        if isinstance(value, list):
            return [made(one) for one in value]
        return f"{value} {HOSTILE}" if isinstance(value, str) and value != "Infinity" else value

    text, ours = render_markdown(from_json(made(plain))), render_markdown(from_json(plain))
    assert text.count("alert(1)") > 20
    assert "<" not in text and "\x1b" not in text and "\u202e" not in text and "://" not in text
    for sign in ("[a]", "](", "`c`", "**d", " | e", "~f~", " _g_"):
        assert sign not in text.replace(f"\\{sign[0]}", "")
    starts = [one[:2] for one in text.splitlines()]
    assert starts == [one[:2] for one in ours.splitlines()], "no line, heading or cell more than in our own words"
    assert [one.count(" | ") for one in text.splitlines()] == [one.count(" | ") for one in ours.splitlines()]
