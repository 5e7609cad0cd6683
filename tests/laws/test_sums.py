"""Secure sums as laws over all methods: which may be summed, exactness, loss, repetition, what a coordinator sees."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import methods
import small_clip
from consilium.testing import testbed
from federation.algorithm import Algorithm, has_one_model, is_summable, sends_gradient_sums
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.fedsgd import FedSGD
from federation.outcome import Outcome
from federation.rehearsal import initial_parameters, rehearse_events, rehearse_forms
from federation.rounds import QuorumLost, Schedule
from federation.summing import (
    EVERYBODY,
    MASKED,
    Unsummable,
    average_replies,
    decode_sum,
    encode_reply,
    find_sum_problem,
    has_words,
    hide_reply,
)
from federation.task import Task
from privacy.dp.access import SUM_UNIT, Rows, Split
from privacy.dp.accounting import compute_cost
from privacy.dp.dpsgd import LEAST_SIGMA, discrete_sigma
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed, SharedGaussian, assume_colluding
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message, Params
from privacy.secure_sum import add_words, make_key_pair

ADAM = Work(lr=0.01, batch=5, epochs=None, steps=2)
SGD = Work(optimizer="sgd", lr=0.05, batch=5, epochs=None, steps=2)
ROUNDS = Schedule(rounds=2)
NAMES = ("a", "b", "c")


def task_of(algorithm: Algorithm) -> Task:
    """A task that a method can learn."""
    if algorithm.name in methods.ON_PROMPTS:
        return small_clip.task()
    return testbed.mask_task() if algorithm.name in ("feddg", "fedavg_turns") else testbed.make_task()


def table_of(algorithm: Algorithm, seed: int) -> Mapping[Split, Rows]:
    """Patients of a hospital for that task, of other numbers and means at each."""
    if algorithm.name in methods.ON_PROMPTS:
        return testbed.make_table(seed, d=small_clip.task().inputs[0])
    if algorithm.name in ("feddg", "fedavg_turns"):
        return testbed.make_scenes(seed, n=4 + 2 * seed)
    return testbed.make_table(seed, n=12 + 4 * seed, shift=0.3 * seed)


def make_hospitals(algorithm: Algorithm, work: Work, *, hidden: bool) -> dict[str, testbed.Hospital]:
    splits = {name: table_of(algorithm, seed) for seed, name in enumerate(NAMES)}
    made = testbed.make_federation(algorithm, splits, task=task_of(algorithm), work=work)
    if not hidden:
        return made
    return {name: replace(each, keys=make_key_pair(random.Random(name).randbytes)) for name, each in made.items()}


def train(algorithm: Any, hospitals: Mapping[str, testbed.Hospital], work: Work, **more: Any) -> Outcome:
    options = {"task": task_of(algorithm), "work": work, "schedule": ROUNDS, **more}
    return testbed.train(algorithm, hospitals, secure_sum=any(each.keys for each in hospitals.values()), **options)


class Averaging:
    """A method whose coordinator gets one reply in place of all, added up in the open."""

    def __init__(self, inner: Algorithm) -> None:
        self.inner, self.differences = inner, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __hash__(self) -> int:
        return hash(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Averaging) and self.inner == other.inner

    def merge(self, state: Message, replies: Mapping[str, Message]) -> Message:
        single = self.inner.merge(state, {EVERYBODY: average_replies(self.inner, replies)})
        self.differences.append(difference(single, self.inner.merge(state, replies)))
        return single


def difference(left: Message, right: Message) -> float:
    """The largest difference of two states; infinite if they have other names or facts."""
    if left.tensors.keys() != right.tensors.keys() or left.facts != right.facts:
        return math.inf
    gaps = [float((value.double() - right.tensors[name].double()).abs().max()) for name, value in left.tensors.items()]
    return max(gaps, default=0.0)


def forms_of(algorithm: Algorithm, work: Work) -> Any:
    task = task_of(algorithm)
    return rehearse_forms(algorithm, task, work, initial_parameters(algorithm, task, seed=0))


@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(methods.ALL, ADAM, SGD))
def test_a_method_may_be_summed_if_and_only_if_a_weighted_mean_says_all_that_it_merges(algorithm, work):
    forms = forms_of(algorithm, work)
    if not has_words(forms.reply):
        assert find_sum_problem(algorithm, forms.introduction, forms.reply) is None
        return
    speaks_alone = bool(forms.introduction.tensors or forms.introduction.facts["algorithm"])
    spied = Averaging(algorithm)
    try:
        train(spied, make_hospitals(algorithm, work, hidden=False), work)
        is_mean = max(spied.differences) < 1e-6
    except Exception:
        is_mean = False
    problem = find_sum_problem(algorithm, forms.introduction, forms.reply)
    assert (problem is None) == (is_mean and not speaks_alone), problem


SUMMED = [
    each
    for each in methods.ALL
    if is_summable(each) and has_words(forms_of(each, methods.work_of(each, ADAM, SGD)).reply)
]


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(SUMMED, ADAM, SGD))
def test_masked_training_is_unmasked_training_bit_for_bit(algorithm, work):
    open_ = train(Averaging(algorithm), make_hospitals(algorithm, work, hidden=False), work)
    hidden = train(algorithm, make_hospitals(algorithm, work, hidden=True), work)
    assert testbed.are_equal(hidden.state.tensors, open_.state.tensors) and hidden.state.facts == open_.state.facts


def test_hidden_replies_cross_as_bytes():
    """As over a wire: the same state as in one process."""
    hospitals = make_hospitals(FedAvg(), SGD, hidden=True)
    wired = train(FedAvg(), hospitals, SGD, engine=testbed.SerializingEngine(hospitals))
    plain = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=True), SGD)
    assert testbed.are_equal(wired.state.tensors, plain.state.tensors)


class Heir(FedSGD):
    """A method that changed what it inherits."""


def test_promises_are_not_inherited():
    """Functions that changed may break them: a package's method says for itself what holds of it."""
    promises = (is_summable, has_one_model, sends_gradient_sums)
    assert all(promise(FedSGD()) for promise in promises)
    assert not any(promise(Heir()) for promise in promises)


