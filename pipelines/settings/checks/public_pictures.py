"""Checks of pictures that the user declares public: whether they fit the run's images, and are not a hospital's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harmonize.prior import PRIORS
from pipelines.data.images import AnyImages
from pipelines.data.requirements import kind_problems
from pipelines.loader.names import label_problems
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem

VALUES_BY_PRIOR = {"prostate_adc": "adc", "prostate_t2w": "standardized"}
"""A prior's name -> the values of its pictures, in the terms of `images.values`."""


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `public_pictures`."""
    yield from label_problems(run.public_pictures, "public_pictures")
    for name in run.public_pictures:
        if name in PRIORS:
            yield Problem(("public_pictures", name), "is the name of a prior; give these pictures another")
        yield from _picture_problems(run, name)


def find_unit_problems(prior: str, images: AnyImages) -> list[str]:
    """Why a prior's pictures are not in these images' unit; empty = they are, or there is no unit."""
    prior_values, unit = VALUES_BY_PRIOR.get(prior), getattr(images, "values", None)
    if prior_values is None or unit is None or prior_values == unit:
        return []
    matching_prior = next(name for name, values in VALUES_BY_PRIOR.items() if values == unit)
    return [f"{prior} draws images of values: {prior_values}, and images.values is {unit}; say {matching_prior}"]


def _picture_problems(run: RunSettings, name: str) -> Iterator[Problem]:
    """Why declared pictures cannot be used in this run."""
    pictures, where = run.public_pictures[name], ("public_pictures", name)
    if run.images.kind == "features":
        yield Problem(where, "a table has no pictures; remove them")
        return
    if pictures.source is not None:
        yield from (each.within(*where) for each in kind_problems(pictures.source.kind, run.images))
    elif run.images.kind != "pictures":
        text = f"holds pictures, and images are {run.images.kind}; give a source of dicom or nifti"
        yield Problem((*where, "folder"), text)
    for site, site_settings in run.sites.items():
        folder = getattr(site_settings.source, "folder", None)
        line_choices = [getattr(source, "where", None) for source in (pictures.source, site_settings.source)]
        if folder is not None and Path(folder).resolve() == Path(pictures.place).resolve() and not all(line_choices):
            yield Problem(where, f"lies in the folder of {site}, whose patients are not public; give another folder")
