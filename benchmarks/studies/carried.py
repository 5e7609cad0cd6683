"""Images translated to the look of a model's hospital, where the model is carried to another: what is it worth?

    python -m benchmarks.studies.carried [--populations 8] [--part 0 --of 2]
    python -m benchmarks.tables.derived --write carried

Two phantom hospitals (P, smooth; L, noisy, with an export window and a tone curve) whose exports are grey values in no
common unit; every study is standardized, as `images.values: standardized` does it, and divided by 3. Six slices of
32 x 32 at 2 mm a patient, 48 patients that train and 48 others that test. Each hospital trains a network alone (that of
`matched.py`: 480 steps), with group norm and with batch norm. Each model is scored at the other hospital, AUC of the
test patients' slices; with batch norm after AdaBN on that hospital's training images, in the same look. A translator
there learns from that hospital's 48 training patients and from the images of the model's hospital: real ones, so what
synthesis under differential privacy loses is not in it.

    raw          standardized, not translated
    reinhard, histogram, nyul     curves to the images of the model's hospital
    cyclegan     the product's default
    by class     `by_class: true, patch: 1, members: 3`: discriminators see the class and judge small patches, batches
                 hold both classes equally often, and T is the mean of three trainings
    oracle       the same patients, imaged by the model's hospital's scanner
    home         the model at its own hospital, on other patients

Primary comparison, written down before a population of these tables was drawn: group norm, `by class` minus `raw`, mean
of both directions in each population, then over populations, with Student's 95 % interval. All others are secondary;
batch norm with AdaBN is named before them. Fresh populations have the seeds 9100 + 2 k (P) and 9101 + 2 k (L). Chosen
in three directions of two other populations (5010 to 5013): without classes, with classes in patches of 34, with
balanced batches, in patches of 16, with `structure: 3`, two trainings' mean, and the mean of an image and its
translation: eight variants in one direction, on images shifted and scaled by the hospital, and two of them on
standardized ones in all three.

What the veto would say (`harmonize/veto.py`, limits as they are) is measured as a hospital does, on its training
patients with masks, and noted beside the gain.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.phantoms import PhantomSlices, read_slices
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.studies.matched import INPUTS, NORMS, SCANNERS, TESTED, TRAINED, score_network, train_network
from federation.calibration import adapt_batch_norms
from federation.models.cnn import Cnn
from federation.task import Task
from harmonize.cyclegan import CycleGan
from harmonize.intensity import HistogramMatch, Nyul
from harmonize.own import SiteImages
from harmonize.quality import measure_quality
from harmonize.reinhard import Reinhard
from harmonize.translation import Translator, fit_translator, translate_back, translate_each_patient
from harmonize.veto import Limits, list_checks, list_vetoes
from pipelines.data.images import Slices
from pipelines.data.studies import standardize_values
from pipelines.phantom.patients import PhantomSource, ScannerName
from privacy.dp.access import Rows

COMMAND = "python -m benchmarks.studies.carried"
FIRST_SEED, POPULATIONS = 9100, 8
SCALE = 3.0
TRANSLATORS: dict[str, Translator] = {
    "reinhard": Reinhard(region="all"),
    "histogram": HistogramMatch(),
    "nyul": Nyul(),
    "cyclegan": CycleGan(),
    "by class": CycleGan(by_class=True, patch=1, members=3),
}
LINES = ("raw", *TRANSLATORS, "oracle", "home")
JUDGED = ("cyclegan", "by class")
Floats: TypeAlias = npt.NDArray[np.float64]
Book: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Population -> direction -> line -> AUC, and what the veto says of the trained translators."""


def draw_hospital(scanner: ScannerName, seed: int) -> PhantomSlices:
    """Slices of one hospital's patients, standardized, in [-1, 1]; the first TRAINED patients train."""
    source = PhantomSource(scanner=scanner, patients=TRAINED + TESTED, seed=seed, export="grey")
    slices = read_slices(
        source,
        images=Slices(size=INPUTS[1], spacing_mm=2.0),
        values=lambda values: standardize_values(np.asarray(values, np.float32)),
    )
    return slices._replace(x=(slices.x / SCALE).clamp(-1.0, 1.0))


def split_rows(slices: PhantomSlices, x: Tensor) -> tuple[Rows, Rows]:
    """Training and test rows with images x in the place of the hospital's."""
    trains = slices.patient < TRAINED
    rows = (Rows(x[part], slices.y[part], slices.patient[part]) for part in (trains, ~trains))
    return next(rows), next(rows)


