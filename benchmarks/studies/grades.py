"""Which loss is worth its place for ordered classes: python -m benchmarks.studies.grades

One network on the pooled slices of three phantom hospitals (scanners P, L and D, 48 patients each, 60 % of them with
significant cancer), labelled with the highest grade group in each slice: none, gg1 to gg5. Half of the patients train,
half test; seeds of patients are 7400 + 3 k of population k, which no shipped configuration has. 48 x 48 pixels at
1.5 mm, CNN of 16, 24, 32, 48 channels with batch norm, Adam 2e-3, batches of 24, mirror images, 24 epochs. The losses:

cross-entropy: of which the order of classes is unknown.
ranked probability: the sum over cuts of squared differences of P(grade <= k) and what is true, as runs with `ordered:
    true` learn (`federation.task.Task.losses`; Epstein 1969, Hou et al. 2016).
both: cross-entropy plus it. both, mean: the same with the mean over cuts in place of the sum.

All start from the same numbers and see the same batches. Scores of test slices in the last epoch, nothing is chosen;
the predicted grade is the median of the distribution for all three. Means and gains are over populations, with
Student's interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from evaluation.histograms import count_scores
from evaluation.metrics import AUC, GRADE_ERROR, KAPPA, RANKED_PROBABILITY
from federation.augmentation import flip_images
from federation.descent import Site, Work
from federation.models.cnn import Cnn
from federation.randomness import use_seed
from federation.task import Output, Task, label_loss, ranked_probability_loss
from pipelines.phantom.organs import GRADE_GROUPS
from pipelines.phantom.patients import ScannerName
from pipelines.run import main as run
from privacy.dp.access import Batch, Forward, Rows, Split, open_access
from privacy.message import from_file

FIRST_SEED, PATIENTS, EPOCHS = 7400, 48, 24
CUTS = len(GRADE_GROUPS) - 1
SCANNERS: tuple[ScannerName, ...] = ("P", "L", "D")
TASK = Task(Cnn(widths=(16, 24, 32, 48), norm="batch"), (1, 48, 48), len(GRADE_GROUPS), ordered=True)
MEASURES = (AUC, KAPPA, GRADE_ERROR, RANKED_PROBABILITY)
LOSSES: dict[str, Callable[[Output, Tensor], Tensor]] = {
    "cross-entropy": label_loss,
    "ranked probability": TASK.losses,
    "both": lambda output, y: label_loss(output, y) + ranked_probability_loss(output.logits, y),
    "both, mean": lambda output, y: label_loss(output, y) + ranked_probability_loss(output.logits, y) / CUTS,
}


def draw_population(population: int, folder: Path) -> dict[Split, Rows]:
    """Slices of the three hospitals as a run reads them: half of each one's patients to train and half to test."""
    sites = {}
    for place, scanner in enumerate(SCANNERS):
        source = {"kind": "phantom", "scanner": scanner, "patients": PATIENTS, "significant": 0.6}
        sites[scanner.lower()] = {
            "source": {**source, "seed": FIRST_SEED + 3 * population + place, "labels": "grade_group"}
        }
    said: dict[str, Any] = {"name": f"population{population}", "sites": sites, "runs": str(folder), "privacy": "none"}
    said["task"] = {"kind": "classification", "classes": list(GRADE_GROUPS), "ordered": True}
    said["images"] = {"kind": "slices", "spacing_mm": 1.5, "size": 48}
    said["split"], said["evaluate"] = {"train": 0.5, "validation": 0.0, "test": 0.5}, {"checkpoint": "latest"}
    said["model"], said["train"] = {"name": "cnn"}, {"schedule": {"rounds": 1}, "methods": {"local": {"name": "local"}}}
    (folder / "run.yaml").write_text(yaml.safe_dump(said))
    if run([str(folder / "run.yaml"), "--until", "ingest"]):
        raise SystemExit("the phantom's images could not be read; the run above says why")
    cohorts = [
        from_file(path).tensors for path in sorted(folder.glob("population*/sites/*/cohorts/*/cohort.safetensors"))
    ]
    x = torch.cat([cohort["images"].float() for cohort in cohorts])
    y = torch.cat([cohort["labels"].long() for cohort in cohorts])
    patient = torch.cat([1000 * place + cohort["patient"].long() for place, cohort in enumerate(cohorts)])
    split = torch.cat([cohort["split"] for cohort in cohorts])
    splits: dict[Split, int] = {"train": 0, "test": 2}
    return {name: Rows(x[split == code], y[split == code], patient[split == code]) for name, code in splits.items()}


def score_loss(loss: Callable[[Output, Tensor], Tensor], splits: dict[Split, Rows], seed: int) -> list[float]:
    """Scores on test slices of a network that learnt by a loss, in the order of `MEASURES`."""
    rows, test = {"train": splits["train"], "validation": splits["test"]}, splits["test"]
    work = Work(lr=2e-3, batch=24, epochs=EPOCHS)

    def objective(forward: Forward, batch: Batch) -> Tensor:
        return loss(forward(batch.x), batch.y)

    with use_seed(seed):
        module = TASK.network()
        access = open_access(rows, batch=24, seed=seed, augment=flip_images)
        Site("pooled", TASK, work, access).descend(module, objective)
    p = TASK.probabilities(module, test.x).double().numpy()
    counts = count_scores(test.y.numpy(), p, test.patient.numpy(), copies=0, seed=0, ordered=True)
    return [float(measure.of(counts)[0]) for measure in MEASURES]


def measure_losses(populations: int) -> None:
    """Print the scores of each loss, and their changes from cross-entropy on the same population."""
    scores: dict[str, list[list[float]]] = {name: [] for name in LOSSES}
    for population in range(populations):
        with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            splits = draw_population(population, Path(folder))
        for name, loss in LOSSES.items():
            scores[name].append(score_loss(loss, splits, FIRST_SEED + population))
            print(f"{population}, {name}: {scores[name][-1]}", file=sys.stderr)
    print(f"| loss | {' | '.join(measure.name for measure in MEASURES)} |")
    plain = np.array(scores["cross-entropy"])
    for name, each in scores.items():
        print(f"| {name} | {' | '.join(format_interval(values) for values in np.array(each).T)} |")
        if name != "cross-entropy":
            changes = (np.array(each) - plain).T
            print(f"| {name}, change | {' | '.join(format_interval(values, sign='+') for values in changes)} |")


if __name__ == "__main__":
    line = make_parser(__doc__)
    line.add_argument("--populations", type=int, default=3)
    measure_losses(line.parse_args().populations)
