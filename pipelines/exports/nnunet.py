"""A hospital's own cohort as a raw dataset of nnU-Net's version 2: the patients of a run, each study on its own grid,
and pictures as they are.

The format is described in nnU-Net's documentation/dataset_format.md. Training and validation patients lie in imagesTr
and labelsTr, and splits_final.json says which is which; test patients lie in imagesTs, and their labels in labelsTs,
which nnU-Net's training does not read. These are patients' images: they stay at the hospital, and nothing is booked.
"""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from federation.task import IGNORED
from pipelines.batch.tables import table_bytes
from pipelines.data.cohort import Cohort
from pipelines.data.examples import open_source
from pipelines.data.images import IMAGES, AnyImages, Pictures, Slices, Target, Volumes
from pipelines.data.intake import WaitingStudy, read_whole_study
from pipelines.data.nifti.bids import find_case
from pipelines.data.pseudonym import make_pseudonym
from pipelines.data.regions import read_regions
from pipelines.data.sources import FIRST_CHANNEL, IGNORE, DicomSource, NiftiSource, PictureSource
from pipelines.data.sources import Files as Source
from pipelines.data.study import Rejected, WholePicture, WholeStudy
from pipelines.data.taking import natural_key
from pipelines.data.writing.nifti_mask import image_bytes, mask_bytes
from pipelines.hospital.files import Files, files_of
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file
from pipelines.hospital.kept import COUNTS, REJECTED, SPLIT
from pipelines.hospital.quarantine import study_code
from pipelines.runs.progress import make_counter, show_progress
from privacy.durable import write_whole
from privacy.message import Json, as_list
from privacy.release.gate import Refused

DESCRIPTION, SPLITS_FILE, CASES = "dataset.json", "splits_final.json", "cases.csv"
VOLUME, PICTURE = ".nii.gz", ".png"
"""Endings of files."""
COLOURS = ("R", "G", "B")
PLACES = {"train": ("imagesTr", "labelsTr"), "validation": ("imagesTr", "labelsTr"), "test": ("imagesTs", "labelsTs")}
DERIVED = ("space", "synthetic", "features")
"""Entries of a recipe whose cohort was made of another one: translated, balanced, or turned into features."""


class Changed(RuntimeError):
    """The hospital's files are not those that the run read."""


@dataclass(frozen=True)
class Written:
    """cohort: its name. other_cohorts: those that could have been written, too. cases: by split. patients: how many."""

    cohort: str
    other_cohorts: tuple[str, ...]
    cases: Mapping[str, Sequence[str]]
    patients: int


class Case(NamedTuple):
    """A study that is written. patient: its pseudonym."""

    name: str
    patient: str
    split: str
    waiting: WaitingStudy


def write_nnunet_folder(
    hospital: Hospital, out: Path, *, cohort: str | None = None, channel: str | None = None, coded: bool = False
) -> Written:
    """Write the studies of a cohort that a run read at this hospital.

    Args:
        hospital: with its settings, and the folder of the run.
        out: the new folder. It appears when all of it is there.
        cohort: its name; None = the newest that was read from files.
        channel: what nnU-Net calls the images; None = CT or ADC where they are that, else the modality of DICOM; of
            pictures their colours.
        coded: whether cases are called by pseudonyms also where the hospital's own file names could be kept.

    Raises:
        ValueError: there is no such cohort, or it has no masks; the folder is there, or lies in the images.
        Changed: other studies than the run's would be written.
        OSError: the disk.
    """
    name, rest = _find_cohort(hospital, cohort)
    read = read_cohort_file(hospital.cohort_folder(name) / COHORT)
    files = _find_files(hospital)
    _check_place(out, files)
    cases = _list_cases(hospital, name, read, files, coded=coded)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a call that was killed
    ignored = _has_ignored(files.source)
    try:
        modality = _write_cases(cases, part, _count_classes(read) + 1)
        labels, order = describe_labels(read, ignored=ignored)
        described: dict[str, Json] = {
            "channel_names": {str(place): name for place, name in enumerate(_name_channels(read, modality, channel))},
            "labels": labels,
            "numTraining": sum(case.split != "test" for case in cases),
            "file_ending": PICTURE if _is_of_pictures(read) else VOLUME,
            **({"regions_class_order": order} if order else {}),
        }
        _write_tables(cases, part, described)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    by_split = {split: [case.name for case in cases if case.split == split] for split in PLACES}
    return Written(name, rest, by_split, len({case.patient for case in cases}))


