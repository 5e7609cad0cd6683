"""Make a small CLIP offline: two transformers that learn from public pictures with captions which lies beside which.

    CONSILIUM_DATA=... python -m benchmarks.studies.clip_pair [--out build/clip_pair]

Pictures are of two kinds. 6,000 are drawn by the prior `skin_lesion`, whose own numbers say what stands in the caption
(size, border, colours, network, hair, skin), and no patient has a part in them. The others are a stripe of HAM10000:
all lesions whose number is divisible by 4 (1,278 of 5,063), declared public here and used nowhere else; their captions
say the diagnosis in words, and the place. So the pair is public to every other lesion of HAM10000, and not to those.

The loss is CLIP's, symmetric cross-entropy of cosines over a batch (Radford et al., ICML 2021, figure 3), where equal
captions share a picture's target. Half of each batch of 96 is of the stripe, its diagnoses drawn equally often, turned,
mirrored and shifted in colour. 1,200 steps of AdamW, 2e-3 with a cosine; nothing was tuned. The vocabulary is byte
pairs of the captions. Written: model.safetensors, config.json, vocab.json, merges.txt, and told.json.
"""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from benchmarks.shared.options import make_parser
from federation.models.clip_towers import (
    LARGEST,
    Architecture,
    embed_pictures,
    embed_sentences,
    list_tensor_shapes,
    parse_architecture,
)
from federation.models.clip_words import BEGIN, END, LAST, PIECES, Words, list_byte_tokens, parse_vocabulary
from harmonize.prior import PRIORS
from harmonize.prior_skin import SKIN

DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[3] / "shared" / "data")) / "ham10000"
OUT = Path(__file__).parents[2] / "build" / "clip_pair"
STRIPE, DRAWN, STEPS, BATCH, RATE = 4, 6000, 1200, 96, 2e-3
SIDE, LONGEST, MERGES = 48, 48, 300
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
NAMES = {
    "nv": "melanocytic nevus",
    "bkl": "benign keratosis",
    "df": "dermatofibroma",
    "vasc": "vascular lesion",
    "akiec": "actinic keratosis",
    "bcc": "basal cell carcinoma",
    "mel": "melanoma",
}
TOWER = {"num_attention_heads": 4, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}


def public(line: dict[str, str]) -> bool:
    """Whether a lesion of HAM10000 is of the stripe."""
    return int(line["patient"].rpartition("_")[2]) % STRIPE == 0


def caption_of(line: dict[str, str]) -> str:
    place = "" if line["localization"] == "unknown" else f" on the {line['localization']}"
    return f"a dermatoscopic picture of a {NAMES[line['dx']]}{place}."


def caption_drawn(theta: Tensor, malignant: int) -> str:
    """What the prior's numbers, each in [0, 1], show."""
    of = dict(zip(SKIN, theta.tolist(), strict=True))
    said = ["large" if of["lesion_size"] > 0.66 else "small" if of["lesion_size"] < 0.33 else "middle"]
    said += ["irregular"] if of["irregular"] > 0.6 else ["round"] if of["irregular"] < 0.3 else []
    said += ["dark"] if of["depth"] > 0.6 else ["pale"] if of["depth"] < 0.3 else []
    said += ["brown"] if of["brown"] > 0.5 else ["red"] if of["red"] < 0.4 else []
    parts = [
        part for key, part in (("network", "network"), ("hairs", "hair"), ("colours", "many colours")) if of[key] > 0.6
    ]
    more = f" with {' and '.join(parts)}" if parts else ""
    skin = "pink" if of["pink"] > 0.5 else "pale"
    return f"a drawing of a {' '.join(said)} {'malignant' if malignant else 'benign'} lesion{more} on {skin} skin."


