"""File names of stages' results, for the stages and pages that read them."""

from __future__ import annotations

import json
from pathlib import Path

CENTRAL = "central"
"""The site, in a simulation, that holds the pooled images of all hospitals."""
SCORES = "scores.json"
SYNTHESIS = "synthesis.json"
SHARED = "shared.safetensors"
HOMES = "outside"
"""Folder of the stage `route` with the external sites' counts of their cohorts."""
INDEX = "index.json"
AGREED = "agreed.json"
"""Site -> null, or the code with which it did not let its figures go to tracking tools."""
PAGE, ANSWERS = "report.html", "answers.json"


def target_of(artifact: Path) -> str:
    """The hospital whose images are imitated, from the artifact of the stage `score`."""
    return str(json.loads((artifact / SCORES).read_text())["target"])