ONE_MODEL = [each for each in methods.ALL if has_one_model(each)]


@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(ONE_MODEL, ADAM, SGD))
def test_methods_with_one_model_end_with_it_at_every_hospital(algorithm, work):
    """Exported models of these methods are what the coordinator has; others could tell of one hospital."""
    hospitals = make_hospitals(algorithm, work, hidden=False)
    train(algorithm, hospitals, work)
    models = [testbed.newest_model(each) for each in hospitals.values()]
    assert all(testbed.are_equal(each, models[0]) for each in models)


class Listening:
    """A coordinator that keeps everything."""

    def __init__(self, inner: InProcess) -> None:
        self.inner, self.heard, self.sites = inner, list[tuple[Call, Answers]](), inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        self.heard.append((call, answers))
        return answers


def test_what_a_coordinator_keeps_says_nothing_of_one_hospital():
    """All replies of a round hold nothing but words, whose bytes are uniform, and a validation loss."""
    task = testbed.make_task(hidden=(400, 400))
    splits = {name: testbed.make_table(seed) for seed, name in enumerate(NAMES)}
    made = testbed.make_federation(FedAvg(), splits, task=task, work=ADAM)
    made = {name: replace(each, keys=make_key_pair(random.Random(name).randbytes)) for name, each in made.items()}
    engine = Listening(InProcess(made))
    train(FedAvg(), made, ADAM, task=task, engine=engine)
    words = []
    for _, answers in (each for each in engine.heard if each[0].request == "train"):
        for reply in answers.replies.values():
            assert set(reply.tensors) == {MASKED} and set(reply.facts) == {"algorithm", "loss", "n"}
            assert reply.facts["algorithm"] == {}
            words.append(reply.tensors[MASKED].numpy())
    everything = np.concatenate(words)
    assert len(everything) > 900_000
    assert stats.chisquare(np.bincount(everything.view(np.uint8), minlength=256)).pvalue > 1e-4


def test_a_lost_reply_loses_the_round_and_no_more():
    """The sum of the others stays hidden, the state stays, and the next round goes on from it."""
    whole = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=True), SGD)
    hospitals, states = make_hospitals(FedAvg(), SGD, hidden=True), dict[int, Params]()
    lossy = testbed.LossyEngine(InProcess(hospitals), frozenset({(1, "b")}))

    def keep(outcome: Outcome) -> None:
        states[outcome.round] = outcome.state.tensors

    train(FedAvg(), hospitals, SGD, schedule=Schedule(rounds=3, quorum=0.5), engine=lossy, between=keep)
    assert testbed.are_equal(states[1], states[0])
    assert not testbed.are_equal(states[2], states[1])
    assert not testbed.are_equal(states[3], whole.state.tensors)


def test_without_a_quorum_the_same_round_ends_with_the_same_sum_once_everybody_is_there():
    hospitals, folder = make_hospitals(FedAvg(), SGD, hidden=True), testbed.MemoryFolder()
    lossy = testbed.LossyEngine(InProcess(hospitals), frozenset({(1, "b")}))
    with pytest.raises(QuorumLost):
        train(FedAvg(), hospitals, SGD, engine=lossy, folder=folder)
    resumed = train(FedAvg(), hospitals, SGD, folder=folder)
    undisturbed = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=True), SGD)
    assert testbed.are_equal(resumed.state.tensors, undisturbed.state.tensors)


