"""Where a hospital's images, labels and masks lie: settings of each kind of source. No reader is imported here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import Field, TypeAdapter

from pipelines.data.tensor_source import TensorSource as TensorSource
from privacy.deidentify.layouts import Layout, layout_problems
from privacy.settings_error import Problem, SettingsError, refuse, unmet

Unit: TypeAlias = Literal["auto", "1e-6 mm2/s", "1e-5 mm2/s", "1e-3 mm2/s", "mm2/s"]
Separator: TypeAlias = Literal["comma", "semicolon", "tab"]
ImageKind: TypeAlias = Literal["adc", "dwi"]
KIND = "kind"
"""In `select`, in the place of a DICOM keyword: what the reader takes an image for by its own evidence."""
FITTED_UNIT: Unit = "1e-6 mm2/s"
IMAGE, STEM = "{image}", "{stem}"
BACKGROUND, IGNORE = "background", "ignore"
"""Names in `values` that are no classes: 0, and where nobody says which class is there."""
MOST_SEGMENTS = 16  # of those that overlap
LARGEST_VALUE = 65535
FIRST_CHANNEL = "_0000"
"""How nnU-Net ends the names of images."""
PATIENT, SESSION, CASE = "{patient}", "{session}", "{case}"


@dataclass(frozen=True, kw_only=True)
class VolumeMasks:
    """One label map a patient, a visit or an image: a NIfTI file, or a DICOM Segmentation, whose values are segments'
    numbers.

    folder, pattern, names: as in `MaskLabels`; or, of images in NIfTI, the pattern has {case}, the image's file name
    without .nii.gz and without nnU-Net's _0000, so that a patient may have several images on one grid. values: as in
    `PictureMasks`, of voxels: {peripheral: [1], transition: [2]}, or {gland: [1, 2]} where both are one class.
    segments: in their place, of DICOM Segmentations whose segments overlap: class -> the numbers of all segments in
    which its voxels lie, as in {edema: [1], core: [1, 2]} where 1 is the whole tumour. A map may lie on any grid of the
    patient's.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    folder: str
    pattern: str = "{patient}.nii.gz"
    names: str | None = None
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    segments: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [] if self.of_image else _pattern_problems(self.pattern)
        if self.of_image and self.names is not None:
            problems.append(Problem(("names",), f"go with {PATIENT} in the pattern, which has {CASE}; remove them"))
        if self.segments:
            problems += _segment_problems(self.segments, has_values=bool(self.values))
            if self.pattern.lower().endswith((".nii", ".nii.gz")):
                text = (
                    f"{self.pattern!r} names NIfTI files, and segments are of DICOM Segmentations; say another, as in "
                )
                problems.append(Problem(("pattern",), text + '"{patient}.dcm", or say values'))
        else:
            problems += [replace(each, needs=(("segments",),)) for each in _map_value_problems(self.values)]
        refuse(problems)

    @property
    def of_image(self) -> bool:
        """Whether each image has its own map, and not each patient or visit."""
        return CASE in self.pattern

    @property
    def classes(self) -> tuple[str, ...]:
        """The named classes, in their order, without background and what is ignored."""
        return tuple(name for name in self.segments or self.values if name not in (BACKGROUND, IGNORE))


