"""Write a phantom hospital's patients as the files that a real hospital would have: DICOM or NIfTI, masks, labels.

The files depend on the settings only, not on a clock or another random source: written twice, the bytes are the same.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nibabel
import numpy as np
from numpy.typing import NDArray

from evaluation.csv_text import csv_text
from pipelines.data.study import Affine, Volume
from pipelines.phantom.dicom import dicom_series
from pipelines.phantom.findings import PHANTOM_FINDINGS, list_findings
from pipelines.phantom.organs import GRADE_GROUPS
from pipelines.phantom.patients import PhantomSource, draw_anatomy, find_defect, patient_name
from pipelines.phantom.scanner import SCANNERS, Acquired, acquire, scanner_of, to_grey_values
from pipelines.phantom.t2w import PROTOCOLS, acquire_t2w, relaxation

STORED_MAX = 4095  # 12 bits


class Rendered(NamedTuple):
    """One patient imaged by one scanner: ADC in 1e-6 mm²/s, or T2-weighted grey values, and masks (CS lesion, gland) on
    the same grid.
    """

    image: Volume
    lesion: Volume
    gland: Volume


def render(source: PhantomSource, patient: int) -> Rendered:
    """Image patient number `patient` with the hospital's scanner; `replace(source, scanner=...)` gives the oracle pair.

    An ADC is as fitted by the scanner, before the export's window; grey values, of `export: grey` too, are as exported.
    Volumes are (48, 48, slices).
    """
    acquired = _acquire(source, patient, take=0)
    return Rendered(*(Volume(values.transpose(2, 1, 0), acquired.affine) for values in acquired[:3]))


def write(source: PhantomSource, folder: Path) -> None:
    """Write all studies of `source` into `folder`: images/, masks/lesion/, masks/gland/ and labels.csv.

    labels.csv has the columns patient, slice (0 = most inferior) and label (1 = CS lesion in the slice, or its grade
    group, or the gland's area in cm2), or a column for each of `PHANTOM_FINDINGS`: 1, 0, or empty. The folder is
    created atomically.

    Raises:
        FileExistsError: `folder` is not empty.
    """
    write_patients(source, folder, range(source.patients + source.damaged))


def write_patients(source: PhantomSource, folder: Path, patients: Iterable[int]) -> None:
    """The same of some patients, by number. Raises: FileExistsError: `folder` is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"the phantom's folder {folder} is not empty; give a new folder, or remove this one")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    rows: list[tuple[str | int | float, ...]] = []
    columns = PHANTOM_FINDINGS if source.labels == "findings" else ("label",)
    for patient in patients:
        study = make_study(source, patient)
        for place, data in study.files:
            path = part / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        name = patient_name(source, patient)
        rows.extend((name, index, *cells) for index, cells in enumerate(study.labels))
    (part / "labels.csv").write_bytes(csv_text(("patient", "slice", *columns), rows).encode())
    os.replace(part, folder)


class Study(NamedTuple):
    """The files of one patient, with their paths relative to the source's folder, and the labels of each slice."""

    files: tuple[tuple[Path, bytes], ...]
    labels: Sequence[tuple[int | str | float, ...]]


def make_study(source: PhantomSource, patient: int) -> Study:
    """The study of patient number `patient`. It does not depend on the others but by its defect (`find_defect`)."""
    acquired = _acquire(source, patient, take=0)
    if source.labels == "findings":
        anatomy = draw_anatomy(source.seed, patient, source.slices, source.significant)
        labels = list_findings(anatomy, np.random.default_rng([source.seed, patient, 7]), source.unknown)
    else:
        labels = [(label,) for label in _list_labels(source, acquired)]
    return Study(tuple(_list_files(source, patient, acquired)), labels)


def _list_labels(source: PhantomSource, acquired: Acquired) -> Sequence[int | str | float]:
    if source.labels == "grade_group":
        return [GRADE_GROUPS[group] for group in acquired.groups]
    if source.labels == "gland_area":
        pixel_cm2 = float(np.linalg.norm(np.cross(acquired.affine[:3, 0], acquired.affine[:3, 1]))) / 100
        return [round(float((plane > 0).sum()) * pixel_cm2, 4) for plane in acquired.gland]
    return [int(plane.any()) for plane in acquired.lesion]


