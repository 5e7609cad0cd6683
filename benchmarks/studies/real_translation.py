"""Two real patients' T2-weighted images and ADC maps through the translator that no patient taught (`randomized`).

    CONSILIUM_DATA=... python -m benchmarks.studies.real_translation

ProstateX-0000 and -0001 (Siemens 3 T): `python -m pipelines.translate` on their DICOM series, which are then read back.
Masks: gland and zones by published networks, the lesion by an expert (-0000 alone has one; it lies in the peripheral
zone). Contrast: lesion / peripheral zone, of medians; contrast to noise: their difference over the zone's deviation;
zones: transition / peripheral, of medians; order: rank correlation of the gland's values before and after. Detector:
how sure the one is that learnt from the prior of the same contrast, before and after, in slices of 48 x 48 pixels.
The picture goes to docs/pictures/real_translation.png, the table into docs/results/data/t2w.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from scipy import stats

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import DATA, PICTURES
from benchmarks.shared.records import make_table, write_tables
from benchmarks.studies.detector_slices import detector
from benchmarks.studies.no_patient import CACHE, INPUTS, KINDS
from harmonize.randomized import Randomized
from harmonize.scale import ignore_progress
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.grids.geometry import grid_of, mask_on_grid
from pipelines.data.images import Slices
from pipelines.data.nifti.reader import read_volume
from pipelines.data.prepare import prepare_slices
from pipelines.data.sources import DicomSource
from pipelines.data.studies import standardize_values
from pipelines.data.study import Volume
from pipelines.hospital.public_networks import learn_translation
from pipelines.models.translator_file import write_translator
from pipelines.phantom.patients import Contrast
from pipelines.runs.store import DiskFolder
from pipelines.translate import main as translate

PICTURE = PICTURES / "real_translation.png"
PROSTATEX = DATA / "prostatex"
SELECT = {"adc": {"ImageType": "ADC"}, "t2w": {"ImageType": "NORM", "SequenceName": "*tse2d1_25"}}
NAMES = {"adc": "ADC", "t2w": "T2-weighted"}
GLAND, LESION, ZONES = "whole_gland_Bosma22b", "lesion_expert", "zonal_Yuan23"
PERIPHERAL, TRANSITION = 1, 2


class Seen(NamedTuple):
    """A series in the header's unit, its values in the detector's, and masks on its grid."""

    image: Volume
    unit: Volume
    gland: np.ndarray
    lesion: np.ndarray
    zones: np.ndarray


def source(contrast: Contrast, folder: Path) -> DicomSource:
    return DicomSource(folder=str(folder), select=SELECT[contrast])


def written(contrast: Contrast, folder: Path) -> Path:
    """The translator's file, learnt once for all."""
    scale, prior = KINDS[contrast]
    how = Randomized() if contrast == "adc" else Randomized(prior=prior)
    params = learn_translation(CACHE, how, INPUTS, progress=ignore_progress, device="cpu")
    images = Slices(values="adc" if contrast == "adc" else "standardized")
    told = {"scale": scale, "images": images, "source": source(contrast, folder), "gland": False}
    write_translator(
        DiskFolder(folder), contrast, site="anywhere", settings=how, params=params, vetoed=(), origin={}, **told
    )
    return folder / f"{contrast}.safetensors"


def seen(contrast: Contrast, folder: Path, masks: str) -> Seen:
    (study,), _ = read_dicom(source(contrast, folder))
    values = np.asarray(study.image.values, np.float32)
    unit = values * np.float32(1e-3) if contrast == "adc" else standardize_values(values)
    found = [on(study.image, PROSTATEX / "labels" / kind / f"{masks}.nii.gz") for kind in (GLAND, LESION, ZONES)]
    return Seen(study.image, Volume(unit, study.image.affine), found[0] > 0, found[1] > 0, found[2])


def on(image: Volume, path: Path) -> np.ndarray:
    """A mask on the image's grid, each number of it by itself; nothing where there is no file."""
    found = np.zeros(image.values.shape, int)
    if path.exists():
        mask = read_volume(path)
        for number in (one for one in np.unique(mask.values).astype(int) if one):
            own = Volume((np.asarray(mask.values) == number).astype(np.float32), mask.affine)
            found[mask_on_grid(own, grid_of(image)) > 0] = number
    return found


