"""Each hospital's cohort in an image space: its own (raw), a translated one, or one with synthetic images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypedDict

from federation.models import OnFeatures
from federation.origins import PACKAGES, code_identity
from harmonize.scale import Scale
from pipelines.coordinator.artifacts import read_counts, read_records
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.requests.fields import CohortName, KeyedDigest, Packages
from pipelines.requests.holds import Holds
from pipelines.runs.listing import list_paths
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW, default_scale
from pipelines.settings.image_spaces import features_name, image_space
from privacy.message import Json, as_mapping
from privacy.release.form import ABSENT, Absent


@dataclass(frozen=True)
class SiteCohort:
    """A cohort that a hospital made. cohort: its name there; sha256: keyed digest of its bytes."""

    cohort: CohortName
    sha256: KeyedDigest


Cohorts: TypeAlias = Mapping[str, SiteCohort]
"""Cohorts by site."""


class Common(TypedDict):
    """What every question of harmonization holds, whichever cohort it is about: `pipelines.requests.harmonizing`."""

    scale: Scale
    copies: int
    seed: int
    private: bool
    packages: Packages | Absent


def build_common_part(world: World) -> Common:
    """Value scale, deformed copies, seed, privacy, and packages that take part."""
    config = world.config
    packages = code_identity(config.harmonize_settings).get(PACKAGES)
    return {
        "scale": config.harmonize_settings.scale or default_scale(config.images),
        "copies": config.harmonize_settings.copies,
        "seed": config.seed,
        "private": config.privacy != "none",
        "packages": {str(source): str(code) for source, code in as_mapping(packages).items()} or ABSENT,
    }


def common_settings(world: World) -> dict[str, Json]:
    """The same as settings of a stage."""
    return {name: to_plain(value) for name, value in build_common_part(world).items() if not isinstance(value, Absent)}


def read_cohorts(inputs: Mapping[str, Path], space: str) -> Cohorts:
    """Cohorts of all sites in a space, from the artifacts of `ingest`, `translate` and `augment`.

    A hospital that vetoed its translation keeps its raw cohort in this space.
    """
    raw = {site: SiteCohort(counts.cohort, counts.sha256) for site, counts in read_counts(inputs["ingest"]).items()}
    if space == RAW:
        return raw
    made = next(path for path in _list_space_files(inputs) if path.name == f"{space}.json")
    return {**raw, **read_records(SiteCohort, made)}


def find_cohort_complaint(world: World, file: Path) -> str | None:
    """A complaint unless every site still holds the cohort that this file of an artifact names."""
    cohorts = read_records(SiteCohort, file)
    return world.find_complaint({site: Holds(cohort=each.cohort, sha256=each.sha256) for site, each in cohorts.items()})


def _list_space_files(inputs: Mapping[str, Path]) -> Iterator[Path]:
    """The answers of all hospitals about each space besides the raw one."""
    for stage in ("translate", "augment"):
        if stage in inputs:
            yield from list_paths(inputs[stage], "*.json")


def read_cohorts_of_method(config: Config, inputs: Mapping[str, Path], label: str) -> Cohorts:
    """Cohorts of all sites in the space of a method, or of the features of their images on which its model is built."""
    space, model = image_space(config, label), config.model_of(label)
    cohorts = read_cohorts(inputs, space)
    if not isinstance(model, OnFeatures):
        return cohorts
    return {**cohorts, **read_records(SiteCohort, inputs["features"] / f"{features_name(space, model)}.json")}


def window_of(world: World) -> tuple[int, ...] | None:
    """Sides of a segmentation network's input window; None: whole images, or classification."""
    return world.config.evaluate.window
