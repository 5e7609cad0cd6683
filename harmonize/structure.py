"""What a translation may not change: how a pixel stands to its neighbourhood, whatever intensities become.

The local normalized cross-correlation of an image and its translation is 1 where, in every window, the translation is a
rising straight line of the image, and falls where something is wiped out, invented or turned round. It is the measure
of Avants, Epstein, Grossman and Gee (Medical Image Analysis 12, 2008, section 2.3), not squared: a lesion that is dark
must stay dark. As a penalty on a CycleGAN it is our reading of structure constraints such as those of Yang et al.
(Unsupervised MR-to-CT synthesis using structure-constrained CycleGAN, IEEE TMI 2020), which compare descriptors.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import avg_pool2d

WINDOW = 9  # pixels; 13 mm on the phantom's slices: a lesion and what surrounds it
FLOOR = 1e-4  # of a window's variance, in [-1, 1]: a flat window says nothing


def structure_change(translated: Tensor, x: Tensor) -> Tensor:
    """1 - the local correlation of images (b, C, H, W) in [-1, 1], mean over windows by their deviation in x.

    0 = unchanged up to a rising line in each window, 1 = unrelated, 2 = turned round. Windows in which x is flat have
    hardly any weight, so background counts nothing. A scalar.
    """
    middle, other = _window_mean(x), _window_mean(translated)
    source_variance = (_window_mean(x * x) - middle * middle).clamp(min=0)
    translated_variance = (_window_mean(translated * translated) - other * other).clamp(min=0)
    both = _window_mean(x * translated) - middle * other
    correlation = both / ((source_variance + FLOOR) * (translated_variance + FLOOR)).sqrt()  # a root of 0 has no slope
    unchanged = source_variance / (source_variance + FLOOR)  # what the floor leaves of the correlation of x with itself
    weight = source_variance.sqrt()
    return (weight * (unchanged - correlation)).sum() / weight.sum().clamp(min=FLOOR)


def _window_mean(x: Tensor) -> Tensor:
    """Means over the windows that lie within the image."""
    return avg_pool2d(x, WINDOW, stride=1)
