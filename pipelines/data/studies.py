"""Read DICOM and NIfTI studies: convert their unit, resample them to one grid, and label them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipelines.data.adc import convert_to_adc
from pipelines.data.contents import HEAD, is_dicom
from pipelines.data.dicom.reader import SUFFIXES, index_dicom
from pipelines.data.dicom.segmentation import read_segmentation
from pipelines.data.folder import OF_SYSTEM
from pipelines.data.grids.geometry import Grid, classes_on_grid, find_bounding_box, is_same_grid, reading_order
from pipelines.data.images import Hounsfield, Slices, Target, Volumes
from pipelines.data.index import Candidate, Index
from pipelines.data.intake import Examples, Intake, ReadStudy, WaitingStudy, try_collecting
from pipelines.data.label_findings import FindingNames, join_codes
from pipelines.data.label_maps import convert_to_classes, has_class, number_values, order_classes, split_segments
from pipelines.data.label_numbers import LabelRange, Meaning
from pipelines.data.labels import Masks, Table, find_mask, open_masks, open_table, table_labels
from pipelines.data.measures import MeasuredStudy, measure_volume
from pipelines.data.nifti.bids import find_case
from pipelines.data.nifti.reader import index_nifti, read_volume
from pipelines.data.prepare import prepare_slices, prepare_volume
from pipelines.data.pseudonym import describe_scanner
from pipelines.data.sources import CASE, IGNORE, DicomSource, GlandMask, MaskLabels, NiftiSource, TableLabels
from pipelines.data.study import Array, Study, Unusable, Volume, WholeStudy

Source: TypeAlias = DicomSource | NiftiSource
Labels: TypeAlias = MaskLabels | TableLabels
MM2_PER_S_1E_3 = np.float32(1e-3)  # from 1e-6 mm²/s into 1e-3 mm²/s, in which tissue is about 1
UNITS = {"adc": "1e-3 mm²/s", "standardized": "standard deviations"}


class LabelMaps(NamedTuple):
    """A checked folder of label maps. codes: value -> class, 0 = background, 1 = the first of `classes`. overlapping:
    whether values are sets of segments.
    """

    files: Masks
    codes: Mapping[int, int]
    classes: tuple[str, ...]
    overlapping: bool = False


class ReadingContext(NamedTuple):
    """The settings and tables for reading a study. visits, sessions: each patient's number of studies, and of different
    sessions. cases: number of studies by the name of their file. maps: None where a task does not learn label maps.
    """

    source: Source
    labels: Labels | None
    images: Slices | Volumes
    known: Masks | Table | None
    gland: Masks | None
    visits: Counter[str]
    sessions: Counter[str]
    cases: Counter[str]
    target: Target | None = None
    maps: LabelMaps | None = None


def open_studies(
    source: Source,
    labels: Labels | None,
    images: Slices | Volumes,
    gland: GlandMask | None,
    target: Target | None = None,
    classes: Meaning = (),
    mask_classes: tuple[str, ...] = (),
) -> Intake:
    """Index the images and read tables and name mappings. labels: None = there are none; every label is then 0, or
    whether a label map shows any class. target: masks that every study must have. classes: of a table's labels, see
    `class_number`. mask_classes: of label maps, where these are the target, 1 = the first.

    Raises:
        ValueError: settings are wrong (a folder is missing, nothing matches, ...); all problems at once.
    """
    problems: list[str] = []
    if isinstance(classes, LabelRange) and isinstance(labels, MaskLabels):
        problems.append("labels.kind: a mask gives classes, and the task learns a number; give a table")
    if isinstance(classes, FindingNames) and isinstance(labels, MaskLabels):
        problems.append("labels.kind: a mask gives one class, and the task learns several findings; give a table")
    if isinstance(images, Slices) and images.slices == "gland" and gland is None:
        problems.append("slices: gland needs a gland mask; give gland: {folder: ...}, or slices: all")
    maps = try_collecting(problems, lambda: _open_label_maps(source, mask_classes)) if target == "masks" else None
    scored = labels is None and target is None
    index = try_collecting(problems, lambda: index_volumes(source, adc=images.values == "adc", each=scored))
    known = None if labels is None else try_collecting(problems, lambda: _open_labels(labels, classes))
    glands = None if gland is None else try_collecting(problems, lambda: open_masks(gland, "gland"))
    if index is None or problems:
        raise ValueError("; ".join(problems))
    visits = Counter(candidate.patient for candidate in index.candidates)
    sessions = Counter(
        patient for patient, _ in {(candidate.patient, candidate.session) for candidate in index.candidates}
    )
    cases = Counter(find_case(candidate.study) for candidate in index.candidates)
    context = ReadingContext(source, labels, images, known, glands, visits, sessions, cases, target, maps)
    waiting = tuple(
        WaitingStudy(
            candidate.patient,
            candidate.study,
            partial(_prepare_study, candidate, context),
            partial(_foresee_study, candidate, context),
            partial(_measure_study, candidate, context),
            math.prod(candidate.shape),
            partial(_read_whole_study, candidate, context),
        )
        for candidate in index.candidates
    )
    seen = () if maps is None else maps.classes
    return Intake(waiting, index.rejected, index.items, index.unselected, UNITS[images.values], seen)


def index_volumes(source: Source, *, adc: bool, each: bool = False) -> Index:
    """The index of the source's folder. adc: whether values must be ADC; other images are then rejected as `not_adc`.
    each: keep all DICOM series of one grid; of NIfTI files, which may be masks, none says what it is.

    Raises:
        ValueError: settings are wrong.
    """
    return index_dicom(source, adc=adc, each=each) if isinstance(source, DicomSource) else index_nifti(source, adc=adc)


def _open_label_maps(source: Source, classes: tuple[str, ...]) -> LabelMaps:
    """Check a source's folder of label maps against the classes to learn. Raises: ValueError."""
    if source.masks is None:
        raise ValueError("source.masks: missing; say where the label maps are")
    if not classes:
        raise ValueError("classes: missing; say in which order the label maps' classes are learnt, alike at all sites")
    problems: list[str] = []
    settings = source.masks
    ordered = try_collecting(problems, lambda: order_classes(settings, classes))
    files = try_collecting(problems, lambda: open_masks(settings, "source.masks"))
    if ordered is None or files is None:
        raise ValueError("; ".join(problems))
    return LabelMaps(files, number_values(settings, ordered), ordered, bool(settings.segments))


