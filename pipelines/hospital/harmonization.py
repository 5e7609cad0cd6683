"""Shared steps of harmonization at a hospital: images scaled for networks, and private or plain access to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor

from harmonize.elastic import deformed
from harmonize.scale import Progress, Scale
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import COHORT, SPLITS, Hospital, read_cohort_file
from pipelines.hospital.kept import cut_of
from pipelines.hospital.released_counts import need_counts
from pipelines.runs.progress import Shown
from privacy.dp.access import Access, Rows, Split, open_access
from privacy.dp.protection import Protection
from privacy.message import Json
from privacy.release.gate import Refused

SCALE: TypeAdapter[Scale] = TypeAdapter(Scale)


def parsed(adapter: TypeAdapter[Any], said: Json) -> Any:
    """Settings that a coordinator sent, as strictly as YAML. Raises: Refused: `malformed_settings`."""
    try:
        return adapter.validate_json(json.dumps(said), strict=True)
    except ValueError as error:
        raise Refused("malformed_settings") from error


def number(facts: Mapping[str, Json], name: str, low: int, high: int) -> int:
    """A whole number that a coordinator sent. Raises: Refused: `malformed_settings`."""
    found = facts.get(name)
    if type(found) is not int or not low <= found <= high:
        raise Refused("malformed_settings") from ValueError(f"{name} must be in [{low}, {high}], found {found!r}")
    return found


def cohort_in(hospital: Hospital, facts: Mapping[str, Json]) -> Cohort:
    """The requested cohort. Raises: Refused: it holds no 2D images."""
    cohort = read_cohort_file(hospital.cohort_folder(str(facts["cohort"])) / COHORT)
    if cohort.images.dim() != 4:
        raise Refused("not_images") from ValueError("harmonization is for slices and pictures")
    return cohort


def training_rows(cohort: Cohort, facts: Mapping[str, Json]) -> Rows:
    """Training images in [-1, 1], each with its non-rigidly deformed copies, which belong to the same patient.

    A copy depends on its image alone, so the patient stays the unit of privacy.
    """
    scale, copies = parsed(SCALE, facts["scale"]), number(facts, "copies", 1, 64)
    chosen = (cohort.split == SPLITS.index("train")).nonzero()[:, 0]
    images = scale.into(cohort.images[chosen])
    x = deformed(images, copies, seed=number(facts, "seed", 0, 2**62))
    return Rows(x, sides(cohort)[chosen].repeat_interleave(copies), cohort.patient[chosen].repeat_interleave(copies))


def split_rows(cohort: Cohort, scale: Scale, split: Split) -> Rows:
    """One split's images in [-1, 1], as they are."""
    chosen = (cohort.split == SPLITS.index(split)).nonzero()[:, 0]
    return Rows(scale.into(cohort.images[chosen]), sides(cohort)[chosen], cohort.patient[chosen])


def sides(cohort: Cohort) -> Tensor:
    """(n,) 0 = the first class, 1 = any other: the two that public priors draw and that harmonization keeps apart,
    however many the task has.
    """
    return (cohort.labels > 0).long()


def access_to(
    hospital: Hospital, cohort: Cohort, rows: Rows, protection: Protection | None, *, batch: int, seed: int
) -> Access:
    """Access to these rows: private with a protection, otherwise plain."""
    rows = Rows(rows.x.to(hospital.device), rows.y.to(hospital.device), rows.patient.to(hospital.device))
    if protection is None:
        return open_access({"train": rows}, batch=batch, seed=seed)
    from privacy.dp.private_access import open_private  # slow to import

    told = need_counts(hospital)
    sizes = None if told is None else told.sizes()
    return open_private({"train": rows}, replace(protection, cut=cut_of(cohort)), counts=hospital.counts, sizes=sizes)


def telling(hospital: Hospital, step: Shown) -> Progress:
    """A progress callback for long work, which also stops the work on request."""

    def told(done: int, total: int, what: str) -> None:
        hospital.pause()
        step(done, total, what)

    return told
