"""What harmonization without a patient (epsilon = 0) is worth to FedAvg on the phantom, and how near it comes to the
oracle.

    python -m benchmarks.studies.no_patient --n 16 48 --seeds 0 1 2 3 4
    python -m benchmarks.tables.derived --write without-a-patient
    python -m benchmarks.studies.no_patient --contrast t2w --seeds 0 1 2      # into measured/no_patient_t2w.json
    python -m benchmarks.studies.no_patient --unequal --seeds 0 1 2           # into measured/no_patient_unequal.json

Two phantom hospitals (P, smooth and masked; L, noisy, with an export window), n training patients and 60 test patients
each, new ones in each seed; six slices of 48 x 48 at 1.5 mm a patient: ADC in 1e-3 mm²/s after the export's window, or
T2-weighted, standardized by study, and as they are exported (`exported`, thousands of grey values). CAM
classifier with batch norm, FedAvg of 40 (n <= 24) or 20 rounds of 2 epochs, Adam 1e-3, batches of 24, flips and small
affine maps, classes drawn equally often. AUC of slices: at each hospital, and of both hospitals' scores in one sample.

A line is a space in which hospitals' images are, a start, and what training adds. Every line is scored as it is and
with AdaBN. The translator and the starts are learnt on the procedural prior alone. `oracle`: L's patients on P's
scanner. --unequal: 60 % of P's and 20 % of L's patients have significant cancer, in the place of 45 % each. Figures go
into measured/no_patient.json as they come; what stands there is not run again. Settings were chosen on seeds 100 and
101 (`--choose`), which no table reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.shared.options import make_parser
from benchmarks.shared.phantoms import read_slices
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.rounds import train_fedavg
from federation.augmentation import AUGMENTATIONS
from federation.calibration import adapt_batch_norms
from federation.descent import Work
from federation.models.cam import Cam
from federation.pretraining import Pretrained, pretrain_network, start_task_with
from federation.randomization import build_disturbance
from federation.task import Task
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, PriorName, draw_pictures
from harmonize.randomized import Randomized
from harmonize.reinhard import Reinhard
from harmonize.scale import Scale, ignore_progress
from harmonize.translation import Translator
from pipelines.data.studies import standardize_values
from pipelines.hospital.public_networks import PUBLIC
from pipelines.hospital.public_networks import learn_translation as public_translation
from pipelines.phantom.patients import SHARE_SIGNIFICANT, Contrast, PhantomSource
from privacy.dp.access import Rows
from privacy.message import Params

TEST = 60  # patients
INPUTS = (1, 48, 48)
TASK = Task(Cam(), INPUTS, 2)
WORK = Work(lr=1e-3, batch=24, epochs=2, augment="affine", balance=True)
EQUAL, UNEQUAL = (SHARE_SIGNIFICANT, SHARE_SIGNIFICANT), (0.6, 0.2)
CACHE = Path("runs") / PUBLIC


class Hospital(NamedTuple):
    """Rows for training, and pictures with labels for the test, in a space."""

    train: Rows
    x: Tensor
    y: Tensor


class Kind(NamedTuple):
    """What a contrast's images hold: the values that become -1 and 1, and the prior that draws such."""

    scale: Scale
    prior: PriorName


KINDS: Mapping[Contrast, Kind] = {
    "adc": Kind(Scale(low=0.0, high=3.5), "prostate_adc"),
    "t2w": Kind(Scale(low=-4.0, high=4.0), "prostate_t2w"),
}


class Line(NamedTuple):
    """space: of the images. start: strength of the disturbances of the start's pictures; None: random numbers.
    randomize: strength of the disturbances in training. contrast: of the images. shares: of the patients with
    significant cancer, at P and at L.
    """

    space: str = "raw"
    start: float | None = None
    randomize: float = 0.0
    contrast: Contrast = "adc"
    shares: tuple[float, float] = EQUAL


LINES: Mapping[str, Line] = {
    "raw": Line(),
    "randomize": Line(randomize=0.3),
    "reinhard": Line("reinhard"),
    "translator": Line("translator"),
    "start": Line(start=1.0),
    "translator + start": Line("translator", 1.0),
    "oracle": Line("oracle"),
    "oracle + start": Line("oracle", 1.0),
}


@lru_cache(maxsize=1)
def hospitals(
    n: int, seed: int, contrast: Contrast, shares: tuple[float, float] = EQUAL
) -> dict[str, tuple[Hospital, Hospital]]:
    """Both hospitals' images, raw, as the oracle has them, and, of those that are standardized, as they were before."""
    found: dict[str, list[Hospital]] = {"raw": [], "oracle": []} | ({} if contrast == "adc" else {"exported": []})
    for scanner, population, share in (("P", 11 + 1000 * seed, shares[0]), ("L", 22 + 1000 * seed, shares[1])):
        source = PhantomSource(
            scanner=scanner,
            contrast=contrast,
            patients=n + TEST,
            seed=population,
            significant=share,  # type: ignore[arg-type]
        )
        if contrast != "adc":
            found["exported"].append(_images(source, n, exported=True))
        own = _images(source, n)
        found["raw"].append(own)
        if scanner != "P":
            other = _images(replace(source, scanner="P"), n)
            own = Hospital(Rows(other.train.x, own.train.y, own.train.patient), other.x, own.y)
        found["oracle"].append(own)
    return {space: (first, second) for space, (first, second) in found.items()}