def _open_labels(labels: Labels, classes: Meaning) -> Masks | Table:
    """The masks or the table of the settings."""
    return open_masks(labels, "labels") if isinstance(labels, MaskLabels) else open_table(labels, classes)


def _prepare_study(candidate: Candidate, context: ReadingContext) -> ReadStudy:
    """A candidate's examples, with masks and labels, prepared for the network."""
    study = candidate.load()
    if context.images.values == "adc":
        study, _ = convert_study_to_adc(study, context.source)
        values = np.asarray(study.image.values, np.float32) * MM2_PER_S_1E_3
    elif context.images.ct is not None:
        values = scale_hounsfield(study, context.images.ct)
    else:
        values = standardize_values(np.asarray(study.image.values, np.float32), nonzero=context.images.nonzero)
    image = Volume(values, study.image.affine)
    lesion = (
        _read_patient_mask(context.known, candidate, "no_label", context) if isinstance(context.known, Masks) else None
    )
    gland = None if context.gland is None else _read_patient_mask(context.gland, candidate, "no_gland", context)
    shown = None if context.maps is None else _read_class_map(context.maps, candidate, context)
    if isinstance(context.images, Slices):
        examples = prepare_slices(image, lesion=lesion, gland=gland, images=context.images, classes=shown)
        labels = _slice_labels(study, examples, context)
    else:
        examples = prepare_volume(image, lesion=lesion, gland=gland, images=context.images, classes=shown)
        labels = [_volume_label(study, examples, image.values.shape[2], context)]
    if context.target == "gland" and not examples.gland.any():
        raise Unusable("no_gland", "no example shows the gland, which is to be learnt. Draw it on the image.")
    evidence = (study.evidence, study.percentiles) if context.images.values == "adc" else ("", None)
    return ReadStudy(study.patient, study.study, examples, labels, describe_scanner(study.facts), *evidence, candidate)


