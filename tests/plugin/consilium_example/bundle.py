"""Pictures in one file of NumPy arrays: a reader that writes them as PNG with a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import Image

from pipelines.data.sources import PictureSource


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """file: .npz with images (n, H, W) uint8, labels (n,) of 0 and 1, and patients (n,)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["bundle"] = "bundle"
    file: str

    def described(self, folder: str) -> PictureSource:
        return PictureSource(folder=folder, table=f"{folder}/table.csv", pattern="{image}.png")

    def write(self, folder: Path) -> None:
        for old in folder.iterdir():
            old.unlink()
        with np.load(self.file, allow_pickle=False) as held:
            images, labels, patients = held["images"], held["labels"], held["patients"]
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / f"{number}.png")
        rows = [f"{n},p{p},{label}" for n, (p, label) in enumerate(zip(patients, labels, strict=True))]
        (folder / "table.csv").write_text("\n".join(["image,patient,label", *rows]) + "\n")
