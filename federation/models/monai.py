"""Networks of MONAI's: `{name: monai, network: DenseNet121}`, with arguments of its constructor.

Cardoso et al., MONAI: An open-source framework for deep learning in healthcare, arXiv 2211.02701. Each of `NETWORKS` is
built by MONAI's class and runs its `forward`; only names of its parts are added (`federation.models.own`). The list is
closed, because settings come from another machine: a hospital builds no class and passes no argument that is not listed
here, and nothing here downloads or reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from torch import Tensor, nn

from federation.models.adapted import adapted
from federation.models.cnn import Norm
from federation.task import Kind, Output, label_loss, overlap_loss
from privacy.settings_error import Problem, refuse, shorten_value

Value: TypeAlias = bool | int | float | str | tuple[bool | int | float | str, ...] | None
LARGEST, LONGEST, DEEPEST, WIDEST = 4096, 64, 256, 15
"""Limits of a whole number, of the length of a list or text, of the sum of layers, and of a kernel or stride along an
axis. A hospital builds the network of the coordinator's settings, and the memory of a convolution grows with the volume
of its kernel, which a count of parameters does not show.
"""
LAYERS = ("block_config", "blocks_down", "blocks_up")
OURS = ("name", "kind", "spatial_dims", "in_channels", "n_input_channels", "out_channels", "num_classes")
GROUPS = 8
NORMS: Mapping[Norm, Any] = {"batch": "batch", "group": ("group", {"num_groups": GROUPS})}


class Bound(NamedTuple):
    """The allowed values of an argument, single or in a list: of these types, between these numbers."""

    types: tuple[type, ...]
    words: str
    least: float = -math.inf
    most: float = math.inf


COUNT = Bound((int,), "a whole number", 0, LARGEST)
KERNEL = Bound((int,), "a whole number", 1, WIDEST)
SHARE = Bound((int, float), "a number", 0, 1)
FACTOR = Bound((int, float), "a number", 2**-6, 2**6)
FLAG = Bound((bool,), "true or false")
WORDS = Bound((str,), f"words of at most {LONGEST} letters")
BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(("init_features", "growth_rate", "bn_size", "init_filters", "features", "filters", *LAYERS), COUNT),
    **dict.fromkeys(("kernel_size", "strides", "upsample_kernel_size", "conv1_t_size", "conv1_t_stride"), KERNEL),
    **dict.fromkeys(("dropout", "dropout_prob"), SHARE),
    "widen_factor": FACTOR,
    **dict.fromkeys(("bias", "no_max_pool", "res_block", "trans_bias"), FLAG),
    **dict.fromkeys(("act", "model_name", "shortcut_type", "upsample", "upsample_mode"), WORDS),
}
"""Argument -> its allowed values."""


class Unmade(ValueError):
    """Settings from which MONAI builds no network."""


class Known(NamedTuple):
    """A network of MONAI's. takes: arguments that settings may give. needs: those that they must give. stem, blocks,
    head: paths of submodules; `a.*` stands for all children of `a` with parameters, and `a.* b.*` for those of both in
    turn. norm: the argument by which its norm is chosen; empty if its blocks always have batch norm. shape: the
    arguments for dimensions, input channels and classes. fixed: further arguments, always the same.
    """

    kind: Kind
    takes: tuple[str, ...]
    stem: tuple[str, ...]
    blocks: tuple[str, ...]
    head: str
    norm: str = "norm"
    needs: tuple[str, ...] = ()
    shape: tuple[str, str, str] = ("spatial_dims", "in_channels", "out_channels")
    fixed: Mapping[str, Any] = {}


DENSE = Known(
    "classification",
    ("init_features", "growth_rate", "block_config", "bn_size", "act", "dropout_prob"),
    stem=("features.conv0", "features.norm0"),
    blocks=("features.*",),
    head="class_layers.out",
)
EFFICIENT = Known(
    "classification",
    ("model_name",),
    stem=("_conv_stem", "_bn0"),
    blocks=("_blocks.*", "_conv_head", "_bn1"),
    head="_fc",
    needs=("model_name",),
    shape=("spatial_dims", "in_channels", "num_classes"),
    fixed={"pretrained": False},
)
RESIDUAL = Known(
    "classification",
    ("conv1_t_size", "conv1_t_stride", "no_max_pool", "shortcut_type", "widen_factor"),
    stem=("conv1", "bn1"),
    blocks=("layer1", "layer2", "layer3", "layer4"),
    head="fc",
    norm="",
    shape=("spatial_dims", "n_input_channels", "num_classes"),
)
BASIC = Known(
    "segmentation",
    ("features", "act", "bias", "dropout", "upsample"),
    stem=("conv_0",),
    blocks=("down_1", "down_2", "down_3", "down_4", "upcat_4", "upcat_3", "upcat_2", "upcat_1"),
    head="final_conv",
)
SEGMENTING = Known(
    "segmentation",
    ("init_filters", "dropout_prob", "act", "blocks_down", "blocks_up", "upsample_mode"),
    stem=("convInit",),
    blocks=("down_layers.*", "up_samples.* up_layers.*", "conv_final.0"),
    head="conv_final.2.conv",
)
DYNAMIC = Known(
    "segmentation",
    ("kernel_size", "strides", "upsample_kernel_size", "filters", "dropout", "res_block", "trans_bias"),
    stem=("input_block",),
    blocks=("downsamples.*", "bottleneck", "upsamples.*"),
    head="output_block.conv.conv",
    norm="norm_name",
    needs=("kernel_size", "strides", "upsample_kernel_size"),
)
NETWORKS: Mapping[str, Known] = {
    **dict.fromkeys(("DenseNet", "DenseNet121", "DenseNet169", "DenseNet201", "DenseNet264"), DENSE),
    "EfficientNetBN": EFFICIENT,
    **dict.fromkeys(("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"), RESIDUAL),
    "BasicUNet": BASIC,
    "SegResNet": SEGMENTING,
    "DynUNet": DYNAMIC,
}
"""Name of a class or function in monai.networks.nets -> network."""
UNFIT: Mapping[str, str] = {
    "UNet": "it ends in a transposed convolution or a residual unit, so no last layer is its head; take BasicUNet, "
    "SegResNet or DynUNet, which end in a 1x1 convolution",
    "ViT": "it returns a pair, and not logits; wrap it in a network of your own (consilium.own)",
}


@dataclass(frozen=True, kw_only=True)
class Monai:
    """network: a class of monai.networks.nets, one of `NETWORKS`. arguments: of its constructor; dimensions, channels
    and classes follow from images and task, and weights of a file are loaded by `train.start`. norm: null = the one
    that MONAI gives it: batch in networks that classify and in DynUNet instance, as in BasicUNet, and group in
    SegResNet; `group` (8 groups) has no running statistics, so it can be trained privately.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["monai"] = "monai"
    network: str
    arguments: Mapping[str, Value] = field(default_factory=dict, hash=False)
    norm: Norm | None = None

    def __post_init__(self) -> None:
        problems = [*_find_network_problems(self.network)] or [*_find_argument_problems(self.network, self.arguments)]
        if not problems and self.norm is not None and not NETWORKS[self.network].norm:
            text = f"{self.network} of MONAI has batch norm whatever one says, found {self.norm}; remove it, or take "
            problems.append(Problem(("norm",), f"{text}{{name: resnet18, norm: {self.norm}}} or a DenseNet"))
        refuse(problems)

    @property
    def kind(self) -> Kind:
        """The kind of task for which the network is."""
        return NETWORKS[self.network].kind

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A new network for images (C, H, W) or volumes (C, D, H, W).

        Raises:
            Unmade: another number of axes, or arguments that the constructor does not take.
        """
        if len(inputs) not in (3, 4):
            raise Unmade(f"{self.network} needs images (C, H, W) or volumes (C, D, H, W), found {list(inputs)}")
        known = NETWORKS[self.network]
        network = self._build_network(known, inputs, classes)
        swish = getattr(network, "set_swish", None)
        if callable(swish):
            swish(memory_efficient=False)  # per-patient gradients need a derivative that torch knows
        blocks = tuple(_list_block_paths(network, known))
        return adapted(network, stem=known.stem, blocks=blocks, head=known.head, kind=known.kind)

    def _build_network(self, known: Known, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """MONAI's network as its constructor makes it. Raises: Unmade: the constructor refuses."""
        from monai.networks import nets  # takes seconds to import

        arguments = {name: [*value] if isinstance(value, tuple) else value for name, value in self.arguments.items()}
        shape = dict(zip(known.shape, (len(inputs) - 1, inputs[0], classes), strict=True))
        norm = {} if self.norm is None else {known.norm: NORMS[self.norm]}
        try:
            network: nn.Module = getattr(nets, self.network)(**shape, **known.fixed, **norm, **arguments)
        except Exception as error:  # MONAI's constructors raise errors of many types
            settings = ", ".join([f"{name}: {value}" for name, value in (*self.arguments.items(), ("norm", self.norm))])
            what = f"MONAI cannot make a {self.network} with {settings} ({error})"
            raise Unmade(f"{what}; monai.networks.nets.{self.network} describes them") from error
        return network

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example; in segmentation with soft Dice."""
        return overlap_loss(output, y) if self.kind == "segmentation" else label_loss(output, y)


def _find_network_problems(network: str) -> Iterator[Problem]:
    """Why a network cannot be taken, by its name."""
    if network not in NETWORKS:
        why = f": {UNFIT[network]}" if network in UNFIT else ""
        yield Problem(("network",), f"must be one of {', '.join(NETWORKS)}, found {network!r}{why}")


def _find_argument_problems(network: str, arguments: Mapping[str, Value]) -> Iterator[Problem]:
    """What is missing, unknown or out of range in the arguments of a network."""
    known = NETWORKS[network]
    for name in known.needs:
        if name not in arguments:
            yield Problem(("arguments", name), f"missing; {network} needs {', '.join(known.needs)}")
    for name, value in arguments.items():
        where = ("arguments", name)
        if name not in known.takes:
            yield Problem(where, f"{_describe_refusal(name, known)}; {network} takes {', '.join(known.takes)}")
        elif isinstance(value, tuple) and len(value) > LONGEST:
            yield Problem(where, f"must be a list of at most {LONGEST} values, found {len(value)}")
        else:
            entries = [entry for entry in (value if isinstance(value, tuple) else (value,)) if entry is not None]
            if wrong := [text for text in (_find_bound_problem(entry, BOUNDS[name]) for entry in entries) if text]:
                yield Problem(where, wrong[0])
            elif name in LAYERS and (layers := sum(entry for entry in entries if isinstance(entry, int))) > DEEPEST:
                yield Problem(where, f"must be at most {DEEPEST} layers together, found {layers}")


def _find_bound_problem(value: bool | float | str, bound: Bound) -> str | None:
    """What is wrong with the value of an argument, or None."""
    if not isinstance(value, bound.types) or (isinstance(value, bool) and bool not in bound.types):
        return f"must be {bound.words}, found {shorten_value(value)}"
    if isinstance(value, str):
        return f"must be {bound.words}, found {len(value)}" if len(value) > LONGEST else None
    if not bound.least <= value <= bound.most:  # NaN is in no range
        return f"must be in [{bound.least:g}, {bound.most:g}], found {shorten_value(value)}"
    return None


def _describe_refusal(name: str, known: Known) -> str:
    """Why settings may not give an argument."""
    if name in (*known.shape, *OURS):
        return "follows from images and task"
    if name == known.norm:
        return "say norm: beside arguments"
    if name.startswith(("pretrained", "progress")):
        return "nothing is fetched; weights of a file come by train: {start: {weights: FILE}}"
    return "unknown argument"


def _list_block_paths(network: nn.Module, known: Known) -> Iterator[str]:
    """The paths of blocks, in order."""
    for pattern in known.blocks:
        lists = [word.removesuffix(".*") for word in pattern.split()]
        if not pattern.endswith(".*"):
            yield pattern
            continue
        children = [list(_list_children(network, path)) for path in lists]
        for place in range(max(map(len, children), default=0)):
            for path, names in zip(lists, children, strict=True):
                if place < len(names) and f"{path}.{names[place]}" not in known.stem:
                    yield f"{path}.{names[place]}"


def _list_children(network: nn.Module, path: str) -> Iterator[str]:
    """Names of the children that have parameters."""
    for name, part in network.get_submodule(path).named_children():
        if any(True for _ in part.parameters()):
            yield name
