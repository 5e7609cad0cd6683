"""The two transformers of CLIP as functions of their weights: pictures and sentences become unit vectors of one space.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021, section 2.4: the
output of a vision transformer at its class token, and of a causal text transformer at the end of the sentence. Tensors
have the names and shapes of transformers' CLIPModel (Wolf et al., EMNLP 2020), whose files can therefore be used.
Nothing here is trained, and no module registers these tensors.
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

MOST = 100_000  # of a number in an architecture: no file could contain a larger network
LARGEST = 100.0  # of the factor of a cosine, as in CLIP's training
TEXT, VISION = "text_model", "vision_model"


class Tower(NamedTuple):
    """One of the two transformers. act: between the layers of its perceptrons. positions: the number of its places."""

    width: int
    inner: int
    layers: int
    heads: int
    act: str
    eps: float
    positions: int


class Architecture(NamedTuple):
    """Both transformers. d: width of the common space. vocabulary: number of tokens. side, patch: of a picture and its
    patches.
    """

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
"""Values of settings that a config.json leaves out."""


def parse_architecture(text: str) -> Architecture:
    """The architecture in the text of a config.json.

    Raises:
        ValueError: it is no JSON, not of a CLIP, or has a number out of range.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"its config.json is no JSON ({error})") from error
    if not isinstance(config, dict) or config.get("model_type") != "clip":
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise ValueError(f"its config.json must have model_type: clip, found {kind!r}")
    words, sight = (
        _parse_part(config, "text_config", TEXT_DEFAULTS),
        _parse_part(config, "vision_config", VISION_DEFAULTS),
    )
    d, side, patch = _parse_count(config, "projection_dim", 512), int(sight["image_size"]), int(sight["patch_size"])
    if sight["num_channels"] != 3 or side % patch:
        sizes = f"{sight['num_channels']} channels, image_size {side}, patch_size {patch}"
        raise ValueError(f"its config.json must have 3 channels, and pictures of whole patches, found {sizes}")
    vision = _build_tower(sight, (side // patch) ** 2 + 1)
    return Architecture(
        _build_tower(words, int(words["max_position_embeddings"])), vision, d, int(words["vocab_size"]), side, patch
    )


def list_tensor_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file, with its shape."""
    shape_by_name: dict[str, tuple[int, ...]] = {
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
                shape_by_name |= _linear_shapes(f"{name}.{at}.self_attn.{part}_proj", tower.width, tower.width)
            shape_by_name |= _linear_shapes(f"{name}.{at}.self_attn.out_proj", tower.width, tower.width)
            shape_by_name |= _linear_shapes(f"{name}.{at}.mlp.fc1", tower.inner, tower.width)
            shape_by_name |= _linear_shapes(f"{name}.{at}.mlp.fc2", tower.width, tower.inner)
        for norm in norms:
            shape_by_name |= {f"{name}.{norm}.{part}": (tower.width,) for part in ("weight", "bias")}
    return shape_by_name


def embed_pictures(w: Params, a: Architecture, x: Tensor) -> Tensor:
    """f(x): unit vectors (b, d) of normalized pictures (b, 3, side, side)."""
    at = f"{VISION}.embeddings"
    patches = functional.conv2d(x, w[f"{at}.patch_embedding.weight"], stride=a.patch).flatten(2).transpose(1, 2)
    first = w[f"{at}.class_embedding"].expand(len(x), 1, -1)
    h = torch.cat([first, patches], dim=1) + w[f"{at}.position_embedding.weight"]
    h = _apply_layers(w, VISION, a.vision, _apply_norm(w, f"{VISION}.pre_layrnorm", a.vision, h), None)
    last = _apply_norm(w, f"{VISION}.post_layernorm", a.vision, h[:, 0])
    return functional.normalize(last @ w["visual_projection.weight"].T, dim=-1)


def embed_sentences(w: Params, a: Architecture, embedded: Tensor, ends: Tensor) -> Tensor:
    """g(P): unit vectors (C, d) of sentences (C, L, width) of embedded tokens, read at places `ends` (C,).

    The transformer is causal, so tokens after the end of a sentence do not count.
    """
    length = embedded.shape[1]
    h = embedded + w[f"{TEXT}.embeddings.position_embedding.weight"][:length]
    later = torch.ones(length, length, dtype=torch.bool, device=h.device).triu(1)
    h = _apply_layers(w, TEXT, a.text, h, later)
    picked = h[torch.arange(len(h), device=h.device), ends]
    last = _apply_norm(w, f"{TEXT}.final_layer_norm", a.text, picked)
    return functional.normalize(last @ w["text_projection.weight"].T, dim=-1)


def cosine_factor(w: Params) -> Tensor:
    """The factor of a cosine, 1 / tau of the slides: exp of the logit scale, cut as in CLIP's training."""
    return w["logit_scale"].exp().clamp(max=LARGEST)


def select_text_tensors(w: Params) -> dict[str, Tensor]:
    """The tensors that sentences need."""
    return {
        name: tensor for name, tensor in w.items() if name.startswith((f"{TEXT}.", "text_projection", "logit_scale"))
    }


def _apply_layers(w: Params, name: str, tower: Tower, h: Tensor, later: Tensor | None) -> Tensor:
    """A transformer's layers, applied to h (b, L, width). later: (L, L), which places are hidden from which."""
    act = ACTS[tower.act]
    for layer in range(tower.layers):
        at = f"{name}.encoder.layers.{layer}"
        h = h + _apply_attention(w, f"{at}.self_attn", tower, _apply_norm(w, f"{at}.layer_norm1", tower, h), later)
        inner = _apply_linear(w, f"{at}.mlp.fc1", _apply_norm(w, f"{at}.layer_norm2", tower, h))
        h = h + _apply_linear(w, f"{at}.mlp.fc2", act(inner))
    return h


def _apply_attention(w: Params, at: str, tower: Tower, h: Tensor, later: Tensor | None) -> Tensor:
    """Multi-head self-attention of h (b, L, width); `at`: the beginning of its tensors' names."""

    def split_heads(part: str) -> Tensor:
        projected = _apply_linear(w, f"{at}.{part}_proj", h)
        return projected.view(*projected.shape[:-1], tower.heads, -1).transpose(-3, -2)

    q, k, v = map(split_heads, "qkv")
    scores = q @ k.transpose(-1, -2) / math.sqrt(tower.width / tower.heads)
    if later is not None:
        scores = scores.masked_fill(later, -torch.inf)
    return _apply_linear(w, f"{at}.out_proj", (scores.softmax(dim=-1) @ v).transpose(-3, -2).flatten(-2))


def _apply_norm(w: Params, at: str, tower: Tower, h: Tensor) -> Tensor:
    """Layer norm."""
    return functional.layer_norm(h, (tower.width,), w[f"{at}.weight"], w[f"{at}.bias"], tower.eps)


def _apply_linear(w: Params, at: str, h: Tensor) -> Tensor:
    """A linear map with bias."""
    return functional.linear(h, w[f"{at}.weight"], w[f"{at}.bias"])


def _quick_gelu(h: Tensor) -> Tensor:
    """CLIP's approximation of GELU."""
    return h * torch.sigmoid(1.702 * h)


ACTS: Mapping[str, Callable[[Tensor], Tensor]] = {"quick_gelu": _quick_gelu, "gelu": functional.gelu}


def _linear_shapes(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weight and bias of a linear map."""
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _parse_part(config: Mapping[str, object], name: str, defaults: Mapping[str, object]) -> dict[str, float | int]:
    """The settings of one transformer in a config.json, with defaults. Raises: ValueError: one cannot be."""
    part = config.get(name) or {}
    if not isinstance(part, dict):
        raise ValueError(f"its config.json must have a mapping {name}, found {part!r}")
    values = {**defaults, **{key: part[key] for key in defaults if part.get(key) is not None}}
    for key in (entry for entry in defaults if entry not in ("hidden_act", "layer_norm_eps")):
        _parse_count(values, key, 0)
    if values["hidden_act"] not in ACTS:
        raise ValueError(f"its config.json must have hidden_act: {' or '.join(ACTS)}, found {values['hidden_act']!r}")
    eps = values["layer_norm_eps"]
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise ValueError(f"its config.json must have a layer_norm_eps in (0, 1), found {eps!r}")
    return values


def _parse_count(config: Mapping[str, object], key: str, default: int) -> int:
    """A whole number of at least 1 in a config.json. Raises: ValueError: it is none."""
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise ValueError(f"its config.json must have a {key} in [1, {MOST:,}], found {value!r}")
    return value


def _build_tower(config: Mapping[str, float | int], positions: int) -> Tower:
    """The sizes of one transformer."""
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    if width % heads:
        raise ValueError(f"its config.json must have a hidden_size of whole heads, found {width} for {heads}")
    inner, layers = int(config["intermediate_size"]), int(config["num_hidden_layers"])
    return Tower(width, inner, layers, heads, str(config["hidden_act"]), float(config["layer_norm_eps"]), positions)
