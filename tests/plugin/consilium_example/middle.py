"""Each patient's mean becomes that of the shared images: a translator that learns from nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from harmonize.own import SiteImages
from privacy.message import Params


@dataclass(frozen=True, kw_only=True)
class Middle:
    """The means of a patient's images, and of the shared ones, are taken over all pixels."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["middle"] = "middle"

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        return {"mean": shared.mean()}

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        new = images.clone()
        for one in patient.unique():
            rows = patient == one
            new[rows] += params["mean"] - images[rows].mean()
        return torch.clamp(new, -1, 1)