def _images(source: PhantomSource, n: int, *, exported: bool = False) -> Hospital:
    """exported: grey values as they are, in thousands."""

    def standardized(values: np.ndarray) -> np.ndarray:
        read = values / 1000 if exported else standardize_values(np.asarray(values, np.float32))
        return read.astype(np.float32)

    read = read_slices(source, values=None if source.contrast == "adc" else standardized)
    images, labels, patients = read.x, read.y, read.patient
    mine = patients < n
    return Hospital(Rows(images[mine], labels[mine], patients[mine]), images[~mine], labels[~mine])


@lru_cache(maxsize=1)
def public(contrast: Contrast) -> tuple[Tensor, Tensor]:
    """1,200 labelled pictures of the prior, in [-1, 1]."""
    y = torch.arange(1200) % 2
    return draw_pictures(PRIORS[KINDS[contrast].prior], y, INPUTS, 0), y


@lru_cache(maxsize=4)
def translation(space: str, contrast: Contrast) -> Callable[[Tensor], Tensor] | None:
    """The way into a space, for images as a reader has them; None for those that are only simulated."""
    if space in ("raw", "oracle", "exported"):
        return None
    scale, prior = KINDS[contrast]
    how: Translator = Reinhard()
    if space == "translator":
        how = Randomized() if contrast == "adc" else Randomized(prior=prior)
        params = public_translation(CACHE, how, INPUTS, progress=ignore_progress, device="cpu")
    else:
        x, y = public(contrast)
        params = how.fit(SiteImages(x, y, y), x, seed=0)
    return lambda x: scale.back(how.translate(params, scale.into(x), torch.arange(len(x))))


@lru_cache(maxsize=8)
def start(space: str, strength: float, contrast: Contrast) -> Params:
    """A network that knows the prior's pictures, in a space."""
    (x, y), (scale, prior) = public(contrast), KINDS[contrast]
    how, into = Pretrained(on=prior, strength=strength), translation(space, contrast)
    return pretrain_network(TASK, how, scale.back(x), y, low=scale.low, high=scale.high, through=into)


def trained(
    line: Line, n: int, seed: int, into: Callable[[Tensor], Tensor] | None = None
) -> dict[str, dict[str, float]]:
    """AUC of FedAvg's model, as it is and with AdaBN. into: the way into a space that is not one of these here."""
    into, scale = into or translation(line.space, line.contrast), KINDS[line.contrast].scale
    spaces = hospitals(n, seed, line.contrast, line.shares)
    sites = list(spaces.get(line.space, spaces["raw"]))
    if into is not None:
        sites = [Hospital(replace(one.train, x=into(one.train.x)), into(one.x), one.y) for one in sites]
    begins = {"oracle": "raw", "reinhard": "raw"}.get(line.space, line.space)
    task = TASK if line.start is None else start_task_with(TASK, start(begins, line.start, line.contrast))
    augment = AUGMENTATIONS[WORK.augment]
    if line.randomize and augment is not None:
        augment = build_disturbance(line.randomize, scale.low, scale.high, before=augment)
    module = train_fedavg(
        task, WORK, {f"h{number}": one.train for number, one in enumerate(sites)}, run="no_patient",
        rounds=40 if n <= 24 else 20, seed=seed, augment=augment,
    )  # fmt: skip
    ways = {"as it is": [module, module], "AdaBN": [adapt_batch_norms(module, one.train.x) for one in sites]}
    return {way: score(task, each, sites) for way, each in ways.items()}


def score(task: Task, modules: list[nn.Module], sites: list[Hospital]) -> dict[str, float]:
    """AUC of all scores in one sample, at P, and at L."""
    found = [task.probabilities(module, one.x)[:, 1].numpy() for module, one in zip(modules, sites, strict=True)]
    labels = [one.y.numpy() for one in sites]
    told = {"overall": roc_auc_score(np.concatenate(labels), np.concatenate(found))}
    told |= {name: roc_auc_score(y, p) for name, y, p in zip(("P", "L"), labels, found, strict=True)}
    return {name: float(value) for name, value in told.items()}


def choose(n: int, contrast: Contrast) -> None:
    """Strengths of disturbances, on seeds that no table reports."""
    tried = [Line(), Line("oracle"), *(Line(start=s) for s in (0.0, 1.0)), *(Line(randomize=s) for s in (0.3, 1.0))]
    tried += [Line("translator"), *(Line("translator", start=s) for s in (0.0, 1.0)), Line("oracle", 0.0)]
    for line in (one._replace(contrast=contrast) for one in tried):
        found = [trained(line, n, seed) for seed in (100, 101)]
        for way in found[0]:
            each = [{name: round(value, 3) for name, value in one[way].items()} for one in found]
            print(line, way, each, round(float(np.mean([one[way]["overall"] for one in found])), 3), flush=True)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[16, 48])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--lines", nargs="+", default=list(LINES), choices=[*LINES, "exported"])
    parser.add_argument("--contrast", choices=list(KINDS), default="adc")
    parser.add_argument("--unequal", action="store_true")
    parser.add_argument("--choose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.choose:
        choose(options.n[0], options.contrast)
        raise SystemExit
    known = LINES if options.contrast == "adc" else {**LINES, "exported": Line("exported")}
    kinds = [options.contrast] * (options.contrast != "adc") + ["unequal"] * options.unequal
    place, said = "_".join(["no_patient", *kinds]), {"contrast": options.contrast}
    said |= {"shares": UNEQUAL} if options.unequal else {}
    for n, seed, name in product(options.n, options.seeds, options.lines):
        book = read_measured(place)
        if name not in (of := book.setdefault(str(n), {}).setdefault(str(seed), {})):
            of[name] = trained(known[name]._replace(**said), n, seed)
            write_measured(place, book)
            print(n, seed, name, of[name], flush=True)
