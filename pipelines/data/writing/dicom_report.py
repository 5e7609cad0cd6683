"""Encode what a model found in a series as a DICOM report: TID 1500 of PS3.16, Comprehensive SR, by highdicom.

A report has one measurement group (TID 1501): the score as a probability with the image where it was highest, the class
or positive and negative with the threshold, or in their place a number with its unit in UCUM, or several findings, each
with its probability and positive or negative; whether the study is unlike those that the model learnt from, with
distance and p-value; and the model: its name, the digest of its file, and the version of Consilium. The document says
twice that it is for research only. It is complete, preliminary and unverified, for no person has looked at it. Every
image that was read is among its evidence.

Concepts without a public code are of the scheme 99CONSILIUM; their meanings stand beside the codes.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code

from pipelines.data.dicom.concepts import LONGEST_CODE, LONGEST_MEANING, SCHEME, SCHEME_NAME
from pipelines.data.headers import Frame, Stack
from pipelines.data.index import convert_read_errors
from pipelines.data.study import Unusable
from pipelines.data.writing.dicom_source import (
    NOTICE,
    PUBLISHER,
    Images,
    Pseudonymous,
    ResultMaker,
    assign_to_study,
    check_leftovers,
    copy_uids,
    describe_series,
    equipment_elements,
    read_image_headers,
    series_number,
    shift_maker_time,
    strip_identity,
)
from pipelines.loader.command_line import installed_version
from privacy.deidentify.keyed import new_uid

if TYPE_CHECKING:
    from highdicom.sr import (
        AlgorithmIdentification,
        ComprehensiveSR,
        Measurement,
        MeasurementReport,
        ObserverContext,
        QualitativeEvaluation,
    )

SERIES_NUMBER = 9100
"""Added to the series number of the images; segmentations have 9000."""
UNLIKE = Code("unlike_training", SCHEME, "Unlike the studies that the model learnt from")
CLASS = Code("class", SCHEME, "Class by the model")
THRESHOLD = Code("threshold", SCHEME, "Score from which the model calls a study positive")
DISTANCE = Code("distance", SCHEME, "Distance from training studies, as multiple of its limit")
P_VALUE = Code("p_value", SCHEME, "Share of training studies as far away")
EXAMPLES = Code("examples", SCHEME, "Number of images that were scored")
SHARE = Code("{0:1}", "UCUM", "range: 0:1")
UNITS = {  # annotations that read well where a viewer shows the code
    THRESHOLD: SHARE,
    DISTANCE: Code("{ratio}", "UCUM", "ratio"),
    P_VALUE: SHARE,
    EXAMPLES: Code("{images}", "UCUM", "images"),
}


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A predicted number, the mean over a study's examples. what: in words. unit: of UCUM. low, high: of its range."""

    what: str
    unit: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A model's result for one study.

    name: the class, or positive or negative. positive: None for more than two classes. score: the probability by which
    positive was decided, at `threshold`. classes: name -> probability, of more than two classes. quantity: the number
    that was predicted in their place. several: finding -> probability, where there are several; positive is then
    whether any reaches `threshold`. examples: how many were scored. unlike, distance, p_value: as in the table of
    predictions; None if unknown.
    """

    name: str
    positive: bool | None = None
    score: float | None = None
    threshold: float | None = None
    classes: Mapping[str, float] = field(default_factory=dict)
    quantity: Quantity | None = None
    several: Mapping[str, float] = field(default_factory=dict)
    examples: int = 1
    unlike: bool | None = None
    distance: float | None = None
    p_value: float | None = None


def report_bytes(
    finding: Finding,
    images: Stack,
    highest: Frame | None,
    maker: ResultMaker,
    *,
    pseudonymous: Pseudonymous | None = None,
    predecessor: Dataset | None = None,
) -> bytes:
    """A structured report of one finding, as a file.

    images: the stack that was scored, from `pipelines.data.dicom.reader`. highest: its image where the score was
    highest; None where that is no single image. pseudonymous: None = patient and study are those of the images.
    predecessor: the report that this one replaces, or its header: SOP class and the UIDs of instance, series and study.

    Raises:
        Unusable: `missing_tag`, `unreadable` (the images' headers cannot be written), or a reason of de-identification.
    """
    frames = [frame for volume in images.volumes for frame in volume]
    with convert_read_errors(frames[0].path.name):
        source = read_image_headers(frames, pseudonymous)
        made = _build_document(
            finding,
            source,
            _find_place(highest, frames, source),
            shift_maker_time(maker, source, pseudonymous),
            predecessor,
        )
        data = io.BytesIO()
        made.save_as(data, enforce_file_format=True)
    return check_leftovers(data.getvalue(), source)


def _find_place(highest: Frame | None, frames: list[Frame], images: Images) -> tuple[Dataset, list[int] | None] | None:
    """The header of the image where the score was highest, and its frame in a file of several."""
    if highest is None:
        return None
    paths = list(dict.fromkeys(frame.path for frame in frames))
    if highest.path not in paths:
        raise Unusable("unreadable", f"{highest.path.name} is not among the images of the report.")
    return images.headers[paths.index(highest.path)], [highest.index + 1] if highest.frames > 1 else None


def _build_document(
    finding: Finding,
    images: Images,
    place: tuple[Dataset, list[int] | None] | None,
    maker: ResultMaker,
    predecessor: Dataset | None,
) -> ComprehensiveSR:
    """The report, with UIDs that its content determines."""
    from highdicom.sr import ComprehensiveSR  # slow to import

    series = f"{images.first.SeriesInstanceUID}/{maker.digest}"
    evidence = "/".join(str(header.SOPInstanceUID) for header in images.headers)
    later = {"quantity", "several"}  # fields that older reports, whose UIDs stay, did not have
    content_fields = {name: value for name, value in asdict(finding).items() if name not in later or value}
    content = f"{json.dumps(content_fields, sort_keys=True)}/{installed_version()}/{evidence}/{_format_place(place)}"
    before = "" if predecessor is None else str(predecessor.SOPInstanceUID)
    uid_text = f"report/{series}/{maker.when.isoformat()}/{hashlib.sha256(content.encode()).hexdigest()}/{before}"
    made = ComprehensiveSR(
        evidence=[strip_identity(images.first), *map(copy_uids, images.headers[1:])],
        content=_build_content(finding, place, maker, new_uid(maker.key, f"tracking/{series}"))[0],
        series_instance_uid=new_uid(maker.key, f"series/{uid_text}"),
        series_number=series_number(images.first, SERIES_NUMBER),
        sop_instance_uid=new_uid(maker.key, f"instance/{uid_text}"),
        instance_number=1,
        **equipment_elements(maker),
        series_description=describe_series(
            "Number by " if finding.quantity else "Score by ", maker.label, ", research use only", finding.unlike
        ),
        content_date=maker.when.date(),
        content_time=maker.when.time(),
        is_complete=True,
        previous_versions=None if predecessor is None else [predecessor],
        coding_schemes=_coding_schemes(),
    )
    assign_to_study(made, images, maker)
    made.SeriesDate, made.SeriesTime = made.ContentDate, made.ContentTime
    return made


def _format_place(place: tuple[Dataset, list[int] | None] | None) -> str:
    """The image and the frame of the highest score as text, for the UID; "" for no image."""
    return "" if place is None else f"{place[0].SOPInstanceUID}{place[1]}"


def _coding_schemes() -> list[Dataset]:
    """The description of our own coding scheme."""
    from highdicom.coding_schemes import CodingSchemeIdentificationItem  # slow to import

    return [CodingSchemeIdentificationItem(designator=SCHEME, name=SCHEME_NAME)]


def _build_content(
    finding: Finding, place: tuple[Dataset, list[int] | None] | None, maker: ResultMaker, tracking: str
) -> MeasurementReport:
    """The content tree: one measurement group, with the notice of research use in two places."""
    from highdicom import sr  # slow to import

    group = sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(uid=tracking, identifier=f"{maker.label} {maker.digest}"[:64]),
        algorithm_id=_identify_algorithm(maker),
        measurements=list(_list_measurements(finding, place)),
        qualitative_evaluations=list(_list_evaluations(finding)),
        source_images=None
        if place is None
        else [sr.SourceImageForMeasurementGroup.from_source_image(place[0], referenced_frame_numbers=place[1])],
    )
    group[0].ContentSequence.append(_notice_item())
    report = sr.MeasurementReport(
        observation_context=sr.ObservationContext(observer_device_context=_observer_context(maker)),
        procedure_reported=codes.SCT.ImagingProcedure,
        imaging_measurements=[group],
        title=codes.DCM.ImagingMeasurementReport,
    )
    report[0].ContentSequence.append(_notice_item())
    _separate_items(report[0])
    return report


def _separate_items(item: Dataset) -> None:
    """Mark the items of each container as separate lines; otherwise viewers may join them to prose, and show numbers
    without their names.
    """
    if "ContinuityOfContent" in item:
        item.ContinuityOfContent = "SEPARATE"
    for inner in item.get("ContentSequence") or []:
        _separate_items(inner)


def _notice_item() -> Dataset:
    """The notice of research use as a comment."""
    from highdicom import sr  # slow to import

    kind = sr.RelationshipTypeValues.CONTAINS
    return sr.TextContentItem(name=codes.DCM.Comment, value=NOTICE, relationship_type=kind)


def _identify_algorithm(maker: ResultMaker) -> AlgorithmIdentification:
    """The model's name and digest, and the version of Consilium."""
    from highdicom.sr import AlgorithmIdentification  # slow to import

    return AlgorithmIdentification(
        name=maker.label,
        version=maker.digest,
        parameters=[f"{PUBLISHER} {installed_version()}"],
        family=codes.cid7162.ArtificialIntelligence,
    )


def _observer_context(maker: ResultMaker) -> ObserverContext:
    """The model as the device that observed."""
    from highdicom import sr  # slow to import

    return sr.ObserverContext(
        observer_type=codes.DCM.Device,
        observer_identifying_attributes=sr.DeviceObserverIdentifyingAttributes(
            uid=new_uid(maker.key, f"device/{maker.digest}"),
            name=PUBLISHER,
            manufacturer_name=PUBLISHER,
            model_name=maker.label,
            serial_number=maker.digest,
        ),
    )


def _list_measurements(finding: Finding, place: tuple[Dataset, list[int] | None] | None) -> Iterator[Measurement]:
    """The score, the probability of each class, and the known numbers of the finding."""
    from highdicom import sr  # slow to import

    score_images = (
        None
        if place is None
        else [sr.SourceImageForMeasurement.from_source_image(place[0], referenced_frame_numbers=place[1])]
    )
    if finding.score is not None:
        yield sr.Measurement(
            name=codes.DCM.Probability, value=_round_number(finding.score), unit=SHARE, referenced_images=score_images
        )
    for name, share in finding.several.items():
        yield sr.Measurement(name=class_code(name), value=_round_number(share), unit=SHARE)
    for name, share in finding.classes.items():
        class_images = score_images if name == finding.name else None
        yield sr.Measurement(
            name=class_code(name), value=_round_number(share), unit=SHARE, referenced_images=class_images
        )
    if finding.quantity is not None:
        number = finding.quantity
        unit = Code(number.unit, "UCUM", "no units" if number.unit == "1" else number.unit)
        yield sr.Measurement(name=quantity_code(number.what), value=_round_number(number.value), unit=unit)
    other_values = {THRESHOLD: finding.threshold, DISTANCE: finding.distance, P_VALUE: finding.p_value}
    for code, value in {**other_values, EXAMPLES: float(finding.examples)}.items():
        if value is not None and math.isfinite(value):
            yield sr.Measurement(name=code, value=_round_number(value), unit=UNITS[code])


def _round_number(value: float) -> float:
    """Six digits, as in the table, so that the decimal string of DICOM has room for it."""
    return float(f"{value:.6g}")


def quantity_code(what: str) -> Code:
    """The concept of a predicted number."""
    code = re.sub(r"[^a-z0-9]+", "_", what.lower()).strip("_")
    if len(code) > LONGEST_CODE:
        code = hashlib.sha256(code.encode()).hexdigest()[:LONGEST_CODE]
    return Code(code, SCHEME, f"{what}, predicted by the model"[:LONGEST_MEANING])


def class_code(name: str) -> Code:
    """The concept of a class's probability."""
    code = f"p_{name}"
    if len(code) > LONGEST_CODE:
        code = hashlib.sha256(code.encode()).hexdigest()[:LONGEST_CODE]
    return Code(code, SCHEME, f"Probability of {name}"[:LONGEST_MEANING])


def finding_code(name: str) -> Code:
    """The concept of one of several findings."""
    return Code(class_code(name).value.removeprefix("p_"), SCHEME, name[:LONGEST_MEANING])


def _list_evaluations(finding: Finding) -> Iterator[QualitativeEvaluation]:
    """The class, or positive or negative, of several findings each; and whether the study is unlike the training
    studies.
    """
    from highdicom.sr import QualitativeEvaluation  # slow to import

    for name, share in finding.several.items():
        reached = finding.threshold is not None and share >= finding.threshold
        value = codes.SCT.Positive if reached else codes.SCT.Negative
        yield QualitativeEvaluation(name=finding_code(name), value=value)
    if finding.quantity is None and not finding.several:
        yield QualitativeEvaluation(name=CLASS, value=_class_value(finding))
    if finding.unlike is not None:
        yield QualitativeEvaluation(name=UNLIKE, value=codes.SCT.Yes if finding.unlike else codes.SCT.No)


def _class_value(finding: Finding) -> Code:
    """The class, or positive or negative."""
    if finding.positive is None:
        return Code(class_code(finding.name).value.removeprefix("p_"), SCHEME, finding.name[:LONGEST_MEANING])
    return codes.SCT.Positive if finding.positive else codes.SCT.Negative
