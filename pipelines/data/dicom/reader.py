"""Read DICOM series, classic or enhanced, as studies; refuse every other kind of DICOM with a reason.

Headers are read once, without pixels, and grouped by SeriesInstanceUID; slices are sorted by position, never by file
name or instance number. Then the pixels of each series' files are read, one file at a time.
docs/reference/formats.md lists what is read, and every reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from pydicom.errors import InvalidDicomError

from pipelines.data.contents import detect_kind, left_out, read_dataset
from pipelines.data.dicom.choosing import add_kinds, is_selected, is_wanted, reject_object, split_off_objects
from pipelines.data.dicom.diffusion import fit_adc
from pipelines.data.dicom.frames import read_frames, series_of
from pipelines.data.dicom.items import list_file_items
from pipelines.data.dicom.pixels import PLAIN, build_decoder, decode_real_values
from pipelines.data.dicom.series import IDENTITY, PLACE, SHAPE, check_series
from pipelines.data.dicom.stacks import build_diffusion_stack, build_plain_stack, separate_stacks
from pipelines.data.dicom.stored_values import as_shown, build_reading
from pipelines.data.dicom.uncompressed import read_pixels
from pipelines.data.folder import (
    Stamp,
    check_unchanged,
    read_steadily,
    relative_name,
    resolve_path,
    stamp_file,
    walk_folder,
)
from pipelines.data.headers import Frame, Meaning, Pixels, Reading, Stack, text_of
from pipelines.data.index import Candidate, Index, convert_read_errors, folder_problems, load_all, reject_ambiguous
from pipelines.data.intake import read_ahead
from pipelines.data.pseudonym import ALLOWED_HEADERS, allowed_facts, normalize_identifier
from pipelines.data.quantity import (
    HEADERS,
    AdcDecision,
    check_adc,
    decide_for_series,
    decide_from_headers,
    format_header_texts,
)
from pipelines.data.sources import FITTED_UNIT, KIND, DicomSource
from pipelines.data.study import Array, Item, Rejected, Study, Unusable, Volume
from privacy.deidentify.layouts import Layout
from privacy.deidentify.stored_values import KEYWORDS

SUFFIXES = (".dcm", ".dicom", ".ima")
Decoders: TypeAlias = dict[Meaning, Callable[[bytes], tuple[Array, str | None]]]


def dicom_problems(source: DicomSource) -> list[str]:
    """Problems with the settings' folder."""
    return folder_problems("source.folder", source.folder)


def read_dicom(source: DicomSource) -> tuple[list[Study], list[Rejected]]:
    """Read every selected series below the folder.

    Returns:
        Studies, with values in the unit `Study.unit`; and rejections, with reasons.

    Raises:
        ValueError: the folder does not exist.
    """
    return load_all(index_dicom(source))


def index_dicom(source: DicomSource, *, adc: bool = False, each: bool = False) -> Index:
    """Find the selected series below the folder and their geometry, reading headers only.

    adc: whether values must be ADC; series that are not known to be ADC are then rejected as `not_adc`.
    each: keep all series of one patient, session and grid, which are otherwise `ambiguous`.

    Raises:
        ValueError: the folder does not exist.
    """
    if problems := dicom_problems(source):
        raise ValueError("; ".join(problems))
    root = resolve_path(Path(source.folder))
    walk = walk_folder(root)
    seen: dict[tuple[object, ...], Any] = {}
    stamps: dict[Path, Stamp] = {}
    one_file = partial(_read_file_frames, root, source=source, seen=seen, stamps=stamps)
    read = dict(zip(walk.files, read_ahead(walk.files, one_file), strict=True))
    damaged = {
        path: _explain_damage(path, stamps, content) for path, content in read.items() if isinstance(content, Unusable)
    }
    frames = [frame for content in read.values() if isinstance(content, list) for frame in content]
    frames = add_kinds(frames) if KIND in source.select else frames
    selected_series = {series_of(frame) for frame in frames if is_selected(frame, source.select)}
    chosen = [frame for frame in frames if series_of(frame) in selected_series and is_wanted(frame, source.select)]
    if not chosen and not damaged and not walk.rejected:
        raise ValueError(_describe_no_match(source, len(frames)))
    series: dict[str, list[Frame]] = {}
    for frame in chosen:
        series.setdefault(series_of(frame), []).append(frame)
    folder_series, first_damaged = _group_series_by_folder(frames), _first_damaged(damaged)
    results = [
        result
        for group in series.values()
        for result in _candidates(
            root, group, _find_damaged_neighbour(group, folder_series, first_damaged), source, stamps, adc
        )
    ]
    candidates = tuple(result for result, _ in results if isinstance(result, Candidate))
    candidates, ambiguous = (candidates, []) if each else reject_ambiguous(candidates)
    rejected = [result for result, _ in results if isinstance(result, Rejected)] + ambiguous + list(walk.rejected)
    rejected += [Rejected(relative_name(root, path), error.reason, error.detail) for path, error in damaged.items()]
    items = (*walk.left, *list_file_items(root, read, results, source.select))
    return Index(candidates, tuple(rejected), items, len({series_of(frame) for frame in frames} - set(series)))


