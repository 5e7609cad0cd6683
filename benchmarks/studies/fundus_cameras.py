"""Harmonization without a patient on fundus pictures: the optic disc, at a camera that nobody trained on.

    CONSILIUM_DATA=... python -m benchmarks.studies.fundus_cameras [--splits 5]

Two cameras, Drishti-GS (50 pictures) and RIM-ONE (255), cut about their discs as in fundus_disc.yaml, 96 x 96 pixels.
In each split half of a camera's pictures, dealt over two hospitals, trains a U-Net of width 8 (FedAvg, 20 rounds of 8
steps, Adam 1e-3, batches of 8), and the score is the Dice of the disc, mean over the other half of the *other* camera's
pictures. `pooled`: each camera's half is a hospital, and both other halves are tested; mean of the two cameras.

Lines: pictures as they are; `reinhard` and `z_score`, of each picture, onto 1,200 pictures of the prior `skin_lesion`
(no prior draws a fundus; any fixed colours serve); `randomize`, disturbances in training of strength .3, as chosen on
phantoms. Each as it is, and with AdaBN (the tested pictures' own statistics, no labels). The network and its training
are those of fundus_disc.yaml; nothing was tuned here. Figures go into measured/fundus_cameras.json as they come.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import DATA
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.rounds import train_fedavg
from benchmarks.studies.cameras import PART, POOLED
from federation.augmentation import AUGMENTATIONS
from federation.calibration import adapt_batch_norms
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.unet import UNet
from federation.randomization import build_disturbance
from federation.task import Task
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, draw_pictures
from harmonize.translation import Reinhard, Translator, ZScore
from pipelines.data.images import Pictures
from pipelines.data.pictures.label_maps import open_maps
from pipelines.data.pictures.pixels import read_pair
from pipelines.data.sources import PictureMasks
from privacy.dp.access import Rows

IMAGES = Pictures(size=96, fit="around", margin=1.5, jitter=0.2)
CAMERAS = {"drishti": (1, 2), "rimone": (255,)}
"""Camera -> the values of the disc in its masks; in Drishti's 2 is the cup, inside."""
TASK = Task(UNet(width=8, levels=4, norm="batch"), IMAGES.inputs, 2, "segmentation")
WORK = Work(lr=1e-3, batch=8, epochs=None, steps=8, augment="flip")
LINES: dict[str, tuple[Translator | None, float]] = {
    "raw": (None, 0.0),
    "reinhard": (Reinhard(), 0.0),
    "z_score": (ZScore(over="image"), 0.0),
    "randomize": (None, 0.3),
}
"""Line -> how pictures are mapped, and the strength of disturbances in training."""


@lru_cache(maxsize=4)
def pictures(camera: str, line: str) -> tuple[Tensor, Tensor]:
    """(n, 3, 96, 96) in [-1, 1] and masks (n, 96, 96), in the order of the files' names."""
    maps = open_maps(
        PictureMasks(folder=str(DATA / "fundus" / camera / "masks"), values={"disc": CAMERAS[camera]}), ("disc",)
    )
    paths = sorted((DATA / "fundus" / camera / "images").iterdir())
    found = [read_pair(path, IMAGES, maps, path.name) for path in paths]
    x = torch.from_numpy(np.stack([picture for picture, _ in found]))
    if how := LINES[line][0]:
        public, number = (
            draw_pictures(PRIORS["skin_lesion"], torch.arange(1200) % 2, (3, 32, 32), 0),
            torch.arange(1200),
        )
        params = how.fit(SiteImages(public, number % 2, number), public, seed=0)
        x = torch.cat([how.translate(params, part, torch.arange(len(part))) for part in x.split(PART)])
    return x, torch.from_numpy(np.stack([mask for _, mask in found])).long()


def halves(count: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(split).permutation(count)
    return order[: count // 2], order[count // 2 :]


def rows(x: Tensor, y: Tensor, chosen: np.ndarray) -> Rows:
    return Rows(x[chosen], y[chosen], torch.arange(len(chosen)))


def dice(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Mean over pictures of the disc's Dice."""
    predicted, true = TASK.probabilities(module, x)[:, 1] > 0.5, y == 1
    both = (predicted & true).flatten(1).sum(1)
    return float((2 * both / (predicted.flatten(1).sum(1) + true.flatten(1).sum(1)).clamp(min=1)).mean())


def scores(line: str, split: int, trained: str) -> dict[str, float]:
    """Dice at the tested cameras of the model that learnt from one camera, or from both; as it is, and with AdaBN."""
    data = {camera: pictures(camera, line) for camera in CAMERAS}
    dealt = {camera: halves(len(x), split) for camera, (x, _) in data.items()}
    if trained == POOLED:
        sites = {camera: rows(*data[camera], dealt[camera][0]) for camera in CAMERAS}
    else:
        mine = dealt[trained][0]
        sites = {f"{trained}-{k}": rows(*data[trained], mine[k::2]) for k in range(2)}
    strength = LINES[line][1]
    augment = build_disturbance(strength, -1.0, 1.0) if strength else AUGMENTATIONS["flip"]
    module = train_fedavg(
        TASK, WORK, sites, run="cameras", rounds=20, seed=split, augment=augment, method=FedAvg(weights="uniform")
    )
    ways: dict[str, list[float]] = {line: [], f"{line}, AdaBN": []}
    for camera in CAMERAS if trained == POOLED else [name for name in CAMERAS if name != trained]:
        x, y = (part[dealt[camera][1]] for part in data[camera])
        ways[line].append(dice(module, x, y))
        ways[f"{line}, AdaBN"].append(dice(adapt_batch_norms(module, x), x, y))
    return {way: float(np.mean(found)) for way, found in ways.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for split, line, trained in itertools.product(range(options.splits), LINES, (*CAMERAS, POOLED)):
        book = read_measured("fundus_cameras")
        out = trained if trained == POOLED else next(name for name in CAMERAS if name != trained)
        if out in book.get(line, {}).get(str(split), {}):
            continue
        for way, value in scores(line, split, trained).items():
            book.setdefault(way, {}).setdefault(str(split), {})[out] = value
            print(way, split, out, round(value, 3), flush=True)
        write_measured("fundus_cameras", book)


if __name__ == "__main__":
    main()
