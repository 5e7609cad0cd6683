"""Zero-shot reads its templates; PromptFL and CoOp are FedAvg and local training of a network with a prompt alone."""

from __future__ import annotations

import torch

import small_clip
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.clip_towers import cosine_factor, embed_sentences
from federation.models.clip_words import parse_vocabulary
from federation.parameters import read_parameters
from federation.rounds import Schedule
from personalize.prompts import ZeroShot

WORK = Work(lr=0.05, batch=8)
SITES = {name: small_clip.table(k, shift=0.4 * k) for k, name in enumerate("abc")}


def trained(algorithm, task, rounds=3):
    crew = testbed.make_federation(algorithm, SITES, task=task, work=WORK)
    return crew, testbed.train(algorithm, crew, task=task, work=WORK, schedule=Schedule(rounds=rounds))


def test_zero_shot_is_the_mean_of_the_templates_vectors():
    task = small_clip.task(templates=("a {}.", "{} of an ulcer"))
    module, w = ZeroShot().network(task), small_clip.frozen()
    assert [*read_parameters(module)] == ["head.factor"] and ZeroShot().complaints(module, WORK, True) == []
    known, table = (
        parse_vocabulary(small_clip.VOCABULARY, small_clip.MERGED),
        w["text_model.embeddings.token_embedding.weight"],
    )
    rows = []
    for name in small_clip.CLASSES.values():
        said = [known.sentence(f"a {name}."), known.sentence(f"{name} of an ulcer")]
        each = [embed_sentences(w, task.model.shape, table[[*s]][None], torch.tensor([len(s) - 1])) for s in said]
        mean = torch.stack(each).mean(0)[0]
        rows.append(mean / mean.norm())
    x = SITES["a"]["train"].x
    assert torch.allclose(module(x).logits, cosine_factor(w) * x @ torch.stack(rows).T, atol=1e-5)
    crew, outcome = trained(ZeroShot(), task)
    assert [float(one) for one in outcome.state.tensors.values()] == [1.0]
    assert float(testbed.newest_model(crew["a"])["head.factor"]) == 1.0


def test_promptfl_sends_the_context_alone_and_learns():
    task = small_clip.task()
    _, outcome = trained(FedAvg(), task, rounds=8)
    assert set(outcome.state.tensors) == {"model/head.context"}
    losses = [float(str(one)) for one in outcome.totals.values()]
    assert losses[-1] < losses[0]


def test_coop_is_local_training_of_the_prompt():
    crew, _ = trained(Local(), small_clip.task())
    prompts = [testbed.newest_model(one)["head.context"] for one in crew.values()]
    assert all(not torch.equal(prompts[0], other) for other in prompts[1:])


def test_a_network_without_a_prompt_is_refused_in_words():
    (said,) = ZeroShot().complaints(ZeroShot().network(testbed.make_task()), WORK, False)
    assert "found MlpModule: say model: {name: clip" in said
