"""A generator that draws the pictures of a public prior, and learns which of them.

A picture of the prior follows from theta in [0, 1]^d, its class and a noise seed. Here theta = Phi(m + s z) for normal
z in R^d, with Phi the normal distribution function: m = 0 and log s = 0 are the prior as it is, and the 2 d numbers
(m, log s) are all that is trained. The drawing has a derivative almost everywhere, so the critic of a WGAN
trains them as it trains the weights of a network. A network that learns pictures from theta by regression blurs what is
small, such as a lesion. A drawing cannot lose it.

Only pictures that the prior can draw are possible. `harmonize/fitted_prior.py` fits the same family without a critic.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harmonize.networks import CLASSES, Inputs
from harmonize.prior import PRIORS, PriorName

WIDEST, NARROWEST = 0.3, -2.5  # of log s
FARTHEST = 2.2  # of m: Phi(2.2) = 0.986


class DrawnGenerator(nn.Module):
    """z (b, d + 1) and classes y (b,) to pictures (b, C, H, W) in [-1, 1]. The last number of z is the noise seed."""

    classes = CLASSES

    def __init__(self, prior: PriorName, inputs: Inputs) -> None:
        super().__init__()
        self.prior, self.inputs, width = prior, inputs, PRIORS[prior].latent
        self.latent = width + 1
        self.mean, self.log_spread = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """See the class."""
        spread = self.log_spread.clamp(NARROWEST, WIDEST).exp()
        theta = torch.special.ndtr(self.mean.clamp(-FARTHEST, FARTHEST) + spread * z[:, :-1])
        seeds = z[:, -1].detach().contiguous().cpu().view(torch.int32).long() + 2**31  # the bits of a float32
        return PRIORS[self.prior].render(theta, y, seeds, self.inputs).to(z.device)
