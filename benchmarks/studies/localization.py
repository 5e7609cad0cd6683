"""Where class activation maps point: readings of VAFL's equation 9, against lesion masks of the phantom and ProstateX.

    CONSILIUM_DATA=... python -m benchmarks.studies.localization --seeds 0 1 2 3 4
    python -m benchmarks.tables.derived --write maps

Two phantom hospitals (P, smooth and masked; L, noisy, with an export window), 48 training patients and 60 test patients
each, other ones in each seed; six slices of 48 x 48 at 1.5 mm a patient, ADC in 1e-3 mm²/s. CAM classifier with batch
norm, FedAvg of 20 rounds of 2 epochs, Adam 1e-3, batches of 24, flips and small affine maps, classes drawn equally
often: as in no_patient.py. A line is a reading of the loss, a network of its own; every network's maps are
then drawn in several ways. Measured on all test slices with 3 pixels or more of a clinically significant lesion,
whatever the network says of them, and on the slices of the real lesion, where the same networks, which saw phantoms
alone, are asked. Settings were chosen on seed 100 alone.

Figures go into measured/localization.json as they come; what stands there is not run again. Networks are kept in
build/localization.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.shared.options import make_parser
from benchmarks.shared.phantoms import LEAST, read_slices
from benchmarks.shared.places import BUILD
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.rounds import train_fedavg
from benchmarks.shared.runs import read_prostatex
from benchmarks.studies.no_patient import TEST, WORK
from benchmarks.studies.one_message_phantom import extractor
from evaluation.pointing import average_precision, hit_share, is_blank, threshold_dice
from federation.augmentation import AUGMENTATIONS
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.maps import dense_maps, local_probabilities, normalized_maps, upsample_maps
from federation.models.sensitivity import SMOOTH, compute_sensitivity
from federation.parameters import loaded, read_parameters
from federation.rehearsal import initial_parameters
from federation.task import Task
from pipelines.phantom.patients import PhantomSource
from privacy.dp.access import Rows
from privacy.message import Message, from_bytes, to_bytes

PATIENTS, ROUNDS, SIDE, MM = 48, 20, 48, 1.5
REACH = 5 / MM  # pixels: 5 mm
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
CACHE = BUILD / "localization"
LINES: Mapping[str, Cam] = {
    "as printed": Cam(),
    "no map loss": Cam(map_weight=0.0),
    "intersection": Cam(first="intersection"),
    "relu": Cam(normalized="relu"),
    "relu, intersection": Cam(normalized="relu", first="intersection"),
    "min_max": Cam(normalized="min_max"),
    "min_max, intersection": Cam(normalized="min_max", first="intersection"),
    "other": Cam(index="other"),
    "relu, other": Cam(normalized="relu", index="other"),
    "min_max, other": Cam(normalized="min_max", index="other"),
    "min_max, intersection, other": Cam(normalized="min_max", first="intersection", index="other"),
    "stride 8": Cam(stride=8),
    "stride 4": Cam(stride=4),
    "untrained": Cam(),
}
STEPS = {"as it is": 16, "every 4": 4}


class Images(NamedTuple):
    """x: (n, 1, 48, 48) ADC. y: whether a slice shows a lesion. lesion, gland: (n, 48, 48) bool."""

    x: Tensor
    y: Tensor
    lesion: np.ndarray
    gland: np.ndarray
    patient: Tensor

    def of(self, rows: Tensor) -> Images:
        return Images(
            self.x[rows], self.y[rows], self.lesion[rows.numpy()], self.gland[rows.numpy()], self.patient[rows]
        )


@lru_cache(maxsize=2)
def hospitals(seed: int) -> tuple[Images, Images]:
    """P and L, training patients first."""
    return images("P", 11 + 1000 * seed), images("L", 22 + 1000 * seed)


def images(scanner: str, population: int) -> Images:
    source = PhantomSource(scanner=scanner, patients=PATIENTS + TEST, seed=population)  # type: ignore[arg-type]
    read = read_slices(source)
    return Images(read.x, read.y, read.lesion.numpy() > 0, read.gland.numpy() > 0, read.patient)


@lru_cache(maxsize=1)
def real() -> Images:
    """The slices of ProstateX that `prostatex.yaml` reads: two patients, one with a lesion."""
    cohort = read_prostatex()
    lesion, gland = (mask.reshape(len(cohort.images), SIDE, SIDE).numpy() > 0 for mask in (cohort.lesion, cohort.gland))
    y = torch.from_numpy(lesion.sum(axis=(1, 2)) >= LEAST).long()
    return Images(cohort.images.float().reshape(-1, 1, SIDE, SIDE), y, lesion, gland, cohort.patient)


def network(line: str, seed: int) -> nn.Module:
    """FedAvg's network of a line, from build/ if it is there; `untrained` is what FedAvg begins with."""
    task = Task(LINES[line], (1, SIDE, SIDE), 2)
    if line == "untrained":
        return loaded(task.network(), initial_parameters(FedAvg(), task, seed=seed)).eval()
    kept = CACHE / f"{line.replace(', ', '_').replace(' ', '-')}-{seed}.safetensors"
    if kept.exists():
        return loaded(task.network(), from_bytes(kept.read_bytes()).tensors).eval()
    sites = {f"h{k}": one.of(one.patient < PATIENTS) for k, one in enumerate(hospitals(seed))}
    module = train_fedavg(
        task, WORK, {name: Rows(one.x, one.y, one.patient) for name, one in sites.items()}, run="localization",
        rounds=ROUNDS, seed=seed, augment=AUGMENTATIONS[WORK.augment],
    )  # fmt: skip
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(to_bytes(Message(read_parameters(module))))
    return module


