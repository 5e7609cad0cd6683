"""What the detector, which no patient taught, marks on the two real ADC maps of ProstateX, beside experts' masks.

    CONSILIUM_DATA=... python -m benchmarks.studies.detector_on_real

Slices of 48 x 48 pixels (1.5 mm) that show the gland, as `prostatex.yaml` reads them. The picture goes to
docs/pictures/detector.png, the table into docs/results/data/one-message-phantom.json.
"""

from __future__ import annotations

import matplotlib
import numpy as np

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import PICTURES
from benchmarks.shared.records import make_table, write_tables
from benchmarks.shared.runs import read_prostatex
from benchmarks.studies.one_message_phantom import extractor

PICTURE = PICTURES / "detector.png"


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / max(one.sum() + other.sum(), 1))


def main() -> None:
    make_parser(__doc__).parse_args()
    cohort = read_prostatex()
    images = cohort.images.double().numpy()
    lesion, gland = (
        mask.reshape(len(images), *images.shape[-2:]).numpy() > 0 for mask in (cohort.lesion, cohort.gland)
    )
    sure = np.stack([extractor("detector").marked(image)[1][:, 0] for image in images])  # type: ignore[attr-defined]
    finding, organ = sure[:, 0], sure[:, 1] > 0.5
    rows = []
    for patient in cohort.patient.unique().tolist():
        own = np.flatnonzero(cohort.patient.numpy() == patient)
        middle = own[len(own) // 4 : len(own) - len(own) // 4]
        shows = own[lesion[own].any(axis=(1, 2))]
        rest = np.setdiff1d(own, shows)
        inside = f"{finding[shows][lesion[shows]].mean():.2f}" if len(shows) else "none is drawn"
        rows.append(
            [
                "with a lesion of ISUP 3" if len(shows) else "without a significant lesion",
                str(len(own)),
                f"{dice(organ[own], gland[own]):.2f}",
                f"{dice(organ[middle], gland[middle]):.2f}",
                inside,
                f"{finding[shows].max():.2f}" if len(shows) else "",
                f"{np.sort(finding[rest].max(axis=(1, 2)))[-1]:.2f}",
                f"{np.median(finding[rest].max(axis=(1, 2))):.2f}",
            ]
        )
    columns = [
        "patient",
        "slices",
        "gland, Dice",
        "its middle half",
        "mean certainty in the expert's lesion",
        "highest in slices with it",
        "highest in other slices",
        "median of other slices' highest",
    ]
    write_tables("one-message-phantom", {"real-maps": make_table(columns, rows)})
    drawn(images[:, 0], lesion, gland, sure)


def drawn(images: np.ndarray, lesion: np.ndarray, gland: np.ndarray, sure: np.ndarray) -> None:
    """A column a slice: the map with experts' masks, then how sure the detector is of a finding and of the organ."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, len(images), figsize=(0.8 * len(images), 2.5))
    for column, (image, spot, whole, marks) in enumerate(zip(images, lesion, gland, sure, strict=True)):
        axes[0, column].imshow(image, cmap="gray", vmin=0, vmax=3)
        axes[0, column].contour(whole, levels=[0.5], colors="gold", linewidths=0.8)
        if spot.any():
            axes[0, column].contour(spot, levels=[0.5], colors="red", linewidths=1.2)
        for row, mark in enumerate(marks, start=1):
            axes[row, column].imshow(mark, vmin=0, vmax=1)
    for axis in axes.ravel():
        axis.axis("off")
    figure.subplots_adjust(0, 0, 1, 1, 0.03, 0.03)
    figure.savefig(PICTURE, dpi=80)


if __name__ == "__main__":
    main()
