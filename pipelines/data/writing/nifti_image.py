"""Encode a NIfTI file with changed values: the same grid, forms, units and shape, and a header that names nobody.

Values are stored as before (same type, same scl_slope) if that type can hold them, else as float32. Extensions,
aux_file, db_name and intent_name are free text and may name a patient: they are emptied. The description keeps only the
unit, and that an image is an ADC map: readers need both, and the new file name has neither.
"""

from __future__ import annotations

import gzip
from pathlib import Path, PurePosixPath

import nibabel
import numpy as np
from numpy.typing import NDArray

from pipelines.data.adc import PATTERN
from pipelines.data.index import Candidate, convert_read_errors
from pipelines.data.nifti.reader import SUFFIXES
from pipelines.data.study import Array
from privacy.deidentify.keyed import make_pseudonym

IMAGES = {348: nibabel.Nifti1Image, 540: nibabel.Nifti2Image}  # by the header's first number, its own size
LONGEST = 79  # bytes of a description
FREE = ("aux_file", "db_name", "intent_name", "data_type")


def nifti_place(candidate: Candidate, key: bytes | None, digest: str) -> str:
    """The path of the new file: <pseudonym>/<pseudonym of the file's path>, or, without a key, the old path.

    digest: of the translator's file.
    """
    if key is None:
        return candidate.study
    name = PurePosixPath(candidate.study).name
    suffix = next((end for end in SUFFIXES if name.lower().endswith(end)), ".nii.gz")
    return f"{make_pseudonym(key, candidate.patient)}/{make_pseudonym(key, f'{candidate.study}/{digest}')}{suffix}"


def nifti_bytes(path: Path, change: Array, *, label: str, adc: bool) -> bytes:
    """The new file, packed if the old one was.

    path: of the old file, which was read before and is valid. change: (I, J, K) float32, added to its values. label:
    of the translator, for the description. adc: whether the values are ADC.

    Raises:
        Unusable: `unreadable`.
    """
    with convert_read_errors(path.name):
        data = path.read_bytes()
        packed = data[:2] == b"\x1f\x8b"
        data = gzip.decompress(data) if packed else data
        sizes = (int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big"))
        image = next(kind for size, kind in IMAGES.items() if size in sizes).from_bytes(data)
        made = _build_changed(image, change, label, adc)
    return gzip.compress(made, mtime=0) if packed else made


def _build_changed(image: nibabel.Nifti1Image, change: Array, label: str, adc: bool) -> bytes:
    """The bytes of the new image, unpacked."""
    header = image.header.copy()
    slope, intercept = float(image.dataobj.slope), float(image.dataobj.inter)
    stored = np.asarray(image.dataobj.get_unscaled())
    new_values = stored.astype(np.float64) + change.reshape(stored.shape).astype(np.float64) / slope
    values = _as_stored(new_values, stored.dtype)
    if values is None:
        values, slope, intercept = (new_values * slope + intercept).astype(np.float32), 1.0, 0.0
        header.set_data_dtype(values.dtype.newbyteorder(header.endianness))
    header.extensions.clear()
    for name in FREE:
        if name in header:
            header[name] = b""
    header["descrip"] = _new_description(bytes(header["descrip"]).decode("latin-1"), label, adc)
    made = type(image)(values, None, header)
    made.header.set_slope_inter(slope, intercept)  # a new image has none, whatever its header says
    result: bytes = made.to_bytes()
    return result


def _as_stored(new_values: NDArray[np.float64], kind: np.dtype[np.generic]) -> NDArray[np.generic] | None:
    """The values in the file's own type; None if that type cannot hold them."""
    if kind.kind == "f":
        return new_values.astype(kind)
    if kind.kind not in "iu":
        return None
    whole_numbers, limits = np.rint(new_values), np.iinfo(kind)  # type: ignore[type-var]
    fits = limits.min <= whole_numbers.min() and whole_numbers.max() <= limits.max
    return whole_numbers.astype(kind) if fits else None


def _new_description(old: str, label: str, adc: bool) -> bytes:
    """The kind of image, the unit of the old description, and the translation."""
    unit = PATTERN.search(old.lower())
    kind = " ".join([*(["ADC"] if adc else []), *([unit[0].strip()] if unit else [])])
    words = [*([kind] if kind else []), "research use only", f"translated by {label}"]
    return "; ".join(words).encode("ascii", "replace")[:LONGEST]
