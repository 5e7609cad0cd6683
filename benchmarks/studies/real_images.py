"""Translations of real images, against what no translator sees.

python -m benchmarks.studies.real_images adc [TRANSLATOR ...]

Translators that learnt on phantoms, on real ADC. CONSILIUM_DATA/prostatex holds studies of ProstateX as DICOM in
dicom/<patient>, masks of the gland and of lesions as NIfTI in labels/, and labels/ProstateX-mapping.json, which says
whose they are. Every study goes through the translators named, files that a run left at its sites (vetoed or not), and
through curves whose shared images are 12 phantoms of scanner P. The translation is that of `pipelines.translate` with
--no-gland, without writing files. Means of ADC in 1e-6 mm²/s inside the masks, before and after; contrast: (gland -
lesion) / gland of these means; order: rank correlation (Spearman) of the gland's values before and after.

python -m benchmarks.studies.real_images pictures RUN [RUN ...]

How near translations come to the target's real pictures. RUN is a folder runs/<name> of a simulated run on pictures
that went as far as `translate`. No hospital can compute these figures: a site that translates sees the shared, made-up
images only. Vetoed translations are there too. SW: sliced Wasserstein distance in units of [-1, 1], mean over 5 sets of
directions; FD: Frechet distance in 40 principal components of the target's images. Each compares all images of a site
(training, validation and test) with all of the target's; the floor is the target's one half against its other.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy import stats
from torch import Tensor

from benchmarks.studies.synthesis import SCALE, cohort
from harmonize.distances import frechet, sliced_wasserstein
from harmonize.embedding import compute_basis, project_images
from harmonize.intensity import HistogramMatch, Nyul, Percentile, ZScore
from harmonize.own import SiteImages
from pipelines.batch.translated_values import apply_translator
from pipelines.data.adc import convert_to_adc
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.grids.geometry import grid_of, mask_on_grid
from pipelines.data.images import Slices
from pipelines.data.nifti.reader import read_volume
from pipelines.data.sources import DicomSource
from pipelines.data.study import Volume
from pipelines.hospital.hospital import COHORT, read_cohort_file
from pipelines.models.translator_file import TranslatorFile, read_translator

Bools = NDArray[np.bool_]
GLAND, LESION = "whole_gland_Bosma22b", "lesion_expert"
PHANTOMS = 12
DIRECTIONS, COMPONENTS = 5, 40


def curves() -> Iterator[TranslatorFile]:
    """Normalizations onto phantoms of scanner P."""
    phantoms = cohort("P", PHANTOMS, 0)
    own = SiteImages(phantoms.x, phantoms.y, phantoms.patient)
    for way in (ZScore(), Nyul(), HistogramMatch(), Percentile()):
        params = way.fit(own, own.images)
        yield TranslatorFile("", way.name, way, params, SCALE, Slices(), DicomSource(folder="."), False, (), "", {})


def inside(folder: Path, name: str, image: Volume) -> Bools:
    """A mask on the image's grid; empty where there is none."""
    path = folder / f"{name}.nii.gz"
    if not path.exists():
        return np.zeros(image.values.shape, bool)
    return mask_on_grid(read_volume(path), grid_of(image)).astype(np.bool_)


def rows(patient: str, image: Volume, gland: Bools, lesion: Bools, translators: list[TranslatorFile]) -> Iterator[str]:
    """A line of the table for each translator."""
    before = np.asarray(image.values)
    for file in translators:
        after = before + apply_translator(image, before == 0, file, None).change
        organ = [1000 * float(x[gland].mean()) for x in (before, after)]
        order = float(stats.spearmanr(before[gland], after[gland]).statistic)
        cells = [f"{value:.0f}" for value in organ]
        if lesion.any():
            spot = [1000 * float(x[lesion].mean()) for x in (before, after)]
            contrast = [(whole - part) / whole for whole, part in zip(organ, spot, strict=True)]
            cells += [f"{value:.0f}" for value in spot] + [f"{value:.2f}" for value in contrast]
        else:
            cells += ["–"] * 4
        name = f"{file.label}, vetoed ({', '.join(file.vetoed)})" if file.vetoed else file.label
        yield f"| {patient} | {name} | {' | '.join(cells)} | {order:.2f} |"


