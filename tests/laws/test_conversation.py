"""Exactly once, lost replies, resume, and messages that cross a wire: every algorithm, every engine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import methods
import small_clip
from consilium.testing import methods as laws
from consilium.testing import runs, testbed
from consilium.testing.runs import ADAM, MASKS, SCHEDULE, SGD, TABLES, Case, Ground, newest_models, run_undisturbed
from federation.conversation import answer_once, load_newest_memory
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.fedsld import FedSld
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.unet import UNet
from federation.outcome import Outcome, load_outcome
from federation.parameters import loaded
from federation.participant import CHECKPOINTS, list_rounds, load_checkpoint
from federation.questions import sample_sites
from federation.rehearsal import initial_parameters
from federation.rounds import QuorumLost, Schedule, method_schedule
from federation.task import Task
from federation.verdict import find_reply_problem
from personalize.apple import Apple
from personalize.fedfomo import FedFomo
from personalize.fedper import FedPer
from personalize.heurfedamp import HeurFedAMP
from privacy.dp.access import Rows
from privacy.message import Call, Malformed, Message, from_bytes, to_bytes
from privacy.release.gate import Refused

ROUGH = Work(optimizer="adam", lr=0.5, batch=5)  # losses rise too: the lowest is not the last
SITES = TABLES.sites
PROMPTS = Ground(small_clip.task(), {name: small_clip.table(k, n=14, shift=0.4 * k) for k, name in enumerate("abc")})
ON_MASKS = {"fedbn", "cusfl", "fedavg_turns", "feddg"}  # of others a few rounds, see below: they keep and send the same
METHODS = [
    pytest.param(one, methods.work_of(one, ADAM, SGD), ground, id=f"{one.name}{suffix}")
    for ground, suffix, chosen in (
        (TABLES, "", methods.names()),
        (MASKS, "-masks", ON_MASKS),
        (PROMPTS, "-prompts", methods.ON_PROMPTS),
    )
    for one in methods.fit(ground.task)
    if one.name in chosen
]


def test_every_method_that_a_yaml_can_name_is_under_this_contract():
    tested = {param.values[0].name for param in METHODS}
    assert tested == methods.names(), (
        f"these methods refuse every network of this contract: {sorted(methods.names() - tested)}; read what their "
        "`complaints` say, and give them settings that suit a small network in SETTLED of tests/methods.py"
    )


def hospitals(algorithm, work, ground=TABLES):
    return runs.make_hospitals(Case(algorithm, work, ground))


def go(algorithm, work, crew, **options):
    options = {"schedule": SCHEDULE, "task": crew["a"].task, **options}
    return testbed.train(algorithm, crew, work=work, **options)


def same(left, right):
    return left.keys() == right.keys() and all(testbed.are_equal(left[site], right[site]) for site in left)


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_neither_the_wire_nor_the_order_of_sites_changes_anything(algorithm, work, ground):
    laws.neither_the_wire_nor_the_order_of_sites_changes_anything(Case(algorithm, work, ground))


def every_time(value):
    """A case of which one like it is in the default suite."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.repeats(8)
@pytest.mark.parametrize("stop_at", [every_time(0), every_time(1), 3, every_time(5)])
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(algorithm, work, ground, stop_at):
    laws.a_resumed_run_is_the_uninterrupted_one(Case(algorithm, work, ground), stop_at)


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_models_that_lie_in_files_and_are_merged_in_pieces_are_the_same(monkeypatch, algorithm, work, ground):
    """As large ones do: here all of them are large."""
    whole = run_undisturbed(Case(algorithm, work, ground))
    for place in ("conversation", "outcome", "participant", "spool"):
        monkeypatch.setattr(f"federation.{place}.LARGE", -1)
    monkeypatch.setattr("federation.parameters.PIECE", 5)
    crew = hospitals(algorithm, work, ground)
    found = go(algorithm, work, crew, folder=testbed.MemoryFolder())
    assert testbed.are_equal(whole.outcome.state.tensors, found.state.tensors)
    assert same(newest_models(whole.hospitals), newest_models(crew))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop_at", [0, 3, 5])
