"""Source settings for a folder of new studies: those of the training images, changed by the command line's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from pipelines.data.sources import DicomSource, Files, NiftiSource, Unit


def adapt_source(
    known: Files, folder: str, *, kind: str | None, select: Sequence[str], unit: str | None, trained_name: str
) -> DicomSource | NiftiSource:
    """The source settings for a folder of new studies.

    known: the source of the training images. kind, select, unit: options of the command line; each of `select` is
    KEYWORD=TEXT. trained_name: what was trained on these images, for messages, as in "model".

    A unit in the training settings describes the files that those settings selected. It applies to new files only with
    the same kind and selection; with others, the headers of the new files or `unit` must give the unit.

    Raises:
        ValueError: the options are incomplete or contradict each other.
    """
    wrong = [text for text in select if "=" not in text]
    if wrong:
        raise ValueError(f"--select: {wrong[0]!r} is not KEYWORD=TEXT, as in --select kind=adc")
    chosen_texts = dict(text.split("=", 1) for text in select)
    stated_unit = None if unit is None else cast(Unit, unit)
    if (kind or known.kind) == "nifti":
        nifti_source = known if isinstance(known, NiftiSource) else NiftiSource(folder=".")
        return replace(nifti_source, folder=folder, unit=stated_unit or nifti_source.unit)
    if not chosen_texts and not isinstance(known, DicomSource):
        raise ValueError(
            f"this {trained_name} did not learn from DICOM, so it does not say which series are its kind; give"
            " --select, as in --select kind=adc"
        )
    dicom_source = known if isinstance(known, DicomSource) else DicomSource(folder=".")
    kept_unit = dicom_source.unit if not chosen_texts or chosen_texts == dict(dicom_source.select) else "auto"
    return replace(
        dicom_source, folder=folder, select=chosen_texts or dicom_source.select, unit=stated_unit or kept_unit
    )
