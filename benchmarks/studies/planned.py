"""Our plans beside those of nnU-Net v2 itself, for six made-up fingerprints; and how sure a noised fingerprint is.

    python -m benchmarks.studies.planned --nnunet /where/nnunet/bin/python
    python -m benchmarks.tables.derived --write planned

nnU-Net (nnunetv2 2.8.1) is in an environment of its own, whose python is named; without it our half is made anew.
Studies are made up by a fixed seed: spacings and shapes, (depth, rows, columns), as the data sets of six kinds have
them. nnU-Net's `ExperimentPlanner` gets all of them in one list. Ours gets what three hospitals with 1/2, 1/3 and 1/6
of the studies say of their own: percentiles, merged. Beside it `rules`: our rules on the same list as one hospital. The
file's grid is square in the plane, so that a picture that is no square gets another patch there.

The noise: a hospital of so many patients with a budget of epsilon 8 (1e-5), whose slices are 3 to 4 mm apart and whose
extents are 60 to 90 mm, 200 times: how far off the told medians are.

The phantom: `consilium plan` of prostate_gland_volumes.yaml without its route, at 8 GiB and `--small`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.data.measures import MeasuredStudy, summarize_studies
from pipelines.loader.files import CONFIGS
from pipelines.planning.fingerprint import Common, merge_fingerprints
from pipelines.planning.rules import find_target_spacing, fit_network, resample_shape
from pipelines.planning.settings import Effort, plan_settings
from pipelines.requests.fingerprint import Measured

NAME, SEED = "planned", 44
EMPTY = np.zeros(0, np.float32)
SHARES = (1 / 2, 1 / 3)
NOISED_PATIENTS, REPEATS, EPSILON = (20, 50, 100, 200, 500, 1000), 200, 8.0


@dataclass(frozen=True)
class Kind:
    """A kind of data set. spacing, shape: (depth, rows, columns), medians; jitter: how much studies differ, as a share
    of each; slices: choices of the spacing through the slices, instead. channels, labels: names.
    """

    studies: int
    spacing: tuple[float, float, float]
    shape: tuple[int, int, int]
    jitter: tuple[float, float]
    channels: tuple[str, ...]
    labels: tuple[str, ...]
    slices: tuple[float, ...] = ()


KINDS: Mapping[str, Kind] = {
    "liver": Kind(120, (1.5, 0.8, 0.8), (400, 512, 512), (0.15, 0.2), ("CT",), ("liver", "tumour"), (1.0, 1.5, 2.5)),
    "prostate": Kind(48, (3.6, 0.6, 0.6), (20, 320, 320), (0.03, 0.1), ("T2",), ("gland",), (3.0, 3.6, 3.6, 4.0)),
    "brain": Kind(300, (1.0, 1.0, 1.0), (155, 240, 240), (0.0, 0.0), ("T1",), ("edema", "core", "enhancing")),
    "fundus": Kind(100, (999.0, 1.0, 1.0), (1, 512, 512), (0.0, 0.0), ("R", "G", "B"), ("disc", "cup")),
    "skin": Kind(600, (999.0, 1.0, 1.0), (1, 450, 600), (0.0, 0.0), ("R", "G", "B"), ("lesion",)),
    "hippocampus": Kind(180, (1.0, 1.0, 1.0), (36, 50, 35), (0.0, 0.08), ("T1",), ("anterior", "posterior")),
}


def draw_studies(kind: Kind) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """Spacing and shape of each made-up study."""
    chance = np.random.default_rng(SEED)
    studies = []
    for _ in range(kind.studies):
        plane = chance.uniform(1 - kind.jitter[0], 1 + kind.jitter[0])
        depth = float(chance.choice(kind.slices)) if kind.slices else kind.spacing[0]
        extent = kind.shape[0] * kind.spacing[0] * chance.uniform(1 - kind.jitter[1], 1 + kind.jitter[1])
        through = max(1, round(extent / depth)) if kind.shape[0] > 1 else 1
        is_small = kind.shape[1] < 100
        sides = [
            round(side * chance.uniform(1 - kind.jitter[1], 1 + kind.jitter[1])) if is_small else side
            for side in kind.shape[1:]
        ]
        pixel = float(f"{kind.spacing[1] * plane:.4g}")
        studies.append(((depth, pixel, pixel), (through, *sides)))
    return studies


def tell_figures(studies: list[tuple[tuple[float, ...], tuple[int, ...]]], kind: Kind) -> Measured:
    """What a hospital with these studies says."""
    first = 1 if kind.shape[0] == 1 else 0
    measured = [
        MeasuredStudy("p", f"s{number}", spacing[first:], shape[first:], EMPTY, (0.0, 0.0), (1.0,) * len(kind.labels))
        for number, (spacing, shape) in enumerate(studies)
    ]
    return Measured(rejected_by_reason={}, **asdict(summarize_studies(measured, kind.labels)))


def divide_studies(studies: list[Any]) -> list[list[Any]]:
    """Three hospitals' studies, of different sizes, one after the other."""
    ends = [round(len(studies) * share) for share in (0, SHARES[0], sum(SHARES), 1)]
    return [studies[first:last] for first, last in pairwise(ends)]


