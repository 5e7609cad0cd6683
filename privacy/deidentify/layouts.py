"""Rectangles of text in images, for each screen layout: manufacturer, model, rows and columns.

A rectangle that covers the name on one machine's screen misses it on another's, so none is used for any other layout.
Its corners are named, without an order: `{top: 0, left: 0, bottom: 60, right: 960}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from privacy.settings_error import Problem, refuse

if TYPE_CHECKING:
    from pydicom.dataset import Dataset  # slow to import, and layouts are settings

FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Rectangle:
    """Pixels from row `top` and column `left` up to, but without, row `bottom` and column `right`; from 0.

    A layout checks its rectangles, because only there the size of the image is known.
    """

    __pydantic_config__: ClassVar = FORBID

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The rectangles of all images of one machine and size; manufacturer and model as in the header, "" if absent.

    Case and surrounding blanks do not matter. Without rectangles the layout is known, but not the place of its text.

    Raises:
        ValueError: a size below 1, or a rectangle that is not inside or has no pixel; one message names all.
    """

    __pydantic_config__: ClassVar = FORBID

    manufacturer: str
    model: str
    rows: int
    columns: int
    rectangles: tuple[Rectangle, ...]

    def __post_init__(self) -> None:
        """Check every rectangle."""
        problems = [
            Problem((name,), f"must be 1 to 65535, found {size}")
            for name, size in (("rows", self.rows), ("columns", self.columns))
            if not 1 <= size <= 65535
        ]
        for place, box in enumerate(self.rectangles):
            for first, low, last, high, name, size in (
                ("top", box.top, "bottom", box.bottom, "rows", self.rows),
                ("left", box.left, "right", box.right, "columns", self.columns),
            ):
                where = ("rectangles", place)
                if low < 0:
                    problems.append(Problem((*where, first), f"must be >= 0, found {low}"))
                if high <= low:
                    problems.append(Problem((*where, last), f"must be more than {first}, {low}, found {high}"))
                if high > size:
                    text = f"must be at most {size}, the {name} of the image, found {high}"
                    problems.append(Problem((*where, last), text))
        refuse(problems)

    @property
    def kind(self) -> tuple[str, str, int, int]:
        """The key by which images are matched to this layout."""
        return layout_key(self.manufacturer, self.model, self.rows, self.columns)


def layout_key(manufacturer: object, model: object, rows: object, columns: object) -> tuple[str, str, int, int]:
    """The same key for all images of one layout."""
    size = [int(str(side)) if str(side or "").isdecimal() else 0 for side in (rows, columns)]
    return _fold_text(manufacturer), _fold_text(model), size[0], size[1]


def kind_of(dataset: Dataset) -> tuple[str, str, int, int]:
    """The key of an image; an unreadable attribute counts as absent."""
    return layout_key(
        *(_read_value(dataset, keyword) for keyword in ("Manufacturer", "ManufacturerModelName", "Rows", "Columns"))
    )


def layout_problems(layouts: Sequence[Layout], name: str) -> list[Problem]:
    """Layouts that are listed twice. name: of the list."""
    seen: dict[tuple[str, str, int, int], int] = {}
    return [
        Problem((name, place), f"the same layout as {name}[{first}]; put its rectangles there")
        for place, layout in enumerate(layouts)
        if (first := seen.setdefault(layout.kind, place)) != place
    ]


def rectangles_of(layouts: Sequence[Layout], kind: tuple[str, str, int, int]) -> tuple[Rectangle, ...]:
    """The rectangles for images of a kind; empty if none are given."""
    return next((layout.rectangles for layout in layouts if layout.kind == kind), ())


def _fold_text(text: object) -> str:
    """Text in one case, with single blanks; None is empty."""
    return " ".join(str(text or "").casefold().split())


def _read_value(dataset: Dataset, keyword: str) -> object:
    """An attribute's value; None if it is missing or cannot be read."""
    try:
        return dataset.get(keyword)
    except Exception:  # damaged files raise all kinds of exceptions
        return None