def test_a_run_that_is_interrupted_leaves_what_it_resumes_from(stop_at):
    def interrupt(outcome: Outcome) -> None:
        if outcome.round == stop_at:
            raise Interrupted

    crew, folder = hospitals(FedPer(), ADAM), testbed.MemoryFolder()
    with pytest.raises(Interrupted):
        go(FedPer(), ADAM, crew, folder=folder, between=interrupt)
    found, whole = go(FedPer(), ADAM, crew, folder=folder), run_undisturbed(Case(FedPer(), ADAM, TABLES))
    assert testbed.are_equal(whole.outcome.state.tensors, found.state.tensors)
    assert same(newest_models(whole.hospitals), newest_models(crew))


@pytest.mark.repeats(12)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_a_coordinator_that_forgot_a_round_asks_again_and_nothing_trains_twice(algorithm, work, ground):
    laws.a_coordinator_that_forgot_a_round_asks_again_and_nothing_trains_twice(Case(algorithm, work, ground))


def test_a_coordinator_that_forgot_more_is_refused_and_nothing_trains_twice():
    crew = hospitals(FedAvg(), ADAM)
    go(FedAvg(), ADAM, crew)
    trained = {name: h.trained for name, h in crew.items()}
    with pytest.raises(QuorumLost, match="stale_round"):
        go(FedAvg(), ADAM, crew)
    assert {name: h.trained for name, h in crew.items()} == trained


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_a_lost_reply_leaves_site_and_coordinator_in_step(algorithm, work, ground):
    laws.a_lost_reply_leaves_site_and_coordinator_in_step(Case(algorithm, work, ground))


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_every_algorithm_goes_on_when_only_some_sites_are_asked(algorithm, work, ground):
    laws.it_goes_on_when_only_some_sites_are_asked(Case(algorithm, work, ground))


@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_every_reply_looks_as_it_was_rehearsed(algorithm, work, ground):
    laws.every_reply_looks_as_it_was_rehearsed(Case(algorithm, work, ground))


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_the_coordinator_knows_how_many_bytes_each_site_was_sent(algorithm, work, ground):
    laws.the_coordinator_knows_how_many_bytes_each_site_was_sent(Case(algorithm, work, ground))


@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_every_algorithm_keeps_the_contract(algorithm, work, ground):
    laws.states_are_messages_and_models_fit_the_network(Case(algorithm, work, ground))


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_smoothed_labels_change_what_every_algorithm_learns_or_are_refused(algorithm, work, ground):
    laws.smoothed_labels_change_what_is_learnt_or_are_refused(Case(algorithm, work, ground))


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_mixed_batches_change_what_every_algorithm_learns_or_are_refused(algorithm, work, ground):
    laws.mixed_batches_change_what_is_learnt_or_are_refused(Case(algorithm, work, ground))


def pictures(task):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(6, *task.inputs, generator=g)
    if task.kind == "segmentation":
        labels = dict.fromkeys("ab", (x[:, 0] * task.classes).long())
    else:  # b has no patient of the last class
        labels = {"a": torch.arange(6) % task.classes, "b": torch.arange(6) % 2}
    rows = {name: Rows(x, y, torch.arange(6)) for name, y in labels.items()}
    return Ground(task, {name: {"train": one, "validation": one} for name, one in rows.items()})


IMAGES = [Cnn(widths=(8, 16), norm="batch"), Cnn(widths=(8, 16), norm="group"), Cam(widths=(8, 8, 8, 8))]
VOLUMES = Task(UNet(width=4, levels=1, norm="group"), (2, 6, 6, 6), 3, "segmentation")
SMALL = [pictures(Task(model, (1, 16, 16), 3)) for model in IMAGES]
DENSE = [pictures(Task(UNet(width=4, levels=2), (1, 16, 16), 2, "segmentation")), pictures(VOLUMES)]
QUICK = pictures(testbed.mask_task(16))