def test_a_repeated_question_has_the_same_words_and_another_sum_gets_no_new_ones():
    """A hospital masks one update for one set of hospitals: asked again with fewer, it repeats what it said."""
    engine = Listening(InProcess(hospitals := make_hospitals(FedAvg(), SGD, hidden=True)))
    train(FedAvg(), hospitals, SGD, engine=engine)
    call, answers = next(each for each in engine.heard if each[0].request == "train")
    first = answers.replies["a"].tensors[MASKED]
    question = Message({}, {"algorithm": {}, "best": None, "keys": {"a": hospitals["a"].keys.public}})
    assert torch.equal(hospitals["a"](call, question).tensors[MASKED], first)


def test_a_mask_is_used_for_one_round():
    """The same update in two rounds looks different: words of two rounds share nothing."""
    hospital = make_hospitals(FedAvg(), SGD, hidden=True)["a"]
    keys = {name: make_key_pair(random.Random(name).randbytes).public for name in NAMES}
    reply, question = Message({"model/w": torch.zeros(99)}, {"algorithm": {"n": 3}}), Message({}, {"keys": keys})
    words = [hospital.hide(Call("law", number, "train", {}), question, reply).tensors[MASKED] for number in (1, 2)]
    assert not bool((words[0] == words[1]).any())


def test_hospitals_that_were_told_something_else_do_not_cancel_each_other():
    """A coordinator that asks the others for less noise, or another method, learns nothing of the one it betrays."""
    pairs = {name: make_key_pair(random.Random(name).randbytes) for name in NAMES}
    keys = {name: pair.public for name, pair in pairs.items()}
    reply = Message({"sum/w": torch.full((50,), 7)}, {"algorithm": {"n": 3}})
    call, told = Call("law", 1, "train", {}), {"clip": 1.0, "noise": 2.0, "hospitals": 3}

    def reveal(algorithm: Algorithm, sent: Message, **changed: Any) -> list[int]:
        words = {}
        for name in NAMES:
            mine = (algorithm, sent, {**told, **changed}) if name == "b" else (FedSGD(), reply, told)
            how = {"secret": pairs[name].secret, "keys": keys, "site": name, "call": call, "terms": mine[2]}
            words[name] = hide_reply(mine[0], mine[1], **how).tensors[MASKED]
        return [int(number) for number in add_words([*words.values()])[2:]]

    assert reveal(FedSGD(), reply) == [21] * 50
    other_form = Message({"sum/v": torch.full((50,), 7)}, {"algorithm": {"n": 3}})
    for numbers in (
        reveal(FedSGD(), reply, clip=1e-3),
        reveal(FedSGD(), reply, noise=0.1),
        reveal(FedSGD(), reply, hospitals=1),
        reveal(FedAvg(), reply),
        reveal(FedSGD(), other_form),
    ):
        assert 21 not in numbers and len(set(numbers)) == 50


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_numbers_that_cannot_be_added_up_are_refused_and_never_wrapped(value):
    reply = Message({"model/w": torch.tensor([1.0, value])}, {"algorithm": {"n": 3}})
    with pytest.raises(Unsummable, match="model/w"):
        encode_reply(FedAvg(), reply, 3)
    with pytest.raises(Unsummable, match="sum/w"):
        encode_reply(FedAvg(), Message({"sum/w": torch.tensor([2**62])}, {"algorithm": {"n": 3}}), 3)


def test_hospitals_without_examples_have_no_mean():
    form = Message({"model/w": torch.zeros(2)}, {"algorithm": {"n": 0}})
    with pytest.raises(Unsummable, match="weights"):
        decode_sum(encode_reply(FedAvg(), form, 2), form)


# FedSGD and noise that is shared.

FULL = Protection(clip=1e2, sampling=0.5, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, cut="c")


def test_fedsgd_is_gradient_descent_on_everybodys_patients():
    """A second implementation: one table of all rows, w <- w - lr mean gradient, and the mean of iterates."""
    algorithm, task = FedSGD(rounds=4, lr=0.5, trained="all", begin="given"), testbed.make_task()
    tables = {name: testbed.make_table(seed, n=10 + 3 * seed) for seed, name in enumerate(NAMES)}
    hospitals = testbed.make_federation(algorithm, tables, task=task, work=SGD)
    outcome = testbed.train(algorithm, hospitals, task=task, work=SGD, schedule=ROUNDS)
    x = torch.cat([table["train"].x for table in tables.values()])
    y = torch.cat([table["train"].y for table in tables.values()])
    module = task.network()
    module.load_state_dict(initial_parameters(algorithm, task, seed=1))
    mean = {name: value.detach().clone() for name, value in module.named_parameters()}
    for t in range(1, 5):
        loss = torch.nn.functional.cross_entropy(module(x).logits, y)
        gradients = torch.autograd.grad(loss, [*module.parameters()])
        with torch.no_grad():
            for (name, value), gradient in zip(module.named_parameters(), gradients, strict=True):
                value -= 0.5 * gradient
                mean[name] = mean[name] + 2 / (t + 1) * (value - mean[name])
    for name, value in mean.items():
        assert torch.allclose(outcome.state.tensors[f"mean/{name}"], value, atol=1e-6)


