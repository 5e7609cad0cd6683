"""A prompt that is learnt for a frozen CLIP: `{name: clip, weights: FILE, classes: {nv: melanocytic nevus, ...}}`.

Zhou, Yang, Loy, Liu: Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022, section 3.2, with one context for
all classes and the class at its end: P^(c) = [V]_1 ... [V]_M [CLASS c]. A picture's vector f(x) never changes, so a
hospital computes it once, as other fixed features; the network gets vectors in place of pictures, and holds the text
transformer g. What is learnt, sent and kept is the context alone: `head.context`.

Trained by `fedavg` this is PromptFL (Guo et al., IEEE TMC 2023), by `local` CoOp; `zero_shot` reads the templates.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from federation.models.clip_towers import (
    TEXT,
    Architecture,
    architecture,
    shapes,
    tau,
    text_part,
    vector_of_pictures,
    vector_of_sentences,
)
from federation.models.clip_words import Words
from federation.task import Output, cross_entropy
from privacy.message import Params
from privacy.settings_error import out_of_range, refuse, unmet

Floats = NDArray[np.float64]
BLANK = "{}"
SPREAD = 0.02  # of the context's first values
SHOWN = 5  # problems of a file that an error names


@dataclass(frozen=True, kw_only=True)
class Clip:
    """weights: a safetensors file in the layout of transformers' CLIPModel, with config.json, vocab.json and merges.txt
    beside it. classes: of the task -> its words. templates: sentences for `zero_shot`, {} stands for the words.
    context: M, how many tokens are learnt. window: the values that become 0 and 1; mean, std: of the channels in CLIP's
    training. sha256, architecture, tokens and sentences are of the file and need not be said: its digest, the JSON
    text of config.json, and the numbers of each class's tokens, alone and in each template.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["clip"] = "clip"
    weights: str
    classes: Mapping[str, str] = field(hash=False)
    templates: tuple[str, ...] = ("a photo of a {}.",)
    context: int = 16
    window: tuple[float, float] = (-1.0, 1.0)
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    sha256: str = ""
    architecture: str = ""
    tokens: tuple[tuple[int, ...], ...] = ()
    sentences: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def __post_init__(self) -> None:
        low, high = self.window
        blanks = all(one.count(BLANK) == 1 for one in self.templates)
        refuse(
            out_of_range(self, context=(1, 64))
            + unmet(
                self,
                classes=(len(self.classes) >= 2, "words for each of two classes or more"),
                templates=(1 <= len(self.templates) <= 100 and blanks, f"1 to 100 sentences, each with one {BLANK}"),
                window=(low < high and math.isfinite(high - low), "two finite numbers, the lower first"),
                mean=(all(map(math.isfinite, self.mean)), "finite numbers"),
                std=(all(0 < one < math.inf for one in self.std), "positive numbers"),
            )
        )

    @property
    def shape(self) -> Architecture:
        """Both transformers' sizes. Raises: ValueError: the file was not read, or its config.json is of no CLIP."""
        return architecture(self.architecture)

    @property
    def width(self) -> int:
        """Numbers that the network gets of a picture; 1 before its file was read."""
        return self.shape.d if self.architecture else 1

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such vectors; empty = they have."""
        if len(inputs) == 3 and inputs[0] in (1, 3) and min(inputs[-2:]) >= 8:
            return []
        return [f"clip needs pictures or slices of 1 or 3 channels with sides of at least 8, found {inputs}"]

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for vectors (d,), without the text transformer, which it is given by `hold`."""
        return ClipModule(self, classes)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, per example."""
        return cross_entropy(output, y)


class ClipModule(nn.Module):
    """See `Clip`. Input (b, d), unit vectors of pictures, which are the features. `head` holds the prompt."""

    flat = True

    def __init__(self, settings: Clip, classes: int, *, written: bool = False) -> None:
        super().__init__()
        if not len(settings.classes) == len(settings.tokens) == classes:
            found = f"{len(settings.classes)} of words and {len(settings.tokens)} of tokens"
            raise ValueError(f"clip needs words and their tokens for each of {classes} classes, found {found}")
        self.stem, self.blocks = nn.Identity(), nn.ModuleList()
        self.head: Prompt | Written = Written(settings) if written else Prompt(settings)

    def hold(self, frozen: Params) -> None:
        """Give it the text transformer."""
        self.head.held = frozen

    def forward(self, x: Tensor) -> Output:
        return Output(self.head(x), x)


class Prompt(nn.Module):
    """The learnt context (M, width), and the sentences that it makes with each class."""

    def __init__(self, settings: Clip) -> None:
        super().__init__()
        self.shape, self.out_features = settings.shape, len(settings.tokens)
        self.context = nn.Parameter(SPREAD * torch.randn(settings.context, self.shape.text.width))
        after = [one[1:] for one in settings.tokens]  # the first token begins the sentence, before the context
        self.begin, longest = settings.tokens[0][0], max(map(len, after))
        self.after = torch.tensor([[*one, *[0] * (longest - len(one))] for one in after], device="cpu")
        self.ends = torch.tensor([settings.context + len(one) for one in after], device="cpu")
        self.held: Params = {}

    def texts(self) -> Tensor:
        """T^(c) = g(P^(c)): unit vectors (C, d). Raises: ValueError: it was given no text transformer."""
        self.held = w = _on(self.held, self.context)
        table = w[f"{TEXT}.embeddings.token_embedding.weight"]
        many = len(self.after)
        first = table[self.begin].expand(many, 1, -1)
        whole = torch.cat([first, self.context.expand(many, -1, -1), table[self.after.to(table.device)]], dim=1)
        return vector_of_sentences(w, self.shape, whole, self.ends.to(table.device))

    def scale(self) -> Tensor:
        """1 / tau."""
        return tau(_on(self.held, self.context))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, C): cosines by 1 / tau."""
        return self.scale() * x @ self.texts().T


