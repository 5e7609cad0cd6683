"""Read NIfTI files as studies: one three-dimensional image with one unambiguous affine per file.

The format is NIfTI-1 (Cox et al. 2004, https://nifti.nimh.nih.gov) or NIfTI-2, plain or gzipped. A file is read once
and as a whole, which also checks the checksum of its compression; but at most the size that its header declares is kept
in memory, and that size is limited.
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import logging
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import nibabel
import numpy as np
from nibabel.arrayproxy import ArrayProxy

from pipelines.data.adc import find_unit_factor
from pipelines.data.contents import left_out
from pipelines.data.folder import read_steadily, relative_name, resolve_path, stamp_file, walk_folder
from pipelines.data.grids.geometry import COSINE_TOLERANCE, corner_distance, is_invertible, spacing_of
from pipelines.data.index import Candidate, Index, convert_read_errors, folder_problems, load_all, reject_ambiguous
from pipelines.data.intake import read_ahead
from pipelines.data.nifti.bids import ENDINGS, decide_from_file, file_stem, find_patient_session, read_sidecar
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.quantity import check_adc
from pipelines.data.sources import NiftiSource
from pipelines.data.study import Affine, Array, Item, Rejected, Study, Unusable, Volume

FORM_TOLERANCE = 0.5  # of the smallest voxel edge, at the corners of the grid
SUFFIXES = ENDINGS
KINDS = {348: nibabel.Nifti1Header, 540: nibabel.Nifti2Header}  # by the header's first number, its own size
SINGLE = {b"n+1": 352, b"n+2": 544}  # magic of a file with its own voxels -> the first byte that one can have
LONGEST_HEADER = 540  # bytes
LARGEST = 2**28  # voxels, as in DICOM: 512 x 512 x 1024, 1 GiB as float32
LONGEST_EXTENSION = 2**24  # bytes before the first voxel
CHUNK = 2**20  # bytes
MILLIMETRES = ("mm", "unknown")
SILENT = logging.Logger(__name__)
SILENT.addHandler(logging.NullHandler())


class Placed(NamedTuple):
    """A file's header, and its grid."""

    path: Path
    header: nibabel.Nifti1Header
    affine: Affine
    shape: tuple[int, ...]


def nifti_problems(source: NiftiSource) -> list[str]:
    """Problems with the settings: the folder is missing, or no file name matches."""
    if problems := folder_problems("source.folder", source.folder):
        return problems
    walk = walk_folder(Path(source.folder))
    if _select_paths(source, walk.files) or walk.rejected:
        return []
    other_count = sum(path.name.lower().endswith(SUFFIXES) for path in walk.files)
    hint = f"; {other_count} NIfTI files have other names (.nii.gz is not .nii)" if other_count else ""
    return [f"source.pattern: no file below {source.folder!r} matches {source.pattern!r}{hint}; change the pattern"]


def read_nifti(source: NiftiSource) -> tuple[list[Study], list[Rejected]]:
    """Read every matching file below the folder.

    Returns:
        Studies, with values in the unit `Study.unit`; and rejections, with reasons.

    Raises:
        ValueError: the folder does not exist, or no file matches.
    """
    return load_all(index_nifti(source))


def index_nifti(source: NiftiSource, *, adc: bool = False) -> Index:
    """Find the matching files below the folder and their geometry, reading headers only.

    adc: as in `index_dicom`.

    Raises:
        ValueError: the folder does not exist, or no file matches.
    """
    if problems := nifti_problems(source):
        raise ValueError("; ".join(problems))
    root = resolve_path(Path(source.folder))
    walk = walk_folder(root)
    matching = _select_paths(source, walk.files)
    known = set(matching)
    results = list(read_ahead(matching, lambda path: _build_candidate(source, root, path, adc)))
    candidates = tuple(result for result in results if isinstance(result, Candidate))
    has_own_maps = source.masks is not None and source.masks.of_image  # then it is known which map is of which image
    candidates, ambiguous = (candidates, []) if has_own_maps else reject_ambiguous(candidates)
    rejected = [result for result in results if isinstance(result, Rejected)]
    parts = [Item(result.study, "part", (result.study,), _result_patient(source, result)) for result in results]
    items = (*walk.left, *parts, *(_unmatched_item(source, root, path) for path in walk.files if path not in known))
    return Index(candidates, (*rejected, *ambiguous, *walk.rejected), items, 0)


def read_volume(path: Path) -> Volume:
    """Read one NIfTI file: an image, or a mask.

    Returns:
        (I, J, K) float32 values after the file's own scaling, and its affine.

    Raises:
        Unusable: `unreadable`, `too_large`, `four_d`, `single_slice`, `value_type`, `length_unit`, `no_geometry`,
            `bad_affine`, `form_disagreement` or `non_orthogonal`.
    """
    with convert_read_errors(path.name):
        header = _parse_header(_read_unpacked(path, LONGEST_HEADER, to_end=False))
        return _load_volume(Placed(path, header, *header_grid(header)))


