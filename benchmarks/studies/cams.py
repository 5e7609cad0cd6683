"""How many test images of a finished run have a blank class activation map.

    python -m benchmarks.studies.cams runs/prostate_adc

Blank: the positive class's map of equation 9 stays below 0.05 everywhere (1 is the largest value of both classes).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.shared.options import make_parser
from evaluation.pointing import BLANK
from federation.models.maps import normalized_maps
from federation.parameters import loaded
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file
from pipelines.hospital.opening import own_model
from pipelines.settings.load import load_config

if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path)
    root = parser.parse_args().run
    config = load_config(f"{root.name}.yaml")
    cohorts = json.loads(next(root.glob("ingest/*/sites.json")).read_text())
    print("| method | site | positive images | blank | negative images | blank |\n|---|---|---|---|---|---|")
    for path in sorted(root.glob("train/*/*.json")):
        trained = json.loads(path.read_text())
        for site, settings in config.sites.items() if trained.get("name") not in (None, "central") else ():
            hospital = Hospital(site, root / "sites" / site, settings, lambda: "")
            cohort = read_cohort_file(hospital.cohort_folder(cohorts[site]["cohort"]) / COHORT)
            _, params = own_model(hospital, trained["train_run"], config.evaluate.checkpoint, trained["best"])
            test = cohort.split == 2
            with torch.no_grad():
                output = loaded(config.task_of(trained["label"]).network(), params).eval()(cohort.images[test])
            blank = normalized_maps(output.maps)[:, 1].amax(dim=(1, 2)) < BLANK
            positive = cohort.labels[test] == 1
            cells = [f"{int(m.sum())} | {100 * float(blank[m].float().mean()):.0f} %" for m in (positive, ~positive)]
            print(f"| {trained['label']} | {site} | {' | '.join(cells)} |")
