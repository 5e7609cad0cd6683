"""Apply a model to one study: a row of the table of predictions, and the files that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from evaluation.histograms import predict_grades, reach_cuts
from federation.task import Kind
from pipelines.batch.captures import CaptureWriter, write_capture
from pipelines.batch.maps import compute_cams, place_map_on_study, write_map
from pipelines.batch.masks import MaskWriter, write_mask
from pipelines.batch.origin import MODEL, ORIGIN, find_frame, model_cells, read_origin
from pipelines.batch.reports import ReportWriter, write_report
from pipelines.data.headers import Frame
from pipelines.data.images import AnyImages, Pictures, Slices
from pipelines.data.intake import ReadStudy
from pipelines.data.label_numbers import LabelRange
from pipelines.data.study import Array, Unusable
from pipelines.data.writing.dicom_report import Finding, Quantity
from pipelines.data.writing.dicom_source import ResultMaker
from pipelines.models.file import Ready
from pipelines.models.likeness import Verdict

STUDY_COLUMNS = ("patient", "study", "examples", "unlike_training", "distance", "p_value")
SCORE_COLUMNS = (*STUDY_COLUMNS, "score", "highest_at", "positive")
NUMBER_COLUMNS = (*STUDY_COLUMNS, "predicted", "unit", "smallest", "largest", "highest_at")


class Predictor(NamedTuple):
    """What a prediction needs in addition to the study. maker: of DICOM results. masks: for a segmentation model. maps:
    for a classifier whose maps are requested, as files (`write_maps`) or as drawings (`captures`). reports: for a
    classifier whose structured reports are requested.
    """

    ready: Ready
    threshold: float
    out: Path
    maker: ResultMaker
    masks: MaskWriter | None = None
    maps: MaskWriter | None = None
    write_maps: bool = False
    captures: CaptureWriter | None = None
    reports: ReportWriter | None = None


class Prediction(NamedTuple):
    """A row of the table, and whether the study is positive: its score reaches the threshold, its mask is not empty, or
    its class is not the first. name: of the class, of more than two. unlike: whether it is unlike the training
    patients; None if unknown. origin: the cells of `ORIGIN` and `MODEL`. mask, capture, report: files below the
    folder of results; "" if none. regions: likewise, the masks of regions, which `row` has too. maps: likewise, of
    several findings one each. finding: of a classifier, for a report.
    highest: the image with the highest score, if a scored slice is an image.
    """

    row: tuple[object, ...]
    positive: bool
    unlike: bool | None = None
    name: str = ""
    origin: tuple[str, ...] = ("",) * (len(ORIGIN) + len(MODEL))
    mask: str = ""
    regions: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    capture: str = ""
    report: str = ""
    finding: Finding | None = None
    highest: Frame | None = None

    @property
    def cells(self) -> tuple[object, ...]:
        """The row with all its columns."""
        return (*self.row, *self.maps, *self.origin, *filter(None, [self.report, self.capture]))


def predict_study(predictor: Predictor, study: ReadStudy) -> Prediction:
    """The model's prediction for a study; writes its mask, or its map, capture and report.

    Raises:
        Unusable: a reason of the network, the writers, or the files.
        OSError: the disk.
    """
    ready = predictor.ready
    x = ready.seen(torch.from_numpy(study.examples.images))
    likeness = ready.verdict(x)  # before there are probabilities, beside which there is no memory for it
    prediction = build_prediction(predictor, study, ready.probabilities(x), likeness)
    finding = prediction.finding
    if finding is None:
        return prediction
    if predictor.maps is not None:
        prediction = _draw_maps(predictor, study, x, prediction, finding)
    if predictor.reports is not None:
        place = write_report(finding, study.candidate, prediction.highest, predictor.reports)
        prediction = prediction._replace(report=place)
    return prediction


def _draw_maps(
    predictor: Predictor, study: ReadStudy, x: Tensor, prediction: Prediction, finding: Finding
) -> Prediction:
    """The prediction with its maps, of several findings one each, and its capture, that of the most probable finding.
    x: as the network sees the study's examples.
    """
    writer, position = predictor.maps, study.examples.position
    if writer is None:
        return prediction
    names = [*finding.several] or [""]
    most = max(finding.several, key=lambda name: finding.several[name], default="")
    for number, name in enumerate(names):
        if not predictor.write_maps and name != most:
            continue
        cams = compute_cams(predictor.ready.module, x, number if name else None)
        if predictor.write_maps:
            place = write_map(study.study, cams, position, writer, name)
            prediction = prediction._replace(maps=(*prediction.maps, place))
        if predictor.captures is not None and name == most:
            study_map = place_map_on_study(study.study, cams, position, writer)
            drawn = replace(finding, name=most, classes=finding.several) if most else finding
            capture = write_capture(study_map, drawn, study.candidate, predictor.captures)
            prediction = prediction._replace(capture=capture)
    return prediction


def build_prediction(
    predictor: Predictor, study: ReadStudy, probabilities: Tensor, likeness: Verdict | None = None
) -> Prediction:
    """The prediction with the highest score of a study's examples; or, after writing its mask, the size of each class.

    probabilities: (n, classes, *spatial) of its examples. likeness: whether it is unlike the training patients.

    Raises:
        Unusable: the network gives no numbers, or its mask cannot be made.
        OSError: the disk.
    """
    if not all(bool(each.isfinite().all()) for example in probabilities for each in example):
        raise Unusable("not_finite", "the network gives no number here. Check the study's values.")
    unlike, likeness_cells = None, ("", "", "")
    if likeness is not None:
        unlike, likeness_cells = (
            likeness.unlike,
            (f"{likeness.unlike:d}", f"{likeness.distance:.3g}", f"{likeness.p_value:.2g}"),
        )
    study_cells = (study.patient, study.study, len(probabilities), *likeness_cells)
    if predictor.masks is not None:
        place = study.examples.position
        mask = write_mask(study.study, probabilities.numpy(), place, predictor.masks, unlike=unlike)
        row = (*study_cells, *(f"{size:.6g}" for size in mask.sizes), mask.file, *mask.regions)
        origin = _list_origin(predictor, study, None)
        return Prediction(row, any(mask.sizes), unlike, origin=origin, mask=mask.file, regions=mask.regions)
    top, row, finding = _decide_study(predictor, probabilities, study.examples.position)
    finding = replace(finding, examples=len(probabilities))
    if likeness is not None:
        finding = replace(finding, unlike=likeness.unlike, distance=likeness.distance, p_value=likeness.p_value)
    has_slices = isinstance(predictor.ready.images, Slices)
    highest = find_frame(study.candidate, float(study.examples.position[top])) if has_slices else None
    has_classes = finding.positive is None and finding.quantity is None
    positive = finding.name != predictor.ready.names[0] if has_classes else finding.positive is True
    return Prediction(
        (*study_cells, *row),
        positive,
        unlike,
        finding.name if has_classes else "",
        _list_origin(predictor, study, highest),
        finding=finding,
        highest=highest,
    )


def _list_origin(predictor: Predictor, study: ReadStudy, highest: Frame | None) -> tuple[str, ...]:
    """The cells of `ORIGIN` and `MODEL`."""
    return (*read_origin(study.candidate, highest), *model_cells(predictor.ready))


def _decide_study(
    predictor: Predictor, probabilities: Tensor, position: Array
) -> tuple[int, tuple[object, ...], Finding]:
    """The index of the example with the highest score, the cells of the row, and the finding for a report."""
    if predictor.ready.number is not None:
        return _decide_number(predictor.ready.number, probabilities, position)
    if predictor.ready.task.kind == "findings":
        return _decide_findings(predictor, probabilities, position)
    if predictor.ready.names:
        return _decide_class(predictor.ready, probabilities, position)
    scores = probabilities[:, 1]
    top = int(scores.argmax())
    value = float(scores[top])
    positive = value >= predictor.threshold
    finding = Finding(
        name="positive" if positive else "negative", positive=positive, score=value, threshold=predictor.threshold
    )
    return top, (f"{value:.6f}", int(position[top]), int(positive)), finding


def _decide_class(ready: Ready, probabilities: Tensor, position: Array) -> tuple[int, tuple[object, ...], Finding]:
    """As `_decide_study`, for several classes: the highest grade of any example, or the class of the mean over
    examples. An example's grade is the median of its probabilities (`evaluation.histograms`); of several with the
    highest grade that one counts which reaches it most probably.
    """
    if ready.ordered:
        reached = torch.from_numpy(reach_cuts(probabilities.double().numpy()))
        grades = torch.from_numpy(predict_grades(probabilities.double().numpy()))
        grade = int(grades.max())
        cut = reached[:, max(grade, 1) - 1].masked_fill(grades < grade, -1)
        top = int(cut.argmax())
        class_probabilities = probabilities[top]
    else:
        class_probabilities = probabilities.mean(dim=0)
        grade = int(class_probabilities.argmax())
        top = int(probabilities[:, grade].argmax())
    name = ready.names[grade]
    row = (name, int(position[top]), *(f"{probability:.6f}" for probability in class_probabilities.tolist()))
    return top, row, Finding(name=name, classes=dict(zip(ready.names, class_probabilities.tolist(), strict=True)))


def _decide_findings(
    predictor: Predictor, probabilities: Tensor, position: Array
) -> tuple[int, tuple[object, ...], Finding]:
    """As `_decide_study`, for several findings: of each the highest probability of any example. The example that counts
    is that of the most probable finding.
    """
    highest = probabilities.max(dim=0).values
    top = int(probabilities[:, int(highest.argmax())].argmax())
    shares = dict(zip(predictor.ready.names, highest.tolist(), strict=True))
    present = [name for name, share in shares.items() if share >= predictor.threshold]
    row = (" ".join(present), int(position[top]), *(f"{share:.6f}" for share in shares.values()))
    name = "positive" if present else "negative"
    return top, row, Finding(name=name, positive=bool(present), threshold=predictor.threshold, several=shares)


def _decide_number(number: LabelRange, places: Tensor, position: Array) -> tuple[int, tuple[object, ...], Finding]:
    """As `_decide_study`, for a number: the mean over a study's examples, and the smallest and the largest of them."""
    values = number.low + number.width * places[:, 0].double()
    top, mean = int(values.argmax()), float(values.mean())
    row = (f"{mean:.6g}", number.unit, f"{float(values.min()):.6g}", f"{float(values.max()):.6g}", int(position[top]))
    quantity = Quantity(what=number.what, unit=number.unit, value=mean, low=number.low, high=number.high)
    return top, row, Finding(name=number.what, quantity=quantity)