def header_grid(header: nibabel.Nifti1Header) -> tuple[Affine, tuple[int, ...]]:
    """The affine and the three-dimensional shape of a header. Raises: as `read_volume`."""
    _check_values(header)
    _check_shape(header.get_data_shape())
    return _header_affine(header), tuple(header.get_data_shape()[:3])


def _select_paths(source: NiftiSource, paths: Sequence[Path]) -> list[Path]:
    """The files whose name matches the source's pattern."""
    return [path for path in paths if fnmatch.fnmatchcase(path.name, source.pattern)]


def _unmatched_item(source: NiftiSource, root: Path, path: Path) -> Item:
    """The item of a file whose name does not match the pattern."""
    name = relative_name(root, path)
    if not path.name.lower().endswith(ENDINGS):
        return left_out(name, path, "nifti")
    detail = f"The pattern {source.pattern!r} does not fit its name. Change the pattern, if it is meant."
    return Item(name, "not_selected", (), _unused_file_patient(source, name), path.name, "name_not_selected", detail)


def _unused_file_patient(source: NiftiSource, study: str) -> str:
    """The patient of a file that is not used. Unlike for used files, the whole file name is never taken as the patient
    if there is no expression and no BIDS subject.
    """
    patient = normalize_identifier(find_patient_session(study, source.patient)[0] or "")
    return (
        ""
        if source.patient is None and patient == normalize_identifier(file_stem(PurePosixPath(study).name))
        else patient
    )


def _result_patient(source: NiftiSource, result: Candidate | Rejected) -> str:
    """The patient of a candidate or of a rejected file; "" if its name gives none."""
    if isinstance(result, Candidate):
        return result.patient
    if result.reason == "not_adc":
        return _unused_file_patient(source, result.study)
    return normalize_identifier(find_patient_session(result.study, source.patient)[0] or "")


def _build_candidate(source: NiftiSource, root: Path, path: Path, adc: bool) -> Candidate | Rejected:
    """One file as a candidate, from its header and sidecar, or as a rejection."""
    study = path.relative_to(root).as_posix()
    try:
        patient, session = find_patient_session(study, source.patient)
        if not normalize_identifier(patient or ""):
            raise Unusable("no_patient", f"{path.name} has no patient by the expression {source.patient!r}. Rename it.")
        with convert_read_errors(path.name):
            stamps = {path: stamp_file(path)}
            header = _parse_header(_read_unpacked(path, LONGEST_HEADER, to_end=False))
            sidecar_entries = read_sidecar(path) if adc else {}
            decision = decide_from_file(path, _header_description(header), sidecar_entries)
            if adc:
                seen = f"neither its name nor its description, {_header_description(header)!r}, nor a JSON sidecar"
                check_adc(decision, declared=source.unit != "auto", seen=seen)
            affine, shape = header_grid(header)
        patient = normalize_identifier(patient or "")
        placed_file = Placed(path, header, affine, shape)
        load = partial(
            _load_study, placed_file, patient, study, str(sidecar_entries.get("Units", "")), decision.evidence
        )
        return Candidate(patient, study, session, affine, shape, partial(read_steadily, stamps, load), None, stamps)
    except Unusable as error:
        return Rejected(study, error.reason, error.detail)


def _load_study(placed_file: Placed, patient: str, study: str, sidecar_unit: str, evidence: str) -> Study:
    """The study of a file. sidecar_unit: the unit that a sidecar names."""
    unit = next(
        (
            text
            for text in (_header_description(placed_file.header), sidecar_unit)
            if find_unit_factor(text) is not None
        ),
        None,
    )
    return Study(patient, study, _load_volume(placed_file), unit, evidence=evidence)


def _load_volume(placed_file: Placed) -> Volume:
    """The values of a file in its grid. Raises: Unusable: `unreadable`."""
    path, header = placed_file.path, placed_file.header
    with convert_read_errors(path.name):
        promised = _declared_size(header)
        data = _read_unpacked(path, promised, to_end=True)
        if len(data) < promised:
            raise Unusable("unreadable", f"{path.name} has {len(data)} of {promised} bytes: it is cut short. Copy it.")
        values: Array = np.asarray(ArrayProxy(io.BytesIO(data), header)).astype(np.float32).reshape(placed_file.shape)
        return Volume(values, placed_file.affine)


def _header_description(header: nibabel.Nifti1Header) -> str:
    """The free-text description of a header."""
    return bytes(header["descrip"]).rstrip(b"\0").decode("latin-1")


def _declared_size(header: nibabel.Nifti1Header) -> int:
    """The declared number of bytes up to the last voxel."""
    offset = float(header["vox_offset"])
    if not 0 <= offset <= LONGEST_EXTENSION:
        raise Unusable("unreadable", f"the first voxel would be at byte {offset:g}. Convert the image again.")
    size: int = math.prod(header.get_data_shape()) * header.get_data_dtype().itemsize
    return int(offset) + size


