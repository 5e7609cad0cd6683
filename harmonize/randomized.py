"""A translator trained on drawn pictures alone: it undoes random disturbances of them.

Domain randomization (Tobin et al., IROS 2017; for medical images Billot et al., SynthSeg, Med Image Anal 2023) made
into a harmonizer. With x a picture of a public prior and d a disturbance, T minimizes

    E |T(d(x)) - x|_1                                                                                  (1)

so that any scanner's picture, which T takes for a disturbed one, becomes one of the prior's kind. No patient has a part
in it (epsilon = 0), so one T serves all hospitals, also those that join later, and every training of it gives the same
T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.randomization import disturb_images
from harmonize.generators import translate_images
from harmonize.networks import Inputs, initialise_module
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, PriorName, draw_pictures
from harmonize.scale import Progress, ignore_progress
from harmonize.views import step_seed
from privacy.folder import Folder
from privacy.message import Params
from privacy.settings_error import out_of_range, refuse

PICTURES = 1200  # of the prior; each is disturbed anew in every step that draws it
TELL = 10  # steps between two progress reports


@dataclass(frozen=True, kw_only=True)
class Randomized:
    """A small U-Net, trained to undo random disturbances of pictures that a prior draws; no patient shapes it.

    prior: that draws the pictures; null = the one with the images' channels. steps, batch, lr: of training, by Adam
    with a cosine to 0. strength: of the disturbances, 1 = as in `federation.randomization`. width: channels of the
    first layer. seed: of the training.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["randomized"] = "randomized"
    prior: PriorName | None = None
    steps: int = 900
    batch: int = 24
    lr: float = 2e-3
    strength: float = 1.0
    width: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(
            out_of_range(self, steps=(1, 100_000), batch=(1, 1024), lr=(1e-6, 1.0), strength=(0.0, 3.0), width=(4, 256))
        )

    def prior_of(self, channels: int) -> PriorName:
        """The prior that draws the pictures. Raises: ValueError: none draws pictures of so many channels."""
        names = [prior.name for prior in PRIORS.values() if prior.channels == channels]
        if not names or self.prior not in (None, *names):
            text = f"draws no images of {channels} channels; those that do are {', '.join(names) or 'none'}"
            raise ValueError(f"prior {self.prior or 'of any kind'} {text}")
        return self.prior or names[0]

    def network(self, channels: int) -> nn.Module:
        """T without its residual: (b, C, H, W) to a correction of the same shape."""
        from monai.networks.nets.unet import UNet  # MONAI takes seconds to import

        widths = [self.width, 2 * self.width, 4 * self.width, 4 * self.width]
        unet: nn.Module = UNet(2, channels, channels, channels=widths, strides=(1, 2, 2), act="LEAKYRELU", norm=None)
        return unet

    def learn_parameters(
        self, inputs: Inputs, *, progress: Progress = ignore_progress, device: str | torch.device = "cpu"
    ) -> Params:
        """T's parameters for images (C, H, W), sides multiples of 4, by equation 1. Deterministic on one machine.

        Raises:
            ValueError: the prior draws no such pictures.
        """
        net = initialise_module(lambda: self.network(inputs[0]), self.seed).to(device)
        pictures = draw_pictures(PRIORS[self.prior_of(inputs[0])], torch.arange(PICTURES) % 2, inputs, self.seed)
        rule = torch.optim.Adam(net.parameters(), lr=self.lr)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(rule, self.steps)
        for step in range(self.steps):
            if step % TELL == 0:
                progress(step, self.steps, "translation without patients")
            g = torch.Generator().manual_seed(step_seed(self.seed, step))
            x = pictures[torch.randint(PICTURES, (self.batch,), generator=g)]
            seen, x = disturb_images(x, self.strength, -1.0, 1.0, g).to(device), x.to(device)
            rule.zero_grad()
            (_apply_residual(net, seen) - x).abs().mean().backward()  # type: ignore[no-untyped-call]
            rule.step()
            rates.step()
        return {f"translator/{name}": value.detach().cpu() for name, value in net.state_dict().items()}

    def fit(
        self,
        site_images: SiteImages,
        shared: Tensor,
        *,
        seed: int,
        folder: Folder | None = None,
        progress: Progress = ignore_progress,
        device: str | torch.device = "cpu",
    ) -> Params:
        """As `learn_parameters`, for images of this shape; no patient's and no shared image is used."""
        channels, height, width = site_images.images.shape[1:]
        return self.learn_parameters((channels, height, width), progress=progress, device=device)

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """T of images (n, C, H, W), each by itself."""
        weights = {name.removeprefix("translator/"): value for name, value in params.items()}
        with torch.random.fork_rng(devices=[]):
            net = self.network(images.shape[1])
        net.load_state_dict(weights)
        return translate_images(_ResidualNetwork(net), images)


class _ResidualNetwork(nn.Module):
    def __init__(self, correction: nn.Module) -> None:
        super().__init__()
        self.correction = correction

    def forward(self, x: Tensor) -> Tensor:
        return _apply_residual(self.correction, x)


def _apply_residual(net: nn.Module, x: Tensor) -> Tensor:
    """The image plus the network's correction."""
    # Padding adds zeros; adding 1 makes 0 the background (the low end) instead of a grey frame.
    correction: Tensor = net(x + 1.0)
    return x + correction