class Written(nn.Module):
    """Sentences that a person wrote: the mean of each class's unit vectors over the templates, made a unit again.

    factor: of the logits, 1; only a hospital that tunes its own model changes it.
    """

    def __init__(self, settings: Clip) -> None:
        super().__init__()
        self.shape, self.sentences, self.out_features = settings.shape, settings.sentences, len(settings.tokens)
        self.factor = nn.Parameter(torch.ones(()))
        self.held: Params = {}

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, C)."""
        self.held = w = _on(self.held, x)
        table, found = w[f"{TEXT}.embeddings.token_embedding.weight"], []
        for of_classes in self.sentences:
            longest = max(map(len, of_classes))
            padded = torch.tensor([[*one, *[0] * (longest - len(one))] for one in of_classes], device=x.device)
            ends = torch.tensor([len(one) - 1 for one in of_classes], device=x.device)
            found.append(vector_of_sentences(w, self.shape, table[padded], ends))
        texts = functional.normalize(torch.stack(found).mean(dim=0), dim=-1)
        return self.factor * tau(w) * x @ texts.T


@dataclass(frozen=True)
class ClipPictures:
    """The picture's side of a file, as an extractor of fixed features: unit vectors of pictures."""

    settings: Clip
    w: Params
    name: ClassVar[str] = "clip"

    @torch.no_grad()
    def extract(self, images: Floats) -> Floats:
        """Vectors (n, d) of images (n, C, H, W), one by one: no row depends on its company. They are finite."""
        low, high = self.settings.window
        a, found = self.settings.shape, []
        mean, std = (torch.tensor(some)[:, None, None] for some in (self.settings.mean, self.settings.std))
        for image in images:
            x = torch.from_numpy(np.clip((image - low) / (high - low), 0, 1)).float()[None].expand(-1, 3, -1, -1)
            x = functional.interpolate(x, (a.side, a.side), mode="bilinear", align_corners=False, antialias=True)
            found.append(vector_of_pictures(self.w, a, (x - mean) / std)[0].double().numpy())
        # A network that gives no number for some patients would otherwise tell, by failing, that they are there.
        finite: Floats = np.nan_to_num(np.stack(found), nan=0.0, posinf=0.0, neginf=0.0)
        return finite


def opened(settings: Clip, data: bytes) -> dict[str, Tensor]:
    """The tensors of a file, float32. settings: with `architecture`.

    Raises:
        ValueError: the digest is another one, data are no safetensors file, or tensors are missing, of other shapes or
            not finite. Others that the file holds are left aside.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    found = hashlib.sha256(data).hexdigest()
    if settings.sha256 not in ("", found):
        raise ValueError(f"the file's SHA-256 is {found}, the settings say {settings.sha256}: it is another file")
    try:
        given = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"it is no safetensors file, or a damaged one ({error})") from error
    wanted, wrong = shapes(settings.shape), list[str]()
    for name, shape in wanted.items():
        one = given.get(name)
        if one is None:
            wrong.append(f"{name} is missing")
        elif tuple(one.shape) != shape:
            wrong.append(f"{name} has shape {[*one.shape]}, needed is {[*shape]}")
        elif not bool(one.isfinite().all()):
            wrong.append(f"{name} is not finite")
    if wrong:
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"the file does not fit its architecture: {'; '.join(wrong[:SHOWN])}{more}")
    return {name: given[name].float() for name in wanted}


def held_by(settings: Clip, data: bytes) -> dict[str, Tensor]:
    """What the networks of a model hold: the text transformer of its file. Raises: as `opened`."""
    return text_part(opened(settings, data))


def spoken(settings: Clip, known: Words) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[tuple[int, ...], ...], ...]]:
    """Each class's tokens after a context, `words.`, and in each template, each with a beginning and an end.

    Raises:
        ValueError: a sentence is longer than the text transformer reads.
    """
    after = tuple(known.sentence(f"{one}.") for one in settings.classes.values())
    whole = tuple(
        tuple(known.sentence(how.replace(BLANK, one)) for one in settings.classes.values())
        for how in settings.templates
    )
    most, length = settings.shape.text.positions, max(map(len, after)) + settings.context
    longest = max([length, *(len(one) for some in whole for one in some)])
    if longest > most:
        raise ValueError(f"a sentence has {longest} tokens, the text transformer reads {most}: use fewer words")
    return after, whole


def _on(held: Params, like: Tensor) -> Params:
    """The frozen tensors as the learnt ones are: on their device, in their precision."""
    if not held:
        raise ValueError("this network holds no text transformer: its task needs `frozen`, from the file of its model")
    first = held["logit_scale"]
    if first.device == like.device and first.dtype == like.dtype:
        return held
    return {name: one.to(like.device, like.dtype) for name, one in held.items()}
