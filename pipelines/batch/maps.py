"""Write sensitivity maps of a classifier's score: a map of each new study, on the study's own grid.

Maps go into the folder `maps`, of several findings each into its own folder there, as NIfTI for DICOM series and NIfTI
files, as grey PNG for pictures, named as masks are (`pipelines.batch.masks`). The largest value of a study is 1, so
that its slices can be compared.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federation.models import OnFeatures
from federation.models.sensitivity import compute_slopes
from pipelines.batch.masks import MaskWriter, file_name, read_study_grid
from pipelines.data.images import Pictures, Slices
from pipelines.data.restore import map_on_source_grid
from pipelines.data.study import Array, Volume
from pipelines.data.writing.nifti_mask import map_bytes
from pipelines.data.writing.picture_mask import picture_map, png_bytes
from pipelines.models.file import Ready
from privacy.durable import write_whole

MAPS = "maps"
BATCH_SIZE = 16  # images whose gradients are in memory at a time


def find_map_problems(ready: Ready, option: str) -> list[str]:
    """Why a model has no such maps; empty = it has. option: the argument that requests them."""
    has_maps = isinstance(ready.images, Slices | Pictures) and not isinstance(ready.task.model, OnFeatures)
    if ready.task.kind not in ("classification", "findings") or not has_maps:
        return [f"{option} is for models that give scores of slices or pictures, and this is none: remove it"]
    if isinstance(ready.images, Pictures) and ready.images.fit == "around":
        return [f"{option}: this model learnt from pictures cut about masks, and new pictures have none: remove it"]
    return []


def compute_cams(module: nn.Module, x: Tensor, finding: int | None = None) -> Array:
    """Sensitivity (n, H, W) of the score to the network's inputs of a study, x (n, C, H, W); its largest value is 1.
    finding: of several, the one whose score it is.
    """
    slopes = torch.cat([compute_slopes(module, batch, finding) for batch in torch.split(x, BATCH_SIZE)])
    sizes = slopes.nan_to_num(posinf=0.0, neginf=0.0)
    largest = sizes.max().clamp(min=torch.finfo(sizes.dtype).tiny)
    cams: Array = (sizes / largest).numpy()
    return cams


def place_map_on_study(study: str, cams: Array, position: NDArray[np.float32], writer: MaskWriter) -> Volume:
    """The map of slices on the study's own grid, (I, J, K) float32. cams, position, writer: as of `write_map`.

    Raises:
        Unusable: a reason of the reader of masks.
    """
    if not isinstance(writer.images, Slices):
        raise ValueError(f"maps are of slices and pictures, found {writer.images.kind}")
    grid, gland = read_study_grid(study, writer)
    return map_on_source_grid(cams, position, grid, writer.images, gland)


def write_map(study: str, cams: Array, position: NDArray[np.float32], writer: MaskWriter, finding: str = "") -> str:
    """Write the map of one study, and return its place below the folder of results.

    cams: (n, H, W), from `compute_cams`. position: (n,), as in `Examples`. writer: of the run. finding: of several, the
    one whose folder it goes into.

    Raises:
        Unusable: a reason of the reader of pictures or masks.
        OSError: the disk.
    """
    if isinstance(writer.images, Pictures):
        name, data = f"{study}.png", png_bytes(picture_map(writer.folder / study, cams[0], writer.images))
    else:
        study_map = place_map_on_study(study, cams, position, writer)
        name = file_name(study, writer, ".nii.gz")
        data = map_bytes(study_map.values.astype(np.float32), study_map.affine, packed=name.lower().endswith(".gz"))
    place = f"{MAPS}/{finding}/{name}" if finding else f"{MAPS}/{name}"
    write_whole(writer.out / place, data)
    return place