def by_default(place, one):
    """On what a method is tried by default: one network of images, masks, and a U-Net where it sees shapes itself."""
    shaped = sorted(methods.SHAPED)
    unets = [DENSE[shaped.index(one.name) % len(DENSE)]] if one.name in shaped else []
    return [SMALL[place % len(SMALL)], QUICK, *unets]


def pairs():
    """Each method with each network that it takes; to volumes only those that see shapes."""
    taken = [(ground, methods.fit(ground.task)) for ground in (*SMALL, QUICK)]
    taken += [(ground, taken[-1][1]) for ground in DENSE]  # a U-Net is refused by nobody who takes masks
    for place, one in enumerate(methods.ALL):
        chosen = by_default(place, one)
        for k, (ground, fit) in enumerate(taken):
            if one in fit and (ground is not DENSE[1] or one.name in methods.SHAPED):
                marks = () if ground in chosen else pytest.mark.slow
                name = f"{one.name}-{ground.task.model.name}{k}"
                yield pytest.param(one, methods.work_of(one, ADAM, SGD), ground, id=name, marks=marks)


@pytest.mark.repeats(20)
@pytest.mark.parametrize(("algorithm", "work", "ground"), list(pairs()))
def test_every_algorithm_trains_every_image_network(algorithm, work, ground):
    crew = hospitals(algorithm, work, ground)
    outcome = go(algorithm, work, crew, engine=testbed.SerializingEngine(crew), schedule=Schedule(rounds=2))
    assert all(torch.isfinite(t).all() for t in outcome.state.tensors.values() if t.is_floating_point())
    for hospital in crew.values():
        network = loaded(algorithm.network(ground.task), testbed.newest_model(hospital))
        sure = ground.task.probabilities(network, hospital.splits["train"].x)
        assert sure.shape == (6, ground.task.classes, *ground.task.spatial)
        assert torch.allclose(sure.sum(dim=1), torch.ones(()), atol=1e-4)


def test_only_what_needs_one_label_an_example_refuses_masks():
    assert {one.name for one in methods.ALL} - {one.name for one in methods.fit(testbed.dense_task())} == {
        "dp_head",
        "fedsgd",
        "fedsld",
        "local_ridge",
        "local_svm",
        "moments",
        *methods.ON_PROMPTS,
    }
    (reason,) = FedSld().complaints(FedSld().network(testbed.dense_task()), SGD, False)
    assert "by its label, and a mask has many" in reason


class Diverged:
    """A site that, from round 2 on, replies with numbers that are finite, and far too large."""

    def __init__(self, hospital):
        self.hospital = hospital

    def __call__(self, call, message):
        reply = self.hospital(call, message)
        if call.request != "train" or call.round < 2:
            return reply
        return Message(
            {n: torch.full_like(t, 1e30) if t.is_floating_point() else t for n, t in reply.tensors.items()}, reply.facts
        )


@pytest.mark.parametrize("algorithm", [FedFomo(), FedFomo(M=1), HeurFedAMP(), Apple()], ids=lambda one: str(one)[:20])
def test_a_site_that_diverged_does_not_stop_those_that_hear_of_it(algorithm):
    crew = hospitals(algorithm, SGD)
    outcome = go(algorithm, SGD, {**crew, "c": Diverged(crew["c"])}, schedule=Schedule(rounds=4, quorum=0.3))
    assert outcome.round == 5
    assert not [lost for lost in outcome.missing if lost[2] == "failed"]


