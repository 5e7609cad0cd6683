"""What a translation keeps of a patient's ADC: python -m benchmarks.studies.translators

Phantoms of scanner L are brought onto scanner P by normalization and by CycleGAN, as they are and with
`keep_mean: patient`. Both scanners have L's field of view here, so that a patient imaged by P, the oracle, lies on the
same pixels; ADC is as the scanner fitted it, before the export's window. N patients of L and N others of P train a
translation; the tables are about 60 patients of L whom nothing has seen, and on whom nothing was chosen.

MAE: mean |ADC - the oracle's| inside the gland. Gland, lesion: correlation (Pearson) over patients of the mean ADC with
the oracle's. Contrast: mean of (gland without lesion - lesion); CNR: contrast over the mean deviation inside the gland
without lesion. All ADC in 1e-3 mm²/s. Distance: sliced Wasserstein to N patients of P, in units of [-1, 1].
Several seeds (of networks and batches; the patients stay) give means, with the range in brackets.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from harmonize.cyclegan import CycleGan
from harmonize.distances import sliced_wasserstein
from harmonize.generators import Norm
from harmonize.intensity import HistogramMatch, Nyul, Percentile, ZScore
from harmonize.own import SiteImages
from harmonize.scale import Scale
from pipelines.phantom.patients import draw_anatomy
from pipelines.phantom.scanner import SCANNERS, acquire

SCALE = Scale(low=0.0, high=3.5)
SLICES = 6
OWN, SHARED, TEST, CHOICE = range(1, 5)  # seeds of populations
TESTED = range(1000, 1060)
FIGURES = ("gland MAE", "gland", "contrast", "CNR", "lesion", "distance")


class Paired(NamedTuple):
    """The same patients by several scanners, slices of a patient in a row.

    images: scanner -> (n, 1, 48, 48) in [-1, 1]. lesion, gland: (n, 48, 48) bool. labels, patient: (n,) int64.
    """

    images: Mapping[str, Tensor]
    lesion: Tensor
    gland: Tensor
    labels: Tensor
    patient: Tensor


def paired(seed: int, patients: range, scanners: str) -> Paired:
    """Patients of population `seed`, by each of the scanners, on one grid."""
    adc: dict[str, list[np.ndarray]] = {name: [] for name in scanners}
    masks: list[tuple[np.ndarray, np.ndarray]] = []
    for patient in patients:
        body = draw_anatomy(seed, patient, SLICES)
        for name in scanners:
            scanner = replace(SCANNERS[name], zoom=SCANNERS["L"].zoom)
            taken = acquire(body, scanner, np.random.default_rng([seed, patient, ord(name)]))
            adc[name].append(taken.image)
        masks.append((taken.lesion, taken.gland))
    lesion, gland = (torch.from_numpy(np.concatenate(one)).bool() for one in zip(*masks, strict=True))
    images = {name: SCALE.into(torch.from_numpy(np.concatenate(x))[:, None].float() / 1000) for name, x in adc.items()}
    who = torch.arange(len(patients)).repeat_interleave(SLICES)
    return Paired(images, lesion, gland, lesion.flatten(1).any(dim=1).long(), who)


def by_patient(adc: Tensor, mask: Tensor, patient: Tensor) -> np.ndarray:
    """Mean and deviation inside the mask of each patient, (patients, 2); NaN where he has no such pixel."""
    inside = [adc[patient == p][mask[patient == p]] for p in sorted(set(patient.tolist()))]
    return np.array([(float(x.mean()), float(x.std())) if len(x) else (np.nan, np.nan) for x in inside])


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    known = ~np.isnan(a) & ~np.isnan(b)
    return float(stats.pearsonr(a[known], b[known])[0])


def figures(x: Tensor, test: Paired, shared: Tensor) -> dict[str, float]:
    """What stands in the tables, by `FIGURES`, of translated test images (n, 1, 48, 48)."""
    adc, oracle = (SCALE.back(y[:, 0]) for y in (x, test.images["P"]))
    gland, lesion = test.gland, test.lesion
    of = {name: by_patient(adc, m, test.patient) for name, m in (("g", gland), ("l", lesion), ("r", gland & ~lesion))}
    true = {name: by_patient(oracle, m, test.patient)[:, 0] for name, m in (("g", gland), ("l", lesion))}
    contrast = float(np.nanmean(of["r"][:, 0] - of["l"][:, 0]))
    found = (
        float((adc - oracle).abs()[gland].mean()),
        correlation(of["g"][:, 0], true["g"]),
        contrast,
        contrast / float(np.nanmean(of["r"][:, 1])),
        correlation(of["l"][:, 0], true["l"]),
        sliced_wasserstein(x, shared, seed=0),
    )
    return dict(zip(FIGURES, found, strict=True))


def line(name: str, found: list[dict[str, float]], seconds: float = 0.0) -> None:
    cells = []
    for figure in FIGURES:
        values = [one[figure] for one in found]
        spread = f" [{min(values):.3f}, {max(values):.3f}]" if len(values) > 1 else ""
        cells.append(f"{np.mean(values):.3f}{spread}")
    print(f"| {name} | {' | '.join(cells)} | {f'{seconds:.0f}' if seconds else ''} |", flush=True)


def cyclegans(
    norm: Norm, steps: int, seeds: list[int], own: SiteImages, shared: Tensor, test: Paired, structure: float = 0.0
) -> None:
    """A CycleGAN of each seed, as it is and with every patient's mean kept."""
    plain = CycleGan(norm=norm, steps=steps, structure=structure)
    kept = replace(plain, keep_mean="patient")
    found: list[list[dict[str, float]]] = [[], []]
    begun = time.process_time()
    trained = [plain.fit(own, shared, seed=seed) for seed in seeds]
    spent = (time.process_time() - begun) / len(seeds)
    for params in trained:
        for rows, settings in zip(found, (plain, kept), strict=True):
            rows.append(figures(settings.translate(params, test.images["L"], test.patient), test, shared))
    line(f"CycleGAN, norm {norm}, {steps} steps" + f", structure {structure:g}" * bool(structure), found[0], spent)
    line("the same, `keep_mean: patient`", found[1])


