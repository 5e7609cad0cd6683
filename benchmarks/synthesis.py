"""What a synthesis is worth, with a guarantee and without: python benchmarks/synthesis.py --out FOLDER

The "patients" are phantoms of scanner P, N of them with 6 slices each, of 48x48 pixels, each with 4 non-rigidly
deformed copies, as a run has them. Every way makes as many images as the test has, as many of each class. FD: Frechet
distance in 40 principal components of a third cohort (scanner A, other patients). SW: sliced Wasserstein distance of
pixels. Both against TEST patients of scanner P that no way has seen; "real" is the training
images themselves, the floor that N patients leave. AUC: of a classifier that learnt on the synthetic images and their
labels alone, on the real test slices; its settings are fixed here and were never chosen.

Nothing was chosen on these patients: the defaults of `harmonize.wgan` were chosen on public pictures (it says how), and
those of private evolution are its own. The start is made once, stays in FOLDER (remove it after changes to the code),
and is public. A row of several seeds tells means, with
the deviation over seeds behind SW and AUC.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from harmonize import synthesis, wgan
from harmonize.distances import frechet, sliced_wasserstein
from harmonize.elastic import deformed
from harmonize.embedding import Basis, basis, project
from harmonize.evolution import PrivateEvolution
from harmonize.networks import Classifier, Inputs, initialised
from harmonize.prior import PRIORS, drawn
from harmonize.scale import Scale
from harmonize.synthesis import AnySynthesis
from harmonize.wgan import WganGp
from pipelines.phantom.files import render
from pipelines.phantom.patients import PhantomSource, ScannerName
from privacy.dp.access import Access, Rows, open_access
from privacy.dp.private_access import open_private
from privacy.message import Params

INPUTS: Inputs = (1, 48, 48)
SCALE = Scale(low=0.0, high=3.5)
COPIES, TEST, SHOWN = 4, 100, 12
STEPS, BATCH, RATE = 300, 48, 2e-3  # of the classifier
WAYS = ("prior", "start", "dp_wgan_gp", "private_evolution", "wgan_gp", "real")


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
    return WganGp(epsilon=epsilon) if way == "dp_wgan_gp" else WganGp(name="wgan_gp", epsilon=None)


def learned(settings: AnySynthesis, own: Rows, start: Params, seed: int) -> Params:
    """What a way learns of these patients, with the data access that it needs."""
    x = deformed(own.x, COPIES, seed=seed)
    rows = Rows(x, own.y.repeat_interleave(COPIES), own.patient.repeat_interleave(COPIES))
    access: Access = open_access({"train": rows}, batch=synthesis.batch(settings), seed=seed)
    if settings.private:
        protection = synthesis.protection(settings, patients=len(torch.unique(own.patient)))
        access = open_private({"train": rows}, protection)
    begins = start if isinstance(settings, WganGp) else None
    return synthesis.synthesize(settings, access, INPUTS, start=begins, seed=seed)


def made(way: str, epsilon: float | None, own: Rows, start: Params, seed: int) -> Callable[[Tensor], Tensor]:
    """What draws images of asked classes."""
    if way == "prior":
        return lambda y: drawn(PRIORS["prostate_adc"], y, INPUTS, seed)
    if way == "real":
        found = synthesis.synthesize(synthesis.Real(), open_access({"train": own}, batch=1, seed=0), INPUTS, seed=0)
        return partial(synthesis.candidates, synthesis.Real(), INPUTS, found, seed=seed)
    if way == "start":
        return partial(wgan.sampled, WganGp(), INPUTS, start, seed=seed)
    settings = settings_of(way, epsilon)
    return partial(synthesis.candidates, settings, INPUTS, learned(settings, own, start, seed), seed=seed)


def auc(x: Tensor, y: Tensor, test: Rows, seed: int) -> float:
    """Area under the curve of a classifier that learnt on (x, y), on the test's slices."""
    network = initialised(lambda: Classifier(INPUTS), seed)
    rule = torch.optim.Adam(network.parameters(), lr=RATE)
    random = torch.Generator().manual_seed(seed)
    positive = (len(y) - y.sum()) / y.sum()
    for _ in range(STEPS):
        index = torch.randint(len(x), (BATCH,), generator=random)
        loss = functional.binary_cross_entropy_with_logits(network(x[index]), y[index].float(), pos_weight=positive)
        rule.zero_grad()
        loss.backward()
        rule.step()
    with torch.no_grad():
        logit = network(test.x)
    lower, upper = logit[test.y == 0], logit[test.y == 1]
    above = (upper[:, None] > lower).double() + 0.5 * (upper[:, None] == lower).double()
    return float(above.mean())


