"""FedRep against a plain loop: the head first on a frozen body, then the body under that head."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_events, rehearse_reply
from federation.task import Output, Task
from personalize.fedbabu import FedBabu
from personalize.fedrep import FedRep
from privacy.dp.access import Rows
from privacy.dp.batches import batches_per_epoch
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed
from privacy.dp.protection import Protection

SGD = Work(optimizer="sgd", lr=0.05, batch=4)
ADAM = Work(optimizer="adam", lr=0.02, batch=4)


def run(algorithm, work=SGD, lost=frozenset(), task=reference.CNN, sites=reference.IMAGES, rounds=3, **options):
    outcome, crew = reference.trained(algorithm, sites, task, work, lost, rounds=rounds, **options)
    return outcome, {name: testbed.newest_model(hospital) for name, hospital in crew.items()}


def is_head(name):
    return name in ("head.weight", "head.bias")


def plain_loop(*, rules, weights, rounds, participation, lost=frozenset()):
    """rules: model -> the optimizer of the head and that of the body. The networks of sites, by site, at the end."""
    server = dict(initial_parameters(FedAvg(), reference.CNN, seed=1))
    kept = {site: reference.network(reference.CNN) for site in reference.IMAGES}
    optimizers = {site: rules(model) for site, model in kept.items()}
    for r in range(1, rounds + 1):
        locals_ = {}
        for site in reference.present(r, frozenset(), participation):
            model, before = kept[site], copy.deepcopy(kept[site].state_dict())
            model.load_state_dict({n: before[n] if is_head(n) else server[n] for n in server})
            draws = reference.batches(reference.IMAGES[site]["train"], r, site, SGD, per_step=5)  # for five epochs
            steps = batches_per_epoch(len(reference.IMAGES[site]["train"].y), SGD.batch)
            for rule, epochs in zip(optimizers[site], (3, 2), strict=True):
                for x, y in itertools.islice(draws, epochs * steps):
                    model.zero_grad()
                    functional.cross_entropy(model(x).logits, y).backward()
                    rule.step()
            if (r, site) in lost:
                model.load_state_dict(before)
            else:
                locals_[site] = copy.deepcopy(model.state_dict())
        sizes = {site: len(reference.IMAGES[site]["train"].y) if weights == "size" else 1 for site in locals_}
        server = reference.mixed(list(locals_.values()), list(sizes.values()))
    return {s: {n: m.state_dict()[n] if is_head(n) else server[n] for n in server} for s, m in kept.items()}


def split(kind, lr):
    def rules(model):
        named = dict(model.named_parameters())
        parts = [p for n, p in named.items() if is_head(n)], [p for n, p in named.items() if not is_head(n)]
        return [kind(part, lr=lr) for part in parts]

    return rules


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_a_plain_loop_with_sites_away_and_replies_lost_finds_the_same(weights):
    lost = frozenset({(1, "a"), (3, "a")})
    expected = plain_loop(
        rules=split(torch.optim.SGD, 0.05), weights=weights, rounds=4, participation=reference.PARTICIPATION, lost=lost
    )
    _, found = run(
        FedRep(head_epochs=3, body_epochs=2, weights=weights),
        lost=lost,
        rounds=4,
        participation=reference.PARTICIPATION,
    )
    assert all(testbed.are_close(found[site], expected[site], 2e-5) for site in reference.IMAGES)


def test_both_optimizers_live_on_between_rounds():
    expected = plain_loop(rules=split(torch.optim.Adam, 0.02), weights="uniform", rounds=3, participation=1.0)
    _, found = run(FedRep(head_epochs=3, body_epochs=2), ADAM)
    assert all(testbed.are_close(found[site], expected[site], 1e-4) for site in reference.IMAGES)


def test_one_step_by_hand_moves_the_head_first():
    """x = 1, y = 1, a hidden unit with weight u, head (v, c), half the squared error: both halves by the chain rule."""
    task = Task(_Unit(), (1,), 2)
    rows = Rows(torch.ones(1, 1), torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    work = Work(optimizer="sgd", lr=0.1, batch=1)
    sites = {"a": {"train": rows}}
    _, found = run(FedRep(head_epochs=1), work, task=task, sites=sites, rounds=1)
    u, v, c = 0.5, 3.0, 0.0
    error = v * u + c - 1
    v, c = v - 0.1 * error * u, c - 0.1 * error
    u = u - 0.1 * (v * u + c - 1) * v
    model = found["a"]
    assert [float(model[n].squeeze()) for n in ("stem.weight", "head.weight", "head.bias")] == pytest.approx([u, v, c])


class _Unit:
    name = "unit"

    def build(self, *, inputs, classes):
        return _UnitModule()

    def losses(self, output, y):
        return testbed.Linear().losses(output, y)


class _UnitModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1)
        for p, value in ((self.stem.weight, 0.5), (self.head.weight, 3.0), (self.head.bias, 0.0)):
            torch.nn.init.constant_(p, value)

    def forward(self, x):
        h = self.stem(x)
        return Output(self.head(h), h)


def test_without_epochs_for_the_head_it_is_fedbabu_and_refused():
    rep, theirs = run(FedRep(head_epochs=0, body_epochs=2, weights="size"), ADAM)
    babu, ours = run(FedBabu(), Work(optimizer="adam", lr=0.02, batch=4, epochs=2))
    assert testbed.are_equal(rep.state.tensors, babu.state.tensors)
    assert all(testbed.are_equal(theirs[site], ours[site]) for site in reference.IMAGES)
    (text,) = FedRep(head_epochs=0).complaints(reference.CNN.network(), SGD, False)
    assert "fedbabu" in text


def test_only_the_body_leaves():
    algorithm = FedRep(head_epochs=1)
    reply = rehearse_reply(algorithm, reference.CNN, SGD, initial_parameters(algorithm, reference.CNN, seed=1))
    assert set(section(reply.tensors, "model")) == {n for n in reference.CNN.network().state_dict() if not is_head(n)}


def test_what_makes_no_sense_is_refused_at_once():
    with pytest.raises(ValueError, match=r"head_epochs must be >= 0, found -1; body_epochs must be >= 1, found 0"):
        FedRep(head_epochs=-1, body_epochs=0)
    (text,) = FedRep().complaints(testbed.make_task(hidden=()).network(), SGD, True)
    assert "no parameter" in text


def test_a_private_round_asks_for_eleven_epochs():
    algorithm = FedRep()
    protection = Protection(sampling=0.25, noise=1.5, cut="c")
    seen = rehearse_events(
        algorithm, testbed.make_task(), SGD, initial_parameters(algorithm, testbed.make_task(), seed=0), protection
    )
    assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.25, Gaussian(1.5))), 44)


def test_steps_in_place_of_epochs_are_epochs_of_as_many_steps():
    """Every site has 10 rows: an epoch has three batches of 4, 4 and 2."""
    sites = {name: testbed.make_table(k, n=10) for k, name in enumerate("ab")}
    epochs, steps = FedRep(head_epochs=2, body_epochs=1), FedRep(head_steps=6, body_steps=3)
    _, left = run(epochs, task=testbed.make_task(), sites=sites)
    _, right = run(steps, task=testbed.make_task(), sites=sites)
    assert all(testbed.are_equal(left[site], right[site]) for site in sites)
    with pytest.raises(ValueError, match="both head_steps and body_steps or none, found 4 and None"):
        FedRep(head_steps=4)
    with pytest.raises(ValueError, match="body_steps must be >= 1 or null, found 0"):
        FedRep(head_steps=4, body_steps=0)
