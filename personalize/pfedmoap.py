"""pFedMoAP: others' prompts are experts, which an attention gate of a hospital's own mixes for each picture.

Luo et al., Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language Models, ICLR 2025, as
described in the slides of Luo's proposal (2025). Site i trains P_i^t from the average P_g^{t-1}; the coordinator keeps
the newest prompt of each site, the pool, and sends i the K = experts - 1 others nearest to P_i^{t-1}. Their text
vectors T_NL are computed once a round and fixed. The gate stays at the site.

Read so, where the slides leave it open: nearest is by Euclidean distance of prompts; pooling to d keeps every (D/d)th
number, as the released code does; the cosine with T_MoE is of pooled vectors too, by the same 1 / tau; a site without
an expert in a round trains the prompt alone and keeps its gate. So does a site in the first round in which it takes
part, however full the pool is: it has no P_i^{t-1} to be near to, and the released code gives it no experts either. The
gate has a rate of its own (gate_lr; .01 in the released code, beside .002 of the prompt), and a head's scores are
divided by the root of its width (the released code multiplies them by 10). `choice: nearest` has no effect in the
released code, which draws at random.

The slides' table with "epsilon = 50 and 25" names neither mechanism nor unit. Privately here, prompt and gate learn by
clipped, noised gradients of patients as any network does; prompts of others are releases already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.algorithm import Memory, Recipient, State
from federation.descent import Site, Work, average_records
from federation.fedavg import FedAvg, Weights, merged
from federation.models.clip import ClipModule, Prompt
from federation.parameters import loaded, prefixed, read_parameters, section
from federation.randomness import derive_seed
from federation.task import Output, Task
from personalize.prompts import needs_prompt
from privacy.dp.access import Batch, Forward
from privacy.message import Call, Json, Message, Params
from privacy.settings_error import out_of_range, refuse, unmet

PROMPT = "prompt.head.context"


@dataclass(frozen=True, kw_only=True)
class PFedMoAP:
    """logit^(c) = sim(I, T_MoE^(c)) + lam sim(I, T_L^(c)), T_MoE^(c) = MHA(pool I, pool {T_L^(c), T_NL^(c)}).

    experts: K + 1, with the site's own. d, heads: of the gate. choice: of the others' prompts. gate: `projection` is
    the slides' ablation, softmax weights of the experts from a linear map of I alone. gate_lr: its learning rate.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    recipient: ClassVar[Recipient] = "sites"
    needs_classes: ClassVar = "it learns the words for classes"

    name: Literal["pfedmoap"] = "pfedmoap"
    experts: int = 10
    lam: float = 0.5
    d: int = 128
    heads: int = 8
    choice: Literal["nearest", "random"] = "nearest"
    gate: Literal["attention", "projection"] = "attention"
    gate_lr: float = 0.01
    weights: Weights = "size"

    def __post_init__(self) -> None:
        is_divisible = self.heads >= 1 and self.d % self.heads == 0
        refuse(
            out_of_range(self, experts=(1, 1000), lam=(0.0, 1e9), d=(1, 4096), heads=(1, 64))
            + unmet(self, d=(is_divisible, f"a multiple of heads, {self.heads}"), gate_lr=(self.gate_lr > 0, "> 0"))
        )

    def network(self, task: Task) -> nn.Module:
        base = task.network()
        return MixedPrompts(base, self) if isinstance(base, ClipModule) else base

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if not isinstance(module, MixedPrompts):
            return needs_prompt(module, self.name)
        if self.gate == "attention" and module.width % self.d:
            return [f"pfedmoap pools vectors of {module.width} numbers to d of them, found d: {self.d}: take a divisor"]
        return []

    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        gate = {name: value for name, value in initial.items() if name.startswith("gate.")}
        return Message({f"model/{PROMPT}": initial[PROMPT], **prefixed("start", gate)})

    def send(self, state: State, site: str, call: Call) -> Message:
        sent = {f"model/{PROMPT}": state.tensors[f"model/{PROMPT}"]}
        if not call.merged.get(site, 0):
            return Message({**sent, **prefixed("start", section(state.tensors, "start"))})
        if call.request == "finish":
            return Message(sent)
        pool = {name.split("/")[1]: value for name, value in state.tensors.items() if name.startswith("pool/")}
        experts = {f"expert/{name}/{PROMPT}": pool[name] for name in self._choose_sites(pool, site, call)}
        return Message({**sent, **experts})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = cast(MixedPrompts, loaded(self.network(site.task), self.model(site, received, memory)))
        with torch.no_grad():
            cast(Prompt, module.prompt.head).context.copy_(received.tensors[f"model/{PROMPT}"])
            names = sorted(name.split("/")[1] for name in received.tensors if name.startswith("expert/"))
            module.consult([received.tensors[f"expert/{name}/{PROMPT}"] for name in names])
        seen: list[Tensor] = []

        def objective(forward: Forward, batch: Batch) -> Tensor:
            output, trust = cast(tuple[Output, Tensor], forward(batch.x, True))
            seen.append(trust.detach().mean(dim=0)[: len(names) + 1])
            return site.task.losses(output, cast(Tensor, batch.y))

        gate = {name: self.gate_lr for name, _ in module.named_parameters() if name.startswith("gate.")}
        descent = site.descend(
            module,
            objective,
            trainable=lambda name: name == PROMPT or (bool(names) and name in gate),
            rates=gate,
            optimizer=section(memory.tensors, "optimizer"),
        )
        parameters = read_parameters(module)
        notes: dict[str, Json] = dict(average_records([f"expert/{name}" for name in ("own", *names)], seen, descent))
        memory_tensors = {**prefixed("personal", parameters), **prefixed("optimizer", descent.optimizer)}
        sent = {f"model/{PROMPT}": parameters[PROMPT]}
        return Message(sent, {"n": site.size()}), Message(memory_tensors, {"notes": notes})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        pool = {f"pool/{site}/{PROMPT}": reply.tensors[f"model/{PROMPT}"] for site, reply in replies.items()}
        return Message({**state.tensors, **pool, **prefixed("model", merged(replies, self.weights))}, state.facts)

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        if personal := section(memory.tensors, "personal"):
            return personal
        parameters = read_parameters(self.network(site.task).to(site.device))
        common = {PROMPT: received.tensors[f"model/{PROMPT}"], **section(received.tensors, "start")}
        return {
            **parameters,
            "vectors": torch.zeros_like(parameters["vectors"]),
            "there": parameters["there"] * 0,
            **common,
        }

    def _choose_sites(self, pool: Mapping[str, Tensor], site: str, call: Call) -> list[str]:
        """The sites whose prompts this one gets, at most experts - 1."""
        other_sites = sorted(name for name in pool if name != site)
        if self.choice == "random":
            mixer = torch.Generator().manual_seed(derive_seed(0, "experts", call.run, site, call.round))
            return [
                other_sites[k] for k in torch.randperm(len(other_sites), generator=mixer)[: self.experts - 1].tolist()
            ]
        own_prompt = pool[site].double()
        return sorted(other_sites, key=lambda name: (float((pool[name].double() - own_prompt).norm()), name))[
            : self.experts - 1
        ]


