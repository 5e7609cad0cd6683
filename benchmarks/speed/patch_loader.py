"""What a patch costs until a network gets it, beside nnU-Net's own loader: milliseconds of the processor.

    python -m benchmarks.speed.patch_loader --nnunet PYTHON [--turns 3] [--code FOLDER --name before]
    python -m benchmarks.tables.derived --write cost-curves

PYTHON is of an environment with nnunetv2. Four made-up studies with one structure, the same for both, patches of the
same size in batches of the same size, a third of them about foreground, on one thread; the two ways take turns in one
run, and the least of a way's turns counts. `places`: patches at random places, as they are. `views`: with augmentation,
ours as `consilium plan` writes it (TorchIO), nnU-Net's as its trainer makes it. nnU-Net reads blosc2-packed files and
found its places of foreground when it prepared them, for which nothing is counted; ours reads the cohort's mapped file,
and looks at the mask. `copying` is what is left to do at least: the voxels of a patch and its mask, copied once.
--code: another folder of the project, whose code is run instead, for the column *before*.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from federation.patches import build_patch_views
from federation.torchio_views import View, build_torchio_function
from federation.transforms import build_views
from pipelines.planning.settings import FOREGROUND, list_views
from privacy.dp.access import Rows, open_access
from privacy.dp.stored_rows import select_rows

NAME, COMMAND = "patch_loader", "python -m benchmarks.speed.patch_loader --nnunet PYTHON"
STUDIES = 4


class Case(TypedDict):
    """Sides of a study and of a patch, and how many patches a batch has."""

    study: tuple[int, ...]
    patch: tuple[int, ...]
    batch: int
    batches: int


CASES: Mapping[str, Case] = {
    "64 x 64 x 64 of 96 x 128 x 128": {"study": (96, 128, 128), "patch": (64, 64, 64), "batch": 2, "batches": 12},
    "64 x 64 x 64 of 128 x 256 x 256": {"study": (128, 256, 256), "patch": (64, 64, 64), "batch": 2, "batches": 12},
    "256 x 256 of 512 x 512": {"study": (512, 512), "patch": (256, 256), "batch": 12, "batches": 6},
}


def make_study(number: int, sides: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An image of noise (1, *sides) float32, and a ball in it (*sides) int16."""
    generator = np.random.default_rng(number)
    axes = np.meshgrid(*(np.linspace(0, 1, side) for side in sides), indexing="ij", sparse=True)
    mask = sum((axis - generator.uniform(0.3, 0.7)) ** 2 for axis in axes) < 0.02
    image = generator.standard_normal((1, *sides), np.float32) + mask
    return image.astype(np.float32), mask.astype(np.int16)


def make_ours(folder: Path, case: Case) -> dict[str, Callable[[], object]]:
    """Functions that draw one batch as training does, and one that copies as many voxels."""
    studies = [make_study(number, case["study"]) for number in range(STUDIES)]
    images = torch.stack([torch.from_numpy(image) for image, _ in studies])
    masks = torch.stack([torch.from_numpy(mask.astype(np.uint8)) for _, mask in studies])
    save_file({"images": images, "masks": masks}, folder / "cohort.safetensors")
    cohort, every = load_file(folder / "cohort.safetensors"), torch.arange(STUDIES)
    x = select_rows(cohort["images"], every, torch.float32)
    y = select_rows(cohort["masks"], every, torch.int64)
    rows, flat = Rows(x, y, every), len(case["patch"]) == 2
    views = TypeAdapter(tuple[View, ...]).validate_python([view.value for view in list_views(case["patch"], flat=flat)])
    after = build_views(build_torchio_function(views, flat=flat))
    draws = {}
    for way, then in (("places", None), ("views", after)):
        augment = build_patch_views(case["patch"], FOREGROUND, 2, after=then)
        draws[way] = open_access({"train": rows}, batch=case["batch"], seed=0, augment=augment).draw
    corner = tuple(slice(3, 3 + side) for side in case["patch"])

    def copy() -> None:
        for _ in range(case["batch"]):
            cohort["images"][(0, 0, *corner)].clone(), cohort["masks"][(0, *corner)].long()

    return {**draws, "copying": copy}


