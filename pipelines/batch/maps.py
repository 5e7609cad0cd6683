"""Write where a classifier's score is sensitive: a map of each new study, on the study's own grid.

Maps go into the folder `maps`, as NIfTI for DICOM series and NIfTI files, as grey PNG for pictures, named as masks are
(`pipelines.batch.masks`). The largest value of a study is 1, so that its slices can be compared.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federation.models import OnFeatures
from federation.models.sensitivity import slopes
from pipelines.batch.masks import MaskWriter, file_name, grid_of_study, lies_in
from pipelines.batch.tables import write_whole
from pipelines.data.images import Pictures, Slices
from pipelines.data.restore import map_on_source_grid
from pipelines.data.writing.nifti_mask import map_bytes
from pipelines.data.writing.picture_mask import picture_map, png_bytes
from pipelines.models.file import Ready

MAPS = "maps"
TOGETHER = 16  # images of which gradients are in memory


def unmapped(ready: Ready, out: Path, folder: Path) -> list[str]:
    """Why a model has no such maps, or they cannot be written; empty = they can."""
    seen = isinstance(ready.images, Slices | Pictures) and not isinstance(ready.task.model, OnFeatures)
    if ready.task.kind != "classification" or not seen:
        return ["--maps is for models that give scores of slices or pictures, and this is none: remove it"]
    if isinstance(ready.images, Pictures) and ready.images.fit == "around":
        return ["--maps: this model learnt from pictures cut about masks, and new pictures have none: remove it"]
    inside = "--out must not lie in FOLDER, or maps would be read as studies the next time; give another"
    return [inside] if lies_in(out, folder) else []


def write_map(study: str, module: nn.Module, x: Tensor, position: NDArray[np.float32], writer: MaskWriter) -> str:
    """Write the map of one study, and return its place below the folder of results.

    x: (n, C, H, W), what the network saw of its examples. position: (n,), as in `Examples`. writer: of the run.

    Raises:
        Unusable: a reason of the reader of pictures or masks.
        OSError: the disk.
    """
    size = (
        torch.cat([slopes(module, some) for some in torch.split(x, TOGETHER)])
        .nan_to_num(posinf=0.0, neginf=0.0)
        .numpy()
    )
    cams = size / max(float(size.max()), np.finfo(size.dtype).tiny)
    if isinstance(writer.images, Pictures):
        name, data = f"{study}.png", png_bytes(picture_map(writer.folder / study, cams[0], writer.images))
    elif isinstance(writer.images, Slices):
        grid, gland = grid_of_study(study, writer)
        found = map_on_source_grid(cams, position, grid, writer.images, gland)
        name = file_name(study, writer, ".nii.gz")
        data = map_bytes(found.values.astype(np.float32), found.affine, packed=name.lower().endswith(".gz"))
    else:
        raise ValueError("maps are of slices and pictures, found volumes")
    write_whole(writer.out / MAPS / name, data)
    return f"{MAPS}/{name}"
