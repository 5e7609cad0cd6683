"""The two transformers of CLIP as functions of their weights: pictures and sentences become unit vectors of one space.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021, section 2.4: a vision
transformer read at its class token, and a causal text transformer read at the end of the sentence. Tensors have the
names and shapes of transformers' CLIPModel (Wolf et al., EMNLP 2020), whose files can therefore be brought; nothing
here is learnt, and no module registers what is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from privacy.message import Params

MOST = 100_000  # of a number in an architecture: more is no network that a file could fill
LARGEST = 100.0  # of the factor of a cosine, as CLIP's training cuts it
TEXT, VISION = "text_model", "vision_model"


class Tower(NamedTuple):
    """One of the two transformers. act: between the layers of its perceptrons. positions: how many places it knows."""

    width: int
    inner: int
    layers: int
    heads: int
    act: str
    eps: float
    positions: int


class Architecture(NamedTuple):
    """Both transformers. d: of the common space. vocabulary: tokens. side, patch: of a picture and its pieces."""

    text: Tower
    vision: Tower
    d: int
    vocabulary: int
    side: int
    patch: int


TEXT_DEFAULTS = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
    "vocab_size": 49408, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip
VISION_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "num_channels": 3, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip
"""What a config.json that leaves them out means."""


def architecture(text: str) -> Architecture:
    """What the text of a config.json says.

    Raises:
        ValueError: it is no JSON, of no CLIP, or a number in it cannot be.
    """
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ValueError(f"its config.json is no JSON ({error})") from error
    if not isinstance(said, dict) or said.get("model_type") != "clip":
        kind = said.get("model_type") if isinstance(said, dict) else None
        raise ValueError(f"its config.json must have model_type: clip, found {kind!r}")
    words, sight = _part(said, "text_config", TEXT_DEFAULTS), _part(said, "vision_config", VISION_DEFAULTS)
    d, side, patch = _whole(said, "projection_dim", 512), int(sight["image_size"]), int(sight["patch_size"])
    if sight["num_channels"] != 3 or side % patch:
        found = f"{sight['num_channels']} channels, image_size {side}, patch_size {patch}"
        raise ValueError(f"its config.json must have 3 channels, and pictures of whole patches, found {found}")
    vision = _tower(sight, (side // patch) ** 2 + 1)
    return Architecture(
        _tower(words, int(words["max_position_embeddings"])), vision, d, int(words["vocab_size"]), side, patch
    )


def shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file, with its shape."""
    found: dict[str, tuple[int, ...]] = {
        f"{TEXT}.embeddings.token_embedding.weight": (a.vocabulary, a.text.width),
        f"{TEXT}.embeddings.position_embedding.weight": (a.text.positions, a.text.width),
        f"{VISION}.embeddings.class_embedding": (a.vision.width,),
        f"{VISION}.embeddings.patch_embedding.weight": (a.vision.width, 3, a.patch, a.patch),
        f"{VISION}.embeddings.position_embedding.weight": (a.vision.positions, a.vision.width),
        "text_projection.weight": (a.d, a.text.width),
        "visual_projection.weight": (a.d, a.vision.width),
        "logit_scale": (),
    }
    for name, tower in ((TEXT, a.text), (VISION, a.vision)):
        norms = ["final_layer_norm"] if name == TEXT else ["pre_layrnorm", "post_layernorm"]
        for layer in range(tower.layers):
            at = f"encoder.layers.{layer}"
            norms += [f"{at}.layer_norm1", f"{at}.layer_norm2"]
            for part in "qkv":
                found |= _linear(f"{name}.{at}.self_attn.{part}_proj", tower.width, tower.width)
            found |= _linear(f"{name}.{at}.self_attn.out_proj", tower.width, tower.width)
            found |= _linear(f"{name}.{at}.mlp.fc1", tower.inner, tower.width)
            found |= _linear(f"{name}.{at}.mlp.fc2", tower.width, tower.inner)
        for norm in norms:
            found |= {f"{name}.{norm}.{part}": (tower.width,) for part in ("weight", "bias")}
    return found


def vector_of_pictures(w: Params, a: Architecture, x: Tensor) -> Tensor:
    """f(x): unit vectors (b, d) of normalized pictures (b, 3, side, side)."""
    at = f"{VISION}.embeddings"
    patches = functional.conv2d(x, w[f"{at}.patch_embedding.weight"], stride=a.patch).flatten(2).transpose(1, 2)
    first = w[f"{at}.class_embedding"].expand(len(x), 1, -1)
    h = torch.cat([first, patches], dim=1) + w[f"{at}.position_embedding.weight"]
    h = _encoded(w, VISION, a.vision, _norm(w, f"{VISION}.pre_layrnorm", a.vision, h), None)
    last = _norm(w, f"{VISION}.post_layernorm", a.vision, h[:, 0])
    return functional.normalize(last @ w["visual_projection.weight"].T, dim=-1)


