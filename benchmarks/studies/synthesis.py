"""What a synthesis is worth, with a guarantee and without.

    python -m benchmarks.studies.synthesis [--patients 48 150] [--seeds 0 1 2 3 4]

The "patients" are phantoms of scanner P, N of them with 6 slices each, of 48x48 pixels, each with 4 non-rigidly
deformed copies, as a run has them. Every way makes as many images as the test has, as many of each class. FD: Frechet
distance in 40 principal components of a third cohort (scanner A, other patients). SW: sliced Wasserstein distance of
pixels. Both against TEST patients of scanner P that no way has seen; "real" is the training images themselves, the
floor that N patients leave. diverse: mean distance of a synthetic image to the nearest other one, over that of real
ones. AUC: of VAFL's classifier, with batch norm and affine views, that learnt on LEARNT synthetic images of each class
alone (of real: on the training images), on the real test slices; AdaBN: its norms take the statistics of these.
Settings of the classifier are about those of the default run, and were never chosen here.

Nothing was chosen on these patients: the defaults of `harmonize.wgan` were chosen on public pictures (it says how),
those of private evolution are its own, and those of `fitted_prior` were chosen by FD at epsilon 3 on 48 patients each
of scanners B, D, E and L, among 25 or so: which features and how many of their projections, one to three groups of
looks, `squared` 0, 8, 12, 16 and 24, `within` .25, .5, .6 and .9, `of_mean` .5, .7 and 1, `of_spread` .5, .7 and 1.2,
14 and 22 steps. One fit was looked at on other patients of P, when a fault of the steps was found.

The public start is made once, in build/synthesis (remove it after changes to the code). Figures are in
measured/synthesis.json, which a later call goes on from: means over seeds, which draw other training patients, with
Student's interval.
"""

from __future__ import annotations

import os

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.places import BUILD, PICTURES
from benchmarks.shared.records import make_table, read_measured, say_epsilon, write_measured

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import Tensor

from federation.augmentation import apply_affine
from federation.calibration import adapt_batch_norms
from federation.models.cam import Cam
from federation.task import Task
from harmonize import synthesis, wgan
from harmonize.distances import frechet, sliced_wasserstein
from harmonize.elastic import make_deformed_copies
from harmonize.embedding import Basis, compute_basis, project_images
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.networks import Inputs, initialise_module
from harmonize.prior import PRIORS, draw_pictures
from harmonize.scale import Scale
from harmonize.synthesis import AnySynthesis
from harmonize.wgan import WganGp
from pipelines.phantom.files import render
from pipelines.phantom.patients import PhantomSource, ScannerName
from privacy.dp.access import Access, Batch, Rows, open_access
from privacy.dp.private_access import open_private
from privacy.message import Params

BUILT = BUILD / "synthesis"
PICTURE = PICTURES / "synthesis.png"
SHEET = ("prior-0", "dp_wgan_gp-3", "private_evolution-3", "fitted_prior-3", "real-∞")
FIGURES = ("FD", "SW", "diverse", "AUC", "AdaBN")
INPUTS: Inputs = (1, 48, 48)
SCALE = Scale(low=0.0, high=3.5)
COPIES, TEST, SHOWN = 4, 100, 12
STEPS, BATCH, RATE, LEARNT = 500, 24, 1e-3, 500  # of the classifier
PRIVATE = ("dp_wgan_gp", "private_evolution", "fitted_prior")
WAYS = ("prior", "start", *PRIVATE, "wgan_gp", "real")
MODEL = Cam(widths=(16, 24, 32, 48), norm="batch")


def cohort(scanner: ScannerName, patients: int, seed: int) -> Rows:
    """Slices in [-1, 1] with whether they show significant cancer."""
    source = PhantomSource(scanner=scanner, patients=patients, seed=seed)
    images, labels = [], []
    for patient in range(patients):
        image, lesion, _ = (volume.values for volume in render(source, patient))
        images.append(torch.from_numpy(np.ascontiguousarray(image.transpose(2, 1, 0)).astype(np.float32)))
        labels.append(torch.from_numpy(lesion.any(axis=(0, 1))).long())
    x = SCALE.into(torch.cat(images)[:, None] / 1000)
    return Rows(x, torch.cat(labels), torch.arange(patients).repeat_interleave(source.slices))


