"""Checks of pictures that the user declares public: whether they can serve the run's images, and are no hospital's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harmonize.prior import PRIORS
from pipelines.data.images import AnyImages
from pipelines.data.requirements import kind_problems
from pipelines.loader.names import label_problems
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem

VALUES = {"prostate_adc": "adc", "prostate_t2w": "standardized"}
"""By a prior's name: what its pictures hold, as `images.values` says it."""


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `public_pictures`."""
    yield from label_problems(run.public_pictures, "public_pictures")
    for name in run.public_pictures:
        if name in PRIORS:
            yield Problem(("public_pictures", name), "is the name of a prior; give these pictures another")
        yield from _of_one(run, name)


def unit_complaints(prior: str, images: AnyImages) -> list[str]:
    """Why a prior's pictures are not in these images' unit; empty = they are, or have none."""
    drawn, unit = VALUES.get(prior), getattr(images, "values", None)
    if drawn is None or unit is None or drawn == unit:
        return []
    other = next(name for name, values in VALUES.items() if values == unit)
    return [f"{prior} draws images of values: {drawn}, and images.values is {unit}; say {other}"]


def _of_one(run: RunSettings, name: str) -> Iterator[Problem]:
    """Why declared pictures cannot serve this run."""
    pictures, at = run.public_pictures[name], ("public_pictures", name)
    if run.images.kind == "features":
        yield Problem(at, "a table has no pictures; remove them")
        return
    if pictures.source is not None:
        yield from (each.within(*at) for each in kind_problems(pictures.source.kind, run.images))
    elif run.images.kind != "pictures":
        text = f"holds pictures, and images are {run.images.kind}; give a source of dicom or nifti"
        yield Problem((*at, "folder"), text)
    for site, site_settings in run.sites.items():
        folder = getattr(site_settings.source, "folder", None)
        both = [getattr(source, "where", None) for source in (pictures.source, site_settings.source)]
        if folder is not None and Path(folder).resolve() == Path(pictures.place).resolve() and not all(both):
            yield Problem(at, f"lies in the folder of {site}, whose patients are not public; give another folder")