def _read_file_frames(
    root: Path, path: Path, source: DicomSource, seen: dict[tuple[object, ...], Any], stamps: dict[Path, Stamp]
) -> list[Frame] | Item | Unusable:
    """A file's images; or an item, if neither its content nor its name is that of a DICOM image."""
    try:
        with convert_read_errors(path.name):
            stamps[path] = stamp_file(path)
            keywords = (*IDENTITY, *PLACE, *SHAPE, *HEADERS, *KEYWORDS, *ALLOWED_HEADERS, *source.select)
            diffusion = source.derive == "adc" or KIND in source.select
            frames = read_frames(path, keywords, diffusion=diffusion, seen=seen)
            detail = "A DICOMDIR: a table of contents, without an image."
            return frames or Item(relative_name(root, path), "not_imaging", reason="dicomdir", detail=detail)
    except Unusable as error:
        if not isinstance(error.__cause__, InvalidDicomError):
            return error
        if detect_kind(path) == "packed_dicom":
            return Unusable("packed", f"{path.name} is a DICOM file that was packed. Unpack it: gunzip.")
        return error if path.suffix.lower() in SUFFIXES else left_out(relative_name(root, path), path, "dicom")


def _explain_damage(path: Path, stamps: Mapping[Path, Stamp], error: Unusable) -> Unusable:
    """The reason why a file cannot be used; a change of the file takes precedence."""
    try:
        check_unchanged({path: stamps[path]} if path in stamps else {})
    except Unusable as changed:
        return changed
    return error


def _describe_no_match(source: DicomSource, count: int) -> str:
    """The message if no file is DICOM, or no image matches `select`."""
    if not count:
        return (
            f"source.folder: no DICOM file below {source.folder!r} (links that leave it are not followed); give the "
            "folder that holds the images"
        )
    return f"source.select: none of {count} DICOM images matches select ({', '.join(source.select)}); change it"


def _group_series_by_folder(frames: Sequence[Frame]) -> dict[Path, set[str]]:
    """Folder -> its series."""
    folder_series: dict[Path, set[str]] = {}
    for frame in frames:
        folder_series.setdefault(frame.path.parent, set()).add(series_of(frame))
    return folder_series


def _first_damaged(damaged: Iterable[Path]) -> dict[Path, tuple[int, str]]:
    """Folder -> the first damaged file in it, with its place among all."""
    first: dict[Path, tuple[int, str]] = {}
    for place, path in enumerate(damaged):
        first.setdefault(path.parent, (place, path.name))
    return first


def _find_damaged_neighbour(
    group: Sequence[Frame], folder_series: Mapping[Path, set[str]], first_damaged: Mapping[Path, tuple[int, str]]
) -> str | None:
    """The name of a damaged file that probably belongs to the series, since its folder holds no other; None if none."""
    folders = {frame.path.parent for frame in group}
    near = [first_damaged[folder] for folder in folders if folder in first_damaged]
    alone = all(len(folder_series[folder]) == 1 for folder in folders)
    return min(near)[1] if near and alone else None


def _candidates(
    root: Path, group: Sequence[Frame], damage: str | None, source: DicomSource, stamps: Mapping[Path, Stamp], adc: bool
) -> list[tuple[Candidate | Rejected, Sequence[Frame]]]:
    """A candidate or rejection for each stack of a series, and each other object in it, with its images."""
    first = group[0]
    uids = [str(first.values[key]) for key in ("StudyInstanceUID", "SeriesInstanceUID") if key in first.values]
    folder = relative_name(root, first.path.parent)
    study = "/".join([*([] if folder == "." else [folder]), *uids]) or first.path.name
    if damage is not None:
        detail = f"{damage} beside it cannot be read, and is likely one of its slices."
        return [(Rejected(study, "unreadable", detail), group)]
    group, objects = split_off_objects(group)
    results = list[tuple[Candidate | Rejected, Sequence[Frame]]]()
    for path, what in {frame.path: what for frame, what in objects}.items():
        results.append(
            (reject_object(relative_name(root, path), what), [frame for frame, _ in objects if frame.path == path])
        )
    stacks = separate_stacks(group)
    for name, frames in stacks.items():
        stack_stamps = {frame.path: stamps[frame.path] for frame in frames}
        candidate = _build_candidate(
            f"{study}/{name}" if name else study, frames, source, stack_stamps, full_series=len(stacks) == 1, adc=adc
        )
        placed = candidate.stack if isinstance(candidate, Candidate) else None
        results.append(
            (candidate, frames if placed is None else [frame for volume in placed.volumes for frame in volume])
        )
    return results


