"""Finished models without a run, for tests of exports: one for each kind of network that a run can produce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

import small_clip
from federation.calibration import Centring
from federation.features.scattering import Scattering
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.features import Features as OnFixed
from federation.models.mlp import Mlp
from federation.models.monai import Monai
from federation.models.planned import Planned
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.task import Kind, Task
from pipelines.data.images import AnyImages, Features, Pictures, Slices, Volumes
from pipelines.data.sources import NiftiSource
from pipelines.data.tables.features import Moments
from pipelines.data.tables.principal_components import Axes
from pipelines.exports.network import trial_examples
from pipelines.models.file import Origin, Ready

MASKS: Kind = "segmentation"
PLANNED = Planned(
    patch=(4, 8, 8),
    kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3)),
    strides=((1, 1, 1), (1, 2, 2), (2, 2, 2)),
    filters=(4, 8, 8),
    mirror=True,
)
ORIGIN = Origin(label="fedavg", site="a", run="tiny/fedavg-0", algorithm={"name": "fedavg", "weights": "size"})


def model(task: Task, images: AnyImages, *, seed: int = 0, **fields) -> Ready:
    """A network with random weights and statistics, as if a run had made it."""
    torch.manual_seed(seed)
    module = task.network()
    names = tuple(f"class_{number}" for number in range(1, task.classes)) if task.kind == "segmentation" else ()
    names = names or (tuple("abcdefgh"[: task.classes]) if task.classes > 2 else ())
    source = NiftiSource(folder=".")
    found = Ready(
        module.eval(), task, images, source, False, None, None, ORIGIN, lambda x: x, names=names, digest="0" * 16
    )
    return replace(_used(found), **fields)


def _used(ready: Ready) -> Ready:
    """With running statistics of examples, and logits that differ by about 1 between them: a network that gives one
    answer to all, or whose norms do nothing, would hide what an export leaves out.
    """
    module, x = ready.module, trial_examples(ready, 32)
    with torch.no_grad():
        for _ in range(30):
            module.train()(x)
        spread = module.eval()(x).logits.std(dim=0).mean()
        head = getattr(module, "head", None)
        if isinstance(head, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d) and spread > 0:
            head.weight.div_(spread)
            middle = module(x).logits.transpose(0, 1).flatten(1).mean(dim=1)
            if head.bias is not None and head.bias.shape == middle.shape:
                head.bias.sub_(middle)
    return ready


def _table() -> Ready:
    images = Features(numbers=("age", "psa", "volume"), components=2)
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 4 + 7
    scale = Moments(20.0, x.sum(0), x.square().sum(0))
    axes = Axes(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), torch.eye(3, dtype=torch.float64)[:2] * 0.7)
    return model(Task(Mlp(), (2,), 2), images, scale=scale, axes=axes)


def _scattering() -> Ready:
    fixed = OnFixed(of=Scattering(), components=6, hidden=(4,), public="prostate")
    return model(Task(fixed, (fixed.width,), 2), Slices(size=32))


NETWORKS: dict[str, Callable[[], Ready]] = {
    "cam": lambda: model(Task(Cam(widths=(8, 8, 8, 8)), (1, 16, 16), 2), Slices(size=16)),
    "cnn": lambda: model(Task(Cnn(widths=(8, 8)), (3, 16, 16), 4), Pictures(size=16)),
    "centred": lambda: model(Task(Cnn(widths=(8, 8)), (1, 16, 16), 2), Slices(size=16), centring=Centring(0.3, 1.7)),
    "findings": lambda: model(
        Task(Cnn(widths=(8, 8)), (1, 16, 16), 3, "findings"), Slices(size=16), names=("edema", "effusion", "nodule")
    ),
    "cnn of volumes": lambda: model(Task(Cnn(widths=(8, 8)), (1, 8, 8, 8), 2), Volumes(size=8, depth=8)),
    "unet": lambda: model(Task(UNet(levels=1, width=4), (1, 8, 8), 2, "segmentation"), Slices(size=8)),
    "unet of volumes": lambda: model(
        Task(UNet(levels=1, width=4), (1, 8, 16, 16), 3, "segmentation"), Volumes(size=16, depth=8), window=(4, 8, 8)
    ),
    "planned": lambda: model(
        Task(PLANNED, (1, 8, 16, 16), 3, "segmentation"), Volumes(size=16, depth=8), window=PLANNED.patch
    ),
    "resnet18": lambda: model(Task(ResNet18(width=8, small=True), (3, 16, 16), 2), Pictures(size=16)),
    "monai": lambda: model(
        Task(Monai(network="DenseNet", arguments={"init_features": 8, "block_config": (1, 1)}), (3, 16, 16), 2),
        Pictures(size=16),
    ),
    "monai, masks": lambda: model(
        Task(Monai(network="SegResNet", arguments={"blocks_down": (1, 1), "blocks_up": (1,)}), (1, 8, 8), 2, MASKS),
        Slices(size=8),
    ),
    "a table": _table,
    "fixed features": _scattering,
    "clip": lambda: model(small_clip.task(), Pictures(size=16)),
}
"""What a run can produce -> such a model."""
