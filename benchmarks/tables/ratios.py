"""One table of what our code costs beside code that nobody here wrote: each row a comparison within one run.

    python -m benchmarks.tables.derived --write cost-curves

A row names cells of committed tables; figures, day and commit are read from there, so a measurement that is made again
changes this table. The ratio is ours / theirs: below 1 ours takes less. What is no seconds or bytes is not here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.shared.records import make_table
from benchmarks.tables.cells import ADDRESS, at, tables

PEAK = 67.0
"""TFLOP/s in float32 of an H200 outside its tensor cores, by NVIDIA's data sheet."""


class Row(NamedTuple):
    """A comparison. ratio: arithmetic with cells. limit: what physics asks at least, with {arithmetic} for figures."""

    what: str
    other: str
    ratio: str
    limit: str


STEP, GPU, READ = "privacy.step[{}; {}; {}]", "gpu.throughput[{}; {}; float32; {}]", "reading-files.speed[{}; {}]"
BARE = "ours / bare, CPU"
ARITHMETIC = (
    "the arithmetic: {{speed.round[{0}; ours / bare, CPU]}} times it; six fsyncs a site are "
    "{{100 * speed.round[{0}; share forced to the disk]}} % of the time by the clock"
)
AT_LEAST = "the plain step of as many images: {{{}}} times it"
FLOPS = "{{{}}} TFLOP/s of {:g} in float32, by {:g} GFLOP an image (torch's counter)"


def _private(network: str, views: int) -> Row:
    ours = STEP.format(network, views, "private")
    theirs = STEP.format(network, views, "Opacus hooks, unit = image")
    what = f"private step, {network}, {views} image{'s' * (views > 1)} a patient"
    return Row(what, "Opacus 1.6.0 (unit: an image)", f"{ours} / {theirs}", AT_LEAST.format(ours))


def _round(shape: str, what: str) -> Row:
    limit = ARITHMETIC.format(shape)
    return Row(f"round of FedAvg, {what}", "bare torch loop", f"speed.round[{shape}; {BARE}]", limit)


def _framework(name: str) -> Row:
    cells = [f"speed.frameworks[{each}; {{}}]" for each in ("Consilium, with fsync and ledger", name)]
    ratio = " / ".join(cell.format("CPU s") for cell in cells)
    over = [cell.format("over bare, CPU") for cell in cells]
    limit = f"the bare loop: ours {{{over[0]}}} times it, theirs {{{over[1]}}}"
    return Row("round of FedAvg, 12 sites of 120 images", name.partition(",")[0], ratio, limit)


def _reader(files: str, column: str, name: str) -> Row:
    return Row(f"reading: {files}", name, f"1 / {READ.format(files, column)}", "not measured")


def _loader(case: str, told: str) -> Row:
    cell = f"cost-curves.patches[{case}; {told}; {{}}]"
    what = f"a patch{' with augmentation' * (told == 'yes')}, {case}"
    far = f"{cell.format('now, ms')} / {cell.format('copying alone, ms')}"
    limit = f"copying its voxels: {{{far}}} times that"
    return Row(what, "nnU-Net 2.8.1's loader", f"1 / ({cell.format(NNUNET)})", limit)


NNUNET = "nnU-Net's / now"
ON_GPU = "gpu.private[cnn 16-24-32-48, 48 px; 1; {}]"
MONAI = "MONAI Pydicom or Nibabel"
FILES = ("ProstateX, 4 series of 19 DICOM files", "phantom, 40 DICOM series", "phantom, 40 NIfTI files")
CASES = ("64 x 64 x 64 of 96 x 128 x 128", "64 x 64 x 64 of 128 x 256 x 256", "256 x 256 of 512 x 512")
ROWS = (
    _round("64; 24", "64 sites of 24 images"),
    _round("4; 600", "4 sites of 600 images"),
    _framework("pfl-research 0.6.0"),
    _framework("Flower 1.41.0, simulation (Ray)"),
    *(_private(network, views) for network in ("cnn 16-24-32-48, 48 px", "mlp 10, 13 features") for views in (1, 4)),
    Row(
        "private step on a GPU, cnn 16-24-32-48, 48 px, 1 image a patient",
        "Opacus 1.6.0 (unit: an image)",
        f"{ON_GPU.format('private')} / {ON_GPU.format('Opacus, unit = image')}",
        AT_LEAST.format(ON_GPU.format("private")),
    ),
    *(
        Row(
            f"training on a GPU, {network}, {shape}",
            "bare torch loop",
            GPU.format(network, shape, "times the bare loop"),
            FLOPS.format(f"{GPU.format(network, shape, 'images/s')} * {gflop} / 1000", PEAK, gflop),
        )
        for network, shape, gflop in (
            ("ResNet-18", "3 × 112 × 112, batches of 32", 2.85),
            ("CNN, 32 to 256 channels", "64 × 64, batches of 32", 0.344),
            ("U-Net of volumes, width 16", "64³, batches of 2", 22.5),
        )
    ),
    *(_reader(files, MONAI, "MONAI 1.6.1's reader") for files in FILES),
    *(_reader(files, "SimpleITK", "SimpleITK") for files in FILES),
    *(_loader(case, told) for case in CASES for told in ("no", "yes")),
    *(
        Row(
            "AUC with 1,000 copies of 1,000 patients",
            name,
            f"1 / speed.bootstrap[1,000; 6; {column}]",
            "not computed",
        )
        for name, column in (
            ("scikit-learn, in a loop", "scikit-learn in a loop / ours"),
            ("SciPy's bootstrap", "SciPy / ours"),
        )
    ),
)


def table() -> dict[str, Any]:
    """The comparisons, each with the day and commit of its figures and a link to its page."""
    rows = []
    for row in ROWS:
        page, name = next((found[1], found[2]) for found in ADDRESS.finditer(row.ratio))
        source = tables(page).get(name)
        if source is None:
            continue  # of this page itself, before it was written once
        parts = row.limit.split("{")
        limit = parts[0] + "".join(_put_figure(part) for part in parts[1:])
        link = f"[{page}]({page}.md)" if page != "cost-curves" else "above"
        stale = " (older than the code)" if "stale" in source else ""
        made = f"{source['date']}, `{source['commit']}`{stale}"
        rows.append([row.what, row.other, _format_ratio(at(row.ratio, page).value), limit, made, link])
    columns = ["what", "beside", "ours / theirs", "physical limit, and how far", "measured", "detail"]
    return make_table(columns, rows, "python -m benchmarks.tables.derived --write cost-curves")


def _put_figure(part: str) -> str:
    """What stands behind a `{` of a limit, with its figure."""
    words, _, rest = part.partition("}")
    return f"{at(words, 'cost-curves').value:.3g}{rest}"


def _format_ratio(ratio: float) -> str:
    """Two digits behind the point, or three figures of a small one."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"
