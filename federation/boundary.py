"""The boundary-oriented contrastive loss of FedDG: features on the edge of a structure against features around it.

Liu, Chen, Qin, Dou, Heng: FedDG, CVPR 2021, section 3.3. What the paper leaves open, and our readings compared with its
released code: an edge is one pixel wide, and its surroundings lie within `rim` pixels, both in squares where the code
has diamonds; the border of the image is no edge. A class is left out in examples where it has no edge or no
surroundings, where the code divides by zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from federation.task import IGNORED


def boundary_contrast(views: list[Tensor], y: Tensor, *, classes: int, rim: int, tau: float) -> Tensor:
    """Sum over foreground classes of `info_nce` between mean features on edges and mean features around them: ().

    views: features of the same examples in different styles, (b, d, *spatial) each; features on edges of a class are
    positives of each other in all examples and views. y: masks (b, *spatial), of which what is `IGNORED` lies on no
    edge and around none.
    """
    masks = torch.stack([y == c for c in range(1, classes)], dim=1).to(views[0].dtype)
    edge, around = find_edges(masks, rim, (y != IGNORED).unsqueeze(1).to(masks.dtype))
    has_both = (edge.flatten(2).amax(dim=2) * around.flatten(2).amax(dim=2)).bool()
    total = torch.zeros((), dtype=views[0].dtype, device=y.device)
    for c, has_contrast in enumerate(has_both.T.cpu()):  # read once: how many examples there are decides shapes
        if not has_contrast.any():
            continue
        examples = has_contrast.nonzero()[:, 0].to(y.device)
        on, off = ([_region_mean(view[examples], region[examples, c]) for view in views] for region in (edge, around))
        total = total + info_nce(torch.cat(on), torch.cat(off), tau)
    return total


def find_edges(masks: Tensor, rim: int, known: Tensor) -> tuple[Tensor, Tensor]:
    """The outermost pixels inside each mask, and those outside it within `rim` pixels; like masks, (b, C, *spatial).

    known: (b, 1, *spatial) 1 or 0: where somebody says which class is there. Nothing else is outside.
    """
    return masks * _dilate_masks((1 - masks) * known, 1), (_dilate_masks(masks, rim) - masks) * known


def info_nce(on: Tensor, off: Tensor, tau: float) -> Tensor:
    """Mean over positive pairs (m, p) of rows of -log(e^(s_mp) / (e^(s_mp) + sum_q e^(s_mq))), q over the negatives; a
    scalar ().

    s: cosine similarity over tau. on, off: (n, d), n >= 2 of each kind.
    """
    h = functional.normalize(torch.cat([on, off]), dim=1)
    kind = torch.arange(2).repeat_interleave(len(on))  # on the CPU: nothing here hangs on values
    s, same_kind = h @ h.T / tau, kind[:, None] == kind
    against = s.masked_fill(same_kind.to(h.device), -torch.inf).logsumexp(dim=1, keepdim=True)
    rows, columns = (same_kind & ~torch.eye(len(h), dtype=torch.bool)).nonzero().T.to(h.device)
    return functional.softplus(against - s)[rows, columns].mean()


def _region_mean(features: Tensor, region: Tensor) -> Tensor:
    """Mean of features (n, d, *spatial) over a region (n, *spatial) that is never empty: (n, d)."""
    flat = region.flatten(1).unsqueeze(1)
    return (features.flatten(2) * flat).sum(dim=2) / flat.sum(dim=2)


def _dilate_masks(masks: Tensor, width: int) -> Tensor:
    """Masks dilated by `width` pixels on each axis."""
    pool = functional.max_pool2d if masks.dim() == 4 else functional.max_pool3d
    return pool(masks, 2 * width + 1, stride=1, padding=width)
