"""Methods against slow implementations written from the papers, with everything at once that could go wrong.

Three sites, a network with batch norm, partial participation, server learning rates, lost replies.
"""

from __future__ import annotations

import copy

import pytest
import torch

import by_hand
import rig
from by_hand import CNN, IMAGES, NAMES, PARTICIPATION, SGD, agree, averaged, descend, network, present
from federation.fedavg import FedAvg
from federation.fedprox import FedProx
from federation.parameters import section
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from privacy.access import batches_per_epoch

ROUNDS = 4
NONE = frozenset()


def ours(algorithm, lost=NONE):
    outcome, _ = by_hand.trained(algorithm, IMAGES, CNN, SGD, lost, rounds=ROUNDS, participation=PARTICIPATION)
    return section(outcome.state.tensors, "model")


def test_who_is_asked_changes_from_round_to_round():
    assert len({tuple(present(r, NONE)) for r in range(1, 12)}) == 3


@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_fedavg_and_fedprox(mu, weights):
    model = network(CNN)
    for r in range(1, ROUNDS + 1):
        locals_, sizes = [], []
        for site in present(r, NONE):
            own, w_t = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
            descend(own, IMAGES[site]["train"], r, site, pull=lambda n, p, w=w_t: mu * (p - w[n]))
            locals_.append(own)
            sizes.append(len(IMAGES[site]["train"].y) if weights == "size" else 1)
        model = averaged(locals_, sizes)
    algorithm = FedProx(mu=mu, weights=weights) if mu else FedAvg(weights=weights)
    agree(ours(algorithm), model.state_dict())


@pytest.mark.parametrize("global_lr", [1.0, 0.6])
@pytest.mark.parametrize("lost", [NONE, by_hand.LOST_OF_ALL], ids=["", "lost replies"])
def test_scaffold_option_2(global_lr, lost):
    """x <- x + eta_g mean(y_i - x); c <- c + |S|/N mean(dc_i); a lost reply is a site that was not there."""
    model = network(CNN)
    parts = [n for n, _ in model.named_parameters()]
    c = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    c_i = {site: {n: v.clone() for n, v in c.items()} for site in NAMES}
    for r in range(1, ROUNDS + 1):
        there = present(r, lost)
        locals_, shifts = [], []
        x = {n: p.detach().clone() for n, p in model.named_parameters()}
        for site in there:
            own = copy.deepcopy(model)
            drift = {n: c[n] - c_i[site][n] for n in parts}
            descend(own, IMAGES[site]["train"], r, site, pull=lambda n, p, d=drift: d[n])
            steps = SGD.epochs * batches_per_epoch(len(IMAGES[site]["train"].y), SGD.batch)
            y = dict(own.named_parameters())
            plus = {n: c_i[site][n] - c[n] + (x[n] - y[n].detach()) / (steps * SGD.lr) for n in parts}
            shifts.append({n: plus[n] - c_i[site][n] for n in parts})
            c_i[site] = plus
            locals_.append(own)
        merged = averaged(locals_, [1] * len(locals_))
        with torch.no_grad():
            for n, p in merged.named_parameters():
                p.copy_(x[n] + global_lr * (p - x[n]))
        model = merged
        share = len(there) / len(NAMES)
        c = {n: c[n] + share * sum(s[n] for s in shifts) / len(shifts) for n in parts}
    agree(ours(Scaffold(global_lr=global_lr), lost), model.state_dict())


def test_a_sites_own_settings_reach_its_training():
    """Site b holds itself still by a strong proximal term of its own; the others are plain FedAvg."""
    crew = rig.federation(
        FedProx(mu=0.0), IMAGES, task=CNN, work=SGD, per_site=lambda s: FedProx(mu=18.0 if s == "b" else 0.0)
    )
    outcome = rig.train(FedProx(mu=0.0), crew, task=CNN, work=SGD, schedule=Schedule(rounds=1))
    model, locals_ = network(CNN), []
    for site in NAMES:
        own, w_t = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
        mu = 18.0 if site == "b" else 0.0
        descend(own, IMAGES[site]["train"], 1, site, pull=lambda n, p, w=w_t, m=mu: m * (p - w[n]))
        locals_.append(own)
    merged = averaged(locals_, [len(IMAGES[s]["train"].y) for s in NAMES])
    agree(section(outcome.state.tensors, "model"), merged.state_dict())
