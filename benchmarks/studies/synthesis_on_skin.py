"""Private syntheses of real skin pictures (HAM10000), 640 lesions of one archive, 32 x 32 pixels.

    CONSILIUM_DATA=... python -m benchmarks.studies.synthesis_on_skin [--splits 5 --commit ...]

FD: Frechet distance in 40 principal components of a third archive (vidir_molemax) to the archive's other lesions; SW:
sliced Wasserstein distance of pixels. Labels of the synthetic pictures are those of these lesions. "real": the 640
lesions themselves; "the other archive": the pictures of the other one, which is what a hospital has before anything
is shared. A split divides lesions anew. Settings are the defaults; nothing was chosen here. Epsilon is for a lesion,
add or remove, delta 1e-5. Figures in benchmarks/measured/synthesis_on_skin.json.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.studies.one_message import DATA, asked, collected, interval, write_tables
from harmonize import synthesis
from harmonize.distances import frechet, sliced_wasserstein
from harmonize.embedding import compute_basis, project_images
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.prior import PRIORS, draw_pictures
from privacy.dp.access import Rows
from privacy.dp.private_access import open_private

HERE = Path(__file__).parents[1] / "measured"
TABLE = HERE.parents[1] / "docs/results/data/harmonized-pictures.json"
SIDE, INPUTS, LESIONS = 32, (3, 32, 32), 640
ARCHIVES = ("rosendahl", "vidir_modern")
WAYS = (FittedPrior(prior="skin_lesion"), PrivateEvolution(prior="skin_lesion"))


@cache
def pictures() -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Pictures (n, 3, 32, 32) in [-1, 1], labels, archives and lesions."""
    lines = list(csv.DictReader((DATA / "labels.csv").open()))
    opened = (Image.open(DATA / line["image"]).convert("RGB") for line in lines)
    small = np.stack([np.asarray(one.resize((SIDE, SIDE), Image.Resampling.BOX)) for one in opened])
    x = torch.from_numpy(small).permute(0, 3, 1, 2).float() / 127.5 - 1
    y = torch.tensor([int(line["label"]) for line in lines])
    return x, y, *(np.array([line[name] for line in lines]) for name in ("site", "patient"))


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
    patients = Rows(x[own], y[own], torch.from_numpy(np.unique(lesion[own], return_inverse=True)[1]))
    for way in WAYS:
        for epsilon in (1.0, 3.0, 10.0):
            settings = replace(way, epsilon=epsilon)
            access = open_private({"train": patients}, synthesis.make_protection(settings, patients=LESIONS))
            params = synthesis.synthesize(settings, access, INPUTS, seed=split)
            yield from told(way.name, epsilon, synthesis.draw_candidates(settings, INPUTS, params, y[test], seed=split))


def said_of(figure: str, values: np.ndarray) -> str:
    """Mean and half of Student's 95 % interval, with the digits that a figure deserves."""
    if figure == "SW":
        return interval(values)
    mean, half = (float(part) for part in interval(values).split(" ± "))
    return f"{mean:.1f} ± {half:.1f}"


def main() -> None:
    options = asked(str(__doc__), HERE / "synthesis_on_skin.json", splits=5)
    kept = collected(options, {archive: partial(lines_of, archive=archive) for archive in ARCHIVES})
    write_tables(TABLE, tables(kept, options.commit))


def tables(kept: Mapping[str, Mapping[str, float]], commit: str) -> dict[str, Any]:
    """The table of the page."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for key, of in kept.items():
        archive, line, epsilon = key.split(" | ")
        name, figure = line.split(" / ")
        said = {"inf": "∞" if name == "real" else "0" if "prior" in name else ""}.get(epsilon, epsilon)
        found.setdefault((name, said), {})[f"{archive}, {figure}"] = said_of(figure, np.array(list(of.values())))
    columns = [f"{archive}, {figure}" for archive in ARCHIVES for figure in ("FD", "SW")]
    table = {
        "command": "CONSILIUM_DATA=… python -m benchmarks.studies.synthesis_on_skin",
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "columns": ["way", "ε of a lesion", *columns],
        "rows": [[*key, *(cells[column] for column in columns)] for key, cells in found.items()],
    }
    return {"synthesis": table}


if __name__ == "__main__":
    main()
