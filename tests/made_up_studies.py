"""Made-up studies, and what hospitals say of them with and without noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from pipelines.data.measures import POINTS, MeasuredStudy, summarize_studies
from pipelines.requests.fingerprint import Measured, MeasuredWithNoise


def measured(studies: Sequence[tuple[tuple[float, ...], tuple[int, ...]]], start: int = 0) -> list[MeasuredStudy]:
    return [
        MeasuredStudy(
            f"p{number}", f"s{number}", spacing, voxels, np.full(POINTS, 1.0 + number, np.float32),
            (1.0 + number, 0.25), (float(number),), "MR" if number % 2 else "CT",
        )
        for number, (spacing, voxels) in enumerate(studies, start=start)
    ]  # fmt: skip


def told(studies: Sequence[tuple[tuple[float, ...], tuple[int, ...]]], start: int = 0) -> Measured:
    return Measured(rejected_by_reason={}, **asdict(summarize_studies(measured(studies, start), ["gland"])))


def noised(patients: float, noise: float, spacing: float = 3.0) -> MeasuredWithNoise:
    return MeasuredWithNoise(
        noised_patients=patients,
        noise=noise,
        comparisons=6,
        spacing={"p25": [spacing, 0.5, 0.5], "p50": [spacing, 0.5, 0.5]},
        extent={"p50": [60.0, 200.0, 200.0]},
    )