def list_columns(
    kind: Kind,
    images: AnyImages,
    names: Sequence[str],
    *,
    regions: Sequence[str] = (),
    maps: bool = False,
    reports: bool = False,
    captures: bool = False,
) -> tuple[str, ...]:
    """Columns of predictions.csv. names: as in `Ready`, of masks those of their structures. regions: names of those
    that have masks in files of their own. maps, reports, captures: whether they are written.
    """
    if kind == "classification":
        columns = (*STUDY_COLUMNS, "class", "highest_at", *(f"p_{name}" for name in names)) if names else SCORE_COLUMNS
    elif kind == "regression":
        columns = NUMBER_COLUMNS
    elif kind == "findings":
        columns = (*STUDY_COLUMNS, "findings", "highest_at", *(f"p_{name}" for name in names))
    else:
        columns = (
            *STUDY_COLUMNS,
            *(f"{name}_{'share' if isinstance(images, Pictures) else 'ml'}" for name in names),
            "mask",
            *(f"region_{name}" for name in regions),
        )
    return (
        *columns,
        *_list_map_columns(kind, names, maps=maps),
        *ORIGIN,
        *MODEL,
        *(["report"] if reports else []),
        *(["capture"] if captures else []),
    )


def _list_map_columns(kind: Kind, names: Sequence[str], *, maps: bool) -> tuple[str, ...]:
    """The columns of maps: one, or of several findings one each."""
    if not maps:
        return ()
    return tuple(f"map_{name}" for name in names) if kind == "findings" else ("map",)
