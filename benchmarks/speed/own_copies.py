"""What it costs that an own network passes each patient through a copy.

    python -m benchmarks.speed.own_copies [PATIENTS]

One private step of descent on U patients with K images each, as in private_step.py, of networks that somebody
registered. The two ways take turns: with a copy of the network for each patient, which may keep nothing of them, and
without, as networks of this program pass. The least CPU time of each counts, so only the ratio says anything. Prints
the table `copies` of docs/results/data/privacy.json.
"""

from __future__ import annotations

import json

import torch
from torch import nn

from benchmarks.shared.options import make_parser
from benchmarks.speed.private_step import TURNS, private, rows, timed
from federation.models import adapted
from federation.models.own import Own, register_network
from federation.task import Task


def build_convolutions() -> nn.Module:
    """Three convolutions for pictures 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(nn.Sequential(*layers), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(32, 2))


def build_perceptron() -> nn.Module:
    """Ten units for thirteen features."""
    return nn.Sequential(nn.Sequential(nn.Linear(13, 10), nn.ReLU()), nn.Identity(), nn.Linear(10, 2))


NETWORKS = {
    "three convolutions, 3 x 32 px": (build_convolutions, (3, 32, 32)),
    "ten units, 13 features": (build_perceptron, (13,)),
}


def measure_ratios(patients: int) -> list[list[str]]:
    """A row for each network and number of images."""
    measured = []
    for number, (name, (build, inputs)) in enumerate(NETWORKS.items()):
        register_network(f"copied-{number}", build)
        task = Task(Own(network=f"copied-{number}", stem=("0",), blocks=("1",), head="2"), inputs, 2)
        for views in TURNS:
            data = rows(task, patients, views, "cpu")
            step, copying = private(task, data, views), adapted.is_repeatable

            def step_without(step=step) -> None:
                adapted.is_repeatable = lambda: False
                try:
                    step()
                finally:
                    adapted.is_repeatable = copying  # noqa: B023

            found = timed({"copy": step, "none": step_without}, TURNS[views], "cpu")
            measured.append([name, str(views), f"{1000 * found['none']:.1f}", f"{found['copy'] / found['none']:.2f}"])
    return measured


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("patients", type=int, nargs="?", default=32)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    columns = ["own network", "K", "private step without copies, ms", "with copies"]
    print(json.dumps({"columns": columns, "rows": measure_ratios(asked.patients)}, indent=1))