def _measure_study(candidate: Candidate, context: ReadingContext) -> MeasuredStudy:
    """A candidate as it was read, and what the target's mask shows; ADC in 1e-3 mm²/s, other values as in the file."""
    study = candidate.load()
    modality = str(study.facts.get("Modality", ""))
    if context.images.values == "adc":
        study, _ = convert_study_to_adc(study, context.source)
        study = replace(
            study, image=Volume(np.asarray(study.image.values, np.float32) * MM2_PER_S_1E_3, study.image.affine)
        )
    count = None if context.maps is None else len(context.maps.classes)
    return measure_volume(study.patient, study.study, study.image, _read_target(candidate, context), modality, count)


def _read_whole_study(candidate: Candidate, context: ReadingContext) -> WholeStudy:
    """A candidate on its own grid, with the target's masks brought there, where they do not lie there already."""
    study = candidate.load()
    modality = str(study.facts.get("Modality", ""))
    if context.images.values == "adc":
        study, _ = convert_study_to_adc(study, context.source)
    image, mask = study.image, _read_target(candidate, context)
    shown = mask.values if context.maps is not None else np.asarray(mask.values, np.float32) > 0
    classes = Volume(shown.astype(np.uint8), mask.affine)
    shape = (image.values.shape[0], image.values.shape[1], image.values.shape[2])
    if not is_same_grid((image.affine, shape), (mask.affine, mask.values.shape)):
        classes = Volume(classes_on_grid(classes, Grid(image.affine, shape)), image.affine)
    values = np.asarray(image.values, np.float32)
    return WholeStudy(Volume(values, image.affine), Volume(classes.values, image.affine), modality)


def _read_target(candidate: Candidate, context: ReadingContext) -> Volume:
    """What is learnt, on the mask's own grid: classes of a label map, or a mask that is inside where above 0."""
    if context.maps is not None:
        return _read_class_map(context.maps, candidate, context)
    masks, missing = (context.gland, "no_gland") if context.target == "gland" else (context.known, "no_mask")
    if not isinstance(masks, Masks):
        raise Unusable("no_mask", "there is no mask for it, and masks are to be learnt. Add one.")
    return _read_patient_mask(masks, candidate, missing, context)


def _foresee_study(candidate: Candidate, context: ReadingContext) -> None:
    """Raise what `_prepare_study` would for the names of masks, and for labels in a table. Where the gland's mask says
    which slices are used, it is read.
    """
    if isinstance(context.known, Masks):
        _find_mask_file(context.known, candidate, "no_label", context)
    if context.maps is not None:
        _find_mask_file(context.maps.files, candidate, "no_mask", context)
    if context.gland is not None:
        _find_mask_file(context.gland, candidate, "no_gland", context)
    if isinstance(context.known, Table):
        _labels_from_table(candidate, _labelled_slices(candidate, context), context)


def _labelled_slices(candidate: Candidate, context: ReadingContext) -> Sequence[int]:
    """The slices whose labels `_prepare_study` takes from a table."""
    by_slice = isinstance(context.known, Table) and context.known.by_slice
    columns, rows, slices = (*candidate.shape, 1, 1)[:3]
    if isinstance(context.images, Volumes) or not by_slice:
        return range(slices)
    volume = Volume(np.broadcast_to(np.uint8(0), (columns, rows, slices)), candidate.affine)
    if context.images.slices != "gland" or context.gland is None:
        return range(reading_order(volume).values.shape[2])
    mask = _read_patient_mask(context.gland, candidate, "no_gland", context)
    return [int(place) for place in prepare_slices(volume, lesion=None, gland=mask, images=context.images).position]