def describe_labels(cohort: Cohort, *, ignored: bool) -> tuple[dict[str, Json], list[Json]]:
    """`labels` and `regions_class_order` of dataset.json; the second is empty where there are no regions.

    nnU-Net writes its regions one after the other into one map, each with one label, so that those within others must
    come after them: larger ones stand first, each with a label that no later one has. Of regions of which neither holds
    the other, a place in both gets the label of the second.
    """
    names = _class_names(cohort)
    numbers: dict[str, Json] = {"background": 0}
    last: dict[str, Json] = {IGNORE: len(names) + 1} if ignored else {}
    regions = read_regions(cohort.recipe, names)
    if not regions:
        return {**numbers, **{name: number for number, name in enumerate(names, start=1)}, **last}, []
    ordered = sorted(regions.items(), key=lambda pair: -len(pair[1]))
    order: list[Json] = []
    for place, (name, members) in enumerate(ordered):
        later = {number for _, inner in ordered[place + 1 :] for number in inner}
        order.append(next((number for number in members if number not in later), members[0]))
        numbers[name] = members[0] if len(members) == 1 else [*members]
    return {**numbers, **last}, order


def _find_cohort(hospital: Hospital, cohort: str | None) -> tuple[str, tuple[str, ...]]:
    """The cohort that is written, and the names of others. Raises: ValueError: there is none."""
    places = sorted(hospital.root.glob(f"cohorts/*/{SPLIT}"), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in places]
    if cohort is not None:
        if cohort not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"--cohort {cohort}: {hospital.root / 'cohorts'} has {known}; name one of these")
        return cohort, tuple(name for name in names if name != cohort)
    usable = [name for name in names if _has_own_grids(read_cohort_file(hospital.cohort_folder(name) / COHORT))]
    if not usable:
        text = "holds no cohort with masks; let a segmentation run read its files first, as far as ingest"
        raise ValueError(f"{hospital.root / 'cohorts'} {text}")
    return usable[-1], tuple(usable[:-1])


def _has_own_grids(cohort: Cohort) -> bool:
    """Whether a cohort was read from files of volumes, or pictures, with masks."""
    is_made = any(cohort.recipe.get(name) for name in DERIVED)
    is_image = "images" in cohort.recipe and isinstance(_images_of(cohort), Slices | Volumes | Pictures)
    return is_image and bool(cohort.recipe.get("target")) and not is_made


def _images_of(cohort: Cohort) -> AnyImages:
    """The settings by which a cohort's images were prepared."""
    return IMAGES.validate_python(cohort.recipe["images"])


def _is_of_pictures(cohort: Cohort) -> bool:
    return isinstance(_images_of(cohort), Pictures)


def _find_files(hospital: Hospital) -> Files:
    """The hospital's files. Raises: ValueError: they cannot be had."""
    try:
        return files_of(hospital)
    except Refused as error:
        why = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise ValueError(f"the files of {hospital.name} cannot be had: {error.code}{why}") from error


def _check_place(out: Path, files: Files) -> None:
    """Raises: ValueError: something is there, or its files would be read as studies or masks the next time."""
    problems = [f"--out: {out} is there already; give another, or remove it"] if out.exists() else []
    if not out.parent.is_dir():
        problems.append(f"--out: there is no folder {out.parent}; make it, or give another")
    masks = getattr(files.source, "masks", None)
    read = (("images", files.source), ("masks", masks), ("masks", files.labels), ("masks", files.gland))
    for what, settings in read:
        folder = getattr(settings, "folder", None)
        if folder is not None and out.resolve().is_relative_to(Path(folder).resolve()):
            problems.append(f"--out must not lie in the hospital's {what}, {folder}; give another")
    if problems:
        raise ValueError("; ".join(problems))


def _list_cases(hospital: Hospital, name: str, cohort: Cohort, files: Files, *, coded: bool) -> list[Case]:
    """The studies of the cohort, in the order of their patients. Raises: ValueError, Changed."""
    if not _has_own_grids(cohort):
        raise ValueError(f"the cohort {name} has no masks, or was made of another; name another")
    folder, key = hospital.cohort_folder(name), hospital.key()
    images = _images_of(cohort)
    target = cast(Target, cohort.recipe["target"])
    classes = tuple(map(str, as_list(cohort.recipe.get("classes", []))))
    opened = open_source(files.source, files.labels, images, files.gland, target, classes)
    split = {code: each for each, codes in json.loads((folder / SPLIT).read_text()).items() for code in codes}
    rejected = {each["study"] for each in json.loads((folder / REJECTED).read_text())}
    waiting = sorted(opened.waiting, key=lambda study: (make_pseudonym(key, study.patient), natural_key(study.study)))
    studies = [
        (study, code)
        for study in waiting
        if (code := make_pseudonym(key, study.patient)) in split and study_code(key, study.study) not in rejected
    ]
    count = int(json.loads((folder / COUNTS).read_text())["studies"])
    patients = {code for _, code in studies}
    if len(studies) != count or patients != set(split):
        raise Changed(
            f"the run read {count:,} studies of {len(split):,} patients here, and {len(studies):,} of "
            f"{len(patients):,} are there now; bring the files back, or let a run read them anew"
        )
    names = _name_cases([(study.study, code) for study, code in studies], keep=not coded and _has_names(files))
    return [Case(each, code, split[code], study) for each, (study, code) in zip(names, studies, strict=True)]


