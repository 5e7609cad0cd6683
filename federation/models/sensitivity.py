"""Where a network's score is sensitive to its image: the size of the gradient at each pixel, smoothed.

Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks, arXiv 1312.6034, section 3. It needs no class
activation maps, and it shows what these hide: a network may depend on a lesion and respond elsewhere in its maps,
because in its last layers the receptive field of every place is the whole image (docs/results/maps.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from federation.task import Output

SMOOTH = 1 / 24  # standard deviation of the Gaussian, in the image's shorter side: 3 mm of 72


def compute_sensitivity(module: nn.Module, x: Tensor, finding: int | None = None) -> Tensor:
    """`compute_slopes` of each image, divided by its largest value: (b, H, W) in [0, 1]; all 0 if no pixel matters."""
    return divide_by_largest(compute_slopes(module, x, finding))


def divide_by_largest(slopes: Tensor) -> Tensor:
    """Slopes (b, H, W) in [0, 1], the largest of each image 1."""
    return slopes / slopes.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(slopes.dtype).tiny)


def compute_slopes(module: nn.Module, x: Tensor, finding: int | None = None) -> Tensor:
    """The slopes of `differentiate` alone."""
    return differentiate(module, x, finding)[0]


def differentiate(module: nn.Module, x: Tensor, finding: int | None = None) -> tuple[Tensor, Output]:
    """|d s / d x| of images x (b, C, H, W), summed over channels and smoothed: (b, H, W) on the CPU; and what the
    network gave on the way, without gradients. s: log odds of all classes against class 0, or the number that is
    predicted; of several findings the log odds of this one.

    Raises:
        ValueError: the network is not in evaluation mode, in which the map of an image depends on that image alone.
    """
    from scipy.ndimage import gaussian_filter  # slow to import

    if module.training:
        raise ValueError("sensitivity needs a network in evaluation mode, found one in training; call eval()")
    seen = x.detach().clone(memory_format=torch.channels_last).requires_grad_(True)  # which a CPU convolves faster
    with torch.enable_grad():
        output: Output = module(seen)
        logits = output.logits
        s = logits[:, finding or 0]
        if finding is None and logits.shape[1] > 1:
            s = logits[:, 1:].logsumexp(dim=1) - logits[:, 0]
        (slope,) = torch.autograd.grad(s.sum(), seen)
    size = slope.abs().sum(dim=1).cpu().numpy()
    smooth = torch.from_numpy(gaussian_filter(size, SMOOTH * min(x.shape[-2:]), axes=(1, 2)))
    maps = None if output.maps is None else output.maps.detach()
    return smooth, Output(logits.detach(), output.features.detach(), maps)