def settings_of(way: str, epsilon: float | None) -> AnySynthesis:
    """What a way is in a configuration."""
    if way == "private_evolution":
        return PrivateEvolution(epsilon=epsilon)
    if way == "fitted_prior":
        return FittedPrior(epsilon=epsilon)
    return WganGp(epsilon=epsilon) if way == "dp_wgan_gp" else WganGp(name="wgan_gp", epsilon=None)


def learned(settings: AnySynthesis, own: Rows, start: Params, seed: int) -> Params:
    """What a way learns of these patients, with the data access that it needs."""
    x = make_deformed_copies(own.x, COPIES, seed=seed)
    rows = Rows(x, own.y.repeat_interleave(COPIES), own.patient.repeat_interleave(COPIES))
    access: Access = open_access({"train": rows}, batch=synthesis.draw_size(settings), seed=seed)
    if settings.private:
        protection = synthesis.make_protection(settings, patients=len(torch.unique(own.patient)))
        access = open_private({"train": rows}, protection)
    begins = start if isinstance(settings, WganGp) else None
    return synthesis.synthesize(settings, access, INPUTS, start=begins, seed=seed)


def made(way: str, epsilon: float | None, own: Rows, start: Params, seed: int) -> Callable[[Tensor], Tensor]:
    """What draws images of asked classes."""
    if way == "prior":
        return lambda y: draw_pictures(PRIORS["prostate_adc"], y, INPUTS, seed)
    if way == "real":
        found = synthesis.synthesize(synthesis.Real(), open_access({"train": own}, batch=1, seed=0), INPUTS, seed=0)
        return partial(synthesis.draw_candidates, synthesis.Real(), INPUTS, found, seed=seed)
    if way == "start":
        return partial(wgan.draw_images, WganGp(), INPUTS, start, seed=seed)
    settings = settings_of(way, epsilon)
    return partial(synthesis.draw_candidates, settings, INPUTS, learned(settings, own, start, seed), seed=seed)


