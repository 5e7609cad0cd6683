"""Settings of an archive (PACS) whose series are a hospital's training images. This module has no client.

Matching series are first copied into a cache (`pipelines.data.archive_cache`), which is then read like a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, ClassVar, Literal, TypeAlias

from pipelines.data.sources import DicomSource, Unit
from pipelines.pacs.archive import Query
from pipelines.pacs.settings import DicomNode, DicomWeb
from privacy.deidentify.layouts import Layout
from privacy.message import Json
from privacy.settings_error import Problem, SettingsError, out_of_range, refuse


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which series are learnt from, as in `pipelines.pacs.archive.Query`. since, until: days of the study, as in
    2025-01-31, both included; without `until` the cohort grows with the archive.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    modality: str = ""
    description: str = ""
    since: str | None = None
    until: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.query

    @property
    def query(self) -> Query:
        """These settings as a query to an archive. Raises: SettingsError."""
        since, until = (_parse_day(name, getattr(self, name)) for name in ("since", "until"))
        return Query(
            modality=self.modality, description=self.description, since=since, until=until, more=dict(self.more)
        )


@dataclass(frozen=True, kw_only=True)
class DicomWebSource(DicomWeb):
    """An archive over DICOMweb. query: the series that are copied into the cache. cache_gib: most that the hospital's
    caches may hold; that of another query makes room. select, unit, derive, lossy, blank: as in `DicomSource`.
    """

    query: Asked = field(default_factory=Asked)
    cache_gib: float = 100.0
    select: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = "auto"
    derive: Literal["none", "adc"] = "none"
    lossy: Literal["refuse", "allow"] = "refuse"
    blank: tuple[Layout, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(out_of_range(self, cache_gib=(0.001, 100_000)))
        build_folder_source(self, ".")


@dataclass(frozen=True, kw_only=True)
class DicomNodeSource(DicomNode):
    """An archive over DICOM's own protocol; the other keys as in `DicomWebSource`."""

    query: Asked = field(default_factory=Asked)
    cache_gib: float = 100.0
    select: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = "auto"
    derive: Literal["none", "adc"] = "none"
    lossy: Literal["refuse", "allow"] = "refuse"
    blank: tuple[Layout, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(out_of_range(self, cache_gib=(0.001, 100_000)))
        build_folder_source(self, ".")


ArchiveSource: TypeAlias = DicomWebSource | DicomNodeSource


def build_folder_source(source: ArchiveSource, folder: str) -> DicomSource:
    """The source of the series copied into a folder. Raises: SettingsError: of `select`, `unit` or `blank`."""
    return DicomSource(
        folder=folder,
        select=source.select,
        unit=source.unit,
        derive=source.derive,
        lossy=source.lossy,
        blank=source.blank,
    )


def describe_query(source: ArchiveSource) -> Json:
    """The archive and the query, without settings that only concern the connection: credentials, limits, paths."""
    address = source.url if isinstance(source, DicomWebSource) else f"{source.called}@{source.host}:{source.port}"
    query = source.query
    return {
        "archive": address,
        "modality": query.modality,
        "description": query.description,
        "since": query.since,
        "until": query.until,
        "more": dict(sorted(query.more.items())),
    }


def _parse_day(name: str, text: str | None) -> date | None:
    """The day of an ISO date; None for None. Raises: SettingsError."""
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise SettingsError([Problem((name,), f"must be a day, as in 2025-01-31, found {text!r}")]) from None
