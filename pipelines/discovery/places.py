"""Which folders are hospitals: those just below, if they hold several patients and bear no patient's name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.discovery.safe import WORDS, Secrets, words

SHARED = 0.5  # of the patients in several folders: then folders are kinds of images, and not hospitals
HOSPITAL = "hospital"


@dataclass(frozen=True)
class Image:
    """Where an image lies, and whose it is."""

    path: Path
    patient: str


@dataclass(frozen=True)
class Place:
    """One hospital. home: everything of it lies below. folder: all its images lie below, and little else."""

    name: str
    home: Path
    folder: Path


def places(root: Path, images: Sequence[Image], secrets: Secrets) -> list[Place]:
    """The hospitals below a folder: one for each folder just below it, or one in all."""
    base = descended(root, images, secrets)
    tops = _tops(base, images)
    if not _hospitals(tops, secrets):
        return [Place(site_name(root.resolve().name, secrets), root, base)]
    found: list[Place] = []
    for top, mine in sorted(tops.items()):
        name = site_name(top, secrets)
        taken = {place.name for place in found}
        name = next(each for each in (name, *(f"{name}{i}" for i in range(2, 10**6))) if each not in taken)
        found.append(Place(name, base / top, descended(base / top, mine, secrets)))
    return found


def descended(folder: Path, images: Sequence[Image], secrets: Secrets) -> Path:
    """The deepest folder below which all images lie; never a patient's own folder."""
    while len({image.patient for image in images}) > 1:
        tops = _tops(folder, images)
        if len(tops) != 1 or "" in tops or secrets.tells(next(iter(tops))):
            break
        folder = folder / next(iter(tops))
    return folder


def site_name(text: str, secrets: Secrets) -> str:
    """A folder's name as a site may be called: a-z, 0-9, _ and -."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]
    plain = set(words(text)) <= WORDS or name == "central"
    return HOSPITAL if plain or secrets.tells(text) else name


def _tops(base: Path, images: Sequence[Image]) -> dict[str, list[Image]]:
    """Images by the folder just below `base`; the empty name: directly in it."""
    tops: dict[str, list[Image]] = defaultdict(list)
    for image in images:
        parts = image.path.relative_to(base).parts
        tops[parts[0] if len(parts) > 1 else ""].append(image)
    return tops


def _hospitals(tops: dict[str, list[Image]], secrets: Secrets) -> bool:
    patients = [{image.patient for image in mine} for mine in tops.values()]
    if len(tops) < 2 or "" in tops or any(secrets.tells(top) for top in tops):
        return False
    if all(set(words(top)) <= WORDS for top in tops):
        return False
    everyone = set[str]().union(*patients)
    shared = sum(1 for patient in everyone if sum(patient in mine for mine in patients) > 1)
    several = sum(len(mine) > 1 for mine in patients)
    return shared <= SHARED * len(everyone) and 2 * several >= len(tops)