def convert_study_to_adc(study: Study, source: Source) -> tuple[Study, float]:
    """A study of an index with `adc`: its values in 1e-6 mm²/s, with the evidence for kind and unit.

    Returns:
        The study; and the factor applied to its file's values.

    Raises:
        Unusable: as `convert_to_adc`.
    """
    values = np.asarray(study.image.values, np.float32)
    converted = convert_to_adc(values, declared=source.unit, header_unit=study.unit)
    evidence = f"{study.evidence or 'the settings say ADC, by naming a unit'}; {converted.evidence}"
    image = Volume(converted.values, study.image.affine)
    return replace(study, image=image, evidence=evidence, percentiles=converted.percentiles), converted.scale


class Moments(NamedTuple):
    """inside: where the values are of which mean and standard deviation are taken."""

    inside: NDArray[np.bool_]
    mean: float
    sd: float


def find_moments(values: Array, *, nonzero: bool) -> Moments:
    """What a study is standardized by. nonzero: of voxels that are not 0; else of all in the bounding box of these.

    Raises:
        Unusable: `not_finite` or `no_signal`.
    """
    if not np.isfinite(values).all():
        raise Unusable("not_finite", "some values are NaN or infinite; none may be. Set them to 0 in the export.")
    inside = values != 0
    if not nonzero and inside.any():
        inside[find_bounding_box(inside)] = True
    sd = float(values[inside].std()) if inside.any() else 0.0
    if sd == 0:
        raise Unusable("no_signal", "all values are equal. Check that the export is whole.")
    return Moments(inside, float(values[inside].mean()), sd)


def standardize_values(values: Array, *, nonzero: bool = True) -> Array:
    """Values of a study whose unit has no meaning (T2, for instance): 0 mean and unit variance. What is outside of
    `find_moments` is 0: background, or outside the field of view.

    Raises:
        Unusable: as `find_moments`.
    """
    moments = find_moments(values, nonzero=nonzero)
    return np.where(moments.inside, (values - moments.mean) / moments.sd, 0).astype(np.float32)


def scale_hounsfield(study: Study, ct: Hounsfield) -> Array:
    """Values of a CT study, scaled alike in every study: nnU-Net's rule for CT (Isensee et al. 2021).

    Raises:
        Unusable: `not_ct`: the header names another modality; `not_finite`.
    """
    modality = str(study.facts.get("Modality", "CT")).upper()
    if modality != "CT":
        raise Unusable("not_ct", f"the header says Modality {modality}, and images.ct is for CT. Narrow the selection.")
    values = np.asarray(study.image.values, np.float32)
    if not np.isfinite(values).all():
        raise Unusable("not_finite", "some values are NaN or infinite; none may be. Set them to 0 in the export.")
    return ((np.clip(values, ct.low, ct.high) - np.float32(ct.mean)) / np.float32(ct.sd)).astype(np.float32)


def _slice_labels(study: Study, examples: Examples, context: ReadingContext) -> list[int]:
    """The label of each slice: by its mask pixels, or by the table; without labels whether its label map shows any
    class, and 0 without these.
    """
    if context.labels is None:
        return [int(has_class(shown)) for shown in examples.mask]
    if isinstance(context.labels, MaskLabels):
        pixels = examples.lesion.sum(axis=(1, 2), dtype=np.int64)
        return [int(count >= context.labels.minimum_pixels) for count in pixels]
    return _labels_from_table(study, [int(position) for position in examples.position], context)