def plan_by_rules(common: Common, kind: Kind, *, flat: bool) -> dict[str, Any]:
    """The rules alone, on the spacing and shape of studies as they are."""
    if flat and kind.shape[0] == 1:
        spacing, through = (1.0, 1.0), 1
        median = resample_shape(common.extent, spacing)
    else:
        whole = find_target_spacing(common.spacing, common.voxels, common.fine).spacing
        shape = resample_shape(common.extent, whole)
        spacing, median, through = (whole[1:], shape[1:], shape[0]) if flat else (whole, shape, 1)
    voxels = common.studies / len(common.sites) * through * float(np.prod(median))
    fitted = fit_network(spacing, median, classes=1 + len(kind.labels), voxels=voxels, memory_gib=8.0)
    network = fitted.network
    return {
        "spacing": [float(f"{each:.4g}") for each in spacing],
        "median": [*median],
        "patch": [*network.patch],
        "batch": fitted.batch,
        "strides": [[*stride] for stride in network.strides],
        "kernels": [[*kernel] for kernel in network.kernels],
        "step": [*network.divisor],
    }


def plan_file(common: Common, kind: Kind, *, flat: bool) -> dict[str, Any]:
    """What `consilium plan` writes."""
    volumes = Slices(values="standardized") if flat else Volumes(values="standardized")
    images = Pictures() if kind.shape[0] == 1 else volumes
    plan = plan_settings(common, images, 1 + len(kind.labels), Effort())
    return {
        "spacing": [float(f"{each:.4g}") for each in plan.grid.target.spacing],
        "patch": [*plan.fitted.network.patch],
        "batch": plan.fitted.batch,
        "sides": [*plan.sides],
    }


def plan_all() -> dict[str, Any]:
    """Our plans of all kinds, in three dimensions where there are three, and in two."""
    plans: dict[str, Any] = {}
    for name, kind in KINDS.items():
        studies = draw_studies(kind)
        one = merge_fingerprints({"all": tell_figures(studies, kind)})
        parts = divide_studies(studies)
        three = merge_fingerprints({f"h{number}": tell_figures(part, kind) for number, part in enumerate(parts)})
        for flat in [True] if kind.shape[0] == 1 else [False, True]:
            plans[f"{name} {'2d' if flat else '3d'}"] = {
                "rules": plan_by_rules(one, kind, flat=flat),
                "merged": plan_by_rules(three, kind, flat=flat),
                "file": plan_file(three, kind, flat=flat),
            }
    return plans