def _read_unpacked(path: Path, size: int, *, to_end: bool) -> bytes:
    """The first `size` bytes after decompression. to_end: read on to the end, to verify the checksum."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            return _read_first_bytes(file, size)
        with gzip.GzipFile(fileobj=file) as stream:
            data = _read_first_bytes(stream, size)
            if to_end and len(_read_first_bytes(stream, LONGEST_EXTENSION)) == LONGEST_EXTENSION:
                raise Unusable("unreadable", f"far more than the {size} bytes promised. Convert the image again.")
            return data


def _read_first_bytes(stream: IO[bytes] | gzip.GzipFile, size: int) -> bytes:
    """Up to `size` bytes, in chunks: one large read would reserve memory for bytes that may not exist."""
    data = bytearray()
    while len(data) < size and (piece := stream.read(min(CHUNK, size - len(data)))):
        data += piece
    return bytes(data)


def _parse_header(data: bytes) -> nibabel.Nifti1Header:
    """The header, without its extensions."""
    for size, kind in KINDS.items():
        if size in (int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big")) and len(data) >= size:
            header = kind(data[:size], check=False)
            _check_first(header)
            header.check_fix(SILENT)  # raises if the header cannot be repaired; SILENT hides its messages on repairs
            return header
    raise Unusable("unreadable", f"{len(data)} bytes that do not begin with a NIfTI header. Convert the image again.")


def _check_first(header: nibabel.Nifti1Header) -> None:
    """Refuse a file whose first voxel would lie inside its own header."""
    magic, offset = header["magic"].tobytes()[:3], float(header["vox_offset"])
    first = SINGLE.get(magic, 0)
    if offset < first:
        raise Unusable(
            "unreadable",
            f"the first voxel would be at byte {offset:g} (vox_offset), inside the header; in a single file "
            f"({magic.decode('latin-1')}) it is at byte {first} or later. Convert the image again.",
        )


def _check_values(header: nibabel.Nifti1Header) -> None:
    """Refuse values that are not real numbers, and lengths that are not in millimetres."""
    kind = header.get_data_dtype()
    if kind.fields is not None or kind.kind not in "iufb":
        raise Unusable("value_type", f"values are of type {kind}; real numbers are needed, one per voxel.")
    space = header.get_xyzt_units()[0]
    if space not in MILLIMETRES:
        raise Unusable("length_unit", f"the header measures space in {space}; mm is needed. Convert the image again.")


def _check_shape(shape: tuple[int, ...]) -> None:
    """Refuse an image that is not three-dimensional, too large, or a single slice."""
    if len(shape) < 3 or any(size > 1 for size in shape[3:]):
        raise Unusable("four_d", f"the image has the shape {shape}; three dimensions are needed. Give one volume.")
    if math.prod(shape) > LARGEST:
        raise Unusable(
            "too_large", f"the image has the shape {shape}; {LARGEST} voxels are allowed. Convert the image again."
        )
    if min(shape[:3]) < 2:
        raise Unusable("single_slice", f"the image has the shape {shape}; a volume needs at least 2 slices.")


def _header_affine(header: nibabel.Nifti1Header) -> Affine:
    """The sform, or else the qform; refused if there is neither, or if both exist and differ."""
    try:
        sform, scanner = (header.get_sform(coded=True)[0], header.get_qform(coded=True)[0])
    except Exception as error:
        raise Unusable("bad_affine", f"the header's rotation cannot be computed ({error}). Convert again.") from error
    forms = [np.asarray(form, float) for form in (sform, scanner) if form is not None]
    if not forms:
        raise Unusable("no_geometry", "neither sform nor qform is set, so the orientation is unknown. Convert again.")
    if not all(is_invertible(form) for form in forms):
        bad = next(form for form in forms if not is_invertible(form))
        raise Unusable("bad_affine", f"the affine {np.round(bad[:3], 3).tolist()} cannot be inverted. Convert again.")
    distance = corner_distance(forms[0], forms[-1], header.get_data_shape())
    allowed = FORM_TOLERANCE * float(spacing_of(forms[0]).min())
    if distance > allowed:
        raise Unusable(
            "form_disagreement",
            f"sform and qform place a corner {distance:.2f} mm apart; {allowed:.2f} mm is allowed. Make them equal.",
        )
    _check_right_angle(forms[0])
    return forms[0]


def _check_right_angle(affine: Affine) -> None:
    """Refuse rows and columns that are not at a right angle, as for DICOM files; slices may be sheared, as there."""
    nearest = nibabel.orientations.io_orientation(affine)[:, 0]
    row, column = (affine[:3, axis] / np.linalg.norm(affine[:3, axis]) for axis in range(3) if nearest[axis] != 2)
    if abs(float(row @ column)) > COSINE_TOLERANCE:
        raise Unusable(
            "non_orthogonal",
            f"rows and columns of the affine {np.round(affine[:3], 3).tolist()} are not at a right angle: the dot "
            f"product of their directions is {float(row @ column):.4f}, {COSINE_TOLERANCE:g} is allowed. Resample the "
            "image to a grid without shear.",
        )
