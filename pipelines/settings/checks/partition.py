"""Checks of sites that are parts of one source, so that no patient is at two sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from pipelines.data.label_findings import name_finding_bands
from pipelines.data.label_numbers import BANDS
from pipelines.data.sources import PictureSource, TableSource
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.run_settings import RunSettings
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.settings_error import Problem, SettingsError

SHARED_KEYS = ("kind", "of", "seed", "alpha", "classes", "least", "tests")
"""Settings of parts. They must be equal for all parts of one source, or a patient could be in two parts."""
PARTITION_KEYS = ("labels", "gland", "exclude", "test")
"""Further settings of a site that affect how its source is partitioned."""


def expand_parts(sites: Mapping[str, SiteSettings]) -> dict[str, SiteSettings]:
    """The sites, with each site whose part has no number replaced by all its parts: <name>-1 to <name>-<of>.

    Raises:
        SettingsError: a part would have the name of another site.
    """
    expanded_sites: dict[str, SiteSettings] = {}
    for name, site in sites.items():
        part = site.part
        if part is None or part.number is not None:
            site_parts = {name: site}
        else:
            numbers = range(1, part.of + 1)
            site_parts = {f"{name}-{number}": replace(site, part=replace(part, number=number)) for number in numbers}
        if taken_names := sorted({*site_parts} & {*expanded_sites, *(set(sites) - {name})}):
            text = f"its part would be called {taken_names[0]}, as another site is; rename one"
            raise SettingsError([Problem(("sites", name, "part"), text)])
        expanded_sites |= site_parts
    return expanded_sites


def group_parts(sites: Mapping[str, SiteSettings]) -> list[tuple[str, ...]]:
    """Names of the sites that are parts of one source, source by source."""
    groups: list[tuple[object, list[str]]] = []
    for name, site in sites.items():
        if site.part is None:
            continue
        group = next((names for source, names in groups if source == site.source), None)
        if group is None:
            groups.append((site.source, [name]))
        else:
            group.append(name)
    return [tuple(names) for _, names in groups]


def problems(run: RunSettings) -> Iterator[Problem]:
    """Pairs of sites that may share a patient, and invalid parts."""
    for (other, first), (name, second) in combinations(run.sites.items(), 2):
        if first.source == second.source:
            yield from _same_source_problems(other, first, name, second)
        elif _sources_overlap(first, second):
            text = f"may choose lines that {other} chooses too; give a column of which the two take different values"
            yield Problem(("sites", name, "source", "where"), text, needs=(("sites", other, "source"),))
    yield from _part_problems(run)


def _same_source_problems(other: str, first: SiteSettings, name: str, second: SiteSettings) -> Iterator[Problem]:
    """Problems of two sites with the same source: it is not partitioned, or its parts do not fit together."""
    if first.part is None and second.part is None:
        if not isinstance(first.source, PhantomSource | Elsewhere):
            yield Problem(
                ("sites", name, "source"),
                f"the same as that of {other}; give each hospital its own files, or say of both which part of this "
                "source they have",
                needs=(("sites", other, "source"), ("sites", other, "part")),
            )
        return
    if first.part is None or second.part is None:
        undivided, divided = (other, name) if first.part is None else (name, other)
        text = f"missing; the same source is dealt out, and {divided} has a part of it"
        yield Problem(("sites", undivided, "part"), text, needs=(("sites", divided),))
        return
    second_part, first_part = second.part, first.part
    unequal_keys = [key for key in SHARED_KEYS if getattr(second_part, key) != getattr(first_part, key)]
    for key in unequal_keys:
        text = f"{getattr(second_part, key)}, and {getattr(first_part, key)} at {other}; parts of one source differ in "
        yield Problem(
            ("sites", name, "part", key),
            f"{text}nothing but number, or a patient is dealt twice",
            needs=(("sites", other),),
        )
    if second_part.number == first_part.number and not unequal_keys:
        text = f"{second_part.number}, which {other} has; two sites would have the same patients"
        yield Problem(("sites", name, "part", "number"), text, needs=(("sites", other),))
    for key in PARTITION_KEYS:
        if getattr(first, key) != getattr(second, key):
            text = f"differs from that of {other}; a source must look alike to all of its parts"
            yield Problem(("sites", name, key), text, needs=(("sites", other),))


def _sources_overlap(first: SiteSettings, second: SiteSettings) -> bool:
    """Whether two sources take lines of one table and no column of `where` separates them."""
    a, b = first.source, second.source
    if isinstance(a, TableSource) and isinstance(b, TableSource):
        same = a.file == b.file
    elif isinstance(a, PictureSource) and isinstance(b, PictureSource):
        same = _is_within(a.folder, b.folder) and a.table == b.table
    else:
        return False
    are_disjoint = any(
        not set(values) & set(b.where[column]) for column, values in a.where.items() if column in b.where
    )
    return same and not are_disjoint


def _is_within(folder: str, other_folder: str) -> bool:
    """Whether two folders are the same, or one contains the other."""
    first, second = Path(folder).resolve(), Path(other_folder).resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def _part_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of a site's part and test patients with the run's classes, folds and privacy."""
    counts = {"classification": len(run.task.classes), "regression": BANDS}
    counts["findings"] = len(name_finding_bands(len(run.task.findings)))
    class_count = max(2, counts.get(run.task.kind, 2))
    for name, site in run.sites.items():
        if site.part is not None and (site.part.classes or 1) > class_count:
            text = (
                f"must be in [1, {class_count}], since patients have {class_count} classes; found {site.part.classes}"
            )
            yield Problem(("sites", name, "part", "classes"), text)
        if run.split.folds is not None and site.test:
            text = "with split.folds a fold is the test; name no test patients, or remove split.folds"
            yield Problem(("sites", name, "test"), text)
        if run.independent and site.part is not None and site.part.least > 1:
            text = f"{site.part.least} would be reached by looking at all patients, which no epsilon covers; say "
            yield Problem(("sites", name, "part", "least"), f"{text}least: 1")
        if run.privacy != "none" and site.part is not None and site.part.tests == "source":
            yield Problem(
                ("sites", name, "part", "tests"),
                "source makes every part score the same test patients, and each hospital counts an epsilon of its own "
                "for them, which nobody adds up; say tests: own",
            )


def find_partition_differences(sites: Mapping[str, SiteSettings], partition_digests: Mapping[str, object]) -> list[str]:
    """A sentence for each source that its hospitals partitioned differently, so that a patient may be in two parts.

    dealing: site -> the hospital's digest of the partition; None if it gave none. Other sites are missing.
    """
    return [
        f"{', '.join(names)}: parts of one source, which did not look alike to all of them, so that a patient may have "
        "been dealt twice; let the files be as they are while they are read, and run again"
        for names in group_parts(sites)
        if len({partition_digests[name] for name in names if name in partition_digests}) > 1
    ]
