"""Encode a note that rejects results which a newer one replaces: a Key Object Selection of IHE's Imaging Object Change
Management (RAD TF-2, 4.66), by highdicom.

Its title is (113001, DCM, "Rejected for Quality Reasons"). Of the titles that reject images it is the one that fits:
the others say that a patient might be harmed (113037), that a wrong worklist entry was used (113038) or that the time
of keeping is over (113039). An archive that knows such notes hides the objects; another shows the note next to them,
with a sentence on its meaning. Reports need none: a new report names the one that it replaces.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.uid import SecondaryCaptureImageStorage, SegmentationStorage

from pipelines.data.headers import Stack
from pipelines.data.index import convert_read_errors
from pipelines.data.writing.dicom_source import (
    NOTICE,
    Pseudonymous,
    ResultMaker,
    assign_to_study,
    check_leftovers,
    equipment_elements,
    read_image_headers,
    series_number,
    shift_maker_time,
    strip_identity,
)
from privacy.deidentify.keyed import new_uid

SERIES_NUMBER = 9300
"""Added to the series number of the images."""
IMAGES = (SegmentationStorage, SecondaryCaptureImageStorage)
"""Results that a note refers to as images; others are composite objects."""
WHY = f"Replaced by a newer result of the same model, since the images have changed. {NOTICE}"


def rejection_bytes(
    replaced: Sequence[Dataset], images: Stack, maker: ResultMaker, *, pseudonymous: Pseudonymous | None = None
) -> bytes:
    """A rejection note, as a file, in the study of the images.

    replaced: the results, or SOP class and the UIDs of instance and series of each. images, pseudonymous: as for the
    results themselves.

    Raises:
        ValueError: nothing is replaced.
        Unusable: as of `report_bytes`.
    """
    if not replaced:
        raise ValueError("replaced: empty; a note rejects at least one result")
    from highdicom.ko import KeyObjectSelection, KeyObjectSelectionDocument  # slow to import

    frames = images.volumes[0]
    with convert_read_errors(frames[0].path.name):
        source = read_image_headers(frames[:1], pseudonymous)
        maker = shift_maker_time(maker, source, pseudonymous)
        references = [
            _build_reference(result, source.first)
            for result in sorted(replaced, key=lambda result: str(result.SOPInstanceUID))
        ]
        replaced_digest = hashlib.sha256(
            "/".join(str(result.SOPInstanceUID) for result in references).encode()
        ).hexdigest()
        uid_text = (
            f"rejection/{source.first.SeriesInstanceUID}/{maker.digest}/{maker.when.isoformat()}/{replaced_digest}"
        )
        made = KeyObjectSelectionDocument(
            evidence=references,
            content=KeyObjectSelection(
                document_title=codes.DCM.RejectedForQualityReasons, referenced_objects=references, description=WHY
            ),
            series_instance_uid=new_uid(maker.key, f"series/{uid_text}"),
            series_number=series_number(source.first, SERIES_NUMBER),
            sop_instance_uid=new_uid(maker.key, f"instance/{uid_text}"),
            instance_number=1,
            **equipment_elements(maker),
            series_description="Replaced results, research use only",
            content_date=maker.when.date(),
            content_time=maker.when.time(),
        )
        assign_to_study(made, source, maker)
        made.SeriesDate, made.SeriesTime = made.ContentDate, made.ContentTime
        data = io.BytesIO()
        made.save_as(data, enforce_file_format=True)
    return check_leftovers(data.getvalue(), source)


def _build_reference(result: Dataset, header: Dataset) -> Dataset:
    """A result in the form that the library expects: in the study, with its own UIDs, and a size if it is an image."""
    made = strip_identity(header)
    if result.SOPClassUID not in IMAGES:
        made.pop("Rows", None)
    made.SOPClassUID, made.SOPInstanceUID = result.SOPClassUID, result.SOPInstanceUID
    made.SeriesInstanceUID = result.SeriesInstanceUID
    return made