def _volume_label(study: Study, examples: Examples, slices: int, context: ReadingContext) -> int:
    """A volume is positive if its lesion has enough voxels; by a table it has the highest class of its slices, or every
    finding that one of them has. Without labels as of slices.
    """
    if context.labels is None:
        return int(has_class(examples.mask))
    if isinstance(context.labels, MaskLabels):
        return int(examples.lesion.sum(dtype=np.int64) >= context.labels.minimum_pixels)
    numbers = _labels_from_table(study, range(slices), context)
    meaning = context.known.classes if isinstance(context.known, Table) else ()
    return join_codes(numbers, len(meaning.names)) if isinstance(meaning, FindingNames) else max(numbers)


def _labels_from_table(study: Study | Candidate, slices: Sequence[int], context: ReadingContext) -> list[int]:
    """The class of each of a study's slices, by the table of labels."""
    if not isinstance(context.known, Table):
        raise TypeError(f"a table of labels is needed, found {type(context.known).__name__}")
    return table_labels(context.known, study.patient, study.study, slices, alone=context.visits[study.patient] == 1)


def _find_mask_file(masks: Masks, study: Candidate, missing: str, context: ReadingContext) -> Path:
    """The file of the patient's mask.

    Raises:
        Unusable: as `find_mask`; `ambiguous_mask`: several images would have one.
    """
    visits, case = context.sessions[study.patient], find_case(study.study)
    if CASE in masks.pattern and context.cases[case] > 1:
        text = f"{context.cases[case]} images would have one mask, by their names. Rename them, in one folder."
        raise Unusable("ambiguous_mask", text)
    return find_mask(masks, study.patient, missing=missing, session=study.session, visits=visits, case=case)


def _read_patient_mask(
    masks: Masks, study: Candidate, missing: str, context: ReadingContext, *, overlapping: bool = False
) -> Volume:
    """The mask of a study's patient; an error in its file becomes `bad_mask`."""
    path = _find_mask_file(masks, study, missing, context)
    try:
        return read_mask(path, masks.segment, overlapping=overlapping)
    except Unusable as error:
        if error.reason in OF_SYSTEM:
            raise
        raise Unusable("bad_mask", f"the mask {path.name}: {error.detail} ({error.reason})") from error


def _read_class_map(maps: LabelMaps, study: Candidate, context: ReadingContext) -> Volume:
    """The class of each voxel of a patient's label map, on its own grid.

    Raises:
        Unusable: `no_mask`, `bad_mask`, `mask_value`, or as `find_mask`.
    """
    stored = _read_patient_mask(maps.files, study, "no_mask", context, overlapping=maps.overlapping)
    name = _find_mask_file(maps.files, study, "no_mask", context).name
    if maps.overlapping and (strange := sorted(set(np.unique(stored.values).tolist()) - set(maps.codes))):
        sets = " and ".join(str(split_segments(value)) for value in strange[:5])
        text = (
            f"the mask {name} has voxels in the segments {sets} alone, for which source.masks.segments names no class"
        )
        raise Unusable("mask_value", f"{text}. Say what they are, under {IGNORE} if nobody knows.")
    return Volume(convert_to_classes(stored.values, maps.codes, name), stored.affine)


def read_mask(path: Path, segment: str | None = None, *, overlapping: bool = False) -> Volume:
    """Read one mask: a DICOM Segmentation, or else a NIfTI file; values above 0 are inside.

    segment: the segment of a DICOM Segmentation to read; None = all of them, which then must not overlap, unless
    overlapping: as in `read_segmentation`.

    Raises:
        Unusable: as `read_segmentation` and `read_volume`; `not_a_segmentation`: segments overlap in DICOM alone.
        OSError: the file is gone.
    """
    with path.open("rb") as file:
        is_dicom_file = is_dicom(file.read(HEAD))
    if is_dicom_file or path.suffix.lower() in SUFFIXES:
        return read_segmentation(path, None if segment is None else (segment,), overlapping=overlapping)
    if overlapping:
        raise Unusable("not_a_segmentation", "it is NIfTI, which has values and no segments. Name values instead.")
    return read_volume(path)
