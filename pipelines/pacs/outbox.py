"""What a file is that is handed over: its SOP class, its SOP instance, and how it is encoded."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pydicom

from pipelines.pacs.archive import Odd, is_uid
from privacy.deidentify.quiet import silence_warnings
from privacy.system_errors import of_machine


class Outgoing(NamedTuple):
    """UIDs of a file: SOP class, SOP instance, transfer syntax."""

    sop_class: str
    instance: str
    syntax: str


def read_outgoing(path: Path) -> Outgoing | Odd:
    """The UIDs of a file; Odd (`not_dicom`) if it is no DICOM file or lacks one.

    Raises:
        OSError: the disk.
    """
    try:
        with silence_warnings():
            dataset = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["SOPClassUID", "SOPInstanceUID"])
        syntax = dataset.file_meta.get("TransferSyntaxUID", "")
        uids = Outgoing(*(str(text) for text in (dataset.SOPClassUID, dataset.SOPInstanceUID, syntax)))
    except Exception as error:  # parsers raise exceptions of many types on damaged files
        if isinstance(error, OSError) or of_machine(error):
            raise
        return Odd("", "not_dicom", f"it cannot be read as DICOM ({type(error).__name__}); it was not sent")
    if not all(is_uid(text) for text in uids):
        return Odd("", "not_dicom", "SOP class, SOP instance or transfer syntax is no UID; it was not sent")
    return uids
