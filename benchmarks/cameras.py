"""Harmonization without a patient on real cameras: HAM10000, a camera that nobody trained on.

    CONSILIUM_DATA=... python benchmarks/cameras.py [--splits 5] [--network]

Four cameras (rosendahl, vidir_modern, vidir_molemax, vienna_dias); in turn one is left out and models learn from the
other three. In each split a random half of the three cameras' lesions trains, and a random half of the fourth's is the
test; AUC of malignant or not, mean of the four cameras. Spaces: pictures as they are, `reinhard` and `z_score` (of each
picture, onto 1,200 pictures of the prior `skin_lesion`), which ask no patient. Heads: logistic regression on the
features `colour` of pictures of 112 x 112; with --network FedAvg of three hospitals, 200 training lesions each, a cnn
of 16, 24 and 32 channels, group norm, 20 rounds of 2 epochs, Adam 3e-3, pictures of 32 x 32 (the settings of
benchmarks/public_start.py). Nothing was tuned here.

Figures go into benchmarks/cameras.json, features into build/cameras. Intervals over splits are of training and test
lesions drawn anew; the four cameras are the same in all of them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from federation.augmentation import AUGMENTATIONS
from federation.descent import Site, Work
from federation.features import Colour
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.parameters import loaded
from federation.randomness import derived, seeded
from federation.rehearsal import initial_parameters
from federation.task import Task
from harmonize.own import Own
from harmonize.prior import PRIORS, drawn
from harmonize.translation import Reinhard, Translator, ZScore
from privacy.dp.access import Rows, open_access
from privacy.message import Call, Message, Params

DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[2] / "shared" / "data")) / "ham10000"
CACHE = Path(__file__).parents[1] / "build" / "cameras"
BOOK = Path(__file__).with_suffix(".json")
CAMERAS = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
SPACES: dict[str, Translator | None] = {"raw": None, "reinhard": Reinhard(), "z_score": ZScore(over="image")}
TASK = Task(Cnn(widths=(16, 24, 32), norm="group"), (3, 32, 32), 2)
PART = 64


@lru_cache(maxsize=1)
def lines() -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / "labels.csv").open()))


def pictures(side: int, start: int, end: int) -> Tensor:
    """(n, 3, side, side) in [-1, 1]."""
    found = []
    for line in lines()[start:end]:
        one = Image.open(DATA / line["image"]).convert("RGB")
        one = one if one.size == (side, side) else one.resize((side, side), Image.Resampling.BOX)
        found.append(torch.from_numpy(np.array(one, np.float32)).permute(2, 0, 1) / 127.5 - 1)
    return torch.stack(found)


@lru_cache(maxsize=4)
def fitted(space: str, side: int) -> Params:
    public = drawn(PRIORS["skin_lesion"], torch.arange(1200) % 2, (3, side, side), 0)
    how, number = SPACES[space], torch.arange(1200)
    return {} if how is None else how.fit(Own(public, number % 2, number), public, seed=0)


def into(space: str, x: Tensor) -> Tensor:
    how = SPACES[space]
    return x if how is None else how.translate(fitted(space, x.shape[-1]), x, torch.arange(len(x)))


def features(space: str) -> np.ndarray:
    path = CACHE / f"{space}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = (into(space, pictures(112, k, k + PART)) for k in range(0, len(lines()), PART))
        np.save(path, np.concatenate([Colour().extract(part.double().numpy()) for part in parts]))
    found: np.ndarray = np.load(path)
    return found


@lru_cache(maxsize=2)
def small(space: str) -> Tensor:
    parts = (into(space, pictures(32, k, k + PART)) for k in range(0, len(lines()), PART))
    return torch.cat(list(parts))


def divided(split: int, out: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of each training camera, and of the camera that is left out: half of the lesions of each."""
    random, found = np.random.default_rng(split), {}
    camera, lesion = (np.array([line[key] for line in lines()]) for key in ("site", "patient"))
    for name in CAMERAS:
        own = np.unique(lesion[camera == name])
        half = random.permutation(own)[: len(own) // 2]
        found[name] = np.flatnonzero((camera == name) & np.isin(lesion, half))
    return {name: rows for name, rows in found.items() if name != out}, found[out]


def by_head(space: str, split: int, out: str) -> float:
    x, y = features(space), np.array([int(line["label"]) for line in lines()])
    train, test = divided(split, out)
    rows = np.concatenate(list(train.values()))
    head = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000)).fit(x[rows], y[rows])
    return float(roc_auc_score(y[test], head.decision_function(x[test])))


def by_network(space: str, split: int, out: str) -> float:
    x, y = small(space), torch.tensor([int(line["label"]) for line in lines()])
    lesion, (train, test) = np.array([line["patient"] for line in lines()]), divided(split, out)
    method, work, sites = FedAvg(weights="uniform"), Work(lr=3e-3, epochs=2, augment="flip"), {}
    for name, rows in train.items():
        few = rows[np.isin(lesion[rows], np.unique(lesion[rows])[:200])]
        sites[name] = Rows(x[few], y[few], torch.from_numpy(np.unique(lesion[few], return_inverse=True)[1]))
    state, memories = method.start(initial_parameters(method, TASK, seed=split), {}), dict.fromkeys(sites, Message())
    for round_ in range(1, 21):
        call, replies = Call("cameras", round_, "train", {}), {}
        for number, (name, rows) in enumerate(sites.items()):
            seed = derived(split, number, round_)
            splits = {"train": rows, "validation": rows}
            access = open_access(splits, batch=work.batch, seed=seed, augment=AUGMENTATIONS["flip"])
            with seeded(seed):
                site = Site(name, TASK, work, access)
                sent = method.send(state, name, call)
                replies[name], memories[name] = method.train(site, sent, memories[name], call)
        state = method.merge(state, replies)
    module = loaded(TASK.network(), method.model(site, method.send(state, name, call), Message()))
    return float(roc_auc_score(y[test], TASK.probabilities(module, x[test])[:, 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--network", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    head, spaces = ("network", ("raw", "reinhard")) if options.network else ("features", tuple(SPACES))
    score = by_network if options.network else by_head
    for split in range(options.splits):
        for space in spaces:
            book = json.loads(BOOK.read_text()) if BOOK.exists() else {}
            if str(split) in book.get(f"{head}, {space}", {}):
                continue
            found = {out: score(space, split, out) for out in CAMERAS}
            book.setdefault(f"{head}, {space}", {})[str(split)] = found
            BOOK.write_text(json.dumps(book, indent=1) + "\n")
            print(head, space, split, found, round(float(np.mean(list(found.values()))), 3), flush=True)


if __name__ == "__main__":
    main()
