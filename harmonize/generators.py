"""The networks of an image-to-image translation: a transformer and a discriminator of patches.

The papers do not specify an architecture. The transformer is that of Johnson et al. (Perceptual Losses, ECCV 2016) as
CycleGAN uses it (Zhu et al., ICCV 2017), small; the discriminator is MONAI's PatchGAN.
"""

from __future__ import annotations

import itertools
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm: TypeAlias = Literal["instance", "none"]


class Transformer(nn.Module):
    """Images (b, C, H, W) in [-1, 1] to images of the same shape. H and W: multiples of 2 ** downs.

    norm: `instance` learns in fewer steps, but removes each image's mean from its features, and with it the information
    in a patient's absolute intensity. residual: the output is the input plus a correction. Under cycle and identity
    losses it stays at the identity, where both are zero; the option exists to show that a veto notices this.
    """

    def __init__(
        self, channels: int, *, width: int = 8, downs: int = 1, blocks: int = 2, norm: Norm, residual: bool = False
    ) -> None:
        super().__init__()
        widths = [width << level for level in range(downs + 1)]
        layers = [*_conv_layer(channels, width, norm)]
        for a, b in itertools.pairwise(widths):
            layers += _conv_layer(a, b, norm, stride=2)
        layers += [Residual(widths[-1], norm) for _ in range(blocks)]
        for a, b in itertools.pairwise(widths[::-1]):
            layers += [nn.Upsample(scale_factor=2), *_conv_layer(a, b, norm)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """See the class. A residual output is not bounded."""
        # Padding adds zeros; adding 1 makes 0 the background (the low end) instead of a grey frame.
        h: Tensor = self.layers(x + 1.0)
        return x + h if self.residual else h.tanh()


class Residual(nn.Module):
    """Two convolutions with a skip connection, (b, width, h, w) to the same shape."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_conv_layer(width, width, norm), *_conv_layer(width, width, norm)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        h: Tensor = self.layers(x)
        return x + h


class Discriminator(nn.Module):
    """Images (b, C, H, W) to a score for each patch (b, 1, h, w): 1 = real.

    Without normalization: with it, the discriminator could not see an image's overall brightness, and the transformer
    would not have to match it. layers: that halve the image; a patch is 16 pixels wide with 1, and 34 with 2. classes:
    it also sees the image's class, as planes of 0 and 1; 0 = not.
    """

    def __init__(self, channels: int, *, width: int = 16, layers: int = 2, classes: int = 0) -> None:
        from monai.networks.nets.patchgan_discriminator import PatchDiscriminator  # MONAI takes seconds to import

        super().__init__()
        self.classes = classes
        self.net = PatchDiscriminator(2, width, channels + classes, num_layers_d=layers, norm=None, bias=True)
        for module in self.net.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()  # MONAI's N(0, 0.02) is made for networks with normalization

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """See the class. y: the images' classes (b,), where it sees them."""
        if self.classes and y is not None:
            planes = functional.one_hot(y, self.classes).to(x.dtype)[:, :, None, None].expand(-1, -1, *x.shape[2:])
            x = torch.cat([x, planes], dim=1)
        scores: Tensor = self.net(x)[-1]
        return scores


def _conv_layer(a: int, b: int, norm: Norm, *, stride: int = 1) -> list[nn.Module]:
    """A convolution, its normalization if there is one, and a ReLU."""
    # One group for each channel is instance normalization, in the form that runs fastest on a CPU.
    between: list[nn.Module] = [nn.GroupNorm(b, b)] if norm == "instance" else []
    return [nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=not between), *between, nn.ReLU()]


def translate_images(net: nn.Module, images: Tensor, *, chunk: int = 64) -> Tensor:
    """Apply a transformer, on the device of `images`, in chunks that fit into memory; (n, C, H, W), clipped to [-1,
    1].
    """
    net = net.to(images.device).eval()
    out = torch.empty_like(images)
    with torch.no_grad():
        for part, into in zip(torch.split(images, chunk), torch.split(out, chunk), strict=True):
            into.copy_(net(part).clamp_(-1.0, 1.0))
    return out
