"""HeurFedAMP: laws, attention by hand, and several rounds in slow code with absent sites and lost replies."""

from __future__ import annotations

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.fedavg import FedAvg
from federation.local import Local
from federation.parameters import section
from federation.rehearsal import initial_parameters
from personalize.heurfedamp import HeurFedAMP
from privacy.message import Call, Message


@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_with_only_itself_in_mind_and_no_pull_it_is_local_training_bit_for_bit(task, sites):
    _, amp = reference.trained(HeurFedAMP(xi=1.0, lam=0.0), sites, task=task)
    _, alone = reference.trained(Local(), sites, task=task)
    assert all(testbed.are_equal(testbed.newest_model(amp[s]), testbed.newest_model(alone[s])) for s in sites)


@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_with_equal_attention_and_no_pull_u_is_the_uniform_fedavg(task, sites):
    outcome, _ = reference.trained(HeurFedAMP(sigma=0.0, lam=0.0), sites, task=task)
    average, _ = reference.trained(FedAvg(weights="uniform"), sites, task=task)
    for s in sites:
        u = HeurFedAMP().send(outcome.state, s, Call("law", 5, "train", {}))
        assert testbed.are_close(section(u.tensors, "model"), section(average.state.tensors, "model"), 1e-5)


def test_attention_by_hand():
    """w = (1, 0), (0, 1), (1, 1): cosines 0, 1/sqrt 2, 1/sqrt 2."""
    algorithm = HeurFedAMP(sigma=2.0, xi=0.4)
    state = algorithm.start({"w": torch.zeros(2), "count": torch.tensor(0)}, {s: Message() for s in "abc"})
    assert torch.allclose(state.tensors["between/attention"][0], torch.tensor([0.4, 0.3, 0.3]).double(), atol=1e-7)
    said = {
        s: Message({"model/w": torch.tensor(w), "buffer/count": torch.tensor(k)})
        for k, (s, w) in enumerate({"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}.items())
    }
    state = algorithm.merge(state, said)
    near, far = torch.exp(torch.tensor(2.0 * 0.5**0.5)).item(), 1.0
    row = [0.4, 0.6 * far / (far + near), 0.6 * near / (far + near)]
    assert state.tensors["between/attention"][0].tolist() == pytest.approx(row, abs=1e-7)
    assert state.tensors["between/attention"][2].tolist() == pytest.approx([0.3, 0.3, 0.4], abs=1e-7)
    u = algorithm.send(state, "a", Call("law", 2, "train", {"a": 1})).tensors
    assert u["model/w"].tolist() == pytest.approx([row[0] + row[2], row[1] + row[2]], abs=1e-6)
    assert int(u["model/count"]) == 2


def slow(algorithm, task, sites, lost, rounds):
    """Returns each site's model and the attention after the last round."""
    w = dict.fromkeys(sites, initial_parameters(algorithm, task, seed=1))
    parts = [name for name, _ in task.network().named_parameters()]
    xi, order = algorithm.xi if algorithm.xi is not None else 1 / len(sites), sorted(sites)

    def attention(i):
        flat = {j: torch.cat([w[j][n].double().flatten() for n in sorted(parts)]) for j in order}
        score = {j: torch.exp(algorithm.sigma * flat[i] @ flat[j] / flat[i].norm() / flat[j].norm()) for j in order}
        total = sum(score[j] for j in order if j != i)
        return [xi if j == i else float((1 - xi) * score[j] / total) for j in order]

    for r in range(1, rounds + 1):
        new = {}
        for s in reference.present(r, lost):
            u = reference.mixed([w[j] for j in order], attention(s))
            model, pull = reference.network(task, u), algorithm.lam / algorithm.alpha
            reference.descend(
                model, sites[s]["train"], r, s, reference.BRIEF, lambda name, p, u=u, c=pull: c * (p - u[name])
            )
            new[s] = {n: v.clone() for n, v in model.state_dict().items()}
        w |= new
    return w, torch.tensor([attention(s) for s in order], dtype=torch.float64)


@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_LATER], ids=["", "lost replies"])
@pytest.mark.parametrize("algorithm", [HeurFedAMP(alpha=2.0, lam=1.5, sigma=8.0, xi=0.2), HeurFedAMP(alpha=1.0)])
@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_several_rounds_against_a_slow_implementation(task, sites, algorithm, lost):
    outcome, crew = reference.trained(
        algorithm, sites, task=task, rounds=6, lost=lost, participation=reference.PARTICIPATION
    )
    expected, attention = slow(algorithm, task, sites, lost, 6)
    for s, model in expected.items():
        reference.agree(testbed.newest_model(crew[s]), model)
    assert torch.allclose(outcome.state.tensors["between/attention"], attention, atol=1e-4)


def test_the_pull_holds_a_site_near_u_and_says_how_near():
    apart, sites = (
        {},
        {
            "a": testbed.make_table(1),
            "b": testbed.make_table(2, n=30, shift=0.7),
            "c": testbed.make_table(3, n=10, shift=-0.4),
        },
    )
    for lam in (0.0, 5.0):
        _, crew = reference.trained(HeurFedAMP(lam=lam, alpha=1.0), sites, rounds=2)
        apart[lam] = load_newest_memory(crew["a"].disk).facts["notes"]["2"]["distance to u"]
    assert 0 < apart[5.0] < 0.7 * apart[0.0]


def test_a_site_that_was_merged_gets_nothing_with_the_finish_and_one_that_was_not_gets_the_start():
    outcome, _ = reference.trained(HeurFedAMP(), rounds=2)
    assert HeurFedAMP().send(outcome.state, "a", Call("law", 3, "finish", {"a": 2})) == Message()
    assert section(HeurFedAMP().send(outcome.state, "a", Call("law", 3, "finish", {})).tensors, "model")


def test_settings_out_of_range_are_all_named_at_once():
    with pytest.raises(ValueError, match=r"lam .* -1.*alpha .* 0.*sigma .* -2.*xi .* 3"):
        HeurFedAMP(lam=-1, alpha=0, sigma=-2, xi=3)
    assert HeurFedAMP().complaints(testbed.make_task().network(), reference.BRIEF, True) == []
