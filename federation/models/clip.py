"""A prompt that is trained for a frozen CLIP: `{name: clip, weights: FILE, classes: {nv: melanocytic nevus, ...}}`.

Zhou, Yang, Loy, Liu: Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022, section 3.2, with one context for
all classes and the class at its end: P^(c) = [V]_1 ... [V]_M [CLASS c]. The vector f(x) of a picture never changes, so
a hospital computes it once, as other fixed features; the input of the network are vectors, and it contains the text
transformer g. Only the context, `head.context`, is trained, sent and stored.

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
    cosine_factor,
    embed_pictures,
    embed_sentences,
    list_tensor_shapes,
    parse_architecture,
    select_text_tensors,
)
from federation.models.clip_words import Words
from federation.task import Output, cross_entropy
from privacy.message import Params
from privacy.settings_error import out_of_range, refuse, unmet, wrong_lengths

Floats = NDArray[np.float64]
BLANK = "{}"
SPREAD = 0.02  # of the context's first values
SHOWN = 5  # problems of a file that an error names


@dataclass(frozen=True, kw_only=True)
class Clip:
    """weights: a safetensors file in the layout of transformers' CLIPModel, with config.json, vocab.json and merges.txt
    in its folder. classes: class of the task -> its words. templates: sentences for `zero_shot`, {} stands for the
    words. context: M, the number of trained tokens. window: the values that become 0 and 1; mean, std: of the channels
    in CLIP's training. sha256, architecture, tokens and sentences follow from the file and need not be given: its
    digest, the JSON text of config.json, and the numbers of each class's tokens, alone and in each template.
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
        refuse(wrong_lengths(self, window=2, mean=3, std=3))
        low, high = self.window
        blanks = all(template.count(BLANK) == 1 for template in self.templates)
        refuse(
            out_of_range(self, context=(1, 64))
            + unmet(
                self,
                classes=(len(self.classes) >= 2, "words for each of two classes or more"),
                templates=(1 <= len(self.templates) <= 100 and blanks, f"1 to 100 sentences, each with one {BLANK}"),
                window=(low < high and math.isfinite(high - low), "two finite numbers, the lower first"),
                mean=(all(map(math.isfinite, self.mean)), "finite numbers"),
                std=(all(0 < value < math.inf for value in self.std), "positive numbers"),
            )
        )

    @property
    def shape(self) -> Architecture:
        """Both transformers' sizes. Raises: ValueError: the file was not read, or its config.json is not of a CLIP."""
        return parse_architecture(self.architecture)

    @property
    def width(self) -> int:
        """The number of inputs of the network for a picture; 1 before the file was read."""
        return self.shape.d if self.architecture else 1

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such vectors; empty = no problem."""
        if len(inputs) == 3 and inputs[0] in (1, 3) and min(inputs[-2:]) >= 8:
            return []
        return [f"clip needs pictures or slices of 1 or 3 channels with sides of at least 8, found {inputs}"]

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for vectors (d,), without the text transformer, which `hold` sets."""
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
            counts = f"{len(settings.classes)} of words and {len(settings.tokens)} of tokens"
            raise ValueError(f"clip needs words and their tokens for each of {classes} classes, found {counts}")
        self.stem, self.blocks = nn.Identity(), nn.ModuleList()
        self.head: Prompt | Written = Written(settings) if written else Prompt(settings)

    def hold(self, frozen: Params) -> None:
        """Set the tensors of the text transformer."""
        self.head.held = frozen

    def forward(self, x: Tensor) -> Output:
        return Output(self.head(x), x)


class Prompt(nn.Module):
    """The trained context (M, width), and the sentences of context and class."""

    def __init__(self, settings: Clip) -> None:
        super().__init__()
        self.shape, self.out_features = settings.shape, len(settings.tokens)
        self.context = nn.Parameter(SPREAD * torch.randn(settings.context, self.shape.text.width))
        after = [tokens[1:] for tokens in settings.tokens]  # the first token begins the sentence, before the context
        self.begin, longest = settings.tokens[0][0], max(map(len, after))
        self.after = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in after], device="cpu")
        self.ends = torch.tensor([settings.context + len(tokens) for tokens in after], device="cpu")
        self.held: Params = {}

    def texts(self) -> Tensor:
        """T^(c) = g(P^(c)): unit vectors (C, d). Raises: ValueError: `hold` was not called."""
        self.held = w = _match_tensor(self.held, self.context)
        table = w[f"{TEXT}.embeddings.token_embedding.weight"]
        class_count = len(self.after)
        if self.after.device != table.device:  # moved once, not in each step
            self.after, self.ends = self.after.to(table.device), self.ends.to(table.device)
        first = table[self.begin].expand(class_count, 1, -1)
        embedded = torch.cat([first, self.context.expand(class_count, -1, -1), table[self.after]], dim=1)
        return embed_sentences(w, self.shape, embedded, self.ends)

    def scale(self) -> Tensor:
        """1 / tau."""
        return cosine_factor(_match_tensor(self.held, self.context))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, C): cosines by 1 / tau."""
        return self.scale() * x @ self.texts().T


class Written(nn.Module):
    """Sentences that a person wrote: for each class the mean of unit vectors over the templates, normalized.

    factor: of the logits, 1; changed only when a hospital fine-tunes its model.
    """

    def __init__(self, settings: Clip) -> None:
        super().__init__()
        self.shape, self.sentences, self.out_features = settings.shape, settings.sentences, len(settings.tokens)
        self.factor = nn.Parameter(torch.ones(()))
        self.held: Params = {}

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, C)."""
        self.held = w = _match_tensor(self.held, x)
        table, vectors = w[f"{TEXT}.embeddings.token_embedding.weight"], []
        for of_classes in self.sentences:
            longest = max(map(len, of_classes))
            padded = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in of_classes], device=x.device)
            ends = torch.tensor([len(tokens) - 1 for tokens in of_classes], device=x.device)
            vectors.append(embed_sentences(w, self.shape, table[padded], ends))
        texts = functional.normalize(torch.stack(vectors).mean(dim=0), dim=-1)
        return self.factor * cosine_factor(w) * x @ texts.T


