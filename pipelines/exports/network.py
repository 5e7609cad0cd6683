"""A finished model as one network of tensors, from prepared examples to probabilities, and in words what prepares them.

What stands outside: reading and resampling of studies, a translation (it looks at whole studies), and fixed features
(they are computed without torch). `preparation` says them, so that other software knows what it must do itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federation.calibration import Centring
from federation.features.onnx_encoder import FileEncoder
from federation.models import OnFeatures
from federation.models.adapted import show_fixed_in
from federation.models.clip import Clip
from federation.task import Output
from personalize.routing import Routed
from pipelines.data.images import Features, Slices, Tensors, Volumes
from pipelines.data.tables.features import Moments, standardize_features
from pipelines.data.tables.principal_components import Axes, project_features
from pipelines.loader.command_line import installed_version
from pipelines.loader.validation import to_plain
from pipelines.models.file import Origin, Ready
from pipelines.settings.harmonization import default_scale
from privacy.message import Json

NEAR = 1e-5
"""The most by which an exported model's probabilities may differ from the model's own."""
SIZES = 1, 2, 5
"""Examples at a time with which an exported model is compared with the model itself."""
Answer = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Probabilities (n, classes, *spatial) of examples (n, *inputs), by an exported file."""


class Unexportable(ValueError):
    """This model cannot be had in this form. The text says which model, why, and what to do."""


class Exported(nn.Module):
    """See `exported`. Input (n, *inputs) float32, output probabilities (n, classes, *spatial) float32; of several
    findings (n, findings), each for itself.
    """

    def __init__(
        self,
        network: nn.Module,
        centring: Centring | None,
        scale: Moments | None,
        axes: Axes | None,
        *,
        has_findings: bool = False,
    ) -> None:
        super().__init__()
        self.has_findings = has_findings
        self.network, self.centring, self.scale, self.axes = network, centring, scale, axes

    def forward(self, examples: Tensor) -> Tensor:
        """Probabilities of examples."""
        x = examples if self.scale is None else standardize_features(examples, self.scale)
        x = x if self.axes is None else project_features(x, self.axes)
        output: Output = self.network(x)
        if self.has_findings:
            return output.logits.sigmoid()
        if self.centring is None:
            return output.logits.softmax(dim=1)
        odds = output.logits[:, 1].double() - output.logits[:, 0].double()
        offset, spread = self.centring
        odds = torch.zeros_like(odds) if math.isinf(spread) else (odds - offset) / spread  # nothing known: 0.5 each
        positive = odds.sigmoid().float()
        return torch.stack([1 - positive, positive], dim=1)


def build_exported(ready: Ready) -> Exported:
    """The network of a model with all that is computed in torch: the normalization of a table's line, and centring.

    Raises:
        Unexportable: the network's operations depend on how many examples it is given.
    """
    if any(isinstance(part, Routed) for part in ready.module.modules()):
        raise Unexportable(
            f"{label_of(ready)} is routed: each image gets convolution kernels of its own, and a file for other "
            "software has fixed ones; use predict, or export a hospital's own model"
        )
    several = ready.task.kind == "findings"
    made = Exported(show_fixed_in(ready.module), ready.centring, ready.scale, ready.axes, has_findings=several).eval()
    return made.requires_grad_(False)


def label_of(ready: Ready) -> str:
    """The label of the model's method."""
    return ready.origin.label


def examples_shape(ready: Ready) -> tuple[int, ...]:
    """Shape of one example: what the network takes, a patch where it is trained on patches, before the normalization
    and the axes of a table's line.
    """
    if isinstance(ready.images, Features) and ready.axes is not None:
        return ready.images.columns
    return ready.task.trained_inputs


def class_names(ready: Ready) -> tuple[str, ...]:
    """Names of all classes, or of findings, in the order of the probabilities."""
    if ready.task.kind == "segmentation":
        return ("background", *ready.names)
    return ready.names or ("negative", "positive")


def describe_preparation(ready: Ready) -> dict[str, Json]:
    """What an example is, and what must be done to a study before the network sees it; plain JSON."""
    model = ready.task.model
    shape: list[Json] = list(examples_shape(ready))
    facts: dict[str, Json] = {
        "format": 1,
        "consilium": installed_version(),
        "model": label_of(ready),
        "model_digest": ready.digest,
        "task": ready.task.kind,
        "network": str(getattr(model, "name", type(model).__name__)),
        "classes": list(class_names(ready)),
        "ordered": ready.ordered,
        "example": {"shape": shape, "axes": _describe_axes(ready), "dtype": "float32", **_describe_values(ready)},
        "images": to_plain(ready.images),
        "centred_on_gland": ready.gland,
        "window": None if ready.window is None else {"sides": list(ready.window), "overlap": 0.5, "mode": "gaussian"},
        "translation": _describe_translation(ready.origin),
        "features": None,
        "use": "research use only: not a medical device, not for diagnosis",
    }
    if ready.regions:
        names = {name: [ready.names[number - 1] for number in members] for name, members in ready.regions.items()}
        facts["regions"] = {name: [*members] for name, members in names.items()}
        facts["output"] = "a probability of each class; that of a region is the sum of its classes'"
    if ready.task.kind == "findings":
        facts["output"] = "a probability of each finding, each for itself, so that they do not sum to 1"
    if isinstance(model, OnFeatures):
        facts["features"] = _describe_features(model)
    return facts


