"""Detect which folders are hospitals: direct subfolders with several patients and without a patient's name."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.discovery.safe import WORDS, Secrets, split_words
from pipelines.loader.names import RESERVED

SHARED = 0.5  # share of patients in several folders above which folders are kinds of images, not hospitals
HOSPITAL = "hospital"


@dataclass(frozen=True)
class Image:
    """An image's path and patient."""

    path: Path
    patient: str


@dataclass(frozen=True)
class Place:
    """One hospital. root: the folder of all its files. folder: the deepest folder with all its images. doubt: why its
    name differs from its folder's; empty if it does not.
    """

    name: str
    root: Path
    folder: Path
    doubt: str = ""


def find_places(root: Path, images: Sequence[Image], secrets: Secrets) -> list[Place]:
    """The hospitals below a folder: one for each direct subfolder, or a single one."""
    base = descend_to_images(root, images, secrets)
    tops = _group_by_subfolder(base, images)
    if not _are_hospitals(tops, secrets):
        ((name, doubt),) = site_names([root.resolve().name], secrets)
        return [Place(name, root, base, doubt)]
    return [
        Place(name, base / top, descend_to_images(base / top, mine, secrets), doubt)
        for (top, mine), (name, doubt) in zip(sorted(tops.items()), site_names(sorted(tops), secrets), strict=True)
    ]


def descend_to_images(folder: Path, images: Sequence[Image], secrets: Secrets) -> Path:
    """The deepest folder that contains all images; never a patient's own folder."""
    while len({image.patient for image in images}) > 1:
        tops = _group_by_subfolder(folder, images)
        if len(tops) != 1 or "" in tops or secrets.tells(next(iter(tops))):
            break
        folder = folder / next(iter(tops))
    return folder


def site_names(texts: Sequence[str], secrets: Secrets) -> list[tuple[str, str]]:
    """Names for sites (a-z, 0-9, _ and -, each name once), one for each folder or value of a table's column.

    Returns:
        For each text the name; and, if it is not the text itself, a sentence that says why, without a person's name.
    """
    names: list[tuple[str, str]] = []
    for text in texts:
        base, why = _site_name(text, secrets)
        taken = {name for name, _ in names}
        numbered = (f"{base}{number}" for number in itertools.count(2))
        name = next(each for each in itertools.chain([base], numbered) if each not in taken)
        called = "a name in the files" if secrets.tells(text) else repr(text)
        doubt = f"the site {name} stands for {called}: {why}; rename it if need be"
        names.append((name, "" if name == text else doubt))
    return names


def _site_name(text: str, secrets: Secrets) -> tuple[str, str]:
    """A name, not yet unique among sites; and why it differs from the text."""
    if secrets.tells(text):
        return HOSPITAL, "it is, or holds, a patient's name or identifier"
    plain = re.sub(r"[^a-z0-9-]+", "_", text.lower()).strip("_-")[:40]
    if not plain or set(split_words(text)) <= WORDS or plain in RESERVED:
        return HOSPITAL, "it cannot be, or does not tell, the name of a hospital"
    return plain, "sites are named in a-z 0-9 _ -, and each name is there once"


def _group_by_subfolder(base: Path, images: Sequence[Image]) -> dict[str, list[Image]]:
    """Images by direct subfolder of `base`; the empty name stands for `base` itself."""
    tops: dict[str, list[Image]] = defaultdict(list)
    for image in images:
        parts = image.path.relative_to(base).parts
        tops[parts[0] if len(parts) > 1 else ""].append(image)
    return tops


def _are_hospitals(tops: dict[str, list[Image]], secrets: Secrets) -> bool:
    """Whether subfolders are hospitals and not patients: several, and no patient is in two."""
    patients = [{image.patient for image in mine} for mine in tops.values()]
    if len(tops) < 2 or "" in tops or any(secrets.tells(top) for top in tops):
        return False
    if all(set(split_words(top)) <= WORDS for top in tops):
        return False
    everyone = set[str]().union(*patients)
    shared = sum(1 for patient in everyone if sum(patient in mine for mine in patients) > 1)
    several = sum(len(mine) > 1 for mine in patients)
    return shared <= SHARED * len(everyone) and 2 * several >= len(tops)