def table(n: int, norms: list[Norm], steps: int, seeds: list[int], test: Paired, structures: list[float]) -> None:
    site, target = paired(OWN, range(n), "L"), paired(SHARED, range(n), "P")
    own, shared = SiteImages(site.images["L"], site.labels, site.patient), target.images["P"]
    print(f"\n| n = {n} | {' | '.join(FIGURES)} | CPU s |\n|{'---|' * (len(FIGURES) + 2)}")
    line("raw L", [figures(test.images["L"], test, shared)])
    line("oracle P", [figures(test.images["P"], test, shared)])
    for way in (ZScore(), Percentile(), Nyul(), HistogramMatch()):
        params = way.fit(own, shared)
        line(way.name, [figures(way.translate(params, test.images["L"], test.patient), test, shared)])
    for norm, structure in itertools.product(norms, structures):
        cyclegans(norm, steps, seeds, own, shared, test, structure)


if __name__ == "__main__":
    reader = make_parser(__doc__)
    reader.add_argument("--patients", type=int, nargs="+", default=[16, 48])
    reader.add_argument("--norms", nargs="*", default=["instance", "none"], choices=["instance", "none"])
    reader.add_argument("--steps", type=int, default=600)
    reader.add_argument("--seeds", type=int, nargs="+", default=[0])
    reader.add_argument("--structure", type=float, nargs="+", default=[0.0], help="weights of changed_structure")
    reader.add_argument("--choose", action="store_true", help="on 60 patients that no table reports")
    asked = reader.parse_args()
    torch.set_num_threads(1)
    test = paired(CHOICE if asked.choose else TEST, TESTED, "LP")
    for n in asked.patients:
        table(n, asked.norms, asked.steps, asked.seeds, test, asked.structure)