def test_participation_asks_a_part_and_the_rest_keep_their_memory():
    crew = hospitals(FedPer(), ADAM)
    go(FedPer(), ADAM, crew, schedule=Schedule(rounds=6, participation=0.34))
    assert sum(h.trained for h in crew.values()) == 6
    assert {len(sample_sites(("a", "b", "c"), 2, seed)) for seed in range(20)} == {2}
    assert len({sample_sites(("a", "b", "c"), 1, seed) for seed in range(40)}) == 3
    shares = {0.01: 1, 0.34: 1, 0.5: 2, 1.0: 3}
    assert {share: Schedule(rounds=1, participation=share).count_asked(3) for share in shares} == shares
    assert Schedule(rounds=1, participation=0.34).count_asked(3, fewest=2) == 2


def test_too_few_answers_stop_the_run_by_name_and_the_state_is_kept():
    crew = hospitals(FedAvg(), ADAM)
    folder = testbed.MemoryFolder()
    engine = testbed.LossyEngine(InProcess(crew), frozenset({(3, "a"), (3, "b")}))
    with pytest.raises(QuorumLost, match=r"round 3: .*a: lost, b: lost"):
        go(FedAvg(), ADAM, crew, engine=engine, folder=folder, schedule=Schedule(rounds=5, quorum=0.6))
    expected = go(FedAvg(), ADAM, hospitals(FedAvg(), ADAM))
    assert testbed.are_equal(go(FedAvg(), ADAM, crew, folder=folder).state.tensors, expected.state.tensors)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda t: {**t, "model/head.bias": t["model/head.bias"] * math.nan}, "non_finite"),
        (lambda t: {n: v for n, v in t.items() if n != "model/head.bias"}, "malformed"),
        (lambda t: {**t, "model/head.bias": t["model/head.bias"][:1]}, "malformed"),
        (lambda t: {**t, "model/head.bias": t["model/head.bias"].double()}, "malformed"),
        (lambda t: {**t, "patient": torch.zeros(1)}, "malformed"),
    ],
)
def test_a_bad_reply_is_refused_by_name_and_the_round_goes_on(spoil, code):
    crew = hospitals(FedAvg(), ADAM)

    def spoiled(call, message):
        reply = crew["b"](call, message)
        return (
            replace(reply, tensors=spoil(dict(reply.tensors))) if call.request == "train" and call.round == 2 else reply
        )

    outcome = go(FedAvg(), ADAM, crew, engine=InProcess({**crew, "b": spoiled}))
    assert outcome.missing == ((2, "b", code),)
    assert all(torch.isfinite(t).all() for t in outcome.state.tensors.values())


GOOD = {"algorithm": {"n": 3}, "loss": 0.5, "n": 4}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"loss": None, "n": 0}, None),
        ({"algorithm": {"n": "3"}}, "malformed"),
        ({"algorithm": {"n": True}}, "malformed"),
        ({"algorithm": {"n": -33}}, "malformed"),
        ({"algorithm": {"n": 10**400}}, "malformed"),
        ({"algorithm": {}}, "malformed"),
        ({"algorithm": [3]}, "malformed"),
        ({"algorithm": None}, "malformed"),
        ({"loss": math.nan}, "malformed"),
        ({"loss": -1e9}, "malformed"),
        ({"loss": 10**400}, "malformed"),
        ({"loss": math.inf}, "non_finite"),
        ({"n": 10**400}, "malformed"),
        ({"n": -1}, "malformed"),
        ({"n": True}, "malformed"),
        ({"n": None}, "malformed"),
    ],
)
def test_facts_that_would_poison_a_run_are_refused(change, code):
    template = Message({}, {"algorithm": {"n": 3}})
    assert find_reply_problem(Message({}, {**GOOD, **change}), template) == code
    without = {name: value for name, value in GOOD.items() if name != "loss"}
    assert find_reply_problem(Message({}, without), template) == "malformed"


def test_numbers_so_large_that_their_mean_is_infinite_are_refused():
    template = Message({"model/w": torch.zeros(2)}, {"algorithm": {}})
    reply = Message({"model/w": torch.full((2,), 3e38)}, {"algorithm": {}, "loss": None, "n": 0})
    assert find_reply_problem(reply, template) == "non_finite"


