"""How a folder of new studies is found: as the training images were, but for what the command line says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from pipelines.data.sources import DicomSource, Files, NiftiSource, Unit


def source_of(
    known: Files, folder: str, *, kind: str | None, select: Sequence[str], unit: str | None, learnt: str
) -> DicomSource | NiftiSource:
    """How to find a folder's studies.

    known: how the training images were found. kind, select, unit: as the command line says, KEYWORD=TEXT each of
    `select`. learnt: what learnt from the training images, as in "model".

    A unit in the training settings was said of the files that those settings chose. It holds for new ones as long as
    nothing else is chosen; with another kind or selection the new files must say for themselves what they are, or
    `unit` must.

    Raises:
        ValueError: what is said does not suffice, or does not fit.
    """
    wrong = [text for text in select if "=" not in text]
    if wrong:
        raise ValueError(f"--select: {wrong[0]!r} is not KEYWORD=TEXT, as in --select ImageType=ADC")
    chosen = dict(text.split("=", 1) for text in select)
    said = None if unit is None else cast(Unit, unit)
    if (kind or known.kind) == "nifti":
        same = known if isinstance(known, NiftiSource) else NiftiSource(folder=".")
        return replace(same, folder=folder, unit=said or same.unit)
    if not chosen and not isinstance(known, DicomSource):
        raise ValueError(
            f"this {learnt} did not learn from DICOM, so it does not say which series are its kind; give --select, as "
            "in --select ImageType=ADC"
        )
    base = known if isinstance(known, DicomSource) else DicomSource(folder=".")
    meant = base.unit if not chosen or chosen == dict(base.select) else "auto"
    return replace(base, folder=folder, select=chosen or base.select, unit=said or meant)
