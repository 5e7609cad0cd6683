"""The part of data access that a method gets: its functions, without the patients' arrays behind them.

A method gets this object and not the access itself, whose attributes lead to patients' rows and to the recorded events.
This prevents mistakes. It does not stop code that was written to leak: Python code in the same process can inspect a
function's closure, and an objective must see images.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privacy.dp.access import Access, Draw, Gradient, Objective, Questions, Sample, Split
from privacy.dp.moments import Embed, Moments
from privacy.message import Params


def restrict_access(access: Access) -> Questions:
    """The functions of data access, as an object whose attributes lead to no patient's data and to no event."""

    class AccessFunctions:  # no dataclass: making one takes a millisecond, and there is one for each request
        __slots__ = ()

        @property
        def device(self) -> torch.device:
            return access.device

        def epoch(self) -> int:
            return access.epoch()

        def size(self, split: Split) -> int:
            return access.size(split)

        def shares(self, classes: int) -> Tensor:
            return access.shares(classes)

        def draw(self, *, full: bool = False) -> Draw | Sample:
            return access.draw(full=full)

        def gradient(
            self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
        ) -> Gradient:
            return access.gradient(module, objective, draw, aux)

        def gradient_sum(self, module: nn.Module, objective: Objective, draw: Draw | Sample) -> Params:
            return access.gradient_sum(module, objective, draw)

        def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
            return access.measure(module, statistic, split)

        def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
            return access.moments(embed, classes, width=width, radius=radius)

    return AccessFunctions()