def adc(root: Path, places: Sequence[str]) -> None:
    """The table of all studies below `root`."""
    labels = root / "labels"
    mapping = json.loads((labels / "ProstateX-mapping.json").read_text())  # patient_date -> name of his masks
    names = {key.partition("_")[0]: name for key, name in mapping.items()}
    translators = [*(read_translator(Path(place)) for place in places), *curves()]
    print("| patient | translator | gland before | after | lesion before | after | contrast before | after | order |")
    print(f"|{'---|' * 9}")
    for folder in sorted((root / "dicom").iterdir()):
        for study in read_dicom(DicomSource(folder=str(folder), select={"ImageType": "ADC"}))[0]:
            units = convert_to_adc(np.asarray(study.image.values, np.float32), declared="auto", header_unit=study.unit)
            image = Volume(units.values / 1000, study.image.affine)
            gland, lesion = (inside(labels / kind, names[folder.name], image) for kind in (GLAND, LESION))
            print("\n".join(rows(folder.name, image, gland, lesion, translators)), flush=True)


def newest(folder: Path, name: str) -> Path:
    """The last one written of the files `name` in the artifacts of a stage."""
    return max(folder.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime)


def images(run: Path, site: str, name: str) -> Tensor:
    return read_cohort_file(run / "sites" / site / "cohorts" / name / COHORT).images.float()


def spaces(run: Path, site: str) -> dict[str, Tensor]:
    """A site's images as they are, and in every space into which it translated them."""
    raw = json.loads(newest(run / "ingest", "sites.json").read_text())[site]["cohort"]
    found = {"as they are": images(run, site, raw)}
    for path in sorted((run / "sites" / site / "qualities").glob("*.json")):
        said: dict[str, Any] = json.loads(path.read_text())
        if said["raw"] == raw:
            vetoed = f" (vetoed: {', '.join(said['vetoed'])})" if said["vetoed"] else ""
            found[f"by {said['space']}{vetoed}"] = images(run, site, said["cohort"])
    return found


def line(name: str, x: Tensor, real: Tensor, distance: bool = True) -> None:
    sliced = statistics.mean(sliced_wasserstein(x, real, seed=seed) for seed in range(DIRECTIONS))
    space = compute_basis(real, COMPONENTS)
    far = f"{frechet(project_images(space, x), project_images(space, real)):.0f}" if distance else "–"
    print(f"| {name} | {sliced:.3f} | {far} |", flush=True)


def pictures(run: Path) -> None:
    """The table of one run."""
    target = json.loads(newest(run / "score", "scores.json").read_text())["target"]
    of_target = next(iter(spaces(run, target).values()))
    print(f"\n| {run.name}, to the real images of {target} | SW | FD |\n|---|---|---|")
    order = torch.randperm(len(of_target), generator=torch.Generator().manual_seed(0))
    line(f"one half of {target} to the other", of_target[order[::2]], of_target[order[1::2]], distance=False)
    line("shared images", load_file(newest(run / "sample", "shared.safetensors"))["images"], of_target)
    for site in sorted(path.name for path in (run / "sites").iterdir() if path.name != target):
        for name, x in spaces(run, site).items():
            line(f"{site} {name}", x, of_target)


if __name__ == "__main__":
    reader = make_parser(__doc__)
    reader.add_argument("what", choices=["adc", "pictures"])
    reader.add_argument("places", nargs="*", help="translator files, or folders of runs")
    asked = reader.parse_args()
    torch.set_num_threads(1)
    if asked.what == "adc":
        adc(Path(os.environ["CONSILIUM_DATA"]) / "prostatex", asked.places)
    for place in asked.places if asked.what == "pictures" else ():
        pictures(Path(place))
