"""How much a training alone moves Dice of lesions: pooled nnU-Net and the pooled planned network, on the same patients.

    python -m benchmarks.studies.lesion_trainings --nnunet /where/nnunet/bin/python [--trainings 1 2 3 4]

Patients and budget of `lesions` in `beside_nnunet`, on the draw that none of its tables reports. Each training has
other weights, batches and views, and of the planned line also other ones left out of the training patients. Figures
go into benchmarks/measured/lesion_trainings.json; `python -m benchmarks.tables.derived --write planned` writes the
table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from benchmarks.shared.intervals import format_spread
from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.studies.beside_nnunet import (
    COMPARISONS,
    POOLED,
    TOGETHER,
    Lines,
    call_here,
    list_patients,
    measure_nnunet,
    score_models,
    write_plan,
    write_pooled,
)
from benchmarks.studies.beside_nnunet import (
    NAME as RUN,
)

NAME = "lesion_trainings"
COMMAND = "python -m benchmarks.studies.lesion_trainings --nnunet …"
LESIONS, DRAW = COMPARISONS["lesions"], 100


def measure(folder: Path, training: int, python: str) -> Lines:
    """Both programs, trained once on the draw's patients."""
    write_plan(LESIONS, folder, DRAW)
    call_here(folder, "run", "planned.yaml", "--until", "ingest")
    homes = sorted((folder / "runs" / RUN / "sites").iterdir())
    write_pooled(LESIONS, folder, {home.name: list_patients(home, folder) for home in homes})
    settings = yaml.safe_load((folder / "together.yaml").read_text())
    (folder / "together.yaml").write_text(yaml.safe_dump({**settings, "seed": training}, sort_keys=False))
    call_here(folder, "run", "together.yaml")
    model = {TOGETHER: folder / "runs/together/sites/all/ready/local.safetensors"}
    dices = {home.name: score_models(LESIONS, folder, home, model)[TOGETHER] for home in homes}
    return {TOGETHER: dices, **measure_nnunet(LESIONS, folder, training, python, alone=False)}


def tables(kept: Mapping[str, Lines]) -> dict[str, dict[str, object]]:
    """Dice by hospital of each training, and their mean and standard deviation."""
    rows = []
    for line in (POOLED, TOGETHER):
        means = [float(np.mean([*lines[line].values()])) for lines in kept.values()]
        sites = [format_spread([lines[line][site] for lines in kept.values()]) for site in LESIONS.hospitals]
        rows.append([line, *(f"{mean:.3f}" for mean in means), format_spread(means), *sites])
    columns = ["line", *(f"training {training}" for training in kept), "mean ± sd"]
    return {"lesion-trainings": make_table([*columns, *LESIONS.hospitals.values()], rows, COMMAND)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--nnunet", required=True, help="python of an environment with nnunetv2")
    parser.add_argument("--trainings", type=int, nargs="+", default=[1, 2, 3, 4])
    options = parser.parse_args()
    for training in options.trainings:
        if str(training) not in (kept := read_measured(NAME)):
            with tempfile.TemporaryDirectory() as name:
                lines = measure(Path(name), training, options.nnunet)
            write_measured(NAME, {**kept, str(training): lines})
            print(training, lines, flush=True)


if __name__ == "__main__":
    main()
