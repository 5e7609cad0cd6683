"""Does harmonization help, and where? python -m benchmarks.studies.harmonization --n 16 48 --seeds 0 1 2 --out FOLDER

Two phantom hospitals (P, smooth and masked; L, noisy, with an export window), n training patients and 60 test patients
each, 48 pixels, six slices a patient. One run for each (n, seed, prevalence) and synthesis; runs of one cohort share
all that does not hang on the synthesis. Every line is scored overall (scores of both hospitals in one sample) and at
each hospital. No translation is vetoed here, so that its effect can be seen; what the default limits would have said
stands beside it.

--unequal gives the hospitals 60 and 20 % patients with significant cancer instead of 45 % each. Everything is written
to FOLDER/harmonization.json after each run, and what stands there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harmonize.quality import Quality
from harmonize.veto import Limits, list_vetoes
from pipelines.run import main

TEST = 60
SYNTHESES: dict[str, dict[str, Any]] = {
    "dp_wgan_gp": {"name": "dp_wgan_gp", "epsilon": 10.0},
    "private_evolution": {"name": "private_evolution", "epsilon": 10.0},
    "wgan_gp": {"name": "wgan_gp", "epsilon": None},
    "real": {"name": "real"},
}
CYCLEGAN = {"name": "cyclegan", "steps": 500}
SPACES: dict[str, dict[str, Any]] = {"exported": {"name": "exported"}, "oracle": {"name": "oracle"}}
OF_SYNTHESIS: dict[str, dict[str, Any]] = {
    "vafl": CYCLEGAN,
    "vafl_keep": {**CYCLEGAN, "keep_mean": "patient"},
}
CURVES: dict[str, dict[str, Any]] = {
    "z_score": {"name": "z_score"},
    "percentile": {"name": "percentile"},
    "nyul": {"name": "nyul"},
    "histogram": {"name": "histogram_match"},
}
"""Of seed 0 beside private_evolution only: none of them helped there, and each costs a training."""
CALIBRATED = ("fedavg", "vafl", "vafl_keep", "oracle")


def settings(n: int, seed: int, unequal: bool, synthesis: str, folder: Path) -> dict[str, Any]:
    shares = (0.6, 0.2) if unequal else (0.45, 0.45)
    sites = {}
    for name, scanner, number, share, kind in (
        ("north", "P", 11, shares[0], "dicom"),
        ("south", "L", 22, shares[1], "nifti"),
    ):
        population = number + 1000 * seed
        sites[name] = {
            "source": {
                "kind": "phantom", "scanner": scanner, "patients": n + TEST, "seed": population, "format": kind,
                "significant": share,
            },
            "policy": {"pooling": True},
            "test": [f"PH{population}-{patient:04d}" for patient in range(n, n + TEST)],
        }  # fmt: skip
    spaces = spaces_of(synthesis, seed)
    return {
        "name": f"n{n}-s{seed}-{'unequal' if unequal else 'equal'}",
        "privacy": "none",
        "pooling": "allowed",
        "seed": seed,
        "runs": str(folder),
        "sites": sites,
        "images": {"kind": "slices", "spacing_mm": 1.5, "size": 48},
        "split": {"train": 1.0, "validation": 0.0, "test": 0.0},
        "harmonize": {
            "score": {"release": "public", "target": "north"},
            "synthesis": SYNTHESES[synthesis],
            "sampling": {"name": "surrogate"},
            "translate": spaces,
            "veto": dict.fromkeys(vars(Limits())),
        },
        "model": {"name": "cam", "widths": [16, 24, 32, 48], "norm": "batch"},
        "train": {
            "schedule": {"rounds": 40 if n <= 24 else 20},
            "work": {"lr": 1e-3, "batch": 24, "epochs": 2, "augment": "affine", "balance": True},
            "methods": {
                "local": {"name": "local"},
                "central": {"name": "central"},
                **{label: {"name": "fedavg"} for label in ("fedavg", *spaces)},
            },
            "method_images": {space: space for space in spaces},
        },
        "evaluate": {
            "checkpoint": "latest",
            "copies": 50,
            "public": False,
            "reference": "fedavg",
            "variants": {
                f"{label}_{how}": {"of": label, "calibration": how}
                for label in CALIBRATED
                for how in ("centred", "adabn")
            },
        },
        "audit": {"membership": False},
    }


def spaces_of(synthesis: str, seed: int) -> dict[str, dict[str, Any]]:
    return SPACES | OF_SYNTHESIS | (CURVES if synthesis == "private_evolution" and seed == 0 else {})


def one_run(n: int, seed: int, unequal: bool, synthesis: str, folder: Path) -> dict[str, Any]:
    said = settings(n, seed, unequal, synthesis, folder)
    path = folder / f"{said['name']}-{synthesis}.yaml"
    path.write_text(yaml.safe_dump(said))
    if main([str(path)]):
        sys.exit(f"{path} failed")
    root = folder / said["name"]
    newest = {stage: newest_of(root / stage) for stage in ("synthesize", "sample", "translate", "train", "report")}
    rows = json.loads((newest["report"] / "scores.json").read_text())
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["measure"] in ("AUC", "balanced accuracy") and row["protocol"] in ("private", "overall"):
            where = "overall" if row["protocol"] == "overall" else row["sites"][0]
            scores.setdefault(row["method"], {})[f"{row['measure']} {where}"] = row["value"]
    quality = {
        space: json.loads((newest["translate"] / f"{space}.json").read_text())["south"]["quality"]
        for space in spaces_of(synthesis, seed)
    }
    seconds = {stage: json.loads((place / "manifest.json").read_text())["seconds"] for stage, place in newest.items()}
    statement = json.loads((newest["report"] / "statement.json").read_text())["north"]
    return {"scores": scores, "quality": quality, "seconds": seconds, "epsilon": epsilons(statement)}


def newest_of(folder: Path) -> Path:
    made = [path for path in folder.iterdir() if (path / "manifest.json").exists()]
    return max(made, key=lambda path: path.stat().st_mtime)


def epsilons(statement: Mapping[str, Any]) -> dict[str, Any]:
    return {run["run"]: run["noised"] for run in statement["runs"] if "synthesis" in run["run"]}


def table(found: Mapping[str, Any]) -> str:
    """Mean over seeds, and standard deviation where there are several, of each line."""
    lines = []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, said in found.items():
        n, _, prevalence, synthesis = key.split("|")
        groups.setdefault((f"{n}, {prevalence}", synthesis), []).append(said)
    for (cohort, synthesis), each in sorted(groups.items()):
        lines += [f"\n**{cohort}; synthesis {synthesis}; {len(each)} seeds**\n"]
        columns = ("AUC overall", "AUC north", "AUC south", "balanced accuracy overall")
        lines += ["| line | " + " | ".join(columns) + " | vetoed |", "|---" * (len(columns) + 2) + "|"]
        for label in each[0]["scores"]:
            cells = []
            for column in columns:
                values = [one["scores"][label][column] for one in each if column in one["scores"].get(label, {})]
                spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.3f}{spread}" if values else "–")
            lines.append(f"| {label} | " + " | ".join(cells) + f" | {judgement(label, each)} |")
    return "\n".join(lines)


def judgement(label: str, each: list[dict[str, Any]]) -> str:
    """What the default limits would have said of this space, and how often."""
    said: dict[str, int] = {}
    for one in each:
        numbers = one["quality"].get(label)
        if not numbers:
            continue
        quality = Quality(**{name: math.nan if value is None else value for name, value in numbers.items()})
        for reason in list_vetoes(quality, Limits()) or ("no",):
            said[reason] = said.get(reason, 0) + 1
    return ", ".join(f"{reason} {times}/{len(each)}" for reason, times in said.items())


if __name__ == "__main__":
    line = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    line.add_argument("--n", type=int, nargs="+", default=[16, 48])
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--syntheses", nargs="+", default=list(SYNTHESES), choices=list(SYNTHESES))
    line.add_argument("--unequal", action="store_true")
    line.add_argument("--out", default="runs/harmonization")
    line.add_argument("--table", action="store_true", help="print what there is; run nothing")
    asked = line.parse_args()
    folder = Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    book = folder / "harmonization.json"
    found = json.loads(book.read_text()) if book.exists() else {}
    for seed in () if asked.table else asked.seeds:
        for n in asked.n:
            for synthesis in asked.syntheses:
                key = f"n={n}|{seed}|{'unequal' if asked.unequal else 'equal'}|{synthesis}"
                if key not in found:
                    found[key] = one_run(n, seed, asked.unequal, synthesis, folder)
                    part = book.with_suffix(f".{os.getpid()}")
                    part.write_text(json.dumps(found, indent=1))
                    part.replace(book)
    print(table(found))