def drawn(maps: Tensor) -> dict[str, Tensor]:
    """Ways to draw class 1's map, (n, 1, h, w) in [0, 1]."""
    mean = maps.mean(dim=1)
    difference = (mean[:, 1:] - mean[:, :1])[:, None]
    return {
        "CAM, joint": normalized_maps(maps, "joint")[:, 1:],
        "CAM, relu": normalized_maps(maps, "relu")[:, 1:],
        "CAM, min_max": normalized_maps(maps, "min_max")[:, 1:],
        "probability": local_probabilities(maps)[:, 1:],
        "difference, min_max": normalized_maps(difference, "min_max"),
    }


def hires(module: nn.Module, x: Tensor) -> Tensor:
    """HiResCAM (Draelos and Carin, arXiv 2011.08891) of the second block, a value every 4 pixels: the sum over channels
    of activation times gradient, where above 0; smoothed as the sensitivity is. (n, 48, 48) in [0, 1].
    """
    kept = {}

    def keep(_: nn.Module, __: object, out: Tensor) -> None:
        out.retain_grad()
        kept["a"] = out

    handle = module.blocks[0].register_forward_hook(keep)  # type: ignore[index, union-attr]
    logits = module(x.clone().requires_grad_(True)).logits
    (logits[:, 1] - logits[:, 0]).sum().backward()
    handle.remove()
    module.zero_grad()
    part = (kept["a"] * kept["a"].grad).sum(dim=1, keepdim=True).detach()  # type: ignore[operator]
    fine = upsample_maps(part, 4, (SIDE, SIDE))[:, 0].clamp(min=0).double().numpy()
    smooth = torch.from_numpy(np.stack([gaussian_filter(one, SIDE * SMOOTH) for one in fine]))
    return smooth / smooth.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)


@torch.no_grad()
def maps_of(module: nn.Module, x: Tensor) -> dict[str, dict[str, np.ndarray]]:
    """By step and way of drawing: maps (n, 48, 48) of images."""
    with torch.enable_grad():
        slopes = {"sensitivity": compute_sensitivity(module, x), "HiResCAM": hires(module, x)}
    found = {"slopes": {way: cams.double().numpy() for way, cams in slopes.items()}}
    for name, step in STEPS.items():
        maps, stride = dense_maps(module, x, step)
        if name != "as it is" and stride > step:
            continue
        ways = drawn(maps)
        found[name] = {
            way: upsample_maps(cam, stride, (SIDE, SIDE))[:, 0].double().numpy() for way, cam in ways.items()
        }
    return found