@dataclass(frozen=True, kw_only=True)
class DicomSource:
    """A folder of DICOM files, in any arrangement.

    select: DICOM keyword -> text that the header's value must contain, in upper or lower case, for an image to be used;
    a number must be equal. {"kind": "adc"} selects ADC maps and {"kind": "dwi"} diffusion-weighted images, of any
    vendor, by the reader's own evidence. unit: of the values after rescaling; auto = the
    header's unit, or else the one plausible unit. `select` only narrows the choice and does not prove that an image is
    an ADC map: the header must state that, or the settings by giving the unit.

    derive: none uses values as they are; adc fits ADC to diffusion-weighted images with two or more b-values.
    lossy: whether to use images with lossy compression. It changes values by an amount that no header states, so they
    are refused unless a hospital has no others. blank: regions with burned-in text, for each layout of images
    (manufacturer, model, rows, columns); blanked before anything else, only in images of that layout. masks: label maps
    of the patients, where a task learns several classes.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["dicom"] = "dicom"
    folder: str
    select: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = "auto"
    derive: Literal["none", "adc"] = "none"
    lossy: Literal["refuse", "allow"] = "refuse"
    blank: tuple[Layout, ...] = ()
    masks: VolumeMasks | None = None

    def __post_init__(self) -> None:
        from pydicom.datadict import tag_for_keyword  # slow to import

        problems = [
            Problem(("select", keyword), "no such DICOM keyword; use one of PS3.6, as in ImageType, or kind")
            for keyword in self.select
            if keyword != KIND and tag_for_keyword(keyword) is None
        ]
        problems += [
            Problem(("select", keyword), "empty text selects nothing; remove it, or give the text to look for")
            for keyword, text in self.select.items()
            if not text.strip()
        ]
        kind = self.select.get(KIND, "").lower()
        if kind.strip() and kind not in get_args(ImageKind):
            text = f"must be adc or dwi, found {kind!r}; for others select by a DICOM keyword, as in SeriesDescription"
            problems.append(Problem(("select", KIND), text))
        if kind == "adc" and self.derive == "adc":
            text = "adc selects finished maps, and derive: adc fits them; say kind: dwi, or remove derive"
            problems.append(Problem(("select", KIND), text))
        problems += layout_problems(self.blank, "blank")
        if self.masks is not None and self.masks.of_image:
            text = f"{CASE} is of files in NIfTI; say {PATIENT}, and {SESSION} where patients have several visits"
            problems.append(Problem(("masks", "pattern"), text))
        if self.derive == "adc" and self.unit not in ("auto", FITTED_UNIT):
            text = f"a fitted ADC is in {FITTED_UNIT}, found {self.unit!r}; remove unit"
            problems.append(Problem(("unit",), text))
        refuse(problems)


@dataclass(frozen=True, kw_only=True)
class NiftiSource:
    """A folder of NIfTI files, one image per file.

    pattern: shell pattern of the file names, in all folders below. patient: regular expression with one group that
    finds the patient's identifier in the file name without .nii.gz; null = the subject of a BIDS name (sub-01 of
    sub-01_ses-02_adc) or of its folder, and of other names all. unit, masks: as in `DicomSource`.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["nifti"] = "nifti"
    folder: str
    pattern: str = "*.nii.gz"
    patient: str | None = None
    unit: Unit = "auto"
    masks: VolumeMasks | None = None

    def __post_init__(self) -> None:
        if self.patient is None:
            return
        try:
            groups = re.compile(self.patient).groups
        except re.error as error:
            raise SettingsError(
                [Problem(("patient",), f"{self.patient!r} is no regular expression: {error}")]
            ) from error
        if groups != 1:
            text = f"{self.patient!r} has {groups} groups; exactly one must hold the identifier"
            refuse([Problem(("patient",), text)])


