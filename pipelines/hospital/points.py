"""A hospital's images, as read and translated, beside the shared ones as points, for its own page (VAFL's figure 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from harmonize.complexity import Score
from harmonize.embedding import FEWEST, compute_basis, project_images, tsne
from harmonize.scale import Scale
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.runs.store import DiskFolder
from privacy.message import Message, to_bytes

FOLDER, ENDING = "maps", ".space.safetensors"
GROUPS = ("as read", "translated", "shared")
MOST = 150  # images of a group: a second of one core


def write_points(
    hospital: Hospital, space: str, cohort: Cohort, translated: Tensor, shared: Tensor, scale: Scale
) -> None:
    """Write the map of a space, of training images as they are and as they are translated, and of the shared images.

    translated: of the whole cohort, in its unit. shared: (n, C, H, W) in [-1, 1], as `scale` brings images. Images
    that are not finite are left out; with too few of them there is no map.
    """
    mine = (cohort.split == SPLITS.index("train")).nonzero()[:, 0]
    rows = _thin_out(mine)
    groups = [scale.into(cohort.images[rows]), scale.into(translated[rows]), _thin_out(shared)]
    finite_groups = [group[group.flatten(1).isfinite().all(dim=1)] for group in groups]
    both = torch.cat(finite_groups)
    folder, name = DiskFolder(hospital.root / FOLDER), f"{space}{ENDING}"
    if len(both) < FEWEST:
        folder.remove(name)
        return
    score = Score()
    positions = tsne(project_images(compute_basis(both, score.components), both), perplexity=score.perplexity, seed=0)
    parts = torch.split(positions, [len(group) for group in finite_groups])
    folder.write(name, to_bytes(Message(dict(zip(GROUPS, (part.clone() for part in parts), strict=True)))))


def _thin_out(rows: Tensor) -> Tensor:
    """At most `MOST` rows, evenly spaced."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), MOST)).round().long()]