def measured(cams: np.ndarray, lesion: np.ndarray) -> dict[str, float]:
    """Means over images of what `evaluation.pointing` says of each."""
    pairs = list(zip(cams, lesion, strict=True))
    told = {
        "inside": np.mean([hit_share(cam, mask) for cam, mask in pairs]),
        "within 5 mm": np.mean([hit_share(cam, mask, REACH) for cam, mask in pairs]),
        "AUPRC": np.mean([average_precision(cam, mask) for cam, mask in pairs]),
        "blank": np.mean([is_blank(cam) for cam in cams]),
    }
    told |= {f"Dice at {t}": np.mean([threshold_dice(cam, mask, t) for cam, mask in pairs]) for t in THRESHOLDS}
    return {name: round(float(value), 5) for name, value in told.items()}


def of_images(module: nn.Module, sites: list[Images]) -> dict[str, dict[str, dict[str, float]]]:
    """Everything, of the positive images of sites taken together."""
    x, lesion = (
        torch.cat([one.x[one.y == 1] for one in sites]),
        np.concatenate([one.lesion[one.y == 1] for one in sites]),
    )
    return {
        step: {way: measured(cams, lesion) for way, cams in ways.items()} for step, ways in maps_of(module, x).items()
    }


def floors(one: Images, seed: int) -> dict[str, dict[str, float]]:
    """What needs no network: the middle, a random spot in the image and in the gland, the darkest spot of the gland
    after smoothing by 3 mm; and the detector that learnt on drawn pictures alone.
    """
    shown = one.of(one.y == 1)
    draw = np.random.default_rng(seed)
    away = np.hypot(*(np.indices((SIDE, SIDE)) - (SIDE - 1) / 2))
    inside = shown.gland | shown.lesion
    smooth = np.stack([gaussian_filter(image, 3 / MM) for image in shown.x[:, 0].double().numpy()])
    darkness = np.where(inside, 4 - smooth, 0) / 4
    finding = np.stack([extractor("detector").marked(image)[1][0, 0] for image in shown.x.double().numpy()])  # type: ignore[attr-defined]
    maps: dict[str, np.ndarray] = {
        "the image's middle": np.broadcast_to(1 - away / away.max(), inside.shape),
        "a random spot": draw.random(inside.shape),
        "a random spot of the gland": np.where(inside, draw.random(inside.shape), 0),
        "the gland's darkest spot": darkness,
        "the detector's map": finding,
    }
    return {name: measured(cams, shown.lesion) for name, cams in maps.items()}


def scores(module: nn.Module, sites: list[Images]) -> dict[str, float]:
    """AUC at each hospital, and of all scores in one sample."""
    with torch.no_grad():
        found = [module(one.x).logits.softmax(dim=1)[:, 1].numpy() for one in sites]
    told = {name: roc_auc_score(one.y.numpy(), p) for name, one, p in zip("PL", sites, found, strict=True)}
    told["overall"] = roc_auc_score(np.concatenate([one.y.numpy() for one in sites]), np.concatenate(found))
    return {name: round(float(value), 5) for name, value in told.items()}


def line(name: str, seed: int) -> dict[str, object]:
    """All figures of a network."""
    module, sites = network(name, seed), [one.of(one.patient >= PATIENTS) for one in hospitals(seed)]
    told: dict[str, object] = {"AUC": scores(module, sites), "phantom": of_images(module, sites)}
    if "CONSILIUM_DATA" in os.environ:
        told["real"] = of_images(module, [real()])
    return told


def floor(_: str, seed: int) -> dict[str, object]:
    p, other = (one.of(one.patient >= PATIENTS) for one in hospitals(seed))
    together = Images(
        torch.cat([p.x, other.x]),
        torch.cat([p.y, other.y]),
        np.concatenate([p.lesion, other.lesion]),
        np.concatenate([p.gland, other.gland]),
        torch.cat([p.patient, other.patient]),
    )
    told: dict[str, object] = {"phantom": floors(together, seed)}
    if "CONSILIUM_DATA" in os.environ:
        told["real"] = floors(real(), seed)
    return told


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--lines", nargs="+", default=["floors", *LINES], choices=["floors", *LINES])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed, name in product(options.seeds, options.lines):
        book = read_measured("localization")
        if name not in (of := book.setdefault(str(seed), {})):
            of[name] = (floor if name == "floors" else line)(name, seed)
            write_measured("localization", book)
            print(seed, name, flush=True)