def _build_candidate(
    study: str,
    group: Sequence[Frame],
    source: DicomSource,
    stamps: Mapping[Path, Stamp],
    *,
    full_series: bool,
    adc: bool,
) -> Candidate | Rejected:
    """The checked and sorted stack as a candidate, or as a rejection; a changed file takes precedence."""
    try:
        with convert_read_errors(study):
            check_series(group, allow_lossy=source.lossy == "allow", blank=source.blank)
            values = group[0].values
            decisions = [decide_from_headers(frame.values) for frame in group]
            adc_needed = adc and source.derive == "none"
            if adc_needed and not any(
                decision.adc for decision in decisions
            ):  # before its geometry, whose errors tell less
                check_adc(
                    decide_for_series(decisions), declared=source.unit != "auto", seen=format_header_texts(values)
                )
            placed = (build_diffusion_stack if source.derive == "adc" else build_plain_stack)(
                group, full_series=full_series
            )
            if adc_needed:
                check_adc(
                    decide_for_series(decisions), declared=source.unit != "auto", seen=format_header_texts(values)
                )
            compared = [frame for volume in placed.volumes for frame in volume]
            placed = replace(placed, reading=build_reading(compared, adc=adc_needed, fitted=source.derive == "adc"))
            patient = normalize_identifier(str(values["PatientID"]))
            load = partial(_load, study, patient, placed, source.blank, decide_for_series(decisions))
            session = str(values["StudyInstanceUID"])
            return Candidate(
                patient,
                study,
                session,
                placed.affine,
                placed.shape,
                partial(read_steadily, stamps, load),
                placed,
                stamps,
            )
    except Unusable as error:
        try:
            check_unchanged(stamps)
        except Unusable as changed:
            return Rejected(study, changed.reason, changed.detail)
        return Rejected(study, error.reason, error.detail)


def _load(study: str, patient: str, placed: Stack, blank: Sequence[Layout], decision: AdcDecision) -> Study:
    """The study of a stack: decoded values, or ADC fitted to them."""
    values, units = _read_volumes(placed, blank)
    facts = allowed_facts(_header_texts(placed.volumes[0][0]))
    if len(units) > 1:
        raise Unusable("mixed_unit", f"images say different units: {sorted(map(str, units))}. Export the series again.")
    if placed.b_values is not None:
        adc = fit_adc(values, placed.b_values)
        fitted = f"fitted here to b-values {', '.join(f'{b:g}' for b in sorted(set(placed.b_values)))} s/mm2"
        return Study(patient, study, Volume(adc, placed.affine), FITTED_UNIT, facts, fitted)
    return Study(patient, study, Volume(values[0], placed.affine), units.pop(), facts, decision.evidence)


def _read_volumes(placed: Stack, blank: Sequence[Layout]) -> tuple[Array, set[str | None]]:
    """The values (V, I, J, K) of a stack, each file read once; and the units of its images."""
    columns, rows, slices = placed.shape
    count = len(placed.volumes)
    values: Array = np.empty((count, slices, rows, columns), np.float32)  # as in files: image after image, row by row
    units: set[str | None] = set()
    places: dict[Path, dict[int, tuple[int, int]]] = {}
    plain: dict[Path, Pixels | None] = {}
    for volume, frames in enumerate(placed.volumes):
        for position, frame in enumerate(frames):
            places.setdefault(frame.path, {})[frame.index] = (volume, position)
            plain[frame.path] = frame.pixels
    decoders: Decoders = {}
    for path, frame_places in places.items():
        with convert_read_errors(path.name):
            planes = read_planes(path, plain[path], list(frame_places), blank, decoders, placed.reading)
            for place, (plane, unit) in zip(frame_places.values(), planes, strict=True):
                if plane.shape != (rows, columns):
                    raise Unusable("mixed_size", f"{path.name} holds pixels of shape {plane.shape}, unlike its header.")
                values[place] = plane
                units.add(unit)
    if placed.reading.turned:
        values = as_shown(values, turned=units == {None})
    return values.transpose(0, 3, 2, 1), units


def read_planes(
    path: Path,
    pixels: Pixels | None,
    indices: Sequence[int],
    blank: Sequence[Layout],
    decoders: Decoders,
    reading: Reading = PLAIN,
) -> Iterable[tuple[Array, str | None]]:
    """A file's images, as `decode_real_values` gives them; the whole file is parsed only where necessary.

    reading: of the set of images. decoders: of the set's earlier files; one is added for pixels with a new header.
    """
    if pixels is None:
        return decode_real_values(read_dataset(path), indices, blank, reading)
    data = read_pixels(path, pixels)
    if (decode := decoders.get(pixels.meaning)) is None:
        decode = decoders[pixels.meaning] = build_decoder(pixels.meaning, blank, reading)
    return [decode(data)]


def _header_texts(frame: Frame) -> Mapping[str, object]:
    """The allowed headers of a frame, as text."""
    return {key: text_of(frame.values[key]) for key in ALLOWED_HEADERS if key in frame.values}
