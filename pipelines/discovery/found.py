"""The detected contents of a folder, from which a configuration is written. All text in it may be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Sort: TypeAlias = Literal["dicom", "nifti", "pictures"]
Group: TypeAlias = Mapping[str, Any]
"""A group of settings, as YAML holds it."""


@dataclass(frozen=True)
class Site:
    """One hospital. labels: the chosen labels. alternatives: to these. missing: settings that the user must fill in,
    as sentences, because they cannot be derived from the files.
    """

    name: str
    root: Path
    source: Group
    labels: Group | None
    gland: Group | None
    alternatives: tuple[Group, ...] = ()
    patients: int = 0
    studies: int = 0
    images: int = 0
    scanners: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Discovery:
    """sort: of the images; None if there are none. rows: kinds of series, for the table on the terminal. task: None =
    labels 0 and 1. channels: of pictures with masks.
    """

    sort: Sort | None
    sites: tuple[Site, ...] = ()
    doubts: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    task: Group | None = None
    channels: int = 1

    @property
    def of_masks(self) -> bool:
        """Whether label maps are learnt."""
        return self.task is not None and self.task.get("kind") == "segmentation"

    @property
    def complete(self) -> bool:
        """Whether the settings need no additions by the user."""
        return self.sort is not None and not any(site.missing for site in self.sites)