@dataclass(frozen=True, kw_only=True)
class PictureMasks:
    """One label map a picture, of the picture's size.

    pattern: file name below `folder`, with {image}, the picture's name (the table's column; without a table its
    path below the source's folder), {stem}, the same without .jpg, .png and so on, or {case}, the stem without
    nnU-Net's _0000. values: class -> its pixel values: {disc: [1], cup: [2]}, {disc: [255]}, or {disc: [1, 2]} if the
    cup is a part of the disc. All other values must be listed under `background`, by default [0]. Values of a palette
    image are its indices, of a 1-bit mask 0 and 1. Under `ignore` stand values of pixels that nothing is learnt from
    and no score counts.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    folder: str
    pattern: str = "{stem}.png"
    values: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        problems = []
        if not any(name in self.pattern for name in (IMAGE, STEM, CASE)):
            text = f"{self.pattern!r} has none of {IMAGE}, {STEM} and {CASE}; it must say whose mask it is"
            problems.append(Problem(("pattern",), text))
        refuse(problems + _map_value_problems(self.values))

    @property
    def classes(self) -> tuple[str, ...]:
        """The named classes, in their order, without background and what is ignored."""
        return tuple(name for name in self.values if name not in (BACKGROUND, IGNORE))


@dataclass(frozen=True, kw_only=True)
class PictureSource:
    """A folder of pictures and the table (CSV with a header line) that describes them.

    table: null = there is none, and every picture below the folder is a separate patient, named by its path; only with
    `masks`. image: the column that `pattern` turns into a picture's file below the folder. patient, label: columns;
    labels are 0 and 1, or the names of the task's classes. values: text in the label column -> class, where the table
    says it otherwise; `negative` and `positive` if the task names no classes. findings: where the task learns several,
    finding -> its column, if that has another name; `values` are then no, yes and unknown, beside 0, 1 and empty.
    label: null, or no table = 1 if the label map shows any class. masks: label maps of the pictures. where: column ->
    values; only lines with one of them are used, {site: [vienna, graz]} for instance.

    A picture that several lines name is not used, whether they have one patient or two: otherwise it could be in the
    training of one and in the test of the other. So one patient's line can remove another patient's picture.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["picture"] = "picture"
    folder: str
    table: str | None
    image: str = "image"
    pattern: str = "{image}"
    patient: str = "patient"
    label: str | None = "label"
    values: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    masks: PictureMasks | None = None
    findings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = []
        if "{image}" not in self.pattern:
            text = f"must say where the image column stands, as in {{image}}.jpg; found {self.pattern!r}"
            problems.append(Problem(("pattern",), text))
        if self.masks is None:
            problems += [
                Problem((name,), "missing; only pictures with masks need none", needs=(("masks",),))
                for name in ("table", "label")
                if getattr(self, name) is None
            ]
        if self.table is None and self.where:
            text = "there is no table whose lines it could pick; remove it, or give a table"
            problems.append(Problem(("where",), text))
        if self.values and (self.table is None or self.label is None):
            problems.append(Problem(("values",), "there is no column of labels whose values these could be; remove it"))
        refuse(problems)


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A CSV file, one example per line.

    columns: names of the columns, if the file has no header line. separator: null = the one of the header line, or a
    comma if there is none. patient: the column that names the patient; null = each line is a patient, named by its
    number (1 = first). Removing a line would renumber those after it, so a withdrawn patient is excluded by number and
    the line stays; differential privacy is defined accordingly, for two tables that differ in whether a line is
    excluded. label: the column of the label: 0 and 1, or where the task names its classes the name of one. Of other
    numbers those above `positive_above` are positive; without it a line with another number is not used. values: text
    in this column -> class, as in `PictureSource`. findings: as there; a table of findings names the column of each,
    and no label. missing: texts that stand for a missing value; a line that misses a feature is not used. where: column
    -> values; only lines with one of them are used.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["table"] = "table"
    file: str
    columns: tuple[str, ...] = ()
    separator: Separator | None = None
    patient: str | None = None
    label: str | None = None
    positive_above: float | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ("", "?", "NA")
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    findings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.label is None) != bool(self.findings):
            text = (
                "missing; name the column of labels" if self.label is None else "findings name the columns; remove it"
            )
            refuse([Problem(("label",), text)])
        if len(set(self.columns)) < len(self.columns):
            refuse([Problem(("columns",), f"must differ from each other, found {list(self.columns)}")])
        if self.values and self.positive_above is not None:
            refuse([Problem(("positive_above",), "values say which class a label is; remove one of the two")])


