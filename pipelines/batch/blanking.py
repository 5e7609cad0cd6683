"""Write contact sheets of blanked images that a person must confirm, and record confirmations by a sheet's digest."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydicom.dataset import Dataset
from pydicom.errors import InvalidDicomError

from pipelines.batch.confirmations import is_confirmed, record_confirmation, sheet_digest
from pipelines.batch.contact_sheet import (
    LARGEST,
    SheetImage,
    UnknownLayout,
    build_sheet_image,
    build_unknown_layout,
    write_sheet,
)
from pipelines.batch.layouts_file import write_draft
from pipelines.data.contents import detect_kind as detect_content_kind
from pipelines.data.contents import left_out, read_dataset
from pipelines.data.dicom.reader import SUFFIXES
from pipelines.data.folder import explain_failure, read_steadily, stamp_file
from pipelines.data.study import Item, Unusable
from privacy.deidentify.burned import Blanked
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, blank_image, deidentify_image
from privacy.deidentify.layouts import kind_of
from privacy.deidentify.quiet import silence_warnings
from privacy.system_errors import of_machine

PICTURES = 3  # of one view: before, after, stretched
KEEPS = ("keep_device", "keep_characteristics", "keep_times")
VIEWS = 3  # of an image with several frames


class Sheet(NamedTuple):
    """path: of the page. digest: of the images on it; empty if none can be confirmed. images: number of images on it.
    later: number of images left for the next sheet. unknown: number of layouts without rectangles. draft: whether a
    file of layouts was made.
    """

    path: Path
    digest: str
    images: int
    later: int
    unknown: int
    draft: bool


def sheet_file(key: Path) -> Path:
    """Path of the contact sheet, next to the key."""
    return key.with_name(f"{key.name}.sheet.html")


class Review(NamedTuple):
    """The input's folder, the options, the hospital's secret key, and the profile with the confirmations so far."""

    root: Path
    options: argparse.Namespace
    key: bytes
    profile: Profile


def confirm_sheet(paths: Sequence[Path], review: Review) -> str:
    """Record that a person confirmed the sheet with the digest in the options; return an error text, "" = none.

    Raises:
        ValueError, OSError: the record of confirmations is damaged or cannot be read or written.
    """
    place, digest = Path(review.options.key), review.options.confirm.strip().lower()
    if is_confirmed(place, digest):
        return ""
    images = [
        blanked.digest
        for _, _, blanked in _select_for_sheet([path for path in paths if _is_waiting(path, review)], review)
    ]
    if not images or sheet_digest(review.key, images) != digest:
        return (
            "--confirm: no images that wait have this digest. A file or a rectangle was changed or added since that "
            "sheet, or the digest is mistyped; nothing was confirmed. Look at the new sheet."
        )
    record_confirmation(place, digest, images)
    return ""


def make_sheet(waiting: Sequence[Path], unknown: Sequence[Path], review: Review) -> Sheet | None:
    """Write the contact sheet, and a draft of the file of layouts if there is none; None if no image waits.

    waiting: files that were refused as `unconfirmed`. unknown: files that were refused as `burned_in`.

    Raises:
        OSError: the disk.
    """
    images: list[SheetImage] = []
    digests: list[str] = []
    for path, image, blanked in _select_for_sheet(waiting, review):
        images.append(build_sheet_image(_relative_path(review.root, path), image, blanked))
        digests.append(blanked.digest)
    layouts = _find_unknown_layouts(unknown, review.root)
    if not images and not layouts:
        return None
    digest = sheet_digest(review.key, digests) if digests else ""
    page, later = sheet_file(Path(review.options.key).resolve()), len(waiting) - len(images)
    write_sheet(page, images, layouts, digest=digest, command=confirm_command(review.options, digest), later=later)
    draft = not Path(review.options.blank).exists()
    if draft:
        write_draft(Path(review.options.blank), [layout.entry for layout in layouts])
    return Sheet(page, digest, len(images), later, len(layouts), draft)


def next_steps(sheet: Sheet, options: argparse.Namespace) -> list[str]:
    """Lines that tell the user what to do next."""
    lines = [f"Contact sheet: {sheet.path} (it shows patients' names and stays in the hospital)"]
    if sheet.draft:
        lines.append(f"{options.blank} did not exist and was made: fill in where text stands, and run the same again.")
    elif sheet.unknown:
        lines.append(f"Layouts on it that have no rectangles in {options.blank} yet: {sheet.unknown}.")
    if sheet.digest:
        lines.append(f"{sheet.images} images on it wait for you, digest {sheet.digest}. If no text is left in any:")
        lines.append(f"    {confirm_command(options, sheet.digest)}")
    if sheet.later:
        lines.append(f"{sheet.later} more images come on the next sheet.")
    return lines


def confirm_command(options: argparse.Namespace, digest: str) -> str:
    """The command that confirms a sheet, ready to be copied."""
    words = ["python", "-m", "pipelines.deidentify", options.folder, options.out, "--key", options.key]
    words += ["--quarantine", options.quarantine] if options.quarantine else []
    words += ["--blank", options.blank]
    words += [f"--{name.replace('_', '-')}" for name in KEEPS if getattr(options, name)]
    return shlex.join([*words, "--confirm", digest])


def read_original(path: Path) -> Dataset | Item:
    """Read the dataset; or, if the file is not DICOM and has no DICOM name, return an item that says why it is left
    out.

    Raises:
        NotDeidentifiable: it cannot be read, or it has a DICOM name but is not DICOM.
    """
    try:
        with silence_warnings():
            return read_steadily({path: stamp_file(path)}, lambda: read_dataset(path))
    except InvalidDicomError:
        if detect_content_kind(path) == "packed_dicom":
            raise NotDeidentifiable("packed", "It is a DICOM file that was packed. Unpack it: gunzip.") from None
        if path.suffix.lower() in SUFFIXES:
            problem = "The file has a DICOM name and no DICOM in it. Copy it again."
            raise NotDeidentifiable("unparsable", problem) from None
        return left_out(path.name, path, "dicom")
    except Unusable as error:  # the file changed while it was read
        raise NotDeidentifiable(error.reason, error.detail.replace(path.name, "The file")) from None
    except Exception as error:
        if of_machine(error):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            failure = explain_failure("The file", error)
            raise NotDeidentifiable(failure.reason, failure.detail) from None
        raise NotDeidentifiable(
            "unparsable", f"The file cannot be read ({type(error).__name__}). Export the image again."
        ) from None


def _find_unknown_layouts(paths: Sequence[Path], root: Path) -> list[UnknownLayout]:
    """The first image of each layout that can be displayed."""
    unknown_by_layout: dict[object, UnknownLayout] = {}
    for path in paths:
        image = _open_image(path)
        if image is not None and kind_of(image) not in unknown_by_layout:
            with silence_warnings(), suppress(NotDeidentifiable):
                unknown_by_layout[kind_of(image)] = build_unknown_layout(_relative_path(root, path), image)
    return list(unknown_by_layout.values())


def _select_for_sheet(waiting: Sequence[Path], review: Review) -> Iterator[tuple[Path, Dataset, Blanked]]:
    """The first images, blanked, as many as fit on a sheet, and at least one."""
    pixels_left = LARGEST
    for path in waiting:
        blanked = _blank_image(path, review)
        if blanked is not None:
            yield path, *blanked
            frames, rows, columns, _ = blanked[1].after.shape
            pixels_left -= rows * columns * PICTURES * (VIEWS if frames > 1 else 1)
        if pixels_left <= 0:
            return


def _blank_image(path: Path, review: Review) -> tuple[Dataset, Blanked] | None:
    """An image and its blanked pixels; None if it cannot be read any more, which the next call of the command
    reports.
    """
    image = _open_image(path)
    if image is None:
        return None
    try:
        with silence_warnings():
            blanked = blank_image(image, review.key, review.profile)
    except NotDeidentifiable:
        return None
    return (image, blanked) if blanked is not None else None


def _is_waiting(path: Path, review: Review) -> bool:
    """Whether a file is refused only because it is not confirmed."""
    image = _open_image(path)
    if image is None:
        return False
    try:
        deidentify_image(image, key=review.key, profile=review.profile)
    except NotDeidentifiable as error:
        return error.reason == "unconfirmed"
    return False


def _open_image(path: Path) -> Dataset | None:
    """The dataset of a file; None if it is left out or cannot be read."""
    try:
        original = read_original(path)
    except NotDeidentifiable:
        return None
    return original if isinstance(original, Dataset) else None


def _relative_path(root: Path, path: Path) -> str:
    """A file's path below the input's folder, as text for the page."""
    return str(path.relative_to(root.resolve())).encode("utf-8", "backslashreplace").decode()