def aucs(x: Tensor, y: Tensor, test: Rows, seed: int) -> tuple[float, float]:
    """Areas under the curve of a classifier that learnt on (x, y), on the test's slices: as it is, and with AdaBN."""
    task = Task(MODEL, INPUTS, 2)
    network = initialise_module(task.network, seed).train()
    rule = torch.optim.Adam(network.parameters(), lr=RATE)
    random = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        sides = [(y == label).nonzero()[:, 0] for label in (0, 1)]
        index = torch.cat([side[torch.randint(len(side), (BATCH // 2,), generator=random)] for side in sides])
        views, labels = apply_affine(x[index], y[index], random)
        loss = task.objective(network, Batch(views, labels)).mean()
        rule.zero_grad()
        loss.backward()
        rule.step()
    found = [
        task.probabilities(one, test.x)[:, 1] for one in (network.eval(), adapt_batch_norms(network.eval(), test.x))
    ]
    return float(roc_auc_score(test.y, found[0])), float(roc_auc_score(test.y, found[1]))


def nearest(x: Tensor) -> float:
    """Mean distance of an image to the nearest other one."""
    each = torch.unique(x.flatten(1), dim=0)  # training images are shared more than once if they are few
    apart = torch.cdist(each, each).fill_diagonal_(torch.inf)
    return float(apart.amin(dim=1).mean())


def row(way: str, epsilon: float | None, n: int, seed: int, world: tuple[Basis, Rows, Params]) -> dict[str, Any]:
    """One way, one cohort: its numbers, and images to look at."""
    third, test, start = world
    own = cohort("P", n, 1000 + seed)
    begun = time.process_time()
    draw = made(way, epsilon, own, start, seed)
    spent = time.process_time() - begun
    x = draw(test.y)
    many = torch.arange(2 * LEARNT) % 2
    plain, by_norms = aucs(own.x, own.y, test, seed) if way == "real" else aucs(draw(many), many, test, seed)
    numbers = {
        "FD": frechet(project_images(third, x), project_images(third, test.x)),
        "SW": sliced_wasserstein(x, test.x, seed=0),
        "diverse": nearest(x) / nearest(test.x),
        "AUC": plain,
        "AdaBN": by_norms,
        "seconds": spent,
    }
    order = torch.cat([(test.y == label).nonzero()[: SHOWN // 2, 0] for label in (0, 1)])
    return {"way": way, "epsilon": epsilon, "n": n, "seed": seed, **numbers, "images": x[order]}


def sheet(rows: list[Tensor]) -> None:
    """One line of images a way: six of class 0, six of class 1."""
    lines = [torch.cat(list(images[:, 0]), dim=1) for images in rows]
    pixels = ((torch.cat(lines) + 1) * 127.5).round().to(torch.uint8).numpy()
    large = Image.fromarray(pixels).resize((2 * pixels.shape[1], 2 * pixels.shape[0]), Image.Resampling.NEAREST)
    large.save(PICTURE, optimize=True)


def tables(kept: dict[str, dict[str, dict[str, float]]]) -> dict[str, object]:
    """A table for each number of patients: means over seeds, with Student's interval."""
    found: dict[str, object] = {}
    for n in dict.fromkeys(key.split(" | ")[0] for key in kept):
        rows = []
        for key, of in kept.items():
            number, way, epsilon = key.split(" | ")
            if number == n and len(of) > 1:
                columns = {name: np.array([one[name] for one in of.values()]) for name in (*FIGURES, "seconds")}
                cells = [format_interval(columns[name], digits=1 if name == "FD" else 3) for name in FIGURES]
                rows.append([way, epsilon, *cells, f"{columns['seconds'].mean():.0f}"])
        head = ["way", "ε of a patient", *FIGURES, "CPU s"]
        found[f"synthesis-{n}"] = make_table(head, rows)
    return found


def main() -> None:
    reader = make_parser(__doc__)
    reader.add_argument("--patients", type=int, nargs="+", default=[48, 150])
    reader.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    reader.add_argument("--epsilons", type=float, nargs="+", default=[10.0, 3.0, 1.0])
    reader.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asked = reader.parse_args()
    torch.set_num_threads(1)
    begun, made_once = time.process_time(), BUILT / "start.pt"
    made_once.parent.mkdir(parents=True, exist_ok=True)
    if not made_once.exists():
        torch.save(wgan.pretrain_networks(WganGp(), INPUTS, seed=0), made_once)
        print(f"public start: {time.process_time() - begun:.0f} CPU s", flush=True)
    world = (compute_basis(cohort("A", 100, 7).x, 40), cohort("P", TEST, 99), torch.load(made_once, weights_only=True))
    kept = read_measured("synthesis")
    for n, seed, way in product(asked.patients, asked.seeds, asked.ways):
        for epsilon in asked.epsilons if way in PRIVATE else [None]:
            said = "0" if way in ("prior", "start") else say_epsilon(epsilon).replace("inf", "∞")
            if str(seed) in kept.get(key := f"{n} | {way} | {said}", {}):
                continue
            found = row(way, epsilon, n, seed, world)
            if seed == 0:
                torch.save(found.pop("images"), BUILT / f"{n}-{way}-{said}.pt")
            kept.setdefault(key, {})[str(seed)] = {name: round(found[name], 4) for name in (*FIGURES, "seconds")}
            write_measured("synthesis", kept)
            print(key, seed, kept[key][str(seed)], flush=True)
    sheet([torch.load(BUILT / f"48-{name}.pt", weights_only=True) for name in SHEET])


if __name__ == "__main__":
    main()
