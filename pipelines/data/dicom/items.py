"""Which files of a folder of DICOM belong to which study, and why the others belong to none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.data.accounts import Item
from pipelines.data.dicom.frames import Frame, series_of, text_of
from pipelines.data.dicom.series import selected
from pipelines.data.folder import below
from pipelines.data.index import Candidate
from pipelines.data.pseudonym import normalized
from pipelines.data.study import Rejected
from pipelines.data.unusable import Unusable


def items_of(
    root: Path,
    read: Mapping[Path, list[Frame] | Item | Unusable],
    results: Sequence[tuple[Candidate | Rejected, Sequence[Frame]]],
    select: Mapping[str, str],
) -> list[Item]:
    """Each file with the studies that it is a part of, or why it is of none.

    read: what each file's headers gave: images, or why it is no image, or why it cannot be read. results: what became
    of the images of the chosen series, without those that were not needed.
    """
    parts: dict[Path, dict[str, None]] = {}
    for result, frames in results:
        for frame in frames:
            parts.setdefault(frame.path, {})[result.study] = None
    chosen = {series_of(frame) for _, frames in results for frame in frames}
    items = []
    for path, found in read.items():
        name = below(root, path)
        if isinstance(found, Unusable):
            items.append(Item(name, "part", studies=(name,)))
        elif isinstance(found, Item):
            items.append(found)
        else:
            items.append(_item(name, found[0], tuple(parts.get(path, ())), select, series_of(found[0]) in chosen))
    return items


def _item(name: str, first: Frame, studies: tuple[str, ...], select: Mapping[str, str], chosen: bool) -> Item:
    values = first.values
    patient = normalized(text_of(values.get("PatientID")))
    series = text_of(values.get("SeriesDescription")) or text_of(values.get("ProtocolName"))
    if studies:
        return Item(name, "part", studies, patient, series)
    if chosen and selected(first, select):
        detail = "Its series is used, and this image is not needed to fit ADC."
        return Item(name, "not_selected", (), patient, series, "not_needed", detail)
    told = "; ".join(f"{key} is {text_of(values.get(key)) or 'missing'}" for key in select)
    detail = f"select asks for {', '.join(f'{key}: {text}' for key, text in select.items())}, and {told}."
    return Item(name, "not_selected", (), patient, series, "series_not_selected", detail)
