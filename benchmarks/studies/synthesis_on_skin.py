"""Private syntheses of real skin pictures (HAM10000), 640 lesions of one archive, 32 x 32 pixels.

    CONSILIUM_DATA=... python -m benchmarks.studies.synthesis_on_skin [--splits 5]

FD: Frechet distance in 40 principal components of a third archive (vidir_molemax) to the archive's other lesions; SW:
sliced Wasserstein distance of pixels. Labels of the synthetic pictures are those of these lesions. "real": the 640
lesions themselves; "the other archive": the pictures of the other one, which is what a hospital has before anything
is shared. A split divides lesions anew. Settings are the defaults; nothing was chosen here. Epsilon is for a lesion,
add or remove, delta 1e-5. Figures in benchmarks/measured/synthesis_on_skin.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.skin import column, number_lesions, read_lines, shrink_pictures
from harmonize import synthesis
from harmonize.distances import frechet, sliced_wasserstein
from harmonize.embedding import compute_basis, project_images
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.prior import PRIORS, draw_pictures
from privacy.dp.access import Rows
from privacy.dp.private_access import open_private

SIDE, INPUTS, LESIONS = 32, (3, 32, 32), 640
ARCHIVES = ("rosendahl", "vidir_modern")
WAYS = (FittedPrior(prior="skin_lesion"), PrivateEvolution(prior="skin_lesion"))


@cache
def pictures() -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Pictures (n, 3, 32, 32) in [-1, 1], labels, archives and lesions."""
    lines = read_lines()
    x = shrink_pictures(lines, SIDE)
    y = torch.tensor([int(line["label"]) for line in lines])
    return x, y, column(lines, "site"), column(lines, "patient")


def lines_of(split: int, archive: str) -> Iterator[tuple[str, float | None, float]]:
    """(line and figure, epsilon, value)."""
    x, y, source, lesion = pictures()
    rows = np.flatnonzero(source == archive)
    chosen = np.random.default_rng(split).permutation(np.unique(lesion[rows]))[:LESIONS]
    inside = np.isin(lesion[rows], chosen)
    own, test = rows[inside], rows[~inside]
    third = compute_basis(x[source == "vidir_molemax"], 40)

    def told(name: str, epsilon: float | None, made: Tensor) -> Iterator[tuple[str, float | None, float]]:
        yield f"{name} / FD", epsilon, frechet(project_images(third, made), project_images(third, x[test]))
        yield f"{name} / SW", epsilon, sliced_wasserstein(made, x[test], seed=0)

    yield from told("prior as it is", None, draw_pictures(PRIORS["skin_lesion"], y[test], INPUTS, split))
    yield from told("the other archive", None, x[source == next(one for one in ARCHIVES if one != archive)])
    yield from told("real", None, x[own])
    patients = Rows(x[own], y[own], number_lesions(lesion[own]))
    for way in WAYS:
        for epsilon in (1.0, 3.0, 10.0):
            settings = replace(way, epsilon=epsilon)
            access = open_private({"train": patients}, synthesis.make_protection(settings, patients=LESIONS))
            params = synthesis.synthesize(settings, access, INPUTS, seed=split)
            yield from told(way.name, epsilon, synthesis.draw_candidates(settings, INPUTS, params, y[test], seed=split))


def main() -> None:
    options = ask_splits(__doc__, "synthesis_on_skin", splits=5)
    collect_splits(options, {archive: partial(lines_of, archive=archive) for archive in ARCHIVES})


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The table of the page."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for key, of in kept.items():
        archive, line, epsilon = key.split(" | ")
        name, figure = line.split(" / ")
        said = {"inf": "∞" if name == "real" else "0" if "prior" in name else ""}.get(epsilon, epsilon)
        cell = format_interval([*of.values()], digits=3 if figure == "SW" else 1)
        found.setdefault((name, said), {})[f"{archive}, {figure}"] = cell
    columns = [f"{archive}, {figure}" for archive in ARCHIVES for figure in ("FD", "SW")]
    rows = [[*key, *(cells[name] for name in columns)] for key, cells in found.items()]
    return {"synthesis": make_table(["way", "ε of a lesion", *columns], rows)}


if __name__ == "__main__":
    main()