@pytest.mark.parametrize("request_", ["introduce", "finish"])
def test_a_site_that_fails_once_at_the_beginning_or_the_end_is_asked_again(request_):
    crew = hospitals(FedAvg(), ADAM)
    failed = []

    def moody(call, message):
        if call.request == request_ and not failed:
            failed.append(call)
            raise RuntimeError
        return crew["b"](call, message)

    outcome = go(FedAvg(), ADAM, crew, engine=InProcess({**crew, "b": moody}))
    assert failed
    assert outcome.round == SCHEDULE.rounds + 1
    expected = hospitals(FedAvg(), ADAM)
    go(FedAvg(), ADAM, expected)
    assert same(newest_models(crew), newest_models(expected))


def test_a_finish_that_a_site_never_answers_stops_the_run_by_name_and_resumes():
    crew = hospitals(FedAvg(), ADAM)
    folder = testbed.MemoryFolder()

    def gone(call, message):
        if call.request == "finish":
            raise RuntimeError
        return crew["b"](call, message)

    with pytest.raises(QuorumLost, match=r"round 6: .*b: failed"):
        go(FedAvg(), ADAM, crew, engine=InProcess({**crew, "b": gone}), folder=folder)
    trained = {name: h.trained for name, h in crew.items()}
    assert go(FedAvg(), ADAM, crew, folder=folder).round == 6
    assert {name: h.trained for name, h in crew.items()} == trained


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work", "ground"), METHODS)
def test_every_checkpoint_is_there_although_replies_were_lost(algorithm, work, ground):
    laws.every_checkpoint_is_there_although_replies_were_lost(Case(algorithm, work, ground))


EVERY_TIME = [pytest.param(*param.values, id=param.id, marks=pytest.mark.slow) for param in METHODS]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("algorithm", "work", "ground"), [pytest.param(FedPer(), ROUGH, TABLES, id="one"), *EVERY_TIME]
)
def test_every_checkpoint_is_there_whatever_was_lost(algorithm, work, ground, seed):
    """Replies lost at random."""
    chance = torch.Generator().manual_seed(seed)
    lost = frozenset((r, s) for r in range(1, 9) for s in "abc" if float(torch.rand(1, generator=chance)) < 0.35)
    crew = hospitals(algorithm, work, ground)
    schedule = Schedule(rounds=8, quorum=0.01)
    folder = testbed.MemoryFolder()
    engine = testbed.LossyEngine(InProcess(crew), lost)
    try:
        outcome = go(algorithm, work, crew, engine=engine, folder=folder, schedule=schedule)
    except QuorumLost:  # all three lost at once
        outcome = go(algorithm, work, crew, folder=folder, schedule=schedule)
    laws.kept_as_promised(outcome, crew, method_schedule(algorithm, schedule).rounds)


def test_a_replay_of_an_old_call_changes_nothing_at_the_site():
    crew = hospitals(FedAvg(), ADAM)
    go(FedAvg(), ADAM, crew)
    before = {name: (dict(h.disk.files), dict(h.models.files)) for name, h in crew.items()}
    for name, hospital in crew.items():
        hospital(Call("law", 5, "train", dict.fromkeys(crew, 4)), Message({}, {"best": 1}))
        hospital(Call("law", 6, "finish", dict.fromkeys(crew, 5)), Message({}, {"best": 1}))
        assert (dict(hospital.disk.files), dict(hospital.models.files)) == before[name]


def test_calls_out_of_order_and_lost_memories_are_refused_by_code():
    crew = hospitals(FedAvg(), ADAM)
    go(FedAvg(), ADAM, crew)
    with pytest.raises(Refused, match="stale_round"):
        crew["a"](Call("law", 3, "finish", {"a": 2}), Message())
    crew["a"].disk.remove("train-5")
    with pytest.raises(Refused, match="no_memory"):
        crew["a"](Call("law", 6, "train", {"a": 5}), Message())