def ask_nnunet(python: str) -> dict[str, Any]:
    """nnU-Net's plans of the same studies, in its own environment."""
    prints = {
        name: {
            "spacings": [spacing for spacing, _ in draw_studies(kind)],
            "shapes": [shape for _, shape in draw_studies(kind)],
            "channels": kind.channels,
            "labels": kind.labels,
        }
        for name, kind in KINDS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "fingerprints.json", Path(folder) / "plans.json"
        asked.write_text(json.dumps(prints))
        script = Path(__file__).with_name("nnunet_plans.py")
        subprocess.run([python, script, asked, answer], check=True, capture_output=True)  # noqa: S603 - a person names it
        told = json.loads(answer.read_text())
    keys = {"patch_size": "patch", "batch_size": "batch", "spacing": "spacing"}
    plans = {
        f"{name} {'3d' if configuration == '3d_fullres' else '2d'}": {
            **{ours: made[theirs] for theirs, ours in keys.items()},
            "strides": made["architecture"]["arch_kwargs"]["strides"],
            "kernels": made["architecture"]["arch_kwargs"]["kernel_sizes"],
        }
        for name, plan in told["plans"].items()
        for configuration, made in plan["configurations"].items()
        if configuration in ("2d", "3d_fullres")
    }
    return {"version": told["version"], "plans": plans}


def measure_noise() -> list[dict[str, float]]:
    """How far told medians lie from half of a hospital's patients."""
    import torch

    from pipelines.hospital.fingerprint import COMPARISONS, EXTENT, SPACING_MM, noise_of
    from privacy.dp.quantiles import noisy_quantile
    from privacy.release.policy import Budget

    noise, rows = noise_of(Budget(epsilon=EPSILON), "volumes"), []
    for patients in NOISED_PATIENTS:
        chance = np.random.default_rng(SEED)
        values = torch.tensor(chance.uniform(3, 4, patients))
        extents = torch.tensor(chance.uniform(60, 90, patients))
        off = []
        for quantity, (low, high) in ((values, SPACING_MM), (extents, EXTENT)):
            exact = float(quantity.median())
            told = [
                noisy_quantile(
                    quantity, quantile=0.5, low=low, high=high, comparisons=COMPARISONS, noise_multiplier=noise
                ).value
                for _ in range(REPEATS)
            ]
            off.append(np.quantile(np.abs(np.log(np.array(told) / exact)), [0.5, 0.95]))
        rows.append(
            {
                "patients": patients,
                "share": noise / patients,
                "spacing50": float(np.expm1(off[0][0])),
                "spacing95": float(np.expm1(off[0][1])),
                "extent50": float(np.expm1(off[1][0])),
                "extent95": float(np.expm1(off[1][1])),
            }
        )
    return rows


def plan_phantom() -> list[dict[str, Any]]:
    """The plan of the shipped phantom glands, by the command."""
    from pipelines.plan import main as plan

    shipped = (CONFIGS / "prostate_gland_volumes.yaml").read_text(encoding="utf-8")
    unrouted = shipped[: shipped.index("\nroute:")] + shipped[shipped.index("\nevaluate:") :]
    rows, before = [], Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("glands.yaml").write_text(unrouted, encoding="utf-8")
        try:
            for words in ([], ["--small"]):
                out = f"planned{len(words)}.yaml"
                if plan(["glands.yaml", *words, "-o", out]):
                    raise RuntimeError("the phantom was not planned; see above")
                rows.append({"options": " ".join(words), **yaml.safe_load(Path(out).read_text())})
        finally:
            os.chdir(before)
    return [{key: row[key] for key in ("options", "images", "model", "train")} for row in rows]


def tables(measured: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of the page."""
    columns = ["data", "spacing, mm: nnU-Net", "spacing: three hospitals", "patch: nnU-Net", "patch: the rules"]
    columns += ["patch: three hospitals", "batch: nnU-Net, rules, three hospitals", "in the file"]
    rows = [
        [
            name.replace(" 3d", ", 3-D").replace(" 2d", ", 2-D"),
            _times(theirs["spacing"]),
            _times(ours["merged"]["spacing"]),
            _times(theirs["patch"]),
            _times(ours["rules"]["patch"]),
            _times(ours["merged"]["patch"]),
            f"{theirs['batch']} · {ours['rules']['batch']} · {ours['merged']['batch']}",
            f"{_times(ours['file']['patch'])} of {_times(ours['file']['sides'])}",
        ]
        for name, ours in measured["ours"].items()
        for theirs in [measured["nnunet"]["plans"][name]]
    ]
    told = ["patients", "noise, as a share of them", "spacing: off by, half of the time", "95 %"]
    told += ["extent: off by, half of the time", "95 %"]
    shown = ("spacing50", "spacing95", "extent50", "extent95")
    noise = [
        [str(row["patients"]), f"{row['share']:.0%}", *(f"{row[key]:.1%}" for key in shown)]
        for row in measured["noise"]
    ]
    said = ["options", "spacing, mm", "an example", "patch", "filters", "batch", "rounds of steps"]
    phantom = [
        [
            f"`{row['options']}`" if row["options"] else "none",
            _times([row["images"]["depth_mm"], *2 * [row["images"]["spacing_mm"]]]),
            _times([row["images"]["depth"], *2 * [row["images"]["size"]]]),
            _times(row["model"]["patch"]),
            ", ".join(map(str, row["model"]["filters"])),
            str(row["train"]["work"]["batch"]),
            f"{row['train']['schedule']['rounds']} of {row['train']['work']['steps']}",
        ]
        for row in measured["phantom"]
    ]
    return {
        "plans": make_table(columns, rows, "python -m benchmarks.studies.planned --nnunet PYTHON"),
        "noise": make_table(told, noise, "python -m benchmarks.studies.planned"),
        "phantom": make_table(said, phantom, "python -m benchmarks.studies.planned"),
    }


def _times(values: list[float]) -> str:
    """Numbers of axes as text."""
    return " × ".join(f"{value:.4g}" for value in values)


def main() -> None:
    """Plan, ask nnU-Net where its python is named, and keep the figures."""
    line = make_parser(__doc__)
    line.add_argument("--nnunet", metavar="PYTHON", help="the python of an environment with nnunetv2")
    options = line.parse_args()
    measured = read_measured(NAME)
    measured["ours"] = plan_all()
    measured["noise"] = measured.get("noise") or measure_noise()
    measured["phantom"] = plan_phantom()
    if options.nnunet:
        measured["nnunet"] = ask_nnunet(options.nnunet)
    write_measured(NAME, measured)


if __name__ == "__main__":
    main()
