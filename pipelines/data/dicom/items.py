"""For each file below a folder of DICOM: the studies that need it, or the reason why it belongs to none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.data.dicom.choosing import is_selected
from pipelines.data.dicom.frames import series_of
from pipelines.data.folder import relative_name
from pipelines.data.headers import Frame, text_of
from pipelines.data.index import Candidate
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.study import Item, Rejected, Unusable


def list_file_items(
    root: Path,
    read: Mapping[Path, list[Frame] | Item | Unusable],
    results: Sequence[tuple[Candidate | Rejected, Sequence[Frame]]],
    select: Mapping[str, str],
) -> list[Item]:
    """Each file with its studies, or the reason why it belongs to none.

    read: the result of reading each file's headers: images, or why it is not an image or cannot be read. results: the
    outcome of the chosen series, with the images that they need.
    """
    parts: dict[Path, dict[str, None]] = {}
    for result, frames in results:
        for frame in frames:
            parts.setdefault(frame.path, {})[result.study] = None
    chosen_series = {series_of(frame) for _, frames in results for frame in frames}
    items = []
    for path, content in read.items():
        name = relative_name(root, path)
        if isinstance(content, Unusable):
            items.append(Item(name, "part", studies=(name,)))
        elif isinstance(content, Item):
            items.append(content)
        else:
            items.append(
                _build_item(
                    name, content[0], tuple(parts.get(path, ())), select, series_of(content[0]) in chosen_series
                )
            )
    return items


def _build_item(name: str, first: Frame, studies: tuple[str, ...], select: Mapping[str, str], chosen: bool) -> Item:
    """The item of one image file: a part of its studies, or the reason why it is not selected."""
    values = first.values
    patient = normalize_identifier(text_of(values.get("PatientID")))
    series = text_of(values.get("SeriesDescription")) or text_of(values.get("ProtocolName"))
    if studies:
        return Item(name, "part", studies, patient, series)
    if chosen and is_selected(first, select):
        detail = "Its series is used, and this image is not needed to fit ADC."
        return Item(name, "not_selected", (), patient, series, "not_needed", detail)
    header_texts = "; ".join(f"{key} is {text_of(values.get(key)) or 'missing'}" for key in select)
    detail = f"select asks for {', '.join(f'{key}: {text}' for key, text in select.items())}, and {header_texts}."
    return Item(name, "not_selected", (), patient, series, "series_not_selected", detail)
