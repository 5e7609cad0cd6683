"""Quantized uploads as laws over all methods: bounds, exactly once, what is refused, and what a method remembers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import methods
from consilium.testing import methods as laws
from consilium.testing import testbed
from consilium.testing.held import in_doubles
from consilium.testing.runs import Case, Ground, make_hospitals, train_case
from federation.algorithm import Absorbing, is_averaging, is_summable
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.feddyn import FedDyn
from federation.fedopt import FedOpt
from federation.merging import Median, NormBounded
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.rounds import QuorumLost, Schedule
from federation.scaffold import Scaffold
from federation.upload import SCALES, find_upload_problem, pack_reply, packed_form, unpack_replies
from pipelines.requests.train import SILENT
from privacy.dp.protection import Protection
from privacy.message import Message, count_message_bytes, to_bytes
from tests.laws.test_sums import ADAM, NAMES, SGD, forms_of, table_of, task_of

REFUSED = {"apple", "fedfomo", "fedsgd", "moments"}
"""They send whole numbers, or models to hospitals that hold them in another place."""
WORK_OF = {each.name: methods.work_of(each, ADAM, SGD) for each in methods.ALL}
PACKED = [each for each in methods.ALL if each.name not in REFUSED.union(SILENT)]
ROUNDS, ONE = Schedule(rounds=3), Schedule(rounds=1)


@cache
def case_of(algorithm, *, upload=True) -> Case:
    splits = {name: table_of(algorithm, seed) for seed, name in enumerate(NAMES)}
    return Case(algorithm, WORK_OF[algorithm.name], Ground(task_of(algorithm), splits), upload)


def train(case, crew=None, **options):
    return train_case(case, crew or make_hospitals(case), schedule=ROUNDS, **options)


def by_name(algorithms):
    return pytest.mark.parametrize("algorithm", algorithms, ids=lambda one: one.name)


@by_name(methods.ALL)
def test_every_method_packs_what_it_sends_or_is_refused_by_name(algorithm):
    problem = find_upload_problem(algorithm, forms_of(algorithm, WORK_OF[algorithm.name]))
    assert (problem is not None) == (algorithm.name in REFUSED)
    if problem is not None:
        assert problem.startswith(f"{algorithm.name} sends no matrix")


@pytest.mark.repeats(8)
@by_name(PACKED)
def test_every_packed_method_trains_and_no_reply_is_lost(algorithm):
    outcome = train(case_of(algorithm))
    assert outcome.missing == ()
    assert all(bool(value.double().isfinite().all()) for value in outcome.state.tensors.values())


@by_name(PACKED)
def test_a_packed_reply_is_smaller_by_three_bytes_for_each_number_of_its_matrices(algorithm):
    forms = forms_of(algorithm, WORK_OF[algorithm.name])
    packed = packed_form(forms.reply, forms.sent)
    quantized = [name for name, like in packed.tensors.items() if like.dtype == torch.int8]
    saved = sum(3 * forms.reply.tensors[name].numel() for name in quantized) - 8 * len(quantized)
    kept = sum(like.nbytes for like in forms.reply.tensors.values()) - saved
    assert quantized and sum(like.nbytes for like in packed.tensors.values()) == kept


LAWS = [law for law in laws.LAWS if not law.__name__.endswith("are_refused")]


@pytest.mark.repeats(2)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@by_name(PACKED)
def test_what_holds_of_replies_as_they_are_holds_of_packed_ones(algorithm, law):
    law(case_of(algorithm))


class Spy(InProcess):
    """An engine that notes what was asked and answered in the last round of training."""

    def ask(self, call, messages, *, deadline_s=None):
        answers = super().ask(call, messages, deadline_s=deadline_s)
        if call.request == "train":
            self.asked, self.answered = messages, answers.replies
        return answers


LINEAR = [each for each in PACKED if is_summable(each) and is_averaging(each) and not isinstance(each, FedOpt)]


@pytest.mark.repeats(8)
@by_name(LINEAR)
def test_the_merged_model_differs_by_at_most_half_of_the_largest_step(algorithm):
    """Where the state is a weighted mean of replies: of replies with packing minus that without it."""
    case = case_of(algorithm, upload=False)
    crew = make_hospitals(case)
    spy = Spy(crew)
    train(case, crew, engine=spy)
    form = forms_of(algorithm, case.work).reply
    packed = {s: pack_reply(algorithm, r, spy.asked[s], Message())[0] for s, r in spy.answered.items()}
    read, codes = unpack_replies(packed, spy.asked, form)
    assert codes == {}
    state = Message(spy.asked["a"].tensors)
    states = [
        algorithm.merge(state, {s: Message(r.tensors, r.facts["algorithm"]) for s, r in each.items()})
        for each in (spy.answered, read)
    ]
    quantized = sorted(name for name, value in packed["a"].tensors.items() if value.dtype == torch.int8)
    steps = torch.stack([reply.tensors[SCALES] for reply in packed.values()]).amax(dim=0)
    bounds = dict(zip(quantized, steps.tolist(), strict=True))
    moved = 0.0
    for name, value in states[0].tensors.items():
        away = float((value.double() - states[1].tensors[name].double()).abs().max())
        rounded = torch.finfo(value.dtype).eps * float(value.double().abs().max()) if value.is_floating_point() else 0
        assert away <= bounds.get(name, 0.0) / 2 + 2 * rounded, name
        moved = max(moved, away)
    assert moved > 0


floats = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(floats, floats), min_size=2, max_size=12))
def test_each_number_is_the_nearest_multiple_of_the_step_half_to_even(pairs):
    """The same in fractions, number by number."""
    reply, sent = (torch.tensor([[pair[k] for pair in pairs]], dtype=torch.float64) for k in (0, 1))
    question, said = Message({"model/w": sent}), Message({"model/w": reply}, {"algorithm": {}})
    packed, _ = pack_reply(FedAvg(), said, question, Message())
    step = float(packed.tensors[SCALES])
    changes = [a - b for a, b in pairs]  # as floats have them
    assert step == max(map(abs, changes)) / 127
    exact = [Fraction(change / step) if step else Fraction(0) for change in changes]
    assert packed.tensors["model/w"].flatten().tolist() == [round(each) for each in exact]
    (read, _) = unpack_replies({"a": packed}, {"a": question}, said)
    away = (read["a"].tensors["model/w"] - reply).abs().max()
    assert float(away) <= step / 2 * (1 + 1e-9) + 1e-12


def test_what_did_not_change_is_read_as_it_was():
    tensors = {"model/w": torch.randn(3, 4), "model/b": torch.randn(3)}
    question, said = Message(tensors), Message({name: value.clone() for name, value in tensors.items()})
    packed, _ = pack_reply(FedAvg(), said, question, Message())
    assert not packed.tensors["model/w"].any() and packed.tensors[SCALES].tolist() == [0.0]
    assert testbed.are_equal(unpack_replies({"a": packed}, {"a": question}, said)[0]["a"].tensors, tensors)


def test_vectors_whole_numbers_and_what_was_never_sent_go_as_they_are():
    said = {"model/b": torch.randn(5), "model/n": torch.ones(2, 2, dtype=torch.int64), "model/new": torch.randn(2, 2)}
    packed, _ = pack_reply(FedAvg(), Message(said), Message({"model/n": said["model/n"]}), Message())
    assert testbed.are_equal({n: t for n, t in packed.tensors.items() if n != SCALES}, said)
    assert packed.tensors[SCALES].shape == (0,)


HOSTILE = {
    "fewer steps": (lambda t: {**t, SCALES: t[SCALES][:-1]}, "malformed"),
    "no steps": (lambda t: {n: v for n, v in t.items() if n != SCALES}, "malformed"),
    "a negative step": (lambda t: {**t, SCALES: -t[SCALES]}, "malformed"),
    "steps in float32": (lambda t: {**t, SCALES: t[SCALES].float()}, "malformed"),
    "a step that is no number": (lambda t: {**t, SCALES: t[SCALES] * math.nan}, "non_finite"),
    "an infinite step": (lambda t: {**t, SCALES: t[SCALES] * math.inf}, "non_finite"),
    "a step that is far too large": (lambda t: {**t, SCALES: t[SCALES] * 1e300}, "non_finite"),
    "another shape": (lambda t: {**t, "model/head.weight": t["model/head.weight"][:1]}, "malformed"),
    "another type": (lambda t: {**t, "model/head.weight": t["model/head.weight"].to(torch.int16)}, "malformed"),
    "not packed": (lambda t: {**t, "model/head.weight": t["model/head.weight"].float()}, "malformed"),
    "one tensor more": (lambda t: {**t, "patient": torch.zeros(1)}, "malformed"),
    "a vector that is no number": (lambda t: {**t, "model/head.bias": t["model/head.bias"] * math.nan}, "non_finite"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_packed_reply_is_refused_by_name_and_the_round_goes_on(what):
    spoil, code = HOSTILE[what]
    case = case_of(FedAvg())
    crew = make_hospitals(case)

    def spoiled(call, message):
        reply = crew["b"](call, message)
        return (
            replace(reply, tensors=spoil(dict(reply.tensors))) if (call.request, call.round) == ("train", 2) else reply
        )

    schedule = Schedule(rounds=3, quorum=0.3)
    outcome = train_case(case, crew, schedule=schedule, engine=InProcess({**crew, "b": spoiled}))
    assert outcome.missing == ((2, "b", code),)
    assert all(bool(torch.isfinite(t).all()) for t in outcome.state.tensors.values())


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_model_that_is_not_finite_is_refused_as_without_packing(wrong):
    for upload in (False, True):
        case = case_of(FedAvg(), upload=upload)
        crew = make_hospitals(case)
        for hospital in crew.values():
            train_rows = hospital.splits["train"]
            hospital.splits = {**hospital.splits, "train": replace(train_rows, x=train_rows.x * wrong)}
        with pytest.raises(QuorumLost, match="non_finite"):
            train(case, crew)


@pytest.mark.parametrize("algorithm", [Scaffold(), FedDyn()], ids=lambda one: one.name)
def test_what_hospitals_remember_adds_up_to_what_the_coordinator_has(algorithm):
    """SCAFFOLD's c is the mean of c_i, and FedDyn's h that of g_k: also where neither was sent as it was."""
    assert isinstance(algorithm, Absorbing)
    part, state_part = ("control", "control") if algorithm.name == "scaffold" else ("gradient", "h")
    with in_doubles():
        splits = {name: {k: replace(r, x=r.x.double()) for k, r in table_of(algorithm, seed).items()}
                  for seed, name in enumerate(NAMES)}  # fmt: skip
        case = Case(algorithm, WORK_OF[algorithm.name], Ground(task_of(algorithm), splits), upload=True)
        crew = make_hospitals(case)
        outcome = train(case, crew)
    own = [section(load_newest_memory(hospital.disk).tensors, part) for hospital in crew.values()]
    common = section(outcome.state.tensors, state_part)
    assert common
    for name, value in common.items():
        assert torch.allclose(torch.stack([each[name] for each in own]).mean(dim=0), value, rtol=0, atol=1e-12), name


def test_a_packed_reply_costs_as_much_privacy_as_the_reply():
    """Packing comes after the noise, and reads nothing but the reply and what was sent."""
    private = Protection(clip=1.0, noise=1.0, sampling=0.5, chunk=8)
    events = []
    for upload in (False, True):
        case = case_of(FedAvg(), upload=upload)._replace(work=Work(optimizer="sgd", lr=0.05, epochs=None, steps=2))
        crew = {name: replace(hospital, protection=private) for name, hospital in make_hospitals(case).items()}
        train(case, crew)
        events.append({name: hospital.events for name, hospital in crew.items()})
    assert events[0] == events[1] and events[0]["a"]


def test_the_bytes_of_a_large_packed_reply_are_a_quarter():
    task = testbed.make_task(d=512, hidden=(256,))
    initial = initial_parameters(FedAvg(), task, seed=0)
    forms = rehearse_forms(FedAvg(), task, SGD, initial)
    whole, packed = count_message_bytes(forms.reply), count_message_bytes(packed_form(forms.reply, forms.sent))
    assert 3.9 < whole / packed < 4
    reply = Message({f"model/{name}": value + torch.randn_like(value) for name, value in initial.items()}, {})
    question = Message({f"model/{name}": value for name, value in initial.items()})
    assert len(to_bytes(pack_reply(FedAvg(), reply, question, Message())[0])) <= packed


def largest_difference(left: Message, right: Message) -> float:
    """Of the tensors of two states."""
    return max(float((left.tensors[n].double() - right.tensors[n].double()).abs().max()) for n in left.tensors)


def test_a_late_reply_is_read_by_what_its_hospital_began_with():
    """Hospital a takes three times as long: what it was sent is not what would be sent now."""
    late = Schedule(rounds=6, buffer=2, durations={"a": 3.0})
    case, plain = case_of(FedAvg()), case_of(FedAvg(), upload=False)
    outcomes = [train_case(each, make_hospitals(each), schedule=late) for each in (case, plain)]
    assert outcomes[0].missing == () and outcomes[0].merged["a"] < 6
    moved = largest_difference(
        outcomes[1].state, Message(train_case(plain, make_hospitals(plain), schedule=ONE).state.tensors)
    )
    assert largest_difference(outcomes[0].state, outcomes[1].state) < moved / 20


@pytest.mark.parametrize("rule", [Median(), NormBounded()], ids=lambda rule: rule.name)
def test_rules_of_merging_get_replies_as_they_are_read(rule):
    states = [train(case_of(FedAvg(), upload=upload), rule=rule).state for upload in (True, False)]
    assert 0 < largest_difference(*states) < 0.01