def _acquire(source: PhantomSource, patient: int, *, take: int) -> Acquired:
    """`take` numbers repeated scans of one patient: other noise, same geometry."""
    body = draw_anatomy(source.seed, patient, source.slices, source.significant)
    scanner = SCANNERS[source.scanner]
    generator = np.random.default_rng([source.seed, patient, 3, ord(source.scanner), take])
    if source.contrast == "adc":
        acquired = acquire(body, scanner, generator)
        return acquired if source.export == "adc" else acquired._replace(image=to_grey_values(acquired.image, scanner))
    tissues = relaxation(body, scanner.field_strength_t, np.random.default_rng([source.seed, patient, 6]))
    return acquire_t2w(body, tissues, scanner, PROTOCOLS[source.scanner], generator)


def _list_files(source: PhantomSource, patient: int, acquired: Acquired) -> Iterator[tuple[Path, bytes]]:
    """The files of one patient, with their paths relative to the folder."""
    name, wrong = patient_name(source, patient), find_defect(source, patient)
    if source.format == "nifti":
        data = _nifti_image(source, acquired, singular=wrong == "singular_affine")
        yield Path("images") / f"{name}.nii.gz", data[: len(data) // 2] if wrong == "truncated" else data
    else:
        again = _acquire(source, patient, take=1).image if wrong == "duplicate_slice" else None
        for file, data in dicom_series(source, patient, acquired, wrong=wrong, again=again):
            yield Path("images") / name / file, data
    axes = SCANNERS[source.scanner].axes if source.format == "nifti" else "LPS"
    for kind, mask in (("lesion", acquired.lesion), ("gland", acquired.gland)):
        image = _orient_volume(mask.transpose(2, 1, 0), acquired.affine, axes)
        yield Path("masks") / kind / f"{name}.nii.gz", _pack_bytes(image.to_bytes())


def _nifti_image(source: PhantomSource, acquired: Acquired, *, singular: bool) -> bytes:
    """A 16-bit NIfTI-1. Of an ADC map, scl_slope gives the unit, named in `descrip`; grey values have none."""
    scanner, adc = scanner_of(source), source.contrast == "adc"
    largest = min(scanner.window, float(acquired.image.max())) if adc else STORED_MAX
    step = max(largest, 1.0) / STORED_MAX
    stored = np.rint(np.clip(acquired.image, 0, largest) / step).astype(np.int16)
    image = _orient_volume(stored.transpose(2, 1, 0), acquired.affine, scanner.axes)
    image.header.set_slope_inter(step * scanner.per_unit if adc else 1, 0)
    unit = f"ADC {scanner.unit}" if source.export == "adc" else "ADC"
    image.header["descrip"] = unit if adc else f"T2W TE={PROTOCOLS[source.scanner].echo_ms:g}"
    raw = image.to_bytes()
    return _pack_bytes(_flatten_affine(raw) if singular else raw)


def _flatten_affine(raw: bytes) -> bytes:
    """The same NIfTI-1 file with a defective converter's affine: the rows for two world axes are equal."""
    header = nibabel.Nifti1Header.from_fileobj(io.BytesIO(raw))
    size = len(header.binaryblock)
    header["qform_code"] = 0
    header["srow_z"] = header["srow_y"]
    return bytes(header.binaryblock + raw[size:])


def _orient_volume(values: NDArray[np.generic], affine: Affine, axes: str) -> nibabel.Nifti1Image:
    """Our volumes are stored towards Left, Posterior, Superior; most NIfTI files towards Right, Anterior, Superior."""
    image = nibabel.Nifti1Image(values, affine)
    if axes == "RAS":
        image = nibabel.as_closest_canonical(image)
    image.set_qform(image.affine, code="scanner")
    image.set_sform(image.affine, code="scanner")
    image.header.set_xyzt_units("mm", "sec")
    return image


def _pack_bytes(raw: bytes) -> bytes:
    return gzip.compress(raw, compresslevel=4, mtime=0)
