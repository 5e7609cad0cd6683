"""Words of a hospital's page: names of examples."""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.wording import Words

WORDS: Mapping[str, Words] = {
    "slices": Words("slice", "slices", "study", "studies"),
    "volumes": Words("volume", "volumes", "study", "studies"),
    "pictures": Words("picture", "pictures", "picture", "pictures"),
    "tensors": Words("example", "examples", "example", "examples"),
    "features": Words("line", "lines", "line", "lines", looked_at=False),
}
"""Kind of example -> what it is called."""