def test_the_sum_of_shared_noise_has_the_noise_that_one_hospital_would_add():
    """Four hospitals, one may collude: each adds sigma / sqrt(3), so three add sigma, and all four a little more."""
    sigma, hospitals, task = 5.0, 4, testbed.make_task(d=50, hidden=(30,))
    protection = replace(FULL, clip=1.0, noise=sigma / math.sqrt(3), hospitals=hospitals)
    module = task.network()
    zeros = {"train": Rows(torch.zeros(1, 50), torch.zeros(1).long(), torch.zeros(1).long())}
    access = open_private(zeros, protection, source=random.Random(1).randbytes)
    drawn = [
        access.gradient_sum(module, lambda forward, batch: 0 * forward(batch.x).logits[:, 0], access.draw(full=True))
        for _ in range(hospitals)
    ]
    numbers = [torch.cat([value.flatten() for value in each.values()]) * SUM_UNIT for each in drawn]
    honest, everybody = sum(numbers[:3]), sum(numbers)
    n = len(honest)
    for total, expected in ((honest, sigma), (everybody, sigma * math.sqrt(4 / 3))):
        scaled = float((total / expected).square().sum())
        assert stats.chi2.cdf(scaled, n) > 1e-4 and stats.chi2.sf(scaled, n) > 1e-4


def test_private_gradient_sums_have_the_patients_of_mean_gradients():
    """Without noise and clipping, N times the mean gradient of private access, to a unit for each patient."""
    task, rows = testbed.make_task(), testbed.make_table(3)
    module = task.network()
    access = open_private(rows, FULL, sizes={"train": 12})
    total = access.gradient_sum(module, task.objective, access.draw(full=True))
    mean = access.gradient(module, task.objective, access.draw(full=True)).gradient
    for name, value in total.items():
        assert value.dtype == torch.int64
        assert torch.allclose(value.double() * SUM_UNIT / 12, mean[name].double(), atol=1e-6)


@pytest.mark.parametrize("ask", ["gradient", "moments"])
def test_where_noise_is_shared_nothing_of_one_hospital_leaves(ask):
    task, rows = testbed.make_task(), testbed.make_table(3)
    access = open_private(rows, replace(FULL, noise=1.0, hospitals=3))
    questions = {
        "gradient": lambda: access.gradient(task.network(), task.objective, access.draw(full=True)),
        "moments": lambda: access.moments(lambda x: x, 2, width=4, radius=1.0),
    }
    with pytest.raises(ValueError, match="noise is shared"):
        questions[ask]()
    assert access.events == []


def test_the_rehearsed_event_of_shared_noise_is_that_of_the_sum():
    algorithm, task = FedSGD(), testbed.make_task()
    shared = replace(FULL, noise=2.0, hospitals=5)
    seen = rehearse_events(algorithm, task, SGD, initial_parameters(algorithm, task, seed=0), shared)
    assert seen.training == Part("c", "train", PoissonSampled(1.0, SharedGaussian(2.0, 5)))
    assert assume_colluding(seen.training, 1) == Part("c", "train", PoissonSampled(1.0, Gaussian(4.0)))
    assert assume_colluding(seen.training, None) == Part("c", "train", PoissonSampled(1.0, Gaussian(2.0)))


@pytest.mark.parametrize(("hospitals", "colluding"), [(3, 0), (4, 1), (12, 1), (50, 10)])
def test_the_cost_of_shared_noise_against_an_accountant_that_no_one_here_wrote(hospitals, colluding):
    """dp-accounting's PLD of as many Gaussians as rounds; worst case: only this hospital's part is noise."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    part, rounds, delta = 6.0, 30, 1e-5
    event = SelfComposed(SharedGaussian(part, hospitals), rounds)
    for assumed, noise in ((colluding, part * math.sqrt(hospitals - colluding)), (None, part)):
        pld = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(noise), rounds)).get_epsilon(delta)
        assert compute_cost([assume_colluding(event, assumed)], delta).epsilon == pytest.approx(pld, abs=2e-3)
    assert compute_cost([event], delta) == compute_cost([assume_colluding(event, None)], delta)


def test_noise_that_whole_numbers_cannot_hold_is_refused_before_a_patient_is_looked_at():
    for clip, noise in ((1e-4, 0.01), (1e4, 1e4)):
        with pytest.raises(ValueError, match="choose another clip"):
            discrete_sigma(clip, noise, 10)
    assert discrete_sigma(1.0, 0.0, 10) == 0 and discrete_sigma(1.0, 1.0, 10) > LEAST_SIGMA
