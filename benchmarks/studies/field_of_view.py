"""What the mean mask is worth on optic discs, by how pictures are cut about them.

python -m benchmarks.studies.field_of_view DATA, where DATA holds `fundus/drishti` and `fundus/rimone`. Printed is the
Dice score of the mean of all masks, thresholded at 1/2, with each mask.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.shared.options import make_parser
from pipelines.data.pictures.label_maps import square_around

SIDE, MARGIN = 96, 1.5
DISC = {"drishti": (1, 2), "rimone": (255,)}

if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    fundus = parser.parse_args().data / "fundus"
    print(f"margin {MARGIN}\n| jitter | {' | '.join(DISC)} |\n|---|---|---|")
    for jitter in (0.0, 0.1, 0.2, 0.3):
        cells = []
        for camera, values in DISC.items():
            seen = []
            for path in sorted((fundus / camera / "masks").iterdir()):
                disc = np.isin(np.asarray(Image.open(path)), values).astype(np.uint8)
                box = square_around(disc, MARGIN, jitter, path.name)
                cut = Image.fromarray(disc * np.uint8(255)).crop(box).resize((SIDE, SIDE), Image.Resampling.BOX)
                seen.append(np.asarray(cut) > 127)
            masks = np.array(seen)
            mean = masks.mean(axis=0) > 0.5
            dice = [2 * (mean & mask).sum() / (mean.sum() + mask.sum()) for mask in masks]
            cells.append(f"{np.mean(dice):.3f}")
        print(f"| {jitter} | {' | '.join(cells)} |")
