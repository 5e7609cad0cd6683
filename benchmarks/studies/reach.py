"""How far test-time adaptation could reach at a hospital outside.

    python -m benchmarks.studies.reach [--epochs 40] RUN.yaml

RUN.yaml: settings of a finished run with masks and a stage `route` that mixed models; `runs` is in the working folder.
What routing and Tent may move is trained here on the masks of the very images it is then scored on. No unlabelled loss
can be expected to do better in that space: where the score stays low, no choice of coefficients is right; where it is
high and routing's is low, the unsupervised loss leads elsewhere. Dice, mean over the hospital's patients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.shared.options import make_parser
from federation.parameters import loaded
from federation.task import Task
from personalize.adaptation_baselines import Tent, tent
from personalize.adaptation_norms import AtTest, batches, by_test_statistics, calibrate
from personalize.routing import build_routed
from personalize.routing_outside import Routing, route_experts
from pipelines.data.cohort import Cohort
from pipelines.external.models_file import GLOBAL, Models, read_models
from pipelines.hospital.hospital import COHORT, Hospital, all_rows, read_cohort_file
from pipelines.hospital.segmentation import score_patients
from pipelines.models.answers import predict_classes
from pipelines.settings.load import load_config
from privacy.dp.access import Rows

BATCH = 16


def taught(module: nn.Module, x: Tensor, y: Tensor, task: Task, *, epochs: int, lr: float) -> nn.Module:
    """The network after Adam on the run's own supervised loss of what requires a gradient."""
    rule = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=lr)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        module.train()
        for index in batches(torch.randperm(len(x), generator=generator), BATCH):
            rule.zero_grad()
            task.model.losses(module(x[index]), y[index]).mean().backward()
            rule.step()
    calibrate(module, x, BATCH)
    return module.eval()


def ways(models: Models, task: Task, rows: Rows, epochs: int) -> Iterator[tuple[str, nn.Module]]:
    """Networks by name, from what serves without any adaptation to what masks could teach."""
    x, y = rows.x, rows.y
    experts = {name: loaded(task.network(), params).eval() for name, params in models.experts.items()}
    for name, expert in experts.items():
        yield ("shared model" if name == GLOBAL else f"model of {name}"), expert
    whole, last = list(experts.values()), experts[GLOBAL]
    yield "shared model by the test images' statistics", tent(last, x, Tent(epochs=0), kind=task.kind)[0]
    for statistics in ("image", "set"):
        start, _ = route_experts(whole, x, Routing(epochs=0, statistics=statistics), kind=task.kind)
        yield f"mean of kernels, statistics: {statistics}", start
        mixed = taught(build_routed(whole, statistics=statistics), x, y, task, epochs=epochs, lr=3e-3)
        yield f"routing taught by masks, statistics: {statistics}", mixed
    norms = AtTest(deepcopy(last))
    by_test_statistics(norms.network, "set", "trained")
    yield "norms' scales and shifts taught by masks", taught(norms, x, y, task, epochs=epochs, lr=3e-3)
    yield "whole shared model taught by masks", taught(deepcopy(last), x, y, task, epochs=epochs, lr=1e-3)


def dice(task: Task, module: nn.Module, cohort: Cohort, rows: Rows) -> float:
    scores = score_patients(cohort, rows, predict_classes(task, module, rows.x), task.classes).scores[..., 0]
    return float(np.nanmean(scores, axis=0).mean())  # patients without the structure have no score


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("run")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(options.run)
    root = Path("runs") / config.name
    artifact = max(root.glob("route/*/"), key=lambda folder: folder.stat().st_mtime)
    models = read_models(artifact / "models.safetensors")
    homes = json.loads((artifact / "outside" / "sites.json").read_text())
    print("| outside | network | Dice |\n|---|---|---|")
    for site in config.outside:
        hospital = Hospital(site, root / "sites" / site, config.sites[site], lambda: "")
        cohort = read_cohort_file(hospital.cohort_folder(homes[site]["cohort"]) / COHORT)
        task = models.described.task(models.described.part_of(GLOBAL))
        rows = all_rows(cohort, target=config.task.target)
        for name, module in ways(models, task, rows, options.epochs):
            print(f"| {site} | {name} | {dice(task, module, cohort, rows):.3f} |", flush=True)
