"""What every method keeps: exactly once, lost replies, resume, and messages that cross a wire, nothing undeclared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from consilium.testing import testbed
from consilium.testing.held import hold, hold_equal, hold_same
from consilium.testing.runs import (
    LOST,
    PARTLY,
    SCHEDULE,
    Case,
    copy_hospitals,
    make_hospitals,
    newest_models,
    run_lossy,
    run_undisturbed,
    run_watched,
    train_case,
)
from federation.algorithm import find_work_problems, without_loss
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.engine import InProcess
from federation.outcome import Outcome
from federation.participant import CHECKPOINTS, Checkpoint, load_checkpoint
from federation.rehearsal import initial_parameters, rehearse_reply
from federation.rounds import method_schedule
from privacy.message import Call, Message, as_mapping, from_bytes, number_of, to_bytes

Law: TypeAlias = Callable[[Case], None]


def neither_the_wire_nor_the_order_of_sites_changes_anything(case: Case) -> None:
    """Messages are all that is exchanged, and numbers do not depend on who is asked first."""
    near, (far, _) = run_undisturbed(case), run_watched(case)
    hold_equal(near.outcome.state.tensors, far.outcome.state.tensors, "the state after a run over a wire")
    hold(near.outcome.losses == far.outcome.losses, "losses differ over a wire")
    hold_same(newest_models(near.hospitals), newest_models(far.hospitals), "models after a run over a wire")


def a_resumed_run_is_the_uninterrupted_one(case: Case, stop_at: int = 3) -> None:
    """All that a stopped run leaves is on disks: from there it goes on."""
    uninterrupted = run_undisturbed(case)
    folder, parts = uninterrupted.stopped(min(stop_at, method_schedule(case.algorithm, SCHEDULE).rounds))
    outcome = train_case(case, parts, folder=folder)
    hold_equal(uninterrupted.outcome.state.tensors, outcome.state.tensors, "the state after a resumed run")
    hold(
        (uninterrupted.outcome.losses, uninterrupted.outcome.best) == (outcome.losses, outcome.best),
        "losses of a resumed run differ",
    )
    hold(uninterrupted.outcome.received == outcome.received, "a resumed run does not remember what was sent")
    hold_same(newest_models(uninterrupted.hospitals), newest_models(parts), "models after a resumed run")


def a_coordinator_that_forgot_a_round_asks_again_and_nothing_trains_twice(case: Case) -> None:
    """The coordinator dies after the sites committed and before it saved: the sites answer from their disks."""
    uninterrupted = run_undisturbed(case)
    rounds = method_schedule(case.algorithm, SCHEDULE).rounds
    folder, hospitals_then = uninterrupted.stopped(rounds - 1)[0], copy_hospitals(uninterrupted.hospitals)
    again = train_case(case, hospitals_then, folder=folder)
    hold_equal(uninterrupted.outcome.state.tensors, again.state.tensors, "the state after a round was asked again")
    trained = {name: h.trained for name, h in hospitals_then.items()}
    hold(
        trained == dict.fromkeys(hospitals_then, rounds),
        f"rounds trained are {trained}, and each must train {rounds} times",
    )
    hold_same(
        newest_models(hospitals_then), newest_models(uninterrupted.hospitals), "models after a round was asked again"
    )


def a_lost_reply_leaves_site_and_coordinator_in_step(case: Case) -> None:
    """A lost reply must equal a site that was not there: its memory goes back with `merged`."""
    run, absent = run_lossy(case), make_hospitals(case)

    @dataclass
    class Away:
        hospital: testbed.Hospital

        def __call__(self, call: Call, message: Message) -> Message:
            if call.request == "train" and (call.round, self.hospital.name) in LOST:
                raise RuntimeError("away")
            return self.hospital(call, message)

    away = InProcess({name: Away(h) for name, h in absent.items()})
    two = train_case(case, absent, engine=away, schedule=PARTLY)
    hold_equal(run.outcome.state.tensors, two.state.tensors, "the state after lost replies")
    hold_same(newest_models(run.hospitals), newest_models(absent), "models after lost replies")
    rounds = method_schedule(case.algorithm, PARTLY).rounds
    hold([m[:2] for m in run.outcome.missing] == sorted(each for each in LOST if each[0] <= rounds), "losses untold")


def it_goes_on_when_only_some_sites_are_asked(case: Case) -> None:
    """A site that was not asked for some rounds takes part again, and models stay finite."""
    run = run_lossy(case)
    rounds = method_schedule(case.algorithm, PARTLY).rounds
    hold(run.outcome.round == rounds + 1, f"it ended after round {run.outcome.round - 1} of {rounds}")
    expected = {"a": 2, "b": 5, "c": 5} if rounds == PARTLY.rounds else {"a": 1, "b": 1, "c": 1}
    trained = {name: h.trained for name, h in run.hospitals.items()}
    hold(trained == expected, f"rounds trained are {trained}, asked were {expected}")
    wild = {
        s
        for s, tensors in newest_models(run.hospitals).items()
        for t in tensors.values()
        if not bool(torch.isfinite(t).all())
    }
    hold(not wild, f"models are not finite at {sorted(wild)}")


def every_reply_looks_as_it_was_rehearsed(case: Case) -> None:
    """By this law a hospital's gate knows each method's replies, and refuses any other: nothing undeclared leaves."""
    wire = run_watched(case)[1]
    hold(wire.requests == {"introduce", "train", "finish"}, f"requests were {sorted(wire.requests)}")
    hold(wire.odd == [], f"replies are unlike those on invented patients: {wire.odd[:3]}")


def the_coordinator_knows_how_many_bytes_each_site_was_sent(case: Case) -> None:
    """What a page says of traffic is what crossed the wire."""
    far, wire = run_watched(case)
    hold(far.outcome.received == wire.heard, f"told are {far.outcome.received} bytes, sent were {wire.heard}")


def states_are_messages_and_models_fit_the_network(case: Case) -> None:
    """The state survives serialization, models load into the network, and all numbers are finite."""
    task = case.ground.task
    initial = initial_parameters(case.algorithm, task, seed=1)
    template = rehearse_reply(case.algorithm, task, case.work, initial)
    odd = [name for name in template.tensors if name.partition("/")[2] not in initial]
    hold(not odd, f"tensors are named <what>/<parameter>, found {odd[:5]}")
    run = run_undisturbed(case)
    state = run.outcome.state
    hold(from_bytes(to_bytes(state)).facts == state.facts, "facts of the state change when they are serialized")
    for name, params in newest_models(run.hospitals).items():
        case.algorithm.network(task).load_state_dict(params)
        hold(all(bool(torch.isfinite(t).all()) for t in params.values()), f"the model of site {name} is not finite")
    last = str(method_schedule(case.algorithm, SCHEDULE).rounds)
    losses = [number_of(run.outcome.totals, "1"), number_of(run.outcome.totals, last)]
    hold(all(map(math.isfinite, losses)), f"validation losses are {losses}")


def every_checkpoint_is_there_although_replies_were_lost(case: Case) -> None:
    """What a checkpoint names is on the disk, and `local` is the lowest remembered loss."""
    run = run_lossy(case)
    kept_as_promised(run.outcome, run.hospitals, method_schedule(case.algorithm, PARTLY).rounds)


def kept_as_promised(outcome: Outcome, hospital_by_name: Mapping[str, testbed.Hospital], rounds: int) -> None:
    """Hold that every site has the models that its checkpoints name."""
    for name, hospital in hospital_by_name.items():
        memory = load_newest_memory(hospital.disk)
        checkpoints: tuple[Checkpoint, ...] = (*CHECKPOINTS, "average")
        rounds_kept = {c: load_checkpoint(hospital.models, memory, c, best=outcome.best)[0] for c in checkpoints}
        loss_facts = as_mapping(memory.facts["losses"])
        losses = {int(r): number_of(loss_facts, r) for r in loss_facts}
        hold(
            rounds_kept["latest"] == rounds, f"site {name} has round {rounds_kept['latest']} as its latest of {rounds}"
        )
        after = rounds_kept["average"]
        hold(after == rounds, f"site {name} has the average of round {after} of {rounds}")
        hold(
            rounds_kept["local"] == min(losses, key=lambda r: (losses[r], r)), f"local of site {name} is not the lowest"
        )
        best = outcome.best
        globally = best is None or rounds_kept["global"] == max(r for r in losses if r <= best)
        hold(globally, f"global of site {name} is round {rounds_kept['global']}, of the run {best}")
        hold(name in outcome.losses, f"no loss of site {name} is known")


def smoothed_labels_change_what_is_learnt_or_are_refused(case: Case) -> None:
    """Label smoothing reaches each training loss and no validation loss; a method without a loss takes no notice."""
    changes_what_is_learnt_or_is_refused(case, replace(case.work, label_smoothing=0.4))


def mixed_batches_change_what_is_learnt_or_are_refused(case: Case) -> None:
    """Mixup reaches each batch and no validation patient; a method without batches, and a task of masks, refuse it; a
    method without a loss takes no notice.
    """
    if case.ground.task.kind == "segmentation":
        problems = find_work_problems(case.algorithm, case.ground.task, replace(case.work, mixup=0.4))
        hold(bool(problems), "mixup of masks is not refused")
    else:
        changes_what_is_learnt_or_is_refused(case, replace(case.work, mixup=0.4))


def changes_what_is_learnt_or_is_refused(case: Case, work: Work) -> None:
    """Hold that other work changes every hospital's model, or that the method refuses it, or says that it has no loss,
    and it changes none; and that it changes no validation loss of the network with which all begin.
    """
    plain, changed = run_undisturbed(case), case._replace(work=work)
    hospitals = make_hospitals(changed)
    outcome = train_case(changed, hospitals)
    refusals = find_work_problems(case.algorithm, case.ground.task, work) or without_loss(case.algorithm)
    before, after = newest_models(plain.hospitals), newest_models(hospitals)
    for site in after:
        same = testbed.are_equal(before[site], after[site])
        hold(not same or bool(refusals), f"site {site} learns the same, and the method does not refuse the work")
        hold(same or not refusals, f"site {site} learns something else, and the method takes none of it: {refusals}")
        losses = [run.losses[site].get("0") for run in (plain.outcome, outcome)]
        hold(losses[0] == losses[1], f"validation losses of the common start at site {site} are {losses}")


LAWS: tuple[Law, ...] = (
    neither_the_wire_nor_the_order_of_sites_changes_anything,
    a_resumed_run_is_the_uninterrupted_one,
    a_coordinator_that_forgot_a_round_asks_again_and_nothing_trains_twice,
    a_lost_reply_leaves_site_and_coordinator_in_step,
    it_goes_on_when_only_some_sites_are_asked,
    every_reply_looks_as_it_was_rehearsed,
    the_coordinator_knows_how_many_bytes_each_site_was_sent,
    states_are_messages_and_models_fit_the_network,
    every_checkpoint_is_there_although_replies_were_lost,
    smoothed_labels_change_what_is_learnt_or_are_refused,
    mixed_batches_change_what_is_learnt_or_are_refused,
)
"""Of methods on a ground that they accept."""
