"""Means of every phantom scanner, share of positive slices, speed of writing: python -m benchmarks.studies.phantom"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.shared.options import make_parser
from pipelines.phantom.files import render, write
from pipelines.phantom.patients import PhantomSource
from pipelines.phantom.scanner import SCANNERS

SEEDS, PATIENTS = (101, 202), 60  # seeds that no parameter was tuned on


def means(scanner: str) -> tuple[float, float, float, float]:
    """Mean gland and lesion ADC (1e-6 mm²/s), share of slices with a lesion, milliseconds a slice."""
    gland, lesion, slices, begun = [], [], [], time.perf_counter()
    for seed in SEEDS:
        source = PhantomSource(scanner=scanner, patients=PATIENTS, seed=seed)
        for patient in range(PATIENTS):
            image, cancer, organ = (volume.values for volume in render(source, patient))
            gland.append(image[organ > 0])
            lesion.append(image[cancer > 0])
            slices.append(cancer.any(axis=(0, 1)))
    spent = 1e3 * (time.perf_counter() - begun) / sum(map(len, slices))
    share = float(np.concatenate(slices).mean())
    return float(np.concatenate(gland).mean()), float(np.concatenate(lesion).mean()), share, spent


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    print("| scanner | gland | lesion | slices with lesion | ms a slice |\n|---|---|---|---|---|")
    for name in SCANNERS:
        gland, lesion, share, spent = means(name)
        print(f"| {name} | {gland:.0f} | {lesion:.0f} | {100 * share:.1f} % | {spent:.1f} |")
    for form in ("dicom", "nifti"):
        with tempfile.TemporaryDirectory() as place:
            begun = time.perf_counter()
            write(PhantomSource(scanner="P", patients=110, damaged=4, format=form), Path(place) / "files")
            print(f"114 studies of 6 slices as {form}: {time.perf_counter() - begun:.1f} s")