def score_direction(home: ScannerName, there: ScannerName, home_seed: int, there_seed: int) -> dict[str, Any]:
    """AUC at the other hospital of what was trained at home, by norm and line, and what the veto says."""
    at_home, other = draw_hospital(home, home_seed), draw_hospital(there, there_seed)
    home_rows = split_rows(at_home, at_home.x)
    images = {"raw": other.x, "oracle": draw_hospital(home, there_seed).x}
    figures: dict[str, Any] = {}
    own, _ = split_rows(other, other.x)
    for name, translator in TRANSLATORS.items():
        params = fit_translator(
            translator, SiteImages(own.x, own.y, own.patient), home_rows[0].x, home_rows[0].y, seed=there_seed
        )
        images[name] = translate_each_patient(translator, params, other.x, other.patient)
        if name in JUDGED:
            trains = other.patient < TRAINED
            quality = measure_quality(
                other.x[trains],
                images[name][trains],
                own.y,
                own.patient,
                other.lesion[trains],
                other.gland[trains],
                home_rows[0].x,
                cycled=translate_back(translator, params, own.x),
                seed=0,
            )
            checks = {check.name: round(float(check.value), 4) for check in list_checks(quality, Limits())}
            figures[f"veto, {name}"] = {"figures": checks, "vetoes": list(list_vetoes(quality, Limits()))}
    for norm in NORMS:
        task = Task(Cnn(norm=norm), INPUTS, 2)
        module = train_network(task, home_rows[0], home_seed)
        figures[f"{norm}, home"] = score_network(task, module, home_rows[1])
        for name, x in images.items():
            train, test = split_rows(other, x)
            served = adapt_batch_norms(module, train.x) if norm == "batch" else module
            figures[f"{norm}, {name}"] = score_network(task, served, replace(test, x=test.x))
    return figures


def score_populations(seeds: range, book: Book) -> None:
    """Both directions of populations that are not known, written down as they come."""
    for seed in seeds:
        for place, (home, there) in enumerate((SCANNERS, SCANNERS[::-1])):
            way = f"{home} at {there}"
            if way in book.get(str(seed), {}):
                continue
            figures = score_direction(home, there, seed + place, seed + 1 - place)
            newest: Book = read_measured("carried") or {}
            newest.setdefault(str(seed), {})[way] = figures
            write_measured("carried", newest)
            print(seed, way, {line: v for line, v in figures.items() if isinstance(v, float)}, flush=True)


def read_line(book: Book, line: str) -> Floats:
    """AUC of a line, (populations, 2 directions), of the populations that are whole."""
    return np.array([[lines[line] for lines in ways.values()] for ways in book.values() if len(ways) == 2])


def tables(book: Book) -> dict[str, dict[str, Any]]:
    """The tables of docs/results/carried.md; intervals are over populations, each the mean of both ways."""
    made: dict[str, dict[str, Any]] = {}
    names = {"group": "group norm", "batch": "batch norm with AdaBN"}
    for norm, what in names.items():
        values = {line: read_line(book, f"{norm}, {line}") for line in LINES}
        number = len(values["raw"])
        rows = []
        for line, each in values.items():
            away = each - values["raw"]
            gains = ["", ""] if line == "raw" else [say_change(away), str(int((away > 0).sum()))]
            rows.append([line, format_interval(each.mean(axis=1)), *gains])
        columns = [f"{what}, {number} populations", "AUC", "minus raw", f"above raw, of {2 * number}"]
        made[norm] = make_table(columns, rows, COMMAND)
    made["veto"] = make_table(
        ["limit", "cyclegan: forbids, of all", "gain there", "by class: forbids, of all", "gain there"],
        tabulate_vetoes(book),
        COMMAND,
    )
    return made


def tabulate_vetoes(book: Book) -> list[list[str]]:
    """For each limit how often it forbids a translation, and the mean gain with group norm where it does."""
    directions = [lines for ways in book.values() if len(ways) == 2 for lines in ways.values()]
    limits = list(directions[0]["veto, cyclegan"]["figures"]) if directions else []
    rows = []
    for limit in (*limits, "none of them"):
        row = [limit]
        for name in JUDGED:
            gains = [
                lines[f"group, {name}"] - lines["group, raw"]
                for lines in directions
                if (limit in lines[f"veto, {name}"]["vetoes"])
                or (limit == "none of them" and not lines[f"veto, {name}"]["vetoes"])
            ]
            row += [f"{len(gains)} of {len(directions)}", f"{np.mean(gains):+.3f}".replace("-", "−") if gains else ""]
        rows.append(row)
    return rows


def say_change(away: Floats) -> str:
    """A mean difference, with a sign."""
    return format_interval(away.mean(axis=1), sign="+").replace("-", "−")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--populations", type=int, default=POPULATIONS)
    parser.add_argument("--part", type=int, default=0, help="of the populations, for several processes: this one")
    parser.add_argument("--of", type=int, default=1, help="of so many parts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    last = FIRST_SEED + 2 * options.populations
    score_populations(range(FIRST_SEED + 2 * options.part, last, 2 * options.of), read_measured("carried") or {})


if __name__ == "__main__":
    main()
