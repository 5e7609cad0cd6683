"""Copies of images under random smooth deformations.

VAFL (section II.A and II.C) augments the images of every site, and the shared ones, by random non-rigid deformation. It
is done once, before a training begins, through TorchIO's cubic B-spline grid (Pérez-García et al., TorchIO, Comput Meth
Prog Biomed 2021), which is too slow for every step.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

DEPTH = 5  # control points across the image's single layer: the fewest that TorchIO accepts here


def make_deformed_copies(
    images: Tensor, copies: int, *, seed: int, max_displacement: float = 0.06, control_points: int = 7
) -> Tensor:
    """Make `copies` deformed copies of each image.

    Args:
        images: (n, C, H, W) float32 in [-1, 1], on any device.
        copies: of each image. The first copies of an image do not depend on the number of copies.
        seed: the copies of an image depend on the seed and on that image only, not on other images or on its index,
            which would depend on the other patients.
        max_displacement: largest shift of a control point along each axis, as a share of that side.
        control_points: along each side, at least 6; the two outermost rings stay where they are.

    Returns:
        (n * copies, C, H, W) in [-1, 1], image-major: the copies of image i are rows i * copies ... .

    Raises:
        ValueError: an argument is out of its range, or so large that the image would fold; all of them are named.
    """
    problems = []
    if images.dim() != 4:
        problems.append(f"images must be (n, C, H, W), found shape {tuple(images.shape)}")
    if copies < 0:
        problems.append(f"copies must be at least 0, found {copies}")
    if control_points < 6:
        problems.append(f"control_points must be at least 6, found {control_points}")
    elif not 0 <= max_displacement <= 0.5 / (control_points - 2):
        problems.append(
            f"max_displacement must lie in [0, {0.5 / (control_points - 2):g}] with {control_points} control points "
            f"(beyond that the image folds), found {max_displacement}"
        )
    if problems:
        raise ValueError("; ".join(problems))
    if copies == 0 or len(images) == 0:
        return images[:0]
    import torchio  # takes seconds

    transform = torchio.RandomElasticDeformation(
        num_control_points=(control_points, control_points, DEPTH),
        max_displacement=(max_displacement * images.shape[2], max_displacement * images.shape[3], 0.0),
        locked_borders=2,
    )
    # TorchIO draws from torch's global generator, and fills in 0 from outside the image: 0 is made the low end.
    source = images.detach().cpu() + 1.0
    # One block: small results between TorchIO's large buffers would fragment memory and hold gigabytes.
    made = torch.empty(len(source), copies, *source.shape[1:])
    with torch.random.fork_rng(devices=[]):
        for image, image_copies in zip(source, made, strict=True):
            torch.default_generator.manual_seed(_image_seed(seed, image))
            for copy in image_copies:
                copy.copy_(transform(image.unsqueeze(-1)).squeeze(-1))
    return made.flatten(0, 1).sub_(1.0).clamp_(-1.0, 1.0).to(images.device)


def _image_seed(seed: int, image: Tensor) -> int:
    """A seed from the caller's seed and the image's content."""
    digest = int.from_bytes(blake2b(image.contiguous().numpy().tobytes(), digest_size=16).digest())
    return int(np.random.SeedSequence([seed, digest]).generate_state(1, np.uint64)[0] >> np.uint64(1))
