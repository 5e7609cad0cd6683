"""What belongs to the project in its root, as the project declares it: never what happens to lie there.

A run leaves `runs/`, a build leaves `build/`, and users keep settings, programs and patients beside them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
ROOMS: tuple[str, ...] = tuple(
    sorted(pattern.removesuffix("*") for pattern in _TOOLS["setuptools"]["packages"]["find"]["include"])
)
"""The packages."""
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "tests")
"""The other folders."""
FILES = (
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md"),
    *("SECURITY.md", "constraints.txt", "mkdocs.yml", "pyproject.toml"),
)
"""The files of the root itself."""