def _describe_axes(ready: Ready) -> str:
    if isinstance(ready.task.model, OnFeatures) or isinstance(ready.images, Features):
        return "feature"
    axes = ("channel", "slice", "row", "column")
    return ", ".join(
        {1: ("feature",), 2: ("channel", "place"), 3: axes[:1] + axes[2:]}.get(len(ready.task.inputs), axes)
    )


def _describe_values(ready: Ready) -> dict[str, Json]:
    """Unit, spacing and usual range of an example's values."""
    images = ready.images
    if isinstance(ready.task.model, OnFeatures):
        return {"unit": "fixed features, see `features`"}
    if isinstance(images, Features):
        scaled = {"declared": "clipped to `ranges`, in [0, 1]"}.get(images.normalize, "as in the table")
        return {"unit": scaled, "columns": [*images.numbers, *images.categories]}
    if isinstance(images, Tensors):
        return {"unit": "as in the tensors that it learnt from"}
    scale = default_scale(images)
    facts: dict[str, Json] = {"usual_range": [scale.low, scale.high]}
    if isinstance(images, Slices | Volumes):
        where = "voxels that are not 0" if images.nonzero else "all voxels in the bounding box of those that are not 0"
        standardized = f"standardized by study: mean 0, standard deviation 1, of {where}"
        if images.ct is not None:
            ct = images.ct
            standardized = f"CT, clipped to [{ct.low:g}, {ct.high:g}] HU, less {ct.mean:g}, divided by {ct.sd:g}"
        depth: list[Json] = [images.depth_mm] if isinstance(images, Volumes) else []
        facts["unit"] = "ADC in 1e-3 mm2/s" if images.values == "adc" else standardized
        facts["spacing_mm"] = [*depth, images.spacing_mm, images.spacing_mm]
        return facts
    return {**facts, "unit": "-1 = black, 1 = white"}


def _describe_translation(origin: Origin) -> Json:
    """The translator into the space in which the model learnt: its settings and its scale; None: images as read."""
    return None if origin.translated is None else {"space": origin.space, **origin.translated}


def _describe_features(model: OnFeatures) -> Json:
    """Of which fixed features the examples consist."""
    if isinstance(model, Clip):
        return {"of": "clip", "file": model.weights, "what": "unit vectors of pictures by the CLIP's vision tower"}
    what = "features of a frozen encoder" if isinstance(model.of, FileEncoder) else "fixed features"
    return {"of": model.of.name, "what": f"{what}, whitened", "settings": to_plain(model.of)}


def trial_examples(ready: Ready, size: int) -> Tensor:
    """Random examples (size, *inputs) float32 within the usual range of their values, the same for each size."""
    generator = torch.Generator().manual_seed(size)
    usual_range = _describe_values(ready).get("usual_range")
    low, high = (float(bound) for bound in usual_range) if isinstance(usual_range, list) else (-2.0, 2.0)  # type: ignore[arg-type]
    return low + (high - low) * torch.rand(size, *examples_shape(ready), generator=generator)


def largest_difference(network: nn.Module, answer: Answer, examples: Sequence[Tensor]) -> float:
    """The largest difference between a network's probabilities and an exported file's, over batches of examples."""
    worst = 0.0
    for x in examples:
        with torch.no_grad():
            expected = network(x).double().numpy()
        answered = np.asarray(answer(x.numpy()), np.float64)
        if answered.shape != expected.shape:
            return math.inf
        worst = max(worst, float(np.nan_to_num(np.abs(answered - expected), nan=np.inf).max()))
    return worst


def check_alike(ready: Ready, network: nn.Module, answer: Answer, what: str, real: Sequence[Tensor] = ()) -> float:
    """Compare an exported file with the model, on random examples and on `real` ones; return the largest difference.

    Of a model that is trained on patches the file holds the network of one: real examples are cut to their middle.

    Raises:
        Unexportable: it is above `NEAR`.
    """
    sides = ready.task.patch
    cut = real if sides is None else [_cut_middle(x, sides) for x in real]
    difference = largest_difference(network, answer, [*(trial_examples(ready, size) for size in SIZES), *cut])
    if not difference <= NEAR:
        raise Unexportable(
            f"{label_of(ready)}: the probabilities of its {what} differ from the model's own by {difference:.2g},"
            f" allowed is {NEAR:g}; nothing was written. Please report it, and use predict"
        )
    return difference


def _cut_middle(x: Tensor, sides: Sequence[int]) -> Tensor:
    """The middle (..., *sides) of examples (..., *spatial), which are at least as large."""
    for axis, side in enumerate(sides):
        x = x.narrow(axis - len(sides), (x.shape[axis - len(sides)] - side) // 2, side)
    return x
