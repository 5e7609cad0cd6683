"""VAFL on the patients of the tables of harmonization without a patient, as published and as it keeps structure.

    python -m benchmarks.studies.vafl_few [--n 16 48] [--contrasts adc t2w] [--seeds 0 1 2 3 4] [--lines vafl structure]
    python -m benchmarks.tables.derived --write without-a-patient

The hospitals, patients, slices, network and training of no_patient.py: ADC in its unit, T2-weighted slices
standardized by study. Between reading and training stands VAFL of Yan et al. (IEEE JBHI 2021) by `variant: paper`, as
in vafl_as_published.py: the target chosen by the score, WGAN-GP from noise with the noise as printed,
Algorithm 1, the CycleGAN of equations 3 to 7; its lengths are those of that script, at 48 x 48 pixels. No veto. It
differs from that page in what is read (there grey exports in no common unit) and in training (there elastic views).
`structure`: the target P by name, shared images of `fitted_prior` at epsilon 3 for each patient of P, 100 of a class,
and a CycleGAN of 600 steps without norm that may not change structure (weight 3) and keeps each patient's mean; its
weight was chosen with benchmarks/studies/translators.py --choose, on other patients.

Each finished run goes into benchmarks/measured/vafl_few.json.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.runs import run_settings
from benchmarks.studies.no_patient import EQUAL, TEST
from benchmarks.studies.vafl_as_published import DELTAS, found, settings
from harmonize.veto import Limits


def few(
    n: int, seed: int, contrast: str, folder: Path, delta: float | None, passes: int, line: str = "vafl"
) -> dict[str, Any]:
    """The settings of that script, on these patients and with this training."""
    said = settings("two_20", seed, folder, delta, passes)
    sites = {}
    for name, scanner, first, share in (("p", "P", 11, EQUAL[0]), ("l", "L", 22, EQUAL[1])):
        population = first + 1000 * seed
        sites[name] = {
            "source": {
                "kind": "phantom", "scanner": scanner, "contrast": contrast, "patients": n + TEST, "seed": population,
                "significant": share,
            },
            "policy": {"pooling": True},
            "test": [f"PH{population}-{patient:04d}" for patient in range(n, n + TEST)],
        }  # fmt: skip
    images = {"kind": "slices", "spacing_mm": 1.5, "size": 48}
    train = {
        "schedule": {"rounds": 40 if n <= 24 else 20},
        "work": {"lr": 1e-3, "batch": 24, "epochs": 2, "augment": "affine", "balance": True},
        "methods": {"vafl": {"name": "fedavg"}},
        "method_images": {"vafl": "vafl"},
    }
    harmonize = said["harmonize"] if line == "vafl" else {
        "score": {"release": "public", "target": "p"},
        "synthesis": {"name": "fitted_prior", "epsilon": 3}
        | ({"prior": "prostate_t2w"} if contrast == "t2w" else {}),
        "sampling": {"name": "surrogate"},
        "shared": 100,
        "translate": {
            "vafl": {"name": "cyclegan", "norm": "none", "structure": 3.0, "keep_mean": "patient", "steps": 600},
        },
        "veto": dict.fromkeys(vars(Limits())),
    }  # fmt: skip
    return said | {
        "harmonize": harmonize,
        "name": f"{contrast}-{n}-s{seed}-{line}",
        "sites": sites,
        "images": images if contrast == "adc" else images | {"values": "standardized"},
        "split": {"train": 1.0, "validation": 0.0, "test": 0.0},
        "train": train,
        "evaluate": said["evaluate"] | {
            "reference": "vafl", "variants": {"vafl_adabn": {"of": "vafl", "calibration": "adabn"}},
        },
    }  # fmt: skip


def one(n: int, seed: int, contrast: str, folder: Path, line: str) -> dict[str, Any]:
    """One run, with the smallest delta of Algorithm 1 that finds enough images."""
    root = folder / f"{contrast}-{n}-s{seed}-{line}"
    for delta, passes in DELTAS:
        code = run_settings(few(n, seed, contrast, folder, delta, passes, line), folder)
        if code == 0:
            told, scores = found(root), {}
            for label, way in (("vafl", "as it is"), ("vafl_adabn", "AdaBN")):
                of = told["scores"][label]
                scores[way] = {"overall": of["AUC overall"], "P": of["AUC p"], "L": of["AUC l"]}
            found_with = {"delta": delta or 0.2, "passes": passes} if line == "vafl" else {}
            return {"scores": scores, **found_with} | {key: told[key] for key in ("target", "quality", "shared")}
        if not (root / "synthesize").exists() or (root / "translate").exists():
            sys.exit(code)
    sys.exit(f"{root.name}: Algorithm 1 found too few images with every delta of {DELTAS}")


if __name__ == "__main__":
    line = make_parser(__doc__)
    line.add_argument("--n", type=int, nargs="+", default=[16, 48])
    line.add_argument("--contrasts", nargs="+", default=["adc", "t2w"], choices=["adc", "t2w"])
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    line.add_argument("--lines", nargs="+", default=["vafl", "structure"], choices=["vafl", "structure"])
    line.add_argument("--runs", default="runs/vafl_few", help="where unfinished runs stay")
    asked = line.parse_args()
    folder = Path(asked.runs)
    folder.mkdir(parents=True, exist_ok=True)
    for seed, n, contrast, name in itertools.product(asked.seeds, asked.n, asked.contrasts, asked.lines):
        key = "|".join([contrast, str(n), str(seed), *([name] if name != "vafl" else [])])
        if key in read_measured("vafl_few"):
            continue
        told = one(n, seed, contrast, folder, name)
        write_measured("vafl_few", {**read_measured("vafl_few"), key: told}, sort=True)
        shutil.rmtree(folder / f"{contrast}-{n}-s{seed}-{name}")
