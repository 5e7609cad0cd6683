"""Where scripts find data, keep what they measured, and write tables and pictures."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("CONSILIUM_DATA", ROOT.parent / "shared/data"))
"""Data sets that lie outside the repository."""
BUILD = ROOT / "build"
"""What can be made again."""
MEASURED = ROOT / "benchmarks/measured"
TABLES = ROOT / "docs/results/data"
PICTURES = ROOT / "docs/pictures"
