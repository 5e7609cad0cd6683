"""Programs of other projects that tests call, found by what they are and not by their name alone."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from pathlib import Path


@cache
def find_dcmtk(name: str) -> str | None:
    """The path of a program of dcmtk or dicom3tools, or None.

    pynetdicom brings programs of the same names (`storescu`, `echoscu`, …) with other options, and an environment that
    is activated stands first on the PATH.
    """
    ours = {Path(sys.executable).parent.resolve(), Path(sys.prefix, "bin").resolve()}
    places = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    return shutil.which(name, path=os.pathsep.join(part for part in places if Path(part).resolve() not in ours))
