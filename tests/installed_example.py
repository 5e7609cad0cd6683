"""The package in tests/plugin, as pip would leave it in a folder: for tests that need no environment of their own."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

from federation import installed
from federation.installed import Offer

SOURCE = Path(__file__).parent / "plugin"
NAME = "consilium-example"


def installed_in(folder: Path) -> Offer:
    """Its files and what pip writes beside them. Returns the offer of its method; the folder must be on sys.path."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    shutil.copytree(SOURCE / "consilium_example", folder / "consilium_example", ignore=lambda *_: ["__pycache__"])
    info = folder / f"consilium_example-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {project['version']}\n")
    points = [
        line
        for group, names in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")
    files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    installed.forget_packages()
    return next(offer for offer in installed.list_offers("algorithms") if offer.distribution == NAME)


def removed() -> None:
    """Forget the package's code."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "consilium_example"]:
        del sys.modules[name]
    installed.forget_packages()