def _has_names(files: Files) -> bool:
    """Whether the hospital's own files have a name for each study: NIfTI files and pictures do, DICOM files name series
    at best, and the lines of a table have numbers.
    """
    source = files.source
    return isinstance(source, NiftiSource) or (isinstance(source, PictureSource) and source.table is None)


def _name_cases(studies: Sequence[tuple[str, str]], *, keep: bool) -> list[str]:
    """The names of cases. studies: path and pseudonym of each. keep: by the hospital's own file names, with the folders
    before them where two would be alike; else by pseudonyms, with a number where a patient has several studies.
    """
    if keep:
        names = [find_case(study) for study, _ in studies]
        if len(set(names)) < len(names):
            names = [_join_path(study) for study, _ in studies]
        if len(set(names)) == len(names):
            return names
    several, seen, names = Counter(code for _, code in studies), Counter[str](), []
    for _, code in studies:
        seen[code] += 1
        names.append(f"{code}_{seen[code]}" if several[code] > 1 else code)
    return names


def _join_path(study: str) -> str:
    """A file's path below the source's folder as one name."""
    return "__".join([*PurePosixPath(study).parts[:-1], find_case(study)])


def _write_cases(cases: Sequence[Case], part: Path, ignored: int) -> str:
    """Write images and labels; return the modality that all headers say, if they do. ignored: the label of what nobody
    knows. Raises: Changed: a study cannot be read any more.
    """
    modalities = set()
    with show_progress("write") as step:
        count = make_counter(step, len(cases))
        step(0, len(cases))
        for case in cases:
            study = read_whole_study(case.waiting)
            if isinstance(study, Rejected):
                raise Changed(f"{study.study} was read by the run, and is not now: {study.reason}: {study.detail}")
            _write_case(case, study, part, ignored)
            modalities.add(study.modality if isinstance(study, WholeStudy) else "")
            count("")
    return modalities.pop() if len(modalities) == 1 else ""


def _write_case(case: Case, study: WholeStudy | WholePicture, part: Path, ignored: int) -> None:
    """Write the image and the labels of one study."""
    images, labels = PLACES[case.split]
    if isinstance(study, WholePicture):
        ending, image, mask = PICTURE, _encode_png(study.pixels), _encode_png(_number_ignored(study.classes, ignored))
    else:
        ending, classes = VOLUME, np.asarray(study.classes.values, np.uint8)
        image = image_bytes(np.asarray(study.image.values, np.float32), study.image.affine)
        mask = mask_bytes(_number_ignored(classes, ignored), study.classes.affine, packed=True)
    write_whole(part / images / f"{case.name}{FIRST_CHANNEL}{ending}", image)
    write_whole(part / labels / f"{case.name}{ending}", mask)


def _number_ignored(classes: NDArray[np.uint8], ignored: int) -> NDArray[np.uint8]:
    """Classes in which what nobody knows has the label `ignored`."""
    return np.where(classes == IGNORED, ignored, classes).astype(np.uint8)


def _encode_png(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """A PNG file of 8 or 16 bits."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _write_tables(cases: Sequence[Case], part: Path, described: Mapping[str, Json]) -> None:
    """Write who is in which split, and at last dataset.json, without which nnU-Net sees no dataset."""
    train, validation = ([case.name for case in cases if case.split == split] for split in ("train", "validation"))
    rows = [(case.name, case.patient, case.split) for case in cases]
    for folder in ("imagesTr", "labelsTr", "imagesTs"):
        (part / folder).mkdir(parents=True, exist_ok=True)
    if train and validation:  # else nnU-Net makes its own folds
        write_whole(part / SPLITS_FILE, json.dumps([{"train": train, "val": validation}], indent=1).encode())
    write_whole(part / CASES, table_bytes(("case", "patient", "split"), rows))
    write_whole(part / DESCRIPTION, json.dumps(described, indent=1).encode())


def _class_names(cohort: Cohort) -> list[str]:
    """The names of the classes but the background, 1 = the first."""
    return [str(name) for name in as_list(cohort.recipe.get("classes", []))] or [str(cohort.recipe["target"])]


def _count_classes(cohort: Cohort) -> int:
    return len(_class_names(cohort))


def _has_ignored(source: Source) -> bool:
    """Whether label maps have a value for what nobody knows."""
    if isinstance(source, PictureSource):
        return source.masks is not None and IGNORE in source.masks.values
    if not isinstance(source, DicomSource | NiftiSource) or source.masks is None:
        return False
    return IGNORE in (source.masks.segments or source.masks.values)


def _name_channels(cohort: Cohort, modality: str, name: str | None) -> Sequence[str]:
    """What nnU-Net calls the images' channels, by which it scales values: of the names made here CT alone is special
    to it. name: for all of them.
    """
    images = _images_of(cohort)
    if isinstance(images, Pictures):
        colours = COLOURS if images.channels == len(COLOURS) else ("grey",)
        return colours if name is None else [name] * len(colours)
    if name is not None:
        return [name]
    if getattr(images, "ct", None) is not None:
        return ["CT"]
    return ["ADC" if getattr(images, "values", "") == "adc" else modality or "image"]