@dataclass(frozen=True)
class ClipPictures:
    """The vision transformer of a file, as an extractor of fixed features: unit vectors of pictures."""

    settings: Clip
    w: Params
    name: ClassVar[str] = "clip"

    @torch.no_grad()
    def extract(self, images: Floats) -> Floats:
        """Vectors (n, d) of images (n, C, H, W), one by one, so that no row depends on others. They are finite."""
        low, high = self.settings.window
        a, vectors = self.settings.shape, []
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.settings.mean, self.settings.std))
        for image in images:
            x = torch.from_numpy(np.clip((image - low) / (high - low), 0, 1)).float()[None].expand(-1, 3, -1, -1)
            x = functional.interpolate(x, (a.side, a.side), mode="bilinear", align_corners=False, antialias=True)
            vectors.append(embed_pictures(self.w, a, (x - mean) / std)[0].double().numpy())
        # Otherwise a network that returns NaN for some patients would reveal, by an error, that they are in the data.
        finite: Floats = np.nan_to_num(np.stack(vectors), nan=0.0, posinf=0.0, neginf=0.0)
        return finite


def read_tensors(settings: Clip, data: bytes) -> dict[str, Tensor]:
    """The tensors of a file, float32. settings: with `architecture`.

    Raises:
        ValueError: the digest is another one, data are no safetensors file, or tensors are missing, of other shapes or
            not finite. Other tensors of the file are ignored.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    digest = hashlib.sha256(data).hexdigest()
    if settings.sha256 not in ("", digest):
        raise ValueError(f"the file's SHA-256 is {digest}, the settings say {settings.sha256}: it is another file")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"it is no safetensors file, or a damaged one ({error})") from error
    expected_shapes, problems = list_tensor_shapes(settings.shape), list[str]()
    for name, shape in expected_shapes.items():
        tensor = tensors.get(name)
        if tensor is None:
            problems.append(f"{name} is missing")
        elif tuple(tensor.shape) != shape:
            problems.append(f"{name} has shape {[*tensor.shape]}, needed is {[*shape]}")
        elif not bool(tensor.isfinite().all()):
            problems.append(f"{name} is not finite")
    if problems:
        more = f", and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ValueError(f"the file does not fit its architecture: {'; '.join(problems[:SHOWN])}{more}")
    return {name: tensors[name].float() for name in expected_shapes}


def read_text_transformer(settings: Clip, data: bytes) -> dict[str, Tensor]:
    """The text transformer of a file, which the networks of a model use. Raises: as `read_tensors`."""
    return select_text_tensors(read_tensors(settings, data))


def tokenize_classes(
    settings: Clip, vocabulary: Words
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[tuple[int, ...], ...], ...]]:
    """The tokens of each class's words after a context, and in each template, with the tokens of beginning and end.

    Raises:
        ValueError: a sentence is longer than the text transformer reads.
    """
    after = tuple(vocabulary.sentence(f"{words}.") for words in settings.classes.values())
    by_template = tuple(
        tuple(vocabulary.sentence(template.replace(BLANK, words)) for words in settings.classes.values())
        for template in settings.templates
    )
    most, length = settings.shape.text.positions, max(map(len, after)) + settings.context
    longest = max([length, *(len(tokens) for sentences in by_template for tokens in sentences)])
    if longest > most:
        raise ValueError(f"a sentence has {longest} tokens, the text transformer reads {most}: use fewer words")
    return after, by_template


def _match_tensor(tensors: Params, reference: Tensor) -> Params:
    """The frozen tensors on the device and in the precision of the reference."""
    if not tensors:
        raise ValueError("this network holds no text transformer: its task needs `frozen`, from the file of its model")
    first = tensors["logit_scale"]
    if first.device == reference.device and first.dtype == reference.dtype:
        return tensors
    return {name: tensor.to(reference.device, reference.dtype) for name, tensor in tensors.items()}
