"""Make all results of one series for its archive: rows of the table, and DICOM files to store there.

A segmentation model gives a DICOM Segmentation of each stack, a classifier a structured report and, if requested, a
picture of its map. If the caller passes the results of an earlier call on the same series with the same model, a new
report names the report that it replaces, and a note rejects the other replaced files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pydicom.dataset import Dataset

from pipelines.batch.maps import find_map_problems
from pipelines.batch.prediction import THRESHOLD, names_of, open_predictor, open_unlabelled
from pipelines.batch.reports import series_name
from pipelines.batch.scoring import Prediction, Predictor, list_columns, predict_study
from pipelines.data.accounts import Account, list_accounts
from pipelines.data.alike import adapt_source
from pipelines.data.contents import read_dataset
from pipelines.data.folder import relative_name, walk_folder
from pipelines.data.headers import Stack
from pipelines.data.images import Features, Pictures
from pipelines.data.index import folder_problems
from pipelines.data.intake import ReadStudy, read_study
from pipelines.data.sources import Files
from pipelines.data.study import Item, Rejected, Unusable
from pipelines.data.writing.dicom_rejection import rejection_bytes
from pipelines.data.writing.dicom_source import Pseudonymous
from pipelines.models.file import Ready
from privacy.durable import write_whole

NOTES = "notes"
UIDS = ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")
Kind: TypeAlias = Literal["segmentation", "report", "capture", "rejection"]


class ResultFile(NamedTuple):
    """A file for the archive. study: the `study` of its row. path: of the file. sop_class, sop_instance, series_uid,
    study_uid: its UIDs.
    """

    kind: Kind
    study: str
    path: Path
    sop_class: str
    sop_instance: str
    series_uid: str
    study_uid: str


class SeriesResults(NamedTuple):
    """rows: of predictions.csv, column -> text, one for each stack. files: to store, the rejection note last.
    refused: stacks or files that could not be used, with reasons. accounts: the outcome of each file of the series.
    """

    rows: tuple[Mapping[str, str], ...]
    files: tuple[ResultFile, ...]
    refused: tuple[Rejected, ...]
    accounts: tuple[Account, ...]


@dataclass(frozen=True, kw_only=True)
class ResultRequest:
    """The requested results of a series. threshold: of two classes. select, unit: as in `pipelines.predict`. gland: the
    folder of gland masks, if the model uses them. captures: whether a classifier of slices also draws the most
    sensitive slice with its map. pseudonymous: None = results name the patient as the images do; otherwise patient,
    study and UIDs are those that de-identification with this key gives the images.
    """

    threshold: float = THRESHOLD
    select: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    gland: str | None = None
    captures: bool = False
    pseudonymous: Pseudonymous | None = None


def write_results(
    ready: Ready,
    folder: Path,
    out: Path,
    request: ResultRequest,
    *,
    when: datetime,
    replaced: Sequence[ResultFile] = (),
) -> SeriesResults:
    """Apply a model to one series, and write its results below `out`: masks/, reports/, notes/.

    folder: holds only the files of this series. when: the time in the results. The same model, files, `request`, `when`
    and `replaced` give the same bytes with the same UIDs, so a caller that was stopped repeats the call with the time
    that it noted before. replaced: the files of an earlier call on this series with this model (`path` is not used);
    those with the same SOP instance UID are not replaced.

    Raises:
        ValueError: a folder does not exist, or the model is not for DICOM series.
        OSError: the disk.
    """
    if problems := _find_problems(ready, folder, request):
        raise ValueError("; ".join(problems))
    select = [f"{keyword}={text}" for keyword, text in request.select.items()]
    source = adapt_source(
        ready.source, str(folder), kind="dicom", select=select, unit=request.unit, trained_name="model"
    )
    try:
        opened = open_unlabelled(ready.images, source, request.gland)
    except ValueError as error:  # the folder exists, so it holds no images for the model
        return SeriesResults((), (), (), _list_unselected(folder, str(error)))
    predictor = _build_predictor(ready, source, out, request, when, replaced)
    refused, done = list(opened.rejected), list[tuple[Prediction, Stack]]()
    for waiting in opened.waiting:
        prediction = _predict_study(predictor, read_study(waiting))
        if isinstance(prediction, Rejected):
            refused.append(prediction)
        else:
            done.append(prediction)
    written_kinds: dict[str, Any] = {
        "reports": predictor.reports is not None,
        "captures": predictor.captures is not None,
    }
    columns = list_columns(ready.task.kind, ready.images, names_of(ready), **written_kinds)
    rows = tuple(dict(zip(columns, map(str, row_prediction.cells), strict=True)) for row_prediction, _ in done)
    files = [file for row_prediction, _ in done for file in _list_files(row_prediction, out)]
    if done:
        files += _write_rejection_note(predictor, out, done[0][1], request, replaced, files)
    return SeriesResults(rows, tuple(files), tuple(refused), list_accounts(opened.items, refused))


def _find_problems(ready: Ready, folder: Path, request: ResultRequest) -> list[str]:
    """Problems of the folders, the model, the captures and the threshold."""
    problems = folder_problems("folder", str(folder))
    problems += folder_problems("gland", request.gland) if request.gland else []
    if isinstance(ready.images, Pictures | Features):
        problems.append(f"the model is for {ready.images.kind}, and a DICOM archive needs one for slices or volumes")
    if request.captures and ready.task.kind in ("classification", "findings"):
        problems += find_map_problems(ready, "captures")
    if not 0 <= request.threshold <= 1:
        problems.append(f"threshold must be in [0, 1], found {request.threshold}")
    return problems


def _list_unselected(folder: Path, why: str) -> tuple[Account, ...]:
    """Accounts of a folder in which no file is selected."""
    root, listing = folder.resolve(), walk_folder(folder)
    files = [
        Item(relative_name(root, path), "not_selected", reason="series_not_selected", detail=why)
        for path in listing.files
    ]
    return list_accounts([*listing.left, *files], listing.rejected)


def _build_predictor(
    ready: Ready, source: Files, out: Path, request: ResultRequest, when: datetime, replaced: Sequence[ResultFile]
) -> Predictor:
    """A predictor for the request; its reports name the earlier ones that they replace."""
    scores = ready.task.kind in ("classification", "findings")
    settings = (ready, request.threshold, out, source, request.gland)
    predictor = open_predictor(
        *settings, reports=scores, captures=scores and request.captures, when=when, pseudonymous=request.pseudonymous
    )
    if predictor.reports is None:
        return predictor
    earlier_reports = {file.study: _build_header(file) for file in replaced if file.kind == "report"}
    return predictor._replace(reports=replace(predictor.reports, replaced=earlier_reports))


def _predict_study(predictor: Predictor, study: ReadStudy | Rejected) -> tuple[Prediction, Stack] | Rejected:
    """The prediction of a study and its stack, or why it is rejected."""
    if isinstance(study, Rejected):
        return study
    try:
        if study.candidate is None or study.candidate.stack is None:
            raise Unusable("no_dicom", "results are for DICOM images, and these are none.")
        return predict_study(predictor, study), study.candidate.stack
    except Unusable as error:
        return Rejected(study.study, error.reason, error.detail)


def _list_files(prediction: Prediction, out: Path) -> list[ResultFile]:
    """The result files of a prediction."""
    places: dict[Kind, str] = {
        "segmentation": prediction.mask,
        "report": prediction.report,
        "capture": prediction.capture,
    }
    return [_describe_file(kind, str(prediction.row[1]), out / place) for kind, place in places.items() if place]


def _describe_file(kind: Kind, study: str, path: Path) -> ResultFile:
    """A result file with the UIDs in its header."""
    header = read_dataset(path, stop_before_pixels=True)
    uids = (header[keyword].value for keyword in UIDS)
    return ResultFile(kind, study, path, *map(str, uids))


def _build_header(file: ResultFile) -> Dataset:
    """The UIDs of a result, as a DICOM dataset."""
    header = Dataset()
    for keyword, value in zip(UIDS, file[3:], strict=True):
        setattr(header, keyword, value)
    return header


def _write_rejection_note(
    predictor: Predictor,
    out: Path,
    images: Stack,
    request: ResultRequest,
    replaced: Sequence[ResultFile],
    files: Sequence[ResultFile],
) -> list[ResultFile]:
    """The note that rejects the files that these replace; none if they replace no files."""
    kept_uids = {file.sop_instance for file in files}
    rejected_files = [
        file for file in replaced if file.kind not in ("report", "rejection") and file.sop_instance not in kept_uids
    ]
    maker = predictor.maker
    if not rejected_files:
        return []
    data = rejection_bytes(
        [_build_header(file) for file in rejected_files], images, maker, pseudonymous=request.pseudonymous
    )
    study = rejected_files[0].study
    path = out / NOTES / f"{series_name(study, request.pseudonymous)}.dcm"
    write_whole(path, data)
    return [_describe_file("rejection", study, path)]