def measure(case: Case, nnunet: Path | None, turns: int) -> dict[str, float]:
    """Milliseconds of the processor a patch, by way: ours, `copying`, and `nnunet ...`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = None if nnunet is None else start_nnunet(folder, case, nnunet)
        draws, seconds = make_ours(folder, case), dict[str, list[float]]()
        for _ in range(turns + 1):
            for way, draw in draws.items():
                begun = time.process_time()
                for _ in range(case["batches"]):
                    draw()
                seconds.setdefault(way, []).append(time.process_time() - begun)
                if other is not None and way != "copying":
                    seconds.setdefault(f"nnunet {way}", []).append(ask_nnunet(other, way, case["batches"]))
        if other is not None:
            other.communicate()
    patches = case["batches"] * case["batch"]
    return {way: 1000 * min(each[1:]) / patches for way, each in seconds.items()}


def start_nnunet(folder: Path, case: Case, python: Path) -> subprocess.Popen[str]:
    """nnU-Net's loader on the same studies, ready for lines."""
    names = [f"case{number}" for number in range(STUDIES)]
    for number, name in enumerate(names):
        image, mask = make_study(number, case["study"])
        flat = mask.ndim == 2
        np.save(folder / f"{name}.npy", image[:, None] if flat else image)
        np.save(folder / f"{name}-mask.npy", mask[None] if flat else mask)
    job = {"folder": str(folder), "names": names, "patch": case["patch"], "batch": case["batch"]}
    (folder / "job.json").write_text(json.dumps(job))
    script = Path(__file__).with_name("patch_loader_nnunet.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.Popen(  # noqa: S603
        [str(python), str(script), str(folder / "job.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    if run.stdout is None or run.stdout.readline().strip() != "ready":
        raise RuntimeError("nnU-Net's loader did not begin: run patch_loader_nnunet.py by hand to see why")
    return run


def ask_nnunet(run: subprocess.Popen[str], way: str, batches: int) -> float:
    """Seconds that nnU-Net's loader takes for so many batches."""
    if run.stdin is None or run.stdout is None:
        raise RuntimeError("nnU-Net's loader has no pipes")
    run.stdin.write(f"{way} {batches}\n")
    run.stdin.flush()
    return float(run.stdout.readline())


def table(kept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Milliseconds a patch, and how they compare."""
    columns = ["patch", "augmented", "nnU-Net's loader, ms", "before, ms", "now, ms", "nnU-Net's / now"]
    rows = []
    for case, now in kept["now"].items():
        for way, told in (("places", "no"), ("views", "yes")):
            before, nnunet = kept["before"][case][way], now[f"nnunet {way}"]
            cells = [f"{nnunet:.1f}", f"{before:.1f}", f"{now[way]:.1f}", f"{nnunet / now[way]:.2f}"]
            rows.append([case, told, *cells, f"{now['copying']:.2f}"])
    return make_table([*columns, "copying alone, ms"], rows, COMMAND)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nnunet", type=Path, help="a python with nnunetv2")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--name", default="now", help="of the code in the table")
    parser.add_argument("--only", choices=CASES, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.only is not None:
        return print(json.dumps(measure(CASES[options.only], options.nnunet, options.turns)))
    for case in CASES:
        environment = {**os.environ, "PYTHONPATH": str(options.code.resolve()), "OMP_NUM_THREADS": "1"}
        asked = [sys.executable, __file__, "--only", case, "--turns", str(options.turns)]
        asked += [] if options.nnunet is None else ["--nnunet", str(options.nnunet)]
        run = subprocess.run(asked, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
        kept = read_measured(NAME)
        kept.setdefault(options.name, {})[case] = json.loads(run.stdout.splitlines()[-1])
        write_measured(NAME, kept)
        print(case, run.stdout.strip(), flush=True)
    return None


if __name__ == "__main__":
    main()