def test_a_flipped_bit_in_what_is_kept_is_noticed():
    crew = hospitals(FedAvg(), ADAM)
    folder = testbed.MemoryFolder()
    go(FedAvg(), ADAM, crew, folder=folder)
    memory = load_newest_memory(crew["a"].disk)
    for disk, name in ((folder, "state"), (crew["a"].disk, "train-5"), (crew["a"].models, "5")):
        data = bytearray(disk.read(name))
        data[-3] ^= 1
        disk.write(name, bytes(data))
    with pytest.raises(Malformed, match="checksum"):
        load_outcome(folder, "law")
    with pytest.raises(Malformed, match="checksum"):
        crew["a"](Call("law", 5, "train", {"a": 4}), Message())
    with pytest.raises(Malformed, match="checksum"):
        load_checkpoint(crew["a"].models, memory, "latest", best=None)


def test_only_rounds_that_every_site_scored_can_be_globally_best():
    crew = hospitals(FedAvg(), ADAM)
    outcome = go(FedAvg(), ADAM, crew, schedule=Schedule(rounds=9, participation=0.34))
    full = [r for r in outcome.totals if all(r in series for series in outcome.losses.values())]
    assert 0 < len(full) < len(outcome.totals)
    assert outcome.best == min((outcome.totals[r], int(r)) for r in full)[1]


def test_a_late_reply_is_lost_though_the_site_committed_it():
    crew = hospitals(FedAvg(), ADAM)
    outcome = go(FedAvg(), ADAM, crew, schedule=Schedule(rounds=1, deadline_s=60.0))
    assert outcome.missing == ()
    fresh = hospitals(FedAvg(), ADAM)["a"]
    start = Message({f"model/{n}": v for n, v in initial_parameters(FedAvg(), testbed.make_task(), seed=1).items()})
    answers = InProcess({"a": fresh}).ask(Call("law", 1, "train", {}), {"a": start}, deadline_s=1e-9)
    assert answers.missing == {"a": "late"}
    assert fresh.trained == 1
    assert fresh.disk.has("train-1")


def test_checkpoints_are_the_lowest_losses():
    crew = hospitals(FedPer(), ADAM)
    outcome = go(FedPer(), ADAM, crew, schedule=Schedule(rounds=9))
    totals = {int(r): loss for r, loss in outcome.totals.items()}
    assert sorted(totals) == list(range(1, 10))
    assert outcome.best == min(totals, key=totals.get)
    weights = {name: len(rows["validation"].y) for name, rows in SITES.items()}
    for r, total in totals.items():
        mean = sum(weights[s] * outcome.losses[s][str(r)] for s in weights) / sum(weights.values())
        assert total == pytest.approx(mean)
    for name, hospital in crew.items():
        memory = answer_once(hospital.disk, Call("law", 10, "finish", {}), name, lambda m: pytest.fail("stored")).memory
        found = {c: load_checkpoint(hospital.models, memory, c, best=outcome.best) for c in CHECKPOINTS}
        assert found["latest"][0] == 9
        assert found["global"][0] == outcome.best
        own = outcome.losses[name]
        assert found["local"][0] == min(range(1, 10), key=lambda r: own[str(r)])
        assert len(list_rounds(hospital.models)) <= 5


names = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="/"), min_size=1, max_size=8)
facts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(names, st.lists(st.floats(width=32), max_size=5), max_size=4),
    st.dictionaries(st.text(max_size=6), facts, max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_a_message_survives_the_wire_bit_for_bit(tensors, said):
    message = Message({name: torch.tensor(v, dtype=torch.float32) for name, v in tensors.items()}, said)
    data = to_bytes(message)
    back = from_bytes(data)
    assert back.facts == message.facts and to_bytes(back) == data
    assert all(torch.equal(back.tensors[n].view(torch.int32), v.view(torch.int32)) for n, v in message.tensors.items())


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_bytes_that_are_no_message_are_refused_as_such(data):
    with pytest.raises(Malformed):
        from_bytes(data)
