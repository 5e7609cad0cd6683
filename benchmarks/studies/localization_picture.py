"""What FedAvg's network of `localization.py` shows over slices with a lesion: docs/pictures/maps.png.

    CONSILIUM_DATA=... python -m benchmarks.studies.localization_picture

Six positive test slices of the phantom, evenly spaced in the list of all, and the two of the real lesion; seed 0.
"""

from __future__ import annotations

import matplotlib
import numpy as np
import torch

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import PICTURES
from benchmarks.studies.localization import PATIENTS, hospitals, maps_of, network, real
from benchmarks.studies.one_message_phantom import extractor

SEED, SHOWN = 0, 6
ROWS = ("ADC, lesion", "CAM, joint", "probability\nof the maps", "sensitivity", "detector")


def main() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    torch.set_num_threads(1)
    sites = [one.of(one.patient >= PATIENTS) for one in hospitals(SEED)]
    positive = [one.of(one.y == 1) for one in (*sites, real())]
    rows = [np.linspace(0, len(one.y) - 1, SHOWN // 2 if place < 2 else 2) for place, one in enumerate(positive)]
    shown = [one.of(torch.from_numpy(at.round().astype(int))) for one, at in zip(positive, rows, strict=True)]
    x, lesion = torch.cat([one.x for one in shown]).numpy(), np.concatenate([one.lesion for one in shown])
    found = maps_of(network("as printed", SEED), torch.from_numpy(x))
    marks = np.stack([extractor("detector").marked(image)[1][0, 0] for image in x.astype(np.float64)])  # type: ignore[attr-defined]
    ways = (found["as it is"]["CAM, joint"], found["as it is"]["probability"], found["slopes"]["sensitivity"], marks)
    figure, axes = pyplot.subplots(len(ROWS), len(x), figsize=(1.15 * len(x) + 0.6, 1.15 * len(ROWS)))
    for column, (image, mask) in enumerate(zip(x[:, 0], lesion, strict=True)):
        for row, name in enumerate(ROWS):
            axis = axes[row, column]
            axis.set(xticks=[], yticks=[])
            axis.imshow(image, cmap="gray", vmin=0, vmax=2.5)
            axis.contour(mask, levels=[0.5], colors="cyan", linewidths=0.9)
            if row:
                cam = ways[row - 1][column]
                drawn = axis.imshow(cam, cmap="inferno", vmin=0, vmax=1, alpha=0.25 + 0.6 * np.clip(cam, 0, 1))
                if cam.max() > cam.min():
                    peak = np.unravel_index(cam.argmax(), cam.shape)
                    axis.plot(peak[1], peak[0], "+", color="lime", markersize=7, markeredgewidth=1.4)
            if column == 0:
                axis.set_ylabel(name, fontsize=8)
        axes[0, column].set_title("P" if column < 3 else "L" if column < SHOWN else "ProstateX", fontsize=8)
    figure.subplots_adjust(0.06, 0.01, 0.93, 0.96, 0.04, 0.04)
    figure.colorbar(drawn, cax=figure.add_axes((0.945, 0.15, 0.012, 0.6)))
    figure.savefig(PICTURES / "maps.png", dpi=90)


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    main()