class MixedPrompts(nn.Module):
    """The prompt, the gate, and what others' prompts say: `vectors` (K, C, D), of which `there` (K,) marks those that
    are. These two are frozen parameters, not buffers, which private training does not allow.
    """

    untuned = ("vectors", "there")

    def __init__(self, prompt: ClipModule, settings: PFedMoAP) -> None:
        super().__init__()
        head = cast(Prompt, prompt.head)
        self.prompt, self.lam, self.width = prompt, settings.lam, head.shape.d
        other_count = settings.experts - 1
        self.vectors = nn.Parameter(torch.zeros(other_count, head.out_features, self.width), requires_grad=False)
        self.there = nn.Parameter(torch.zeros(other_count), requires_grad=False)
        attention = settings.gate == "attention"
        self.gate: Attention | Projection = (
            Attention(self.width, settings.d, settings.heads) if attention else Projection(self.width, settings.experts)
        )

    def consult(self, prompts: list[Tensor]) -> None:
        """Compute the text vectors of others' prompts (M, width), at most K, which stay as they are."""
        head = cast(Prompt, self.prompt.head)
        own_context = head.context.detach().clone()
        with torch.no_grad():
            self.vectors.zero_()
            self.there.zero_()
            for k, prompt in enumerate(prompts):
                head.context.copy_(prompt)
                self.vectors[k] = head.texts()
                self.there[k] = 1.0
            head.context.copy_(own_context)

    def forward(self, x: Tensor, trusted: bool = False) -> Output | tuple[Output, Tensor]:
        """Logits (b, C) of unit vectors x (b, D); with `trusted` also how much each expert counts, (b, K + 1), the own
        prompt first.
        """
        head = cast(Prompt, self.prompt.head)
        scale, own_texts = head.scale(), head.texts()
        local = scale * x @ own_texts.T
        is_there = torch.cat([torch.ones_like(self.there[:1]) if len(self.there) else x.new_ones(1), self.there])
        cosines, trust = self.gate(x, torch.cat([own_texts[None], self.vectors]), is_there)
        mixed = torch.where(is_there.sum() > 1, scale * cosines + self.lam * local, local)
        output = Output(mixed, x)
        return (output, trust) if trusted else output


class Attention(nn.Module):
    """Multi-head attention of a picture's vector over the experts' vectors of a class: 4 (d^2 + d) parameters."""

    def __init__(self, width: int, d: int, heads: int) -> None:
        super().__init__()
        self.stride, self.d, self.heads = max(1, width // d), d, heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Tensor, vectors: Tensor, is_there: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines (b, C) of pooled x (b, D) with T_MoE, and the attention (b, E) that experts get, of vectors
        (E, C, D); those with there (E,) = 0 get none.
        """
        pooled = x[:, :: self.stride][:, : self.d]
        texts = vectors[..., :: self.stride][..., : self.d]
        q = self.q(pooled).unflatten(-1, (self.heads, -1))
        k, v = (part(texts).unflatten(-1, (self.heads, -1)) for part in (self.k, self.v))
        scores = torch.einsum("bhp,echp->bhce", q, k) / math.sqrt(self.d / self.heads)
        share = scores.masked_fill(is_there == 0, -torch.inf).softmax(dim=-1)
        mixed = self.o(torch.einsum("bhce,echp->bchp", share, v).flatten(-2))
        cosines = functional.cosine_similarity(pooled[:, None], mixed, dim=-1)
        return cosines, share.mean(dim=(1, 2))


class Projection(nn.Module):
    """The gate that the slides compare with: weights of the experts by their place, from the picture alone."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, experts)

    def forward(self, x: Tensor, vectors: Tensor, is_there: Tensor) -> tuple[Tensor, Tensor]:
        """The experts' cosines (b, C) in the mean of their weights, and the weights (b, E)."""
        share = self.map(x).masked_fill(is_there == 0, -torch.inf).softmax(dim=-1)
        return torch.einsum("be,ecd,bd->bc", share, vectors, x), share
