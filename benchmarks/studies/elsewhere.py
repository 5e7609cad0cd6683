"""Two models of two phantom hospitals, at four that never trained: the figures of docs/results/elsewhere.md.

    python -m benchmarks.studies.elsewhere

Trains `fedavg` and `local` as prostate_adc_lines.yaml does, signs them, and runs benchmark.yaml: in a temporary folder,
in minutes. Besides the four hospitals there is one whose labels are the wrong way round, and one that trusts nobody.
Writes docs/results/data/elsewhere.json.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import make_table, write_tables

CONFIGS = ROOT / "pipelines" / "configs"
METHODS = ("fedavg", "local")


def settings(text: str) -> dict[str, Any]:
    """YAML as a run reads it: the key `on` is text."""
    from pipelines.loader.document import read_yaml

    data: Any = read_yaml(text, environment={}).data
    return json.loads(json.dumps(data))


def training() -> dict[str, Any]:
    """prostate_adc_lines.yaml without harmonization, with the two methods."""
    said = settings((CONFIGS / "prostate_adc_lines.yaml").read_text())
    train = said["train"]
    train["methods"] = {label: train["methods"][label] for label in METHODS}
    for key in ("method_model", "method_images", "method_start"):
        train.pop(key)
    said.pop("harmonize")
    said["evaluate"] = {"checkpoint": "global", "copies": 200, "public": False, "reference": "local"}
    return {**said, "name": "trained", "audit": {"membership": False}}


def elsewhere(key: str, flipped: Path) -> dict[str, Any]:
    """benchmark.yaml with the key filled in, and two hospitals more."""
    said = settings((CONFIGS / "benchmark.yaml").read_text().replace("FILL IN", key))
    ready = Path("runs/trained/sites/north/ready")
    said["benchmark"]["models"] = {label: str(ready / f"{label}.safetensors") for label in METHODS}
    said["sites"]["aloof"] = {"source": {"kind": "phantom", "scanner": "A", "patients": 12, "seed": 105}}
    said["sites"]["flipped"] = {
        "source": {"kind": "dicom", "folder": str(flipped / "images"), "select": {"ImageType": "ADC"}},
        "labels": {"kind": "table", "file": str(flipped / "labels.csv"), "slice": "slice"},
        "gland": {"folder": str(flipped / "masks" / "gland")},
        "policy": {"trusted_models": {"owner": key}},
    }
    return said


def write_flipped(folder: Path) -> Path:
    """Hospital A's kind of patients and scanner, with every label the wrong way round."""
    from evaluation.csv_text import csv_text
    from pipelines.phantom.files import write
    from pipelines.phantom.patients import PhantomSource

    write(PhantomSource(scanner="A", patients=60, seed=106), folder)
    table = folder / "labels.csv"
    with table.open(newline="") as file:
        names, *rows = csv.reader(file)
    place = names.index("label")
    for row in rows:
        row[place] = str(1 - int(row[place]))
    with table.open("w", newline="") as file:
        file.write(csv_text(names, rows))
    return folder


def main() -> None:
    """Train, sign, evaluate, and write the figures."""
    from pipelines.run import main as run
    from pipelines.sign import main as sign
    from privacy.release.signature import make_key

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(os.environ.get("ELSEWHERE", folder))
        begun = time.monotonic()
        Path("train.yaml").write_text(yaml.safe_dump(training()))
        if run(["train.yaml", "--until", "evaluate"]):
            sys.exit("the training failed")
        key, trained = make_key(Path("owner.key")), time.monotonic()
        for label in METHODS:
            sign([f"runs/trained/sites/north/ready/{label}.safetensors", "--key", "owner.key"])
        Path("bench.yaml").write_text(yaml.safe_dump(elsewhere(key, write_flipped(Path("flipped").absolute()))))
        if run(["bench.yaml"]):
            sys.exit("the benchmark failed")
        said = json.loads(Path("runs/benchmark/benchmark.json").read_text())
        print(
            f"training {trained - begun:.0f} s, benchmark {time.monotonic() - trained:.0f} s",
            *said["findings"],
            sep="\n",
        )
    write_tables("elsewhere", {"auc": table(said)})


def table(said: dict[str, Any]) -> dict[str, Any]:
    """The page's first table, as docs/results shows tables."""
    rows = [row for row in said["scores"] if row["measure"] == said["measure"]]

    def cells(name: str, chosen: Any) -> list[str]:
        own = {row["method"]: row for row in rows if chosen(row)}
        first, other = (own.get(label) for label in METHODS)
        if first is None or other is None:
            return [name, "–", *(["no score"] * 2), "–"]
        gain = f"{other['gain']:+.3f} ({other['gain_low']:+.3f} to {other['gain_high']:+.3f})"
        told = [f"{row['value']:.3f} ({row['low']:.3f}–{row['high']:.3f})" for row in (first, other)]
        return [name, f"{first['patients']}", *told, gain.replace("-", "−")]

    hospitals = [
        [*cells(one["site"], lambda row, site=one["site"]: row["sites"] == [site]), one["verdict"]]
        for one in said["hospitals"]
    ]
    over = [[*cells(name, lambda row, p=name: row["protocol"] == p), ""] for name in ("private mean", "overall")]
    columns = ["hospital", "patients", *METHODS, f"{METHODS[1]} − {METHODS[0]}", f"AUC ≥ {said['least']:g}"]
    return make_table(columns, [*hospitals, *over])


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    main()
