"""A tiny CLIP with random weights: its file, its words, and a federation's task and tables on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import torch
from safetensors.torch import save
from torch import Tensor

from federation.models.clip import Clip, read_tensors, tokenize_classes
from federation.models.clip_towers import list_tensor_shapes, parse_architecture, select_text_tensors
from federation.models.clip_words import BEGIN, END, LAST, list_byte_tokens, parse_vocabulary
from federation.task import Task
from privacy.dp.access import Rows

MERGES = [("n", "e"), ("ne", "v"), ("nev", "us" + LAST), ("u", "s" + LAST), ("o", "f" + LAST), ("a", "n" + LAST)]
TOKENS = [*list_byte_tokens(), *dict.fromkeys("".join(pair) for pair in MERGES), BEGIN, END]
VOCABULARY = json.dumps({token: number for number, token in enumerate(TOKENS)})
MERGED = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in MERGES) + "\n"
CONFIG = {
    "model_type": "clip",
    "projection_dim": 8,
    "text_config": {
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "vocab_size": len(TOKENS), "max_position_embeddings": 40, "bos_token_id": len(TOKENS) - 2,
        "eos_token_id": len(TOKENS) - 1, "projection_dim": 8,
    },
    "vision_config": {
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
        "patch_size": 8, "projection_dim": 8,
    },
}  # fmt: skip
CLASSES = {"negative": "nevus", "positive": "an ulcer"}


@lru_cache(maxsize=1)
def file() -> bytes:
    """Weights drawn at random, in the layout of transformers' CLIPModel."""
    g = torch.Generator().manual_seed(0)
    made: dict[str, Tensor] = {}
    for name, shape in list_tensor_shapes(parse_architecture(json.dumps(CONFIG))).items():
        norm = "norm" in name and name.endswith("weight")
        made[name] = 0.2 * torch.randn(shape, generator=g) + (1.0 if norm else 0.0)
    made["logit_scale"] = torch.tensor(2.0)
    return save(made)


def clip(**fields) -> Clip:
    """Settings as they are sent: with the architecture and the tokens."""
    text = json.dumps(CONFIG)
    made = Clip(**{"weights": "model.safetensors", "classes": CLASSES, "context": 3, "architecture": text, **fields})
    tokens, sentences = tokenize_classes(made, parse_vocabulary(VOCABULARY, MERGED))
    return Clip(**{**vars(made), "tokens": tokens, "sentences": sentences})


def frozen() -> Mapping[str, Tensor]:
    """What its networks hold."""
    return select_text_tensors(read_tensors(clip(), file()))


def task(**fields) -> Task:
    """A task whose networks learn a prompt."""
    return Task(clip(**fields), (8,), 2, frozen=frozen())


def table(seed: int, n: int = 24, *, shift: float = 0.0) -> dict[str, Rows]:
    """Splits of unit vectors with labels; `shift` makes sites differ."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n + 8, 8, generator=g) + shift
    y = (x[:, 0] + 0.5 * torch.randn(n + 8, generator=g) > shift).long()
    x = torch.nn.functional.normalize(x, dim=1)
    patient = torch.arange(n + 8) // 2
    return {"train": Rows(x[:n], y[:n], patient[:n]), "validation": Rows(x[n:], y[n:], patient[n:])}
