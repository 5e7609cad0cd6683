"""How often a study is marked unlike the training patients.

    CONSILIUM_DATA=... python -m benchmarks.studies.unlike [adc] [skin]

A model and its statistics for each phantom scanner (40 training patients); asked are 40 other patients of the same
scanner (false alarms), 40 of each other scanner, real ADC (ProstateX), the same hospital's images times 2, T2-weighted
images scaled to ADC's median, GE's diffusion-weighted images likewise, and fundus pictures as grey values in ADC's
range. Then the same for dermatoscopy: pictures of the hospital, of two others, and of the fundus.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import torch
from scipy import ndimage
from torch import Tensor, nn

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import DATA
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.task import Task
from pipelines.data.cohort import Cohort, read_cohort
from pipelines.data.examples import open_source
from pipelines.data.images import Pictures, Slices
from pipelines.data.intake import Intake, ReadStudy, read_studies
from pipelines.data.pictures.reader import open_loose_pictures
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, PictureSource
from pipelines.hospital.hospital import rows_of
from pipelines.models.likeness import Likeness, likeness_of, studies_of
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.phantom.scanner import SCANNERS

PATIENTS = 40
SPLIT = {"train": 0.5, "validation": 0.0, "test": 0.5}
PROSTATEX = DATA / "prostatex"
GLAND = GlandMask(
    folder=str(PROSTATEX / "labels" / "whole_gland_Bosma22b"),
    names=str(PROSTATEX / "labels" / "ProstateX-mapping.json"),
)


def studies(opened: Intake) -> list[Tensor]:
    """The examples of every study that can be read."""
    found = [one for one in read_studies(opened.waiting, readers=1) if isinstance(one, ReadStudy)]
    return [torch.from_numpy(one.examples.images) for one in found]


def tested(cohort: Cohort) -> list[Tensor]:
    """The examples of every study of the test patients."""
    rows = (cohort.split == 2).nonzero()[:, 0]
    study = torch.from_numpy(studies_of(cohort.patient[rows], cohort.position[rows]))
    return [cohort.images[rows[study == one]] for one in study.unique()]


def learnt(cohort: Cohort, task: Task, steps: int) -> tuple[nn.Module, Likeness]:
    """A network that was trained, and the statistics of its training patients."""
    torch.manual_seed(0)
    module, train = task.network().train(), rows_of(cohort)["train"]
    rule = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(steps):
        some = torch.randint(len(train.y), (32,))
        rule.zero_grad()
        task.model.losses(module(train.x[some]), train.y[some]).mean().backward()
        rule.step()
    found = likeness_of(module.eval(), cohort, None)
    if found is None:
        raise ValueError("there are too few training patients")
    return module, found


def marked(model: tuple[nn.Module, Likeness], asked: Sequence[Tensor]) -> str:
    """How many studies are called unlike, and the median distance in multiples of the limit."""
    if not asked:
        return "none could be read"
    verdicts = [model[1].verdict(model[0], x, None) for x in asked]
    middle = float(np.median([one.distance for one in verdicts]))
    return f"{sum(one.unlike for one in verdicts)}/{len(verdicts)} ({middle:.2g})"


def phantoms(root: Path, images: Slices) -> dict[str, Cohort]:
    """A hospital for each scanner, half its patients for training."""
    found = {}
    for number, scanner in enumerate(SCANNERS):
        folder = root / scanner
        write(PhantomSource(scanner=scanner, patients=2 * PATIENTS, seed=4100 + number), folder)  # type: ignore[arg-type]
        source = DicomSource(folder=str(folder / "images"), select={"ImageType": "ADC"})
        labels, gland = MaskLabels(folder=str(folder / "masks/lesion")), GlandMask(folder=str(folder / "masks/gland"))
        reading = read_cohort(source, labels, images, gland=gland, fractions=SPLIT, seed=0, key=bytes(32))
        found[scanner] = reading.cohort
    return found


def general_electric(images: Slices) -> Tensor:
    """Diffusion-weighted slices (k, 1, size, size) of a head, about the middle, scaled until tissue looks like ADC."""
    found = []
    for path in sorted((DATA / "dicom_zoo" / "ge_dwi").iterdir())[:2]:  # the other files have the same pixels
        file = pydicom.dcmread(path)
        plane = ndimage.zoom(
            file.pixel_array.astype(np.float32), float(file.PixelSpacing[0]) / images.spacing_mm, order=1
        )
        row, column = ((side - images.size) // 2 for side in plane.shape)
        found.append(plane[row : row + images.size, column : column + images.size])
    x = torch.from_numpy(np.stack(found))[:, None]
    return 1.4 * x / x[x > 0].median()


def foreign_images(images: Slices) -> dict[str, list[Tensor]]:
    """What no phantom hospital has."""
    around = replace(images, slices="gland")
    plain = replace(images, values="standardized", slices="gland")
    dicom = DicomSource(folder=str(PROSTATEX / "dicom"))
    weighted = studies(open_source(replace(dicom, select={"SeriesDescription": "t2"}), None, plain, GLAND))
    fundus = open_loose_pictures(str(DATA / "fundus"), Pictures(size=images.size, channels=1))
    return {
        "ProstateX": studies(open_source(replace(dicom, select={"ImageType": "ADC"}), None, around, GLAND)),
        "T2 as ADC": [1.4 * (x - x.min()) / (x.median() - x.min()) for x in weighted],
        "GE DWI as ADC": [general_electric(images)],
        "fundus": [1.5 * (x + 1) for x in studies(fundus)],
    }


def adc() -> None:
    """Phantom scanners, and what is none of them."""
    images = Slices()
    with tempfile.TemporaryDirectory() as place:
        cohorts = phantoms(Path(place), images)
    others = foreign_images(images)
    print("| trained on | " + " | ".join([*cohorts, "own × 2", *others]) + " |")
    print("|---" * (len(cohorts) + len(others) + 2) + "|")
    task = Task(Cam(), images.inputs, 2)
    for name, cohort in cohorts.items():
        model, own = learnt(cohort, task, 120), tested(cohort)
        cells = [marked(model, tested(one)) for one in cohorts.values()]
        cells += [marked(model, [2 * x for x in own]), *(marked(model, asked) for asked in others.values())]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def skin() -> None:
    """Dermatoscopy."""
    images, folder = Pictures(size=32, channels=3), DATA / "ham10000"
    cohorts = {}
    for site in ("rosendahl", "vidir_modern", "vidir_molemax"):
        source = PictureSource(folder=str(folder), table=str(folder / "labels.csv"), where={"site": (site,)})
        cohorts[site] = read_cohort(source, None, images, fractions=SPLIT, seed=0, key=bytes(32)).cohort
    fundus = studies(open_loose_pictures(str(DATA / "fundus"), images))
    print("| trained on | " + " | ".join([*cohorts, "fundus"]) + " |\n" + "|---" * (len(cohorts) + 2) + "|")
    task = Task(Cnn(widths=(16, 32, 64, 128), norm="group"), images.inputs, 2)
    for name, cohort in cohorts.items():
        model = learnt(cohort, task, 250)
        print(f"| {name} | " + " | ".join(marked(model, x) for x in (*map(tested, cohorts.values()), fundus)) + " |")


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("parts", nargs="*", help="the default: both")
    asked = parser.parse_args().parts or ["adc", "skin"]
    torch.set_num_threads(1)
    begun = time.perf_counter()
    for part in (adc, skin):
        if part.__name__ in asked:
            part()
    print(f"{time.perf_counter() - begun:.0f} s")