def pictures() -> tuple[Tensor, list[str], Tensor, list[str], np.ndarray]:
    """Drawn pictures (n, 3, SIDE, SIDE) in [-1, 1] with captions, and those of the stripe with captions, diagnoses."""
    g = torch.Generator().manual_seed(0)
    theta, y = torch.rand(DRAWN, len(SKIN), generator=g), torch.arange(DRAWN) % 2
    seeds = torch.randint(2**62, (DRAWN,), generator=g)
    prior = PRIORS["skin_lesion"]
    drawn = torch.cat(
        [prior.render(*some, (3, SIDE, SIDE)) for some in zip(*(p.split(500) for p in (theta, y, seeds)), strict=True)]
    )
    told = [caption_drawn(one, int(label)) for one, label in zip(theta, y, strict=True)]
    lines = [line for line in csv.DictReader((DATA / "labels.csv").open()) if public(line)]
    found = [np.asarray(Image.open(DATA / line["image"]).convert("RGB")) for line in lines]
    real = torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 127.5 - 1
    real = functional.interpolate(real, (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
    return drawn, told, real, [caption_of(line) for line in lines], np.array([line["dx"] for line in lines])


def vocabulary(captions: list[str]) -> tuple[str, str]:
    """The texts of vocab.json and merges.txt: byte pairs of the captions, the most frequent first."""
    counts = Counter(piece for one in captions for piece in PIECES.findall(one.lower()))
    spelt = {piece: [*piece[:-1], piece[-1] + LAST] for piece in counts}
    pairs: list[tuple[str, str]] = []
    while len(pairs) < MERGES:
        seen: Counter[tuple[str, str]] = Counter()
        for piece, parts in spelt.items():
            for pair in pairwise(parts):
                seen[pair] += counts[piece]
        if not seen:
            break
        best = min(seen, key=lambda pair: (-seen[pair], pair))
        pairs.append(best)
        for parts in spelt.values():
            k = 0
            while k < len(parts) - 1:
                if (parts[k], parts[k + 1]) == best:
                    parts[k : k + 2] = ["".join(best)]
                k += 1
    tokens = [*list_byte_tokens(), *dict.fromkeys("".join(pair) for pair in pairs), BEGIN, END]
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in pairs) + "\n"
    return json.dumps({token: k for k, token in enumerate(tokens)}, ensure_ascii=False), merges


def configuration(many: int) -> str:
    text = {**TOWER, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": many}
    text |= {"max_position_embeddings": LONGEST, "bos_token_id": many - 2, "eos_token_id": many - 1}
    vision = {
        **TOWER,
        "hidden_size": 88,
        "intermediate_size": 352,
        "num_hidden_layers": 3,
        "image_size": SIDE,
        "patch_size": 8,
    }
    return json.dumps(
        {"model_type": "clip", "projection_dim": 128, "text_config": text, "vision_config": vision}, indent=1
    )


def begun(a: Architecture) -> dict[str, Tensor]:
    """Weights at random: norms 1 and 0, biases 0, others N(0, 1 / fan in), embeddings N(0, .02)."""
    g, made = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for name, shape in list_tensor_shapes(a).items():
        if "norm" in name or name.endswith("bias"):
            made[name] = torch.full(shape, float("norm" in name and name.endswith("weight")))
        elif "embedding" in name and "patch" not in name:
            made[name] = 0.02 * torch.randn(shape, generator=g)
        else:
            made[name] = torch.randn(shape, generator=g) / math.sqrt(math.prod(shape[1:]) or 1)
    made["logit_scale"] = torch.tensor(math.log(1 / 0.07))
    return {name: one.requires_grad_() for name, one in made.items()}


def sentences(known: Words, captions: list[str]) -> tuple[Tensor, Tensor]:
    said = [known.sentence(one) for one in captions]
    longest = max(map(len, said))
    return torch.tensor([[*one, *[0] * (longest - len(one))] for one in said]), torch.tensor(
        [len(one) - 1 for one in said]
    )


def turned(x: Tensor) -> Tensor:
    """Mirrored, turned by quarters, and shifted in brightness and colour: pictures (b, 3, s, s) in [-1, 1]."""
    x = torch.stack([torch.rot90(one, int(torch.randint(4, ())), (1, 2)) for one in x])
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(-1))
    return (x * (0.85 + 0.3 * torch.rand(len(x), 1, 1, 1)) + 0.15 * torch.randn(len(x), 3, 1, 1)).clamp(-1, 1)


def loss_of(
    w: dict[str, Tensor], a: Architecture, x: Tensor, tokens: Tensor, ends: Tensor, mean: Tensor, std: Tensor
) -> Tensor:
    f = embed_pictures(w, a, ((x + 1) / 2 - mean) / std)
    g = embed_sentences(w, a, w["text_model.embeddings.token_embedding.weight"][tokens], ends)
    logits = w["logit_scale"].exp().clamp(max=LARGEST) * f @ g.T
    same = (tokens[:, None] == tokens[None]).all(-1).float()
    same = same / same.sum(1, keepdim=True)
    return (functional.cross_entropy(logits, same) + functional.cross_entropy(logits.T, same)) / 2


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    began = time.monotonic()
    drawn, told, real, captions, dx = pictures()
    vocab, merges = vocabulary([*told, *captions])
    config = configuration(len(json.loads(vocab)))
    a, known = parse_architecture(config), parse_vocabulary(vocab, merges)
    w = begun(a)
    tokens, ends = sentences(known, [*told, *captions])
    mean, std = (torch.tensor(some)[:, None, None] for some in (MEAN, STD))
    share = torch.tensor([1.0 / (dx == one).sum() for one in dx])
    optimizer = torch.optim.AdamW([*w.values()], lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, options.steps, pct_start=0.05)
    losses: list[float] = []
    for step in range(options.steps):
        one = torch.randint(DRAWN, (BATCH // 2,))
        two = torch.multinomial(share, BATCH // 2, replacement=True)
        x, at = turned(torch.cat([drawn[one], real[two]])), torch.cat([one, DRAWN + two])
        loss = loss_of(w, a, x, tokens[at], ends[at], mean, std)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 99:
            print(step + 1, round(float(np.mean(losses[-100:])), 4), round(time.monotonic() - began), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    save_file({name: one.detach().contiguous() for name, one in w.items()}, options.out / "model.safetensors")
    for name, text in (("config.json", config), ("vocab.json", vocab), ("merges.txt", merges)):
        (options.out / name).write_text(text)
    sizes = {
        part: sum(one.numel() for name, one in w.items() if name.startswith((part, part[:4])))
        for part in ("vision", "text")
    }
    said = {"loss": round(float(np.mean(losses[-100:])), 4), "parameters": sizes, "stripe": len(real), "drawn": DRAWN}
    (options.out / "told.json").write_text(json.dumps({**said, "seconds": round(time.monotonic() - began)}, indent=1))
    print(said)


if __name__ == "__main__":
    main()
