"""FedRep against a plain loop: the head first on a frozen body, then the body under that head."""

from __future__ import annotations

import copy

import pytest
import torch

import rig
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.parameters import section
from federation.randomness import derived, seeded
from federation.rehearsal import initial_parameters, rehearse, rehearse_events
from federation.rounds import Schedule, sampled
from federation.task import Output, Task
from personalize.fedbabu import FedBabu
from personalize.fedrep import FedRep
from privacy.access import Batch, Rows, batches_per_epoch, minibatches
from privacy.events import Gaussian, Part, PoissonSampled, SelfComposed
from privacy.protection import Protection

TASK = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
SGD = Work(optimizer="sgd", lr=0.05, batch=4)
ADAM = Work(optimizer="adam", lr=0.02, batch=4)


def images(seed: int, n: int) -> dict[str, Rows]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.rand(n, 1, 8, 8, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(n)), "validation": Rows(x[:4], y[:4], torch.arange(4))}


SITES = {"a": images(1, 9), "b": images(2, 14), "c": images(3, 6)}


def run(algorithm, work=SGD, lost=frozenset(), task=TASK, sites=SITES, **options):
    crew = rig.federation(algorithm, sites, task=task, work=work)
    schedule = Schedule(**{"rounds": 3, "quorum": 0.3, **options})
    outcome = rig.train(
        algorithm, crew, task=task, work=work, schedule=schedule, engine=rig.Lossy(InProcess(crew), lost)
    )
    return outcome, {name: rig.final(hospital) for name, hospital in crew.items()}


def is_head(name):
    return name in ("head.weight", "head.bias")


def plain_loop(*, rules, weights, rounds, participation, lost=frozenset()):
    """rules: model -> the optimizer of the head and that of the body. The networks of sites, by site, at the end."""
    start = initial_parameters(FedAvg(), TASK, seed=1)
    server, kept = dict(start), {}
    for site in SITES:
        kept[site] = TASK.network()
        kept[site].load_state_dict(dict(start))
    optimizers = {site: rules(model) for site, model in kept.items()}
    for r in range(1, rounds + 1):
        locals_ = {}
        for site in sampled(tuple(SITES), participation, derived(0, "participation", r)):
            model, before = kept[site], copy.deepcopy(kept[site].state_dict())
            model.load_state_dict({n: before[n] if is_head(n) else server[n] for n in server})
            rows, seed = SITES[site]["train"], derived(0, site, r, "train")
            stream = minibatches(rows.y, batch=4, balance=False, generator=torch.Generator().manual_seed(seed))
            model.train()
            with seeded(seed):
                for rule, epochs in zip(optimizers[site], (3, 2), strict=True):
                    for _ in range(epochs * batches_per_epoch(len(rows.y), 4)):
                        index = next(stream)
                        model.zero_grad()
                        TASK.objective(model, Batch(rows.x[index], rows.y[index])).mean().backward()
                        rule.step()
            if (r, site) in lost:
                model.load_state_dict(before)
            else:
                locals_[site] = copy.deepcopy(model.state_dict())
        sizes = {site: len(SITES[site]["train"].y) if weights == "size" else 1 for site in locals_}
        for n, value in server.items():
            if value.is_floating_point():
                server[n] = sum(sizes[s] * locals_[s][n].double() for s in locals_).div(sum(sizes.values())).float()
            else:
                server[n] = torch.stack([m[n] for m in locals_.values()]).amax(0)
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
    expected = plain_loop(rules=split(torch.optim.SGD, 0.05), weights=weights, rounds=4, participation=0.67, lost=lost)
    _, found = run(FedRep(head_epochs=3, body_epochs=2, weights=weights), lost=lost, rounds=4, participation=0.67)
    assert all(rig.close(found[site], expected[site], 2e-5) for site in SITES)


def test_both_optimizers_live_on_between_rounds():
    expected = plain_loop(rules=split(torch.optim.Adam, 0.02), weights="uniform", rounds=3, participation=1.0)
    _, found = run(FedRep(head_epochs=3, body_epochs=2), ADAM)
    assert all(rig.close(found[site], expected[site], 1e-4) for site in SITES)


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
        return rig.Linear().losses(output, y)


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
    assert rig.equal(rep.state.tensors, babu.state.tensors)
    assert all(rig.equal(theirs[site], ours[site]) for site in SITES)
    (text,) = FedRep(head_epochs=0).complaints(TASK.network(), SGD, False)
    assert "fedbabu" in text


def test_only_the_body_leaves():
    algorithm = FedRep(head_epochs=1)
    reply = rehearse(algorithm, TASK, SGD, initial_parameters(algorithm, TASK, seed=1))
    assert set(section(reply.tensors, "model")) == {n for n in TASK.network().state_dict() if not is_head(n)}


def test_what_makes_no_sense_is_refused_at_once():
    with pytest.raises(ValueError, match=r"head_epochs must be >= 0, found -1; body_epochs must be >= 1, found 0"):
        FedRep(head_epochs=-1, body_epochs=0)
    (text,) = FedRep().complaints(rig.task(hidden=()).network(), SGD, True)
    assert "no parameter" in text


def test_a_private_round_asks_for_eleven_epochs():
    algorithm = FedRep()
    protection = Protection(sampling=0.25, noise=1.5, cut="c")
    seen = rehearse_events(algorithm, rig.task(), SGD, initial_parameters(algorithm, rig.task(), seed=0), protection)
    assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.25, Gaussian(1.5))), 44)
