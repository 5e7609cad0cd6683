"""The groups of classes that installed packages can offer, by the names of their entry points' groups."""

from __future__ import annotations

from collections.abc import Mapping

from federation.features import EXTRACTORS
from federation.models import MODELS
from federation.registry import Group
from harmonize.translation import TRANSLATORS
from personalize import ALGORITHMS
from pipelines.data.readers import READERS

GROUPS: Mapping[str, Group] = {group.group: group for group in (ALGORITHMS, MODELS, TRANSLATORS, EXTRACTORS, READERS)}
"""Entry points are in the groups `consilium.algorithms`, ..."""
