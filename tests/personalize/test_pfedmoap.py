"""pFedMoAP: when it is PromptFL with fine-tuning, whom it asks, and what its gate does with experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import small_clip
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.finetuning import Tuning, fine_tuned
from federation.parameters import count_values, read_parameters
from federation.rehearsal import initial_parameters
from federation.rounds import Schedule
from personalize.fedavg_local import FedAvgLocal
from personalize.pfedmoap import PROMPT, Attention, MixedPrompts, PFedMoAP, Projection
from privacy.dp.access import open_access
from privacy.dp.protection import Protection
from privacy.message import Call, Message

WORK = Work(lr=0.05, batch=8)
SMALL = PFedMoAP(d=4, heads=2, experts=3)
TASK = small_clip.task()
SITES = {name: small_clip.table(k, shift=0.4 * k) for k, name in enumerate("abcd")}


def trained(algorithm, *, work=WORK, rounds=3, protection=None, schedule=None):
    crew = testbed.make_federation(algorithm, SITES, task=TASK, work=work)
    crew = {name: replace(one, protection=protection) for name, one in crew.items()}
    done = testbed.train(algorithm, crew, task=TASK, work=work, schedule=schedule or Schedule(rounds=rounds))
    return {name: testbed.newest_model(one) for name, one in crew.items()}, done, crew


def mixture(settings=SMALL, prompts=0, seed=0) -> MixedPrompts:
    torch.manual_seed(seed)
    module = settings.network(TASK)
    module.consult([0.3 * torch.randn(3, 8) for _ in range(prompts)])
    return module.eval()


X = SITES["a"]["train"].x


def test_without_experts_it_is_promptfl_with_fine_tuning():
    """Bit for bit: FedAvg of the prompt, of which each site uses its own before the mean."""
    ours, done, _ = trained(PFedMoAP(experts=1, d=4, heads=2))
    known, other, _ = trained(FedAvgLocal())
    assert done.totals == other.totals
    assert all(torch.equal(ours[site][PROMPT], known[site]["head.context"]) for site in SITES)


def test_a_large_lam_leaves_the_local_prompt():
    module = mixture(PFedMoAP(d=4, heads=2, experts=3, lam=1e6), prompts=2)
    alone = module.prompt(X).logits
    assert torch.allclose(module(X).logits / 1e6, alone, atol=1e-4)
    mixed = mixture(SMALL, prompts=2)(X).logits
    assert not torch.allclose(mixed.softmax(1), alone.softmax(1), atol=1e-2)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_identical_experts_are_one_expert(others):
    module = mixture(PFedMoAP(d=4, heads=2, experts=4), prompts=0)
    own = module.prompt.head.context.detach().clone()
    module.consult([own])
    one = module(X).logits
    module.consult([own] * others)
    assert torch.allclose(module(X).logits, one, atol=1e-5)


def test_the_order_of_experts_is_irrelevant_to_attention_and_not_to_a_projection():
    for gate, alike in (("attention", True), ("projection", False)):
        module = mixture(PFedMoAP(d=4, heads=2, experts=4, gate=gate))
        prompts = [0.3 * torch.randn(3, 8) for _ in range(3)]
        module.consult(prompts)
        before, trust = module(X, True)
        module.consult([prompts[k] for k in (2, 0, 1)])
        after, turned = module(X, True)
        assert torch.allclose(before.logits, after.logits, atol=1e-4) == alike
        assert torch.allclose(trust[:, [0, 3, 1, 2]], turned, atol=1e-6) == alike
        assert torch.allclose(trust.sum(1), torch.ones(len(X)), atol=1e-6)


def test_a_place_without_an_expert_gets_no_attention_and_no_expert_at_all_is_the_prompt_alone():
    module = mixture(PFedMoAP(d=4, heads=2, experts=4), prompts=1)
    assert bool((module(X, True)[1][:, 2:] == 0).all())
    assert torch.equal(mixture(prompts=0)(X).logits, mixture(prompts=0).prompt(X).logits)


def test_the_gate_has_the_papers_size_and_the_papers_attention():
    assert count_values(read_parameters(Attention(512, 128, 8))) == 4 * (128**2 + 128) == 66_048
    assert count_values(read_parameters(Projection(512, 10))) == 10 * (512 + 1)
    torch.manual_seed(0)
    gate, known = Attention(8, 4, 2), torch.nn.MultiheadAttention(4, 2, batch_first=True)
    with torch.no_grad():
        known.in_proj_weight.copy_(torch.cat([gate.q.weight, gate.k.weight, gate.v.weight]))
        known.in_proj_bias.copy_(torch.cat([gate.q.bias, gate.k.bias, gate.v.bias]))
        known.out_proj.weight.copy_(gate.o.weight)
        known.out_proj.bias.copy_(gate.o.bias)
    vectors = torch.randn(3, 2, 8)
    cosines, trust = gate(X, vectors, torch.ones(3))
    pooled = X[:, ::2]  # every second number: strided, not averaged
    for c in range(2):
        kv = vectors[:, c, ::2].expand(len(X), -1, -1)
        mixed, weights = known(pooled[:, None], kv, kv)
        assert torch.allclose(cosines[:, c], torch.cosine_similarity(pooled, mixed[:, 0], dim=1), atol=1e-5)
    assert torch.allclose(trust.sum(1), torch.ones(len(X)), atol=1e-6) and weights.shape == (len(X), 1, 3)


def state(prompts):
    start = SMALL.start(initial_parameters(SMALL, TASK, seed=0), {})
    replies = {name: Message({f"model/{PROMPT}": value}, {"n": 4}) for name, value in prompts.items()}
    return SMALL.merge(start, replies)


def asked(algorithm, now, round_=2, site="a"):
    sent = algorithm.send(now, site, Call("r", round_, "train", {site: 1}))
    return [name.split("/")[1] for name in sent.tensors if name.startswith("expert/")], sent


def test_the_nearest_prompts_are_sent_unchanged_and_the_prompt_restarts_from_the_average():
    prompts = {name: torch.full((3, 8), float(at)) for name, at in {"a": 0, "b": 5, "c": 1, "d": -2}.items()}
    now = state(prompts)
    names, sent = asked(SMALL, now)
    assert names == ["c", "d"]
    assert torch.equal(sent.tensors[f"expert/c/{PROMPT}"], prompts["c"])
    assert torch.equal(sent.tensors[f"model/{PROMPT}"], torch.full((3, 8), 1.0))
    assert asked(replace(SMALL, experts=10), now)[0] == ["c", "d", "b"]
    drawn = {tuple(asked(replace(SMALL, choice="random"), now, round_=k)[0]) for k in range(2, 30)}
    assert len(drawn) == 6 and all("a" not in names for names in drawn)


def test_a_site_that_comes_for_the_first_time_gets_no_expert_and_trains_the_prompt_alone():
    now = state({"b": torch.zeros(3, 8)})
    sent = SMALL.send(now, "a", Call("r", 2, "train", {}))
    assert not any(name.startswith("expert/") for name in sent.tensors)
    site = Site("a", TASK, WORK, open_access(SITES["a"], batch=8, seed=0))
    reply, memory = SMALL.train(site, sent, Message(), Call("r", 2, "train", {}))
    assert set(reply.tensors) == {f"model/{PROMPT}"}
    gate = {n: t for n, t in now.tensors.items() if n.startswith("start/gate")}
    assert all(torch.equal(memory.tensors[f"personal/{n.removeprefix('start/')}"], t) for n, t in gate.items())
    assert float(memory.tensors["personal/there"].sum()) == 0


def test_the_gate_learns_with_experts_stays_at_home_and_notes_whom_it_trusts():
    own, done, crew = trained(SMALL, rounds=4)
    assert not any("gate" in name for name in done.state.tensors if not name.startswith("start/"))
    assert not torch.equal(own["a"]["gate.q.weight"], own["b"]["gate.q.weight"])
    from federation.conversation import load_newest_memory

    notes = load_newest_memory(crew["a"].disk).facts["notes"]
    assert set(notes["1"]) == {"expert/own"} and len(notes["4"]) == SMALL.experts
    assert sum(notes["4"].values()) == pytest.approx(1, abs=1e-5)


def test_a_part_of_the_sites_a_round_is_enough():
    own, done, _ = trained(SMALL, schedule=Schedule(rounds=6, participation=0.5, quorum=0.3))
    assert done.round == 7 and all(torch.isfinite(t).all() for one in own.values() for t in one.values())


def test_privately_it_pays_what_promptfl_pays_and_a_gate_without_experts_gets_no_noise():
    protection = Protection(clip=1.0, sampling=0.5, views=1, noise=1.0, cut="c")
    work = Work(lr=0.05, batch=8, epochs=None, steps=2)
    own, _, crew = trained(SMALL, work=work, rounds=2, protection=protection)
    _, _, plain = trained(FedAvgLocal(), work=work, rounds=2, protection=protection)
    assert crew["a"].events == plain["a"].events
    start = initial_parameters(SMALL, TASK, seed=1)
    assert not torch.equal(own["a"]["gate.q.weight"], start["gate.q.weight"])
    once, _, _ = trained(SMALL, work=work, rounds=1, protection=protection)
    assert torch.equal(once["a"]["gate.q.weight"], start["gate.q.weight"])


def test_fine_tuning_moves_prompt_and_gate_and_nothing_that_others_said():
    module = mixture(prompts=2)
    work = Work(optimizer="adamw", lr=0.05, batch=8, weight_decay=0.1)
    site = Site("a", TASK, work, open_access(SITES["a"], batch=8, seed=0))
    after, before = dict(fine_tuned(site, module, Tuning(epochs=2)).named_parameters()), dict(module.named_parameters())
    still = {name for name, one in after.items() if torch.equal(one, before[name])}
    assert still == {"vectors", "there"}


def test_settings_that_cannot_work_are_told():
    with pytest.raises(ValueError, match=r"(?s)experts.*lam.*multiple of heads.*gate_lr"):
        PFedMoAP(experts=0, lam=-1.0, d=7, heads=2, gate_lr=0.0)
    whole = PFedMoAP(d=3, heads=1)
    (said,) = whole.complaints(whole.network(TASK), WORK, False)
    assert "pools vectors of 8 numbers to d of them, found d: 3" in said
