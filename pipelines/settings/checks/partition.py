"""Hospitals that are parts of one source: what of them cannot be dealt out, or would give two of them one patient; and
methods by which hospitals would get each other's models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from federation.algorithm import recipient_of
from pipelines.data.sources import PictureSource, TableSource
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.release.policy import SITES

if TYPE_CHECKING:
    from pipelines.settings.config import Config

ALIKE = ("kind", "of", "seed", "alpha", "classes", "least", "tests")
"""What the parts of one source must say alike, or a patient could be dealt twice."""
DEALT = ("labels", "gland", "exclude", "test")
"""Settings of a site by which its source is dealt out, too."""


def expanded(sites: Mapping[str, SiteSettings]) -> dict[str, SiteSettings]:
    """Every site whose part has no number as all of its parts: <name>-1 to <name>-<of>.

    Raises:
        ValueError: a part would have the name of another site.
    """
    found: dict[str, SiteSettings] = {}
    for name, site in sites.items():
        part = site.part
        if part is None or part.number is not None:
            made = {name: site}
        else:
            numbers = range(1, part.of + 1)
            made = {f"{name}-{number}": replace(site, part=replace(part, number=number)) for number in numbers}
        if twice := sorted({*made} & {*found, *(set(sites) - {name})}):
            raise ValueError(f"sites.{name}.part: its part would be called {twice[0]}, as another site is; rename one")
        found |= made
    return found


def families(sites: Mapping[str, SiteSettings]) -> list[tuple[str, ...]]:
    """Names of the sites that are parts of one source, source by source."""
    found: list[tuple[object, list[str]]] = []
    for name, site in sites.items():
        if site.part is None:
            continue
        same = next((names for source, names in found if source == site.source), None)
        if same is None:
            found.append((site.source, [name]))
        else:
            same.append(name)
    return [tuple(names) for _, names in found]


def shared_patients(config: Config) -> list[str]:
    """Two sites that may have one patient, in training here and in the test there; and parts that make no sense."""
    return [*_pairs(config.sites), *_unfit(config)]


def _pairs(sites: Mapping[str, SiteSettings]) -> Iterator[str]:
    for (other, first), (name, second) in combinations(sites.items(), 2):
        if first.source == second.source:
            yield from _one_source(other, first, name, second)
        elif _overlap(first, second):
            yield (
                f"sites.{name}.source.where: may choose lines that {other} chooses too; give a column of which the two "
                "take different values"
            )


def _one_source(other: str, first: SiteSettings, name: str, second: SiteSettings) -> Iterator[str]:
    if first.part is None and second.part is None:
        if not isinstance(first.source, PhantomSource | Elsewhere):
            yield (
                f"sites.{name}.source: the same as that of {other}; give each hospital its own files, or say of both "
                "which part of this source they have"
            )
        return
    if first.part is None or second.part is None:
        whole, dealt = (other, name) if first.part is None else (name, other)
        yield f"sites.{whole}.part: missing; the same source is dealt out, and {dealt} has a part of it"
        return
    ours, theirs = second.part, first.part
    unlike = [key for key in ALIKE if getattr(ours, key) != getattr(theirs, key)]
    yield from (
        f"sites.{name}.part.{key}: {getattr(ours, key)}, and {getattr(theirs, key)} at {other}; parts of one source "
        "differ in nothing but number, or a patient is dealt twice"
        for key in unlike
    )
    if ours.number == theirs.number and not unlike:
        yield f"sites.{name}.part.number: {ours.number}, which {other} has; two sites would have the same patients"
    yield from (
        f"sites.{name}.{key}: differs from that of {other}; a source must look alike to all of its parts"
        for key in DEALT
        if getattr(first, key) != getattr(second, key)
    )


def _overlap(first: SiteSettings, second: SiteSettings) -> bool:
    """Whether two sources take lines of one table and no column of `where` keeps these apart."""
    a, b = first.source, second.source
    if isinstance(a, TableSource) and isinstance(b, TableSource):
        same = a.file == b.file
    elif isinstance(a, PictureSource) and isinstance(b, PictureSource):
        same = _within(a.folder, b.folder) and a.table == b.table
    else:
        return False
    apart = any(not set(values) & set(b.where[column]) for column, values in a.where.items() if column in b.where)
    return same and not apart


def _within(one: str, other: str) -> bool:
    """Whether two folders are one, or one lies in the other."""
    first, second = Path(one).resolve(), Path(other).resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def _unfit(config: Config) -> Iterator[str]:
    if config.split.folds is not None:
        yield from (
            f"sites.{name}.test: with split.folds a fold is the test; name no test patients, or remove split.folds"
            for name, site in config.sites.items()
            if site.test
        )
    for name, site in config.sites.items():
        if config.independent and site.part is not None and site.part.least > 1:
            yield (
                f"sites.{name}.part.least: {site.part.least} would be reached by looking at all patients, which no "
                "epsilon covers; say least: 1"
            )
        if config.privacy != "none" and site.part is not None and site.part.tests == "source":
            yield (
                f"sites.{name}.part.tests: source makes every part score the same test patients, and each hospital "
                "counts an epsilon of its own for them, which nobody adds up; say tests: own"
            )


def handed_on(config: Config) -> list[str]:
    """Methods that hand what one site says on to all others, where a site's policy does not let them."""
    return [
        f"sites.{name}.policy.recipients: train.methods.{label} ({method.name}) hands what this site says on to all "
        "other sites, and its policy does not let it; say recipients: [coordinator, sites], or leave the method out"
        for name, site in config.sites.items()
        for label, method in config.train.methods.items()
        if name not in config.outside
        and SITES not in site.policy.recipients
        and SITES in (recipient_of(method), recipient_of(config.method(label, name)))
    ]


def told_apart(sites: Mapping[str, SiteSettings], dealing: Mapping[str, object]) -> list[str]:
    """Parts of one source whose hospitals did not deal it out alike, so that a patient may be dealt twice.

    dealing: site -> how its hospital says that the source was dealt out; None where it does not say. Sites that were
    not asked are not there.
    """
    return [
        f"{', '.join(names)}: parts of one source, which did not look alike to all of them, so that a patient may have "
        "been dealt twice; let the files be as they are while they are read, and run again"
        for names in families(sites)
        if len({dealing[name] for name in names if name in dealing}) > 1
    ]