def slices(of: Seen) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slices of 48 x 48 pixels of 1.5 mm about the gland, as a hospital reads them: images, lesion, gland."""
    masks = [Volume(mask.astype(np.float32), of.image.affine) for mask in (of.lesion, of.gland)]
    made = prepare_slices(of.unit, lesion=masks[0], gland=masks[1], images=Slices(slices="gland"))
    return made.images, made.lesion.reshape(len(made.images), 48, 48) > 0, made.gland.reshape(-1, 48, 48) > 0


def figures(one: Seen, contrast: Contrast) -> list[str]:
    values = np.asarray(one.image.values, float)
    inner, outer = (values[(one.zones == zone) & ~one.lesion] for zone in (TRANSITION, PERIPHERAL))
    cells = [f"{values[one.gland].mean():.0f}", f"{np.median(inner) / np.median(outer):.2f}"]
    images, lesion, _ = slices(one)
    finding = np.stack([detector(contrast).marked(image)[1][0, 0] for image in images.astype(float)])  # type: ignore[attr-defined]
    surest = finding.max(axis=(1, 2))
    if not one.lesion.any():
        return [*cells, "–", "–", "–", f"{surest.max():.2f}"]
    spot, shows = np.median(values[one.lesion]), lesion.any(axis=(1, 2))
    cells += [f"{spot / np.median(outer):.2f}", f"{(np.median(outer) - spot) / outer.std():.2f}"]
    return [*cells, f"{finding[lesion].mean():.2f}", f"{surest[shows].max():.2f} / {surest[~shows].max():.2f}"]


def main() -> None:
    make_parser(__doc__).parse_args()
    mapping = json.loads((PROSTATEX / "labels/ProstateX-mapping.json").read_text())
    masks = {key.partition("_")[0]: name for key, name in mapping.items()}
    rows, pictures = [], []
    with tempfile.TemporaryDirectory() as place:
        for contrast in KINDS:
            file = written(contrast, Path(place))
            for case in sorted(path.name for path in (PROSTATEX / "dicom").iterdir()):
                out = Path(place) / f"{contrast}-{case}"
                asked = [str(file), str(PROSTATEX / "dicom" / case), "--out", str(out), "--key", f"{place}/key"]
                if translate(asked):
                    raise SystemExit(f"{case} was not translated")
                before, after = (seen(contrast, folder, masks[case]) for folder in (PROSTATEX / "dicom" / case, out))
                pairs = zip(figures(before, contrast), figures(after, contrast), strict=True)
                order = stats.spearmanr(before.image.values[before.gland], after.image.values[before.gland]).statistic
                cells = ["–" if a == "–" else f"{a} → {b}" for a, b in pairs]
                rows.append([f"{NAMES[contrast]}, {case}", *cells, f"{order:.2f}"])
                print(rows[-1], flush=True)
                pictures.append((f"{NAMES[contrast]}, {case}", contrast, before, after))
    columns = ["series", "gland's mean", "transition / peripheral", "lesion / peripheral", "contrast to noise"]
    columns += ["detector, mean in the lesion", "its surest, slices with the lesion / others", "order"]
    write_tables("t2w", {"real-translation": make_table(columns, rows)})
    drawn(pictures)


def drawn(pictures: list[tuple[str, Contrast, Seen, Seen]]) -> None:
    """Four slices of each series: before, after, the change, and what the detector marks before."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2 * 4 + 1, 8, figsize=(11, 11.8), height_ratios=[1, 1, 1, 1, 0.15, 1, 1, 1, 1])
    for axis in axes[4]:
        axis.axis("off")
    for number, (name, contrast, before, after) in enumerate(pictures):
        corner = axes[5 * (number // 2) : 5 * (number // 2) + 4, 4 * (number % 2) : 4 * (number % 2) + 4]
        (old, lesion, gland), (new, _, _) = slices(before), slices(after)
        area = lesion.sum(axis=(1, 2)) if lesion.any() else gland.sum(axis=(1, 2))
        first = max(0, min(int(area.argmax()) - 1, len(old) - 4))
        low, high = (0.0, 3.0) if contrast == "adc" else (-2.0, 3.0)
        for column in range(4):
            k = first + column
            finding = detector(contrast).marked(old[k].astype(float))[1][0, 0]  # type: ignore[attr-defined]
            shown = ((old[k, 0], "gray", low, high), (new[k, 0], "gray", low, high))
            shown += ((new[k, 0] - old[k, 0], "RdBu", -1.0, 1.0), (finding, "viridis", 0.0, 1.0))
            for axis, (image, colours, least, most) in zip(corner[:, column], shown, strict=True):
                axis.imshow(image, cmap=colours, vmin=least, vmax=most)
                axis.axis("off")
                if lesion[k].any():
                    axis.contour(lesion[k], levels=[0.5], colors="red", linewidths=0.9)
            corner[0, column].contour(gland[k], levels=[0.5], colors="gold", linewidths=0.6)
        corner[0, 0].set_title(name, fontsize=9, loc="left")
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.97, 0.03, 0.06)
    figure.savefig(PICTURE, dpi=66)


if __name__ == "__main__":
    main()