def vector_of_sentences(w: Params, a: Architecture, embedded: Tensor, ends: Tensor) -> Tensor:
    """g(P): unit vectors (C, d) of sentences (C, L, width) of embedded tokens, read at places `ends` (C,).

    The transformer is causal, so what stands after the end of a sentence does not count.
    """
    length = embedded.shape[1]
    h = embedded + w[f"{TEXT}.embeddings.position_embedding.weight"][:length]
    later = torch.ones(length, length, dtype=torch.bool, device=h.device).triu(1)
    h = _encoded(w, TEXT, a.text, h, later)
    picked = h[torch.arange(len(h), device=h.device), ends]
    last = _norm(w, f"{TEXT}.final_layer_norm", a.text, picked)
    return functional.normalize(last @ w["text_projection.weight"].T, dim=-1)


def tau(w: Params) -> Tensor:
    """The factor of a cosine, 1 / tau of the slides: exp of the logit scale, cut as in CLIP's training."""
    return w["logit_scale"].exp().clamp(max=LARGEST)


def text_part(w: Params) -> dict[str, Tensor]:
    """The tensors that sentences need."""
    return {name: one for name, one in w.items() if name.startswith((f"{TEXT}.", "text_projection", "logit_scale"))}


def _encoded(w: Params, name: str, tower: Tower, h: Tensor, later: Tensor | None) -> Tensor:
    act = ACTS[tower.act]
    for layer in range(tower.layers):
        at = f"{name}.encoder.layers.{layer}"
        h = h + _attended(w, f"{at}.self_attn", tower, _norm(w, f"{at}.layer_norm1", tower, h), later)
        inner = _mapped(w, f"{at}.mlp.fc1", _norm(w, f"{at}.layer_norm2", tower, h))
        h = h + _mapped(w, f"{at}.mlp.fc2", act(inner))
    return h


def _attended(w: Params, at: str, tower: Tower, h: Tensor, later: Tensor | None) -> Tensor:
    def apart(part: str) -> Tensor:
        whole = _mapped(w, f"{at}.{part}_proj", h)
        return whole.view(*whole.shape[:-1], tower.heads, -1).transpose(-3, -2)

    q, k, v = map(apart, "qkv")
    scores = q @ k.transpose(-1, -2) / math.sqrt(tower.width / tower.heads)
    if later is not None:
        scores = scores.masked_fill(later, -torch.inf)
    return _mapped(w, f"{at}.out_proj", (scores.softmax(dim=-1) @ v).transpose(-3, -2).flatten(-2))


def _norm(w: Params, at: str, tower: Tower, h: Tensor) -> Tensor:
    return functional.layer_norm(h, (tower.width,), w[f"{at}.weight"], w[f"{at}.bias"], tower.eps)


def _mapped(w: Params, at: str, h: Tensor) -> Tensor:
    return functional.linear(h, w[f"{at}.weight"], w[f"{at}.bias"])


def _quick_gelu(h: Tensor) -> Tensor:
    return h * torch.sigmoid(1.702 * h)


ACTS: Mapping[str, Callable[[Tensor], Tensor]] = {"quick_gelu": _quick_gelu, "gelu": functional.gelu}


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _part(said: Mapping[str, object], name: str, defaults: Mapping[str, object]) -> dict[str, float | int]:
    own = said.get(name) or {}
    if not isinstance(own, dict):
        raise ValueError(f"its config.json must have a mapping {name}, found {own!r}")
    whole = {**defaults, **{key: own[key] for key in defaults if own.get(key) is not None}}
    for key in (one for one in defaults if one not in ("hidden_act", "layer_norm_eps")):
        _whole(whole, key, 0)
    if whole["hidden_act"] not in ACTS:
        raise ValueError(f"its config.json must have hidden_act: {' or '.join(ACTS)}, found {whole['hidden_act']!r}")
    eps = whole["layer_norm_eps"]
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise ValueError(f"its config.json must have a layer_norm_eps in (0, 1), found {eps!r}")
    return whole


def _whole(said: Mapping[str, object], key: str, default: int) -> int:
    value = said.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise ValueError(f"its config.json must have a {key} in [1, {MOST:,}], found {value!r}")
    return value


def _tower(said: Mapping[str, float | int], positions: int) -> Tower:
    width, heads = int(said["hidden_size"]), int(said["num_attention_heads"])
    if width % heads:
        raise ValueError(f"its config.json must have a hidden_size of whole heads, found {width} for {heads}")
    inner, layers = int(said["intermediate_size"]), int(said["num_hidden_layers"])
    return Tower(width, inner, layers, heads, str(said["hidden_act"]), float(said["layer_norm_eps"]), positions)
