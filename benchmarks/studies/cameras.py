"""Harmonization without a patient on real cameras: HAM10000, a camera that nobody trained on.

    CONSILIUM_DATA=... python -m benchmarks.studies.cameras [--splits 5] [--network [--lines raw reinhard ...]]

Four cameras (rosendahl, vidir_modern, vidir_molemax, vienna_dias); in turn one is left out and models learn from the
other three. In each split a random half of the three cameras' lesions trains, and a random half of the fourth's is the
test; AUC of malignant or not, mean of the four cameras. `pooled`: all four train, and their other halves are the test,
all scores in one sample. Spaces: pictures as they are, `reinhard` and `z_score` (of each picture, onto 1,200 pictures
of the prior `skin_lesion`), and `randomized`, a translator learnt on that prior; none asks a patient. `combat`:
features without each camera's shift and scale (combat.py), which patients of all cameras shape, labelled
ones where the camera trains. Heads: logistic
regression on the features `colour` of pictures of 112 x 112; with --network FedAvg of the hospitals, 200 training
lesions each, a cnn of 16, 24 and 32 channels, 20 rounds of 2 epochs, pictures of 32 x 32, and the rates and the start
of public_start.py, which were chosen on its split 100; disturbances in training of strength .3, as chosen
on phantoms. Nothing was tuned here. Group norm, but for `batch norm` and AdaBN, which takes that network's statistics
from the tested camera's own pictures, without labels.

Figures go into measured/cameras.json, features into build/cameras. Intervals over splits are of training and test
lesions drawn anew; the four cameras are the same in all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import BUILD
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.rounds import train_fedavg
from benchmarks.shared.skin import column, number_lesions, read_lines, shrink_pictures
from benchmarks.studies.combat import combat, common
from federation.augmentation import AUGMENTATIONS
from federation.calibration import adapt_batch_norms
from federation.descent import Work
from federation.features.colour import Colour
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.pretraining import Pretrained, pretrain_network, start_task_with
from federation.randomization import build_disturbance
from federation.task import Task
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, draw_pictures
from harmonize.randomized import Randomized
from harmonize.scale import ignore_progress
from harmonize.translation import Reinhard, Translator, ZScore
from pipelines.hospital.public_networks import PUBLIC, learn_translation
from privacy.dp.access import Rows
from privacy.message import Params

CACHE = BUILD / "cameras"
CAMERAS = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
SPACES: dict[str, Translator | None] = {"raw": None, "reinhard": Reinhard(), "z_score": ZScore(over="image")}
RUNS = Path("runs") / PUBLIC
INPUTS = (3, 32, 32)
POOLED = "pooled"
PART = 64


@lru_cache(maxsize=4)
def fitted(space: str, side: int) -> Params:
    public = draw_pictures(PRIORS["skin_lesion"], torch.arange(1200) % 2, (3, side, side), 0)
    how, number = SPACES[space], torch.arange(1200)
    return {} if how is None else how.fit(SiteImages(public, number % 2, number), public, seed=0)


def into(space: str, x: Tensor) -> Tensor:
    how = SPACES[space]
    return x if how is None else how.translate(fitted(space, x.shape[-1]), x, torch.arange(len(x)))


def features(space: str) -> np.ndarray:
    path = CACHE / f"{space}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = read_lines()
        parts = (into(space, shrink_pictures(lines[k : k + PART], 112)) for k in range(0, len(lines), PART))
        np.save(path, np.concatenate([Colour().extract(part.double().numpy()) for part in parts]))
    found: np.ndarray = np.load(path)
    return found


@lru_cache(maxsize=2)
def small(space: str) -> Tensor:
    if space == "randomized":
        params = learn_translation(RUNS, Randomized(), INPUTS, progress=ignore_progress, device="cpu")
        return torch.cat([Randomized().translate(params, part, torch.arange(len(part))) for part in raw().split(PART)])
    return torch.cat([into(space, part) for part in raw().split(PART)])


@lru_cache(maxsize=1)
def raw() -> Tensor:
    return shrink_pictures(read_lines(), INPUTS[1])


def divided(split: int, out: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rows of each training camera, and of each tested one: the one that is left out, or all four if `pooled`."""
    random, half, other = np.random.default_rng(split), {}, {}
    camera, lesion = (column(read_lines(), key) for key in ("site", "patient"))
    for name in CAMERAS:
        own = random.permutation(np.unique(lesion[camera == name]))
        for rows, part in ((half, own[: len(own) // 2]), (other, own[len(own) // 2 :])):
            rows[name] = np.flatnonzero((camera == name) & np.isin(lesion, part))
    if out == POOLED:
        return half, other
    return {name: rows for name, rows in half.items() if name != out}, {out: half[out]}


def told(scores: np.ndarray, test: dict[str, np.ndarray]) -> float:
    """AUC of the tested cameras' scores, in one sample."""
    y = column(read_lines(), "label")
    return float(roc_auc_score(y[np.concatenate(list(test.values()))], scores))


def by_head(space: str, split: int, out: str) -> dict[str, float]:
    x, y = features("raw" if space == "combat" else space), column(read_lines(), "label")
    train, test = divided(split, out)
    rows = np.concatenate(list(train.values()))
    if space == "combat":
        x = without_camera(x, y, train, test)
    head = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000)).fit(x[rows], y[rows])
    return {space: told(head.decision_function(x[np.concatenate(list(test.values()))]), test)}


def without_camera(
    x: np.ndarray, y: np.ndarray, train: dict[str, np.ndarray], test: dict[str, np.ndarray]
) -> np.ndarray:
    """Features without each camera's own shift and scale: from its labelled half, or from the tested pictures alone at
    a camera that does not train.
    """
    known, out = common({c: x[r] for c, r in train.items()}, {c: y[r] for c, r in train.items()}), x.copy()
    for camera in {**train, **test}:
        half, other = train.get(camera), test.get(camera, np.array([], int))
        if half is None:
            out[other] = combat(x[other], known, None)
            continue
        rows = np.concatenate([half, other])
        out[rows] = combat(x[rows], known, y[half], np.arange(len(half)))
    return out


class Network(NamedTuple):
    """space: of the pictures. start: whether the network begins on the prior's pictures, in that space, disturbed.
    randomize: strength of the disturbances in training.
    """

    space: str = "raw"
    start: bool = False
    randomize: float = 0.0
    norm: Literal["group", "batch"] = "group"


NETWORKS: Mapping[str, Network] = {
    "raw": Network(),
    "reinhard": Network("reinhard"),
    "randomized": Network("randomized"),
    "randomize": Network(randomize=0.3),
    "start": Network(start=True),
    "randomized + start": Network("randomized", start=True),
    "batch norm": Network(norm="batch"),
    "z_score": Network("z_score"),
}


@lru_cache(maxsize=4)
def begin(space: str) -> Params:
    """A network that knows the prior's disturbed pictures, in a space."""
    y = torch.arange(1200) % 2
    params = (
        learn_translation(RUNS, Randomized(), INPUTS, progress=ignore_progress, device="cpu")
        if space == "randomized"
        else {}
    )

    def through(x: Tensor) -> Tensor:
        return Randomized().translate(params, x, torch.arange(len(x)))

    how, x = Pretrained(on="skin_lesion", strength=1.0), draw_pictures(PRIORS["skin_lesion"], y, INPUTS, 0)
    return pretrain_network(task("group"), how, x, y, low=-1.0, high=1.0, through=through if params else None)


def task(norm: Literal["group", "batch"]) -> Task:
    return Task(Cnn(widths=(16, 24, 32), norm=norm), INPUTS, 2)


def by_network(name: str, split: int, out: str) -> dict[str, float]:
    line = NETWORKS[name]
    x, y = small(line.space), torch.from_numpy(column(read_lines(), "label"))
    lesion, (train, test) = column(read_lines(), "patient"), divided(split, out)
    own = task(line.norm) if not line.start else start_task_with(task(line.norm), begin(line.space))
    sites = {}
    for camera, rows in train.items():
        few = rows[np.isin(lesion[rows], np.unique(lesion[rows])[:200])]
        sites[camera] = Rows(x[few], y[few], number_lesions(lesion[few]))
    augment = build_disturbance(line.randomize, -1.0, 1.0) if line.randomize else AUGMENTATIONS["flip"]
    work = Work(lr=1e-3 if line.start else 3e-3, epochs=2, augment="flip")
    module = train_fedavg(
        own, work, sites, run="cameras", rounds=20, seed=split, augment=augment, method=FedAvg(weights="uniform")
    )
    ways = {name: lambda rows: module}
    if line.norm == "batch":
        ways["AdaBN"] = lambda rows: adapt_batch_norms(module, x[rows])
    return {
        way: told(np.concatenate([own.probabilities(of(r), x[r])[:, 1].numpy() for r in test.values()]), test)
        for way, of in ways.items()
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--lines", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    head, asked = ("network", options.lines) if options.network else ("features", [*SPACES, "combat"])
    score: Callable[[str, int, str], dict[str, float]] = by_network if options.network else by_head
    for split, line, out in itertools.product(range(options.splits), asked, (*CAMERAS, POOLED)):
        book = read_measured("cameras")
        if out in book.get(f"{head}, {line}", {}).get(str(split), {}):
            continue
        for name, value in score(line, split, out).items():
            book.setdefault(f"{head}, {name}", {}).setdefault(str(split), {})[out] = value
            print(head, name, split, out, round(value, 3), flush=True)
        write_measured("cameras", book)


if __name__ == "__main__":
    main()