def row(way: str, epsilon: float | None, n: int, seed: int, world: tuple[Basis, Rows, Params]) -> dict[str, Any]:
    """One way, one cohort: its numbers, and images to look at."""
    third, test, start = world
    own = cohort("P", n, 1000 + seed)
    begun = time.process_time()
    draw = made(way, epsilon, own, start, seed)
    spent = time.process_time() - begun
    x = draw(test.y)
    numbers = {
        "FD": frechet(project(third, x), project(third, test.x)),
        "SW": sliced_wasserstein(x, test.x, seed=0),
        "AUC": auc(x, test.y, test, seed),
        "seconds": spent,
    }
    order = torch.cat([(test.y == label).nonzero()[: SHOWN // 2, 0] for label in (0, 1)])
    return {"way": way, "epsilon": epsilon, "n": n, "seed": seed, **numbers, "images": x[order]}


def sheet(rows: list[dict[str, Any]], file: Path) -> None:
    """One line of images a row: six of class 0, six of class 1."""
    lines = [torch.cat(list(one["images"][:, 0]), dim=1) for one in rows]
    pixels = ((torch.cat(lines) + 1) * 127.5).round().to(torch.uint8).numpy()
    Image.fromarray(pixels).resize((2 * pixels.shape[1], 2 * pixels.shape[0]), Image.Resampling.NEAREST).save(file)


def table(rows: list[dict[str, Any]]) -> None:
    """Markdown, means over seeds."""
    print("| way | patients | epsilon | FD | SW | AUC | CPU s |\n|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((one["way"], one["n"], one["epsilon"]) for one in rows):
        own = [one for one in rows if (one["way"], one["n"], one["epsilon"]) == key]
        mean = {name: statistics.mean(one[name] for one in own) for name in ("FD", "SW", "AUC", "seconds")}
        apart = {name: statistics.stdev(one[name] for one in own) if len(own) > 1 else 0.0 for name in ("SW", "AUC")}
        print(
            f"| {key[0]} | {key[1]} | {'-' if key[2] is None else f'{key[2]:g}'} | {mean['FD']:.1f} | {mean['SW']:.3f} "
            f"± {apart['SW']:.3f} | {mean['AUC']:.3f} ± {apart['AUC']:.3f} | {mean['seconds']:.0f} |"
        )


if __name__ == "__main__":
    reader = argparse.ArgumentParser()
    reader.add_argument("--out", type=Path, required=True)
    reader.add_argument("--patients", type=int, nargs="+", default=[48, 150])
    reader.add_argument("--seeds", type=int, nargs="+", default=[0])
    reader.add_argument("--epsilons", type=float, nargs="+", default=[10.0, 3.0])
    reader.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asked = reader.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    begun, kept = time.process_time(), asked.out / "start.pt"
    if not kept.exists():
        torch.save(wgan.pretrained(WganGp(), INPUTS, seed=0), kept)
        print(f"public start: {time.process_time() - begun:.0f} CPU s", flush=True)
    start = torch.load(kept, weights_only=True)
    world = (basis(cohort("A", 100, 7).x, 40), cohort("P", TEST, 99), start)
    rows = []
    for n in asked.patients:
        for way in asked.ways:
            for epsilon in asked.epsilons if way in ("dp_wgan_gp", "private_evolution") else [None]:
                rows += [row(way, epsilon, n, seed, world) for seed in asked.seeds]
                print({name: value for name, value in rows[-1].items() if name != "images"}, flush=True)
        sheet([one for one in rows if one["n"] == n and one["seed"] == asked.seeds[0]], asked.out / f"sheet-{n}.png")
    plain = [{name: value for name, value in one.items() if name != "images"} for one in rows]
    (asked.out / "synthesis.json").write_text(json.dumps(plain, indent=1))
    table(rows)
