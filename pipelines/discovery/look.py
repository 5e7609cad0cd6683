"""Detect the images, hospitals and labels in a folder of studies. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.data.contents import detect_kind
from pipelines.data.folder import list_files
from pipelines.discovery.found import Discovery
from pipelines.discovery.images import PICTURES, dicom_series, nifti_files
from pipelines.discovery.nnunet import discover_nnunet
from pipelines.discovery.pictures import discover_pictures
from pipelines.discovery.safe import Secrets, secrets_of
from pipelines.discovery.volumes import discover_dicom, discover_volumes

PACKED = (".zip", ".gz", ".tgz", ".tar", ".bz2", ".xz", ".7z", ".rar", ".zst")


def discover_folder(folder: Path, labels: Path | None = None) -> Discovery:
    """The detected contents of a folder. labels: another folder that may contain labels and masks.

    Raises:
        ValueError: one of them is not a folder or cannot be read; the message contains no person's name.
    """
    problems = [problem for place in (folder, labels) if place is not None and (problem := folder_problem(place))]
    if problems:
        raise ValueError("; ".join(problems))
    if labels is None and (datasets := discover_nnunet(folder)) is not None:
        return datasets
    files = list_files_below(folder)
    extra = list_files_below(labels) if labels is not None else []
    files += [path for path in extra if path not in files]
    closed = _count_closed_folders(folder)
    series, unreadable = dicom_series(path for path in files if path not in extra)
    nifti, broken = nifti_files(files)
    doubts = [f"{closed:,} folders may not be read, and were not looked into"] if closed else []
    doubts += [f"{unreadable + broken:,} files cannot be read; they are refused"] if unreadable + broken else []
    doubts += _describe_packed_files(files)
    named = secrets_of((each.patient for each in series), {name for each in series for name in each.names})
    secrets = Secrets(named.words | secrets_of(each.patient for each in nifti).words)
    discovery = Discovery(None)
    if series:
        discovery = discover_dicom(folder, series, files, nifti, secrets)
    elif any(each.what != "mask" for each in nifti):
        discovery = discover_volumes(folder, nifti, files, secrets)
    elif any(path.name.lower().endswith(PICTURES) for path in files):
        discovery = discover_pictures(folder, files) or discovery
    if discovery.sort in ("dicom", "nifti"):
        doubts += _describe_other_images(
            files, [each.path for each in nifti if each.what != "mask"] if discovery.sort == "dicom" else []
        )
    return replace(discovery, doubts=(*doubts, *discovery.doubts))


def _describe_packed_files(files: Sequence[Path]) -> list[str]:
    """A sentence on packed files, into which nothing looks."""
    named = [path for path in files if path.name.lower().endswith(PACKED)]
    count = sum(detect_kind(path) in ("packed", "packed_dicom") for path in named)
    text = "are packed (zip, gz, tar and the like) and were not looked into; unpack them, if they hold images"
    return [f"{count:,} files {text}"] if count else []


def _describe_other_images(files: Sequence[Path], nifti: Sequence[Path]) -> list[str]:
    """Sentences on images of other kinds than that of the draft. nifti: images that a draft for DICOM does not read."""
    counts = {"pictures": sum(path.name.lower().endswith(PICTURES) for path in files), "NIfTI images": len(nifti)}
    kinds = {"pictures": "picture", "NIfTI images": "nifti"}
    return [
        f"{count:,} {what} lie there too, and this draft does not read them; they need a source of kind {kinds[what]}"
        for what, count in counts.items()
        if count
    ]


def folder_problem(folder: Path) -> str:
    """The reason why a folder cannot be read; empty if it can."""
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        return f"{folder} {state}; give the folder that holds the images"
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{folder} may not be read by this user; ask for read permission, or run as a user who has it"
    return ""


def list_files_below(folder: Path) -> list[Path]:
    """All regular files below a folder, with paths that begin with the folder as given."""
    root = folder.resolve()
    return [folder / path.relative_to(root) for path in list_files(folder)]


def _count_closed_folders(folder: Path) -> int:
    """How many folders may not be read."""
    errors: list[OSError] = []
    for _ in os.walk(folder, onerror=errors.append):
        pass
    return len(errors)
