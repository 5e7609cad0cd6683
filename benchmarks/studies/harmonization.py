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

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.shared.intervals import format_spread
from benchmarks.shared.options import make_parser
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.runs import must_run, read_json, read_scores
from harmonize.quality import Quality
from harmonize.veto import Limits, list_vetoes

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
    root = must_run(said, folder, name=f"{said['name']}-{synthesis}")
    quality = {
        space: read_json(root, "translate", f"{space}.json")["south"]["quality"] for space in spaces_of(synthesis, seed)
    }
    stages = ("synthesize", "sample", "translate", "train", "report")
    seconds = {stage: read_json(root, stage, "manifest.json")["seconds"] for stage in stages}
    statement = read_json(root, "report", "statement.json")["north"]
    return {"scores": read_scores(root), "quality": quality, "seconds": seconds, "epsilon": epsilons(statement)}


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
                cells.append(format_spread(values))
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
    line = make_parser(__doc__)
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
    found = read_measured(book)
    for seed, n, synthesis in () if asked.table else product(asked.seeds, asked.n, asked.syntheses):
        key = f"n={n}|{seed}|{'unequal' if asked.unequal else 'equal'}|{synthesis}"
        if key not in found:
            found[key] = one_run(n, seed, asked.unequal, synthesis, folder)
            write_measured(book, found)
    print(table(found))
