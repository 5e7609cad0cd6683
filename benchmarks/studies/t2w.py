"""How far T2-weighted phantoms agree with two real patients: signals of tissues over muscle's; and a page of pictures.

    python -m benchmarks.studies.t2w                      # with ProstateX in CONSILIUM_DATA
    python -m benchmarks.studies.t2w --pictures t2w.png   # phantoms of six scanners, the prior, and the real series

Medians over a tissue's pixels. Real zones and lesion: the published masks (zones by a network); muscle (internal
obturator), fat (ischiorectal) and urine: rectangles placed by hand, below. Phantoms: medians over 12 patients.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import torch
from numpy.typing import NDArray

from benchmarks.shared.options import make_parser
from harmonize.prior import PRIORS, draw_pictures
from pipelines.data.grids.geometry import resample_volume, slice_grid
from pipelines.data.studies import standardize_values
from pipelines.data.study import Volume
from pipelines.phantom.files import render
from pipelines.phantom.organs import Kind
from pipelines.phantom.patients import PhantomSource, draw_anatomy
from pipelines.phantom.scanner import SCANNERS, mask_of

CASES = {"ProstateX-0000": "11373_1001396", "ProstateX-0001": "10795_1000811"}
PERIPHERAL, TRANSITION = 1, 2  # in the zonal masks
RECTANGLES: Mapping[str, Mapping[str, tuple[tuple[int, int, int, int, int], ...]]] = {
    "ProstateX-0000": {
        "muscle": ((9, 190, 250, 94, 110), (9, 190, 250, 264, 284)),
        "fat": ((9, 305, 325, 245, 275),),
        "urine": ((13, 105, 130, 150, 215),),
    },
    "ProstateX-0001": {
        "muscle": ((9, 190, 240, 102, 118), (9, 190, 240, 262, 280)),
        "fat": ((9, 290, 310, 190, 250),),
        "urine": ((14, 110, 145, 150, 230),),
    },
}
"""Slice, first and last row, first and last column."""
TISSUES = {
    "muscle": Kind.MUSCLE, "peripheral zone": Kind.PERIPHERAL, "transition zone": Kind.TRANSITION,
    "fat": Kind.FAT, "urine": Kind.URINE,
}  # fmt: skip
SEED, PATIENTS = 3, 12


def series(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values (slices, rows, columns), and (column, row, slice) index -> mm to the Right, Anterior, Superior."""
    found = [pydicom.dcmread(path) for path in folder.glob("*.dcm")]
    across, down = np.reshape(np.array(found[0].ImageOrientationPatient, float), (2, 3))
    found.sort(key=lambda one: float(np.cross(across, down) @ np.array(one.ImagePositionPatient, float)))
    first, last = (np.array(found[at].ImagePositionPatient, float) for at in (0, -1))
    spacing = [float(value) for value in found[0].PixelSpacing]
    affine = np.eye(4)
    affine[:3] = np.stack([across * spacing[1], down * spacing[0], (last - first) / (len(found) - 1), first], axis=1)
    return np.stack([one.pixel_array for one in found]).astype(float), np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def mask(path: Path, affine: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A NIfTI mask on a series' voxels (slices, rows, columns), by the nearest."""
    image = nibabel.load(path)
    index = np.stack(np.meshgrid(*(np.arange(side) for side in shape[::-1]), indexing="ij"), axis=-1).reshape(-1, 3)
    change = np.linalg.inv(image.affine) @ affine
    there = np.rint(index @ change[:3, :3].T + change[:3, 3]).astype(int)
    within = ((there >= 0) & (there < np.array(image.shape))).all(axis=1)
    values = np.zeros(len(there))
    values[within] = image.get_fdata()[tuple(there[within].T)]
    return values.reshape(shape[::-1]).transpose(2, 1, 0)


def real(place: Path, case: str) -> dict[str, float]:
    """Medians of a real patient's tissues."""
    values, affine = series(next((place / "dicom" / case).glob("*t2*")))
    zones, lesion = (
        mask(place / "labels" / kind / f"{CASES[case]}.nii.gz", affine, values.shape)
        for kind in ("zonal_Yuan23", "lesion_expert")
    )
    found = {
        tissue: np.concatenate([values[k, a:b, c:d].ravel() for k, a, b, c, d in boxes])
        for tissue, boxes in RECTANGLES[case].items()
    }
    found["peripheral zone"] = values[(zones == PERIPHERAL) & (lesion == 0)]
    found["transition zone"] = values[(zones == TRANSITION) & (lesion == 0)]
    if lesion.any():
        found["lesion"] = values[lesion > 0]
    return {tissue: float(np.median(each)) for tissue, each in found.items()}


def simulated(scanner: str) -> dict[str, float]:
    """Medians of a scanner's tissues over patients, over each patient's muscle."""
    source = PhantomSource(scanner=scanner, contrast="t2w", patients=PATIENTS, seed=SEED)  # type: ignore[arg-type]
    each: dict[str, list[float]] = {}
    for patient in range(PATIENTS):
        body, seen = draw_anatomy(SEED, patient, source.slices), render(source, patient)
        image = seen.image.values.transpose(2, 1, 0)
        where = {name: mask_of(body.kind == kind, SCANNERS[scanner]) > 0 for name, kind in TISSUES.items()}
        where["lesion"] = seen.lesion.values.transpose(2, 1, 0) > 0
        for name, inside in where.items():
            if inside.sum() > 15:
                each.setdefault(name, []).append(np.median(image[inside]) / np.median(image[where["muscle"]]))
    return {name: float(np.median(values)) for name, values in each.items()}


def row(name: str, found: Mapping[str, float]) -> str:
    over = {tissue: value / found["muscle"] for tissue, value in found.items()}
    cells = [f"{over[tissue]:.1f}" for tissue in TISSUES if tissue != "muscle"]
    shares = [found[tissue] / found["peripheral zone"] if tissue in found else None for tissue in
              ("transition zone", "lesion")]  # fmt: skip
    return " | ".join([f"| {name}", *cells, *("–" if one is None else f"{one:.2f}" for one in shares)]) + " |"


def pictures(path: Path, place: Path) -> None:
    """A row of phantoms for each of three patients, a row of the prior's pictures, a row of real slices; standardized
    and shown from -2 to 3 deviations.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 10), layout="constrained")
    axes = figure.subplots(5, 6)
    for line, patient in zip(axes, (0, 1, 5), strict=False):
        for axis, name in zip(line, SCANNERS, strict=True):
            seen = render(PhantomSource(scanner=name, contrast="t2w", patients=9, seed=SEED), patient)  # type: ignore[arg-type]
            axis.imshow(standardize_values(seen.image.values)[:, :, 3].T, cmap="gray", vmin=-2, vmax=3)
            axis.set_title(f"phantom, scanner {name}", fontsize=8)
    for axis, one in zip(
        axes[3], draw_pictures(PRIORS["prostate_t2w"], torch.arange(6) % 2, (1, 48, 48), 0), strict=True
    ):
        axis.imshow(4 * one[0], cmap="gray", vmin=-2, vmax=3)
        axis.set_title("prior", fontsize=8)
    for number, case in enumerate(CASES):
        values, affine = series(next((place / "dicom" / case).glob("*t2*")))
        stack = Volume(standardize_values(values.astype(np.float32)).transpose(2, 1, 0), affine)
        grid = slice_grid(affine, (191.5, 191.5), 1.5, 48)
        shown = resample_volume(stack, grid, (48, 48, len(values)), 1)
        for axis, k in zip(axes[4, 3 * number : 3 * number + 3], (6, 9, 12), strict=True):
            axis.imshow(shown[:, :, k].T, cmap="gray", vmin=-2, vmax=3)
            axis.set_title(f"{case}, slice {k}", fontsize=8)
    for axis in axes.flat:
        axis.axis("off")
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--pictures", type=Path)
    asked = parser.parse_args()
    prostatex = Path(os.environ.get("CONSILIUM_DATA", "../shared/data")) / "prostatex"
    if asked.pictures is not None:
        pictures(asked.pictures, prostatex)
    columns = (*list(TISSUES)[1:], "transition / peripheral", "lesion / peripheral")
    print(f"| | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    for case in CASES:
        print(row(case, real(prostatex, case)))
    for name in SCANNERS:
        print(row(f"phantom, scanner {name}", simulated(name)))
