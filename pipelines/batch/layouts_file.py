"""The file of `--blank`: the rectangles with text in the images of each layout. If there is no file, a draft is
made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydicom.dataset import Dataset

from pipelines.loader.document import ConfigError, read_yaml, render
from pipelines.loader.validation import validate_settings
from privacy.deidentify.layouts import FORBID, Layout, layout_problems
from privacy.durable import write_once
from privacy.settings_error import refuse

NUMBERS = re.compile(r"\s*-?\d+(\s*,\s*-?\d+){3}\s*")
DRAFT = """\
# Where text stands in the images of each layout: pixels from row `top` and column `left` up to row `bottom` and column
# `right`, which are outside; rows and columns count from 0. Look at the contact sheet, write rectangles as in
#     - {top: 0, left: 0, bottom: 60, right: 960}
# and run the same command again. This file may hold what somebody typed into a header: it stays in the hospital.
layouts:
"""


@dataclass(frozen=True, kw_only=True)
class LayoutsFile:
    """The file's contents."""

    __pydantic_config__: ClassVar = FORBID

    layouts: tuple[Layout, ...]

    def __post_init__(self) -> None:
        """Refuse duplicate layouts."""
        refuse(layout_problems(self.layouts, "layouts"))


def read_layouts(name: str) -> tuple[Layout, ...]:
    """The layouts of a file; none if there is no file yet.

    Raises:
        ValueError: lists all problems of the file.
    """
    if NUMBERS.fullmatch(name):
        raise ValueError(
            f"--blank: {name!r} is a rectangle, and one rectangle does not fit all images; give a file that names "
            "rectangles for each layout. If there is none of that name, a draft is made"
        )
    try:
        text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--blank: {name!r} cannot be read ({type(error).__name__}); give a YAML file") from None
    try:
        return validate_settings(read_yaml(text, environment={}), LayoutsFile).layouts
    except ConfigError as error:
        raise ValueError(render(error, name)) from None


def write_draft(path: Path, entries: Sequence[str]) -> None:
    """Write a file of layouts that only its owner can read.

    Raises:
        OSError: the disk, or the file exists.
    """
    write_once(path, (DRAFT + "".join(entries)).encode())


def format_layout_entry(image: Dataset) -> str:
    """The file's entry for an image's layout, without rectangles."""
    maker, model = (json.dumps(str(image.get(key) or "")) for key in ("Manufacturer", "ManufacturerModelName"))
    return (
        f"  - manufacturer: {maker}\n    model: {model}\n    rows: {int(image.Rows)}\n"
        f"    columns: {int(image.Columns)}\n    rectangles: []\n"
    )