@dataclass(frozen=True, kw_only=True)
class MaskLabels:
    """One lesion mask per patient, inside wherever it is above 0: a slice with enough pixels inside is positive.

    pattern: file name below `folder`, with {patient}, and {session} where a patient has several visits: the
    StudyInstanceUID, or of NIfTI files the ses-02 of a BIDS name. names: a JSON object, or a CSV file with a header
    line, that maps the patient's identifier in the images to what stands for {patient}; a key may also be the
    identifier, an underscore and a date or visit. If identifiers themselves have underscores, give each patient a
    separate key, or `P1_2` is taken for a visit of `P1`.
    segment: of files that are DICOM Segmentations, the segment's label, or the name of its concept; null = all.
    minimum_pixels: the number of mask pixels that make a slice positive, counted on the prepared slices, so that the
    area is the same at every hospital.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["mask"] = "mask"
    folder: str
    pattern: str = "{patient}.nii.gz"
    names: str | None = None
    segment: str | None = None
    minimum_pixels: int = 3

    def __post_init__(self) -> None:
        refuse(_pattern_problems(self.pattern) + unmet(self, minimum_pixels=(self.minimum_pixels >= 1, "at least 1")))


@dataclass(frozen=True, kw_only=True)
class GlandMask:
    """One prostate mask per patient, inside wherever it is above 0. Fields as in `MaskLabels`."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    folder: str
    pattern: str = "{patient}.nii.gz"
    names: str | None = None
    segment: str | None = None

    def __post_init__(self) -> None:
        refuse(_pattern_problems(self.pattern))


@dataclass(frozen=True, kw_only=True)
class TableLabels:
    """A CSV file (comma, semicolon or tab) with a header line and labels: 0 and 1, or the names of the task's classes.

    patient, label: columns. values: text in the label column -> class, as in `PictureSource`. findings: as there.
    study: column with the study's folder, file name or DICOM instance UID, if labels are per study. slice: column with
    the slice's number, 0 = most inferior, if labels are per slice.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["table"] = "table"
    file: str
    patient: str = "patient"
    label: str = "label"
    values: Mapping[str, str] = field(default_factory=dict)
    study: str | None = None
    slice: str | None = None
    findings: Mapping[str, str] = field(default_factory=dict)


def _map_value_problems(values_by_class: Mapping[str, tuple[int, ...]]) -> list[Problem]:
    """Problems with what the values of label maps stand for."""
    problems = []
    if not set(values_by_class) - {BACKGROUND, IGNORE}:
        problems.append(Problem(("values",), "no class; give one, as in {disc: [255]}"))
    problems += [
        Problem(("values", name), "empty; give its pixel values")
        for name, values in values_by_class.items()
        if not values
    ]
    every = [value for values in values_by_class.values() for value in values]
    if BACKGROUND not in values_by_class:
        every.append(0)
    if twice := sorted({value for value in every if every.count(value) > 1}):
        text = f"{twice} stand for several classes (0 for the background, unless it is given others)"
        problems.append(Problem(("values",), text))
    if wrong := sorted({value for value in every if not 0 <= value <= LARGEST_VALUE}):
        problems.append(Problem(("values",), f"pixel values must be in [0, {LARGEST_VALUE}], found {wrong}"))
    return problems


def _segment_problems(segments: Mapping[str, tuple[int, ...]], *, has_values: bool) -> list[Problem]:
    """Problems with the segments in which the voxels of each class lie."""
    problems = [Problem(("values",), "segments say what classes are; remove one of the two")] if has_values else []
    if not set(segments) - {BACKGROUND, IGNORE}:
        problems.append(Problem(("segments",), "no class; give one, as in {edema: [1], core: [1, 2]}"))
    seen: dict[frozenset[int], str] = {}
    for name, numbers in segments.items():
        if name == BACKGROUND:
            problems.append(Problem(("segments", name), "it is where no segment is; remove it"))
        elif not numbers or not all(1 <= number <= MOST_SEGMENTS for number in numbers):
            text = f"must name segments from 1 to {MOST_SEGMENTS}, found {[*numbers]}"
            problems.append(Problem(("segments", name), text))
        elif (before := seen.setdefault(frozenset(numbers), name)) != name:
            problems.append(Problem(("segments", name), f"these are the segments of {before}; correct one of the two"))
    return problems


def _pattern_problems(pattern: str) -> list[Problem]:
    """The problem with a pattern of mask files that does not contain the patient."""
    text = f"{pattern!r} has no {PATIENT}; it must say where the patient's name stands"
    return [] if PATIENT in pattern else [Problem(("pattern",), text)]


Files: TypeAlias = DicomSource | NiftiSource | PictureSource | TableSource | TensorSource


Labels: TypeAlias = MaskLabels | TableLabels


SOURCE: TypeAdapter[Files] = TypeAdapter(Annotated[Files, Field(discriminator="kind")])
