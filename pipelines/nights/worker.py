"""Apply the night's model to the images of one task: what `predict` does to a folder, and the files for the archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from pipelines.batch.key import read_key
from pipelines.batch.maps import find_map_problems
from pipelines.batch.results import ResultFile, ResultRequest, write_results
from pipelines.data.accounts import count_outcomes
from pipelines.data.folder import OF_SYSTEM
from pipelines.data.study import Rejected
from pipelines.data.writing.dicom_source import Pseudonymous
from pipelines.external.adapted import read_model
from pipelines.models.file import Ready
from pipelines.models.recommended import recommended_file
from pipelines.nights.loop import Made, Unread, Worker
from pipelines.nights.settings import Night
from pipelines.nights.worklist import Result, Task
from pipelines.pacs.archive import Odd
from privacy.deidentify.dicom_image import Profile
from privacy.deidentify.keyed import new_uid
from privacy.settings_error import Problem, refuse

NOTHING = "nothing_selected"


class Model(NamedTuple):
    """A finished model, and the name of the method that made it."""

    ready: Ready
    label: str


def open_model(night: Night) -> Model:
    """Read the model, and check it against what is to be read.

    Raises:
        SettingsError, ValueError: it is no model, or not for DICOM images, or gland masks are missing.
        OSError: it cannot be read.
    """
    path = Path(night.model)
    ready = read_model(recommended_file(path) if night.recommended else path)
    problems = []
    if ready.images.kind not in ("slices", "volumes"):
        text = f"is for {ready.images.kind}; a night needs a model for slices or volumes of DICOM series"
        problems.append(Problem(("model",), text))
    if ready.task.kind == "regression":
        text = "predicts a number, and a night stores scores and masks; say python -m pipelines.predict --reports"
        problems.append(Problem(("model",), text))
    if ready.gland and not night.read.gland and not night.read.no_gland:
        text = "this model learnt from images cut about the gland: give a folder of masks, or say no_gland: true"
        problems.append(Problem(("read", "gland"), text))
    if night.write.captures:
        problems += [Problem(("write", "captures"), text) for text in find_map_problems(ready, "captures")]
    if night.write.identity == "deidentified" and night.write.key is None:
        text = (
            "missing; the hospital's secret, as of `translate` and `deidentify`; one is made if there is no such file"
        )
        problems.append(Problem(("write", "key"), text))
    refuse(problems)
    return Model(ready, ready.origin.label)


def make_worker(model: Model, night: Night, folder: Path, console: Console) -> Worker:
    """The work on one task. folder: the state folder, below which the results lie.

    Raises:
        ValueError, OSError: the secret key.
    """
    pseudonymous = None
    if night.write.identity == "deidentified" and night.write.key is not None:
        pseudonymous = Pseudonymous(read_key(Path(night.write.key), console), Profile())
    request = ResultRequest(
        threshold=night.write.threshold,
        select=night.read.select,
        unit=None if night.read.unit == "auto" else night.read.unit,
        gland=night.read.gland,
        captures=night.write.captures,
        pseudonymous=pseudonymous,
    )

    def make_results(task: Task, images: Path, results: Path, earlier: Sequence[Result]) -> Made:
        when = datetime.fromisoformat(task.made_at).replace(microsecond=0)
        replaced = [
            _file_of(result, folder) for result in earlier if result.study_uid == _study_of_results(task, pseudonymous)
        ]
        batch = write_results(model.ready, images, results, request, when=when, replaced=replaced)
        if unread := [
            f"{refusal.reason}: {refusal.detail}" for refusal in batch.refused if refusal.reason in OF_SYSTEM
        ]:
            raise Unread(unread[0])
        odd = [Odd(task.series, refusal.reason, refusal.detail) for refusal in batch.refused]
        files: Mapping[str, int] = {str(name): number for name, number in count_outcomes(batch.accounts).items()}
        if not batch.files:
            return Made(
                (),
                (),
                files,
                odd,
                _describe_refusal(task, batch.refused, [account.detail for account in batch.accounts]),
            )
        return Made([_result_of(file, folder) for file in batch.files], [dict(row) for row in batch.rows], files, odd)

    return make_results


def _study_of_results(task: Task, pseudonymous: Pseudonymous | None) -> str:
    """The study that results stand in. One in another study, from before `identity` or the key was changed, is not
    named: that would tell whose pseudonym it is.
    """
    return task.study if pseudonymous is None else new_uid(pseudonymous.key, task.study)


def _describe_refusal(task: Task, refused: Sequence[Rejected], details: Sequence[str]) -> Odd:
    if refused:
        return Odd(task.series, refused[0].reason, refused[0].detail)
    return Odd(
        task.series, NOTHING, next((text for text in details if text), "the series holds nothing for this model")
    )


def _result_of(file: ResultFile, folder: Path) -> Result:
    place = file.path.relative_to(folder).as_posix()
    return Result(file.sop_instance, file.kind, place, file.study, file.sop_class, file.series_uid, file.study_uid)


def _file_of(result: Result, folder: Path) -> ResultFile:
    kind, place = result.kind, folder / result.file
    return ResultFile(kind, result.of, place, result.sop_class, result.uid, result.series_uid, result.study_uid)
