"""`most:` and `budget:` of a policy: caps on one reply, one run and all together, for whatever carries an epsilon."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
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
    describe_event,
)
from privacy.message import Call
from privacy.release import ledger as ledgers
from privacy.release.gate import BUDGET, Refused, release_reply
from privacy.release.ledger import run_name
from privacy.release.policy import RELEASE_SHARE, REQUESTS, Budget, Most, Policy

DELTA = 1e-5
NOISES = st.sampled_from((1e-9, 1e-3, 0.3, 0.7, 1.0, 2.0, 5.0, 40.0))
MECHANISMS: st.SearchStrategy[Event] = st.one_of(
    st.just(NOTHING),
    st.just(Declared("failure")),
    st.builds(Gaussian, NOISES),
    st.builds(Laplace, NOISES),
    st.builds(Pure, st.sampled_from((0.01, 0.5, 3.0, 60.0))),
    st.builds(PoissonSampled, st.sampled_from((0.01, 0.5, 1.0)), st.builds(Gaussian, NOISES)),
)
RELEASES = st.one_of(
    MECHANISMS,
    st.builds(Part, st.just("c"), st.sampled_from(("train", "validation", "test")), MECHANISMS),
    st.builds(SelfComposed, MECHANISMS, st.sampled_from((1, 3, 20))),
    st.builds(lambda a, b: Composed((a, b)), MECHANISMS, MECHANISMS),
)
CALLS = st.tuples(
    st.sampled_from(("one", "other")),
    st.sampled_from(("train", "evaluate", "synthesize", "augment", "ingest", "benchmark", "score")),
    RELEASES,
)


def spent(lines: Sequence[dict[str, object]]) -> float:
    return compute_cost(ledgers.spent_events(lines), DELTA).epsilon  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(CALLS, min_size=1, max_size=12), st.sampled_from((0.2, 1.0, 3.0)), st.sampled_from((1.0, 1.5, 4.0)))
def test_no_reply_no_run_and_no_life_of_a_ledger_costs_more_than_its_cap(asked, least, factor):
    policy = Policy(
        require="privacy",
        budget=Budget(epsilon=least * factor * factor, delta=DELTA),
        most=Most(release=least, run=least * factor),
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.jsonl"
        for number, (run, request, event) in enumerate(asked):
            call, before = Call(f"{run}/{request}-{number}", 0, request, {}), [*ledgers.read_lines(ledger)]
            place = {"policy": policy, "ledger": ledger, "recipient": "coordinator", "now": "", "replay": False}
            try:
                release_reply(b"x", describe_event(event), forms=None, call=call, **place)
                code = None
            except Refused as refused:
                code = refused.code
            same = [line for line in before if run_name(str(line["run"])) == run]
            prices = {
                "release": compute_cost([event], DELTA).epsilon,
                "run": compute_cost([*ledgers.spent_events(same), event], DELTA).epsilon,
                "total": compute_cost([*ledgers.spent_events(before), event], DELTA).epsilon,
            }
            above = {what for what, cap in policy.caps.items() if prices[what] > cap.epsilon}
            free = compute_cost([event], DELTA).epsilon == 0
            assert (code == BUDGET) == (bool(above) and not free), (prices, above)
        lines = [*ledgers.read_lines(ledger)]
        assert spent(lines) <= policy.caps["total"].epsilon
        for run in ("one", "other"):
            assert spent([e for e in lines if run_name(str(e["run"])) == run]) <= policy.caps["run"].epsilon
        assert all(spent([line]) <= policy.caps["release"].epsilon for line in lines)


def test_all_conversations_of_a_run_share_its_cap_and_another_run_has_its_own(tmp_path):
    policy = Policy(budget=Budget(epsilon=8.0, delta=DELTA), most=Most(release=1.5, run=1.5))
    event = Gaussian(3.0)
    assert compute_cost([event] * 2, DELTA).epsilon > 1.5 > compute_cost([event], DELTA).epsilon

    def leaves(run: str) -> bool:
        place = {"policy": policy, "ledger": tmp_path / "ledger.jsonl", "recipient": "coordinator", "now": ""}
        try:
            release_reply(
                b"x", describe_event(event), forms=None, call=Call(run, 0, "train", {}), replay=False, **place
            )
        except Refused:
            return False
        return True

    runs = ("one/train-a", "one/evaluate-a", "one", "other/train-a", "other/train-b")
    assert [leaves(run) for run in runs] == [True, False, False, True, False]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_no_single_reply_takes_a_whole_budget_where_the_policy_says_nothing_of_it(epsilon):
    caps = Policy(budget=Budget(epsilon=epsilon)).caps
    assert caps["release"].epsilon == RELEASE_SHARE * epsilon < caps["run"].epsilon == caps["total"].epsilon == epsilon
    noise = next(
        s for s in (0.01 * 1.05**k for k in range(400)) if compute_cost([Gaussian(s)], DELTA).epsilon <= epsilon / 2
    )
    assert compute_cost([Gaussian(noise)] * 2, DELTA).epsilon < epsilon, "what is left pays for another one"


@pytest.mark.parametrize("run", [0.5, 2.0, 4.0, 4.5, 9.0])
def test_a_policy_may_cap_one_run_alone_and_no_reply_costs_more_than_it(run):
    caps = Policy(budget=Budget(epsilon=9.0), most=Most(run=run)).caps
    assert (caps["release"].epsilon, caps["run"].epsilon, caps["total"].epsilon) == (min(run, 4.5), run, 9.0)


def test_who_requires_privacy_says_how_much_and_is_told_the_line_to_add():
    with pytest.raises(ValueError, match=r"require.*add budget: \{epsilon: 8.0, delta: 1.0e-5\}"):
        Policy(require="privacy")
    with pytest.raises(ValueError, match=r"most.*add budget: \{epsilon"):
        Policy(most=Most(release=1.0))
    with pytest.raises(ValueError, match=r"most.release.*at most 2.*most: \{run"):
        Policy(budget=Budget(epsilon=9.0), most=Most(release=3.0, run=2.0))
    with pytest.raises(ValueError, match=r"most.run.*at most 9"):
        Policy(budget=Budget(epsilon=9.0), most=Most(run=10.0))
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be > 0 and finite"):
            Most(release=wrong)
    assert not Policy().caps and Policy().most is None


def test_without_noise_nothing_leaves_whatever_the_caps_are(tmp_path):
    policy = Policy(budget=Budget(epsilon=1e6), most=Most(release=1e6))
    for number, request in enumerate(REQUESTS):
        if not policy.allows(request):
            continue
        place = {"policy": replace(policy), "ledger": tmp_path / "ledger.jsonl", "recipient": "coordinator", "now": ""}
        with pytest.raises(Refused, match=BUDGET):
            release_reply(
                b"x",
                describe_event(NON_PRIVATE),
                forms=None,
                call=Call("r/x", number, request, {}),
                replay=False,
                **place,
            )


def test_the_hospitals_own_log_is_told_which_cap_refused(tmp_path):
    policy = Policy(budget=Budget(epsilon=8.0), most=Most(release=1.0, run=2.0))
    place = {"policy": policy, "ledger": tmp_path / "ledger.jsonl", "recipient": "coordinator", "now": ""}
    with pytest.raises(Refused) as caught:
        release_reply(
            b"x", describe_event(Gaussian(0.5)), forms=None, call=Call("r/x", 1, "train", {}), replay=False, **place
        )
    assert "most: {release: ...}" in str(caught.value.__cause__) and "allows 1" in str(caught.value.__cause__)
