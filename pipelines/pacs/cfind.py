"""Ask an archive with C-FIND (PS3.4, C.4.1), down the hierarchy: studies, then the series of each, as all archives can.

Here too: what the status of an answer means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydicom.dataset import Dataset
from pynetdicom import build_context
from pynetdicom.association import Association
from pynetdicom.presentation import PresentationContext
from pynetdicom.sop_class import StudyRootQueryRetrieveInformationModelFind

from pipelines.pacs.answers import LONGEST_TEXT, first_time, keys_of, parse_entry
from pipelines.pacs.archive import Denied, Entry, Odd, Query, is_uid
from pipelines.pacs.association import Watch, open_association
from pipelines.pacs.inbox import TooMuch
from pipelines.pacs.patience import Pace, Passing
from pipelines.pacs.settings import DicomNode
from privacy.deidentify.quiet import silence_warnings
from privacy.pickled import reduce_error

FIND = str(StudyRootQueryRetrieveInformationModelFind)
BYTES_AN_ANSWER = 2**13
PENDING, DONE = (0xFF00, 0xFF01), 0x0000
UNABLE = 0xC000  # and up to 0xCFFF: to process it, for the archive's own reasons
FORBIDDEN = (0x0122, 0x0124, 0xA801)
STUDY_KEYS = frozenset(
    (
        "StudyDate", "StudyTime", "AccessionNumber", "PatientName", "PatientID", "PatientBirthDate", "PatientSex",
        "StudyID", "StudyInstanceUID", "StudyDescription", "ReferringPhysicianName", "ModalitiesInStudy",
    )
)  # fmt: skip


class Failed(Exception):
    """The archive answers a request with a status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the archive answers with status 0x{status:04X} (PS3.4, annexes B and C)")
        self.status = status

    __reduce__ = reduce_error


@contextmanager
def open_checked_association(
    settings: DicomNode,
    contexts: Sequence[PresentationContext],
    largest: float,
    handlers: Sequence[tuple[Any, Any]] = (),
    roles: Sequence[Any] = (),
) -> Iterator[tuple[Association, Watch]]:
    """A watched connection. largest: bytes that may come. Raises as `associated`."""
    watch = Watch(settings.limits, largest)
    try:
        with open_association(settings, contexts, watch, handlers, roles) as association:
            yield association, watch
    finally:
        watch.over.set()


@contextmanager
def asking(settings: DicomNode) -> Iterator[tuple[Association, Watch]]:
    """A watched connection for queries."""
    with open_checked_association(settings, [build_context(FIND)], settings.limits.most * BYTES_AN_ANSWER) as both:
        yield both


def series_of(settings: DicomNode, pace: Pace, query: Query) -> list[Entry | Odd]:
    """All series that match, each once.

    Raises:
        Passing, Denied.
    """
    most, keys = settings.limits.most, keys_of(query)
    above = {name: text for name, text in keys.items() if name in STUDY_KEYS}
    if query.modality:
        above["ModalitiesInStudy"] = query.modality
    below = {name: text for name, text in keys.items() if name not in STUDY_KEYS}
    wanted_keys = dict.fromkeys(("StudyInstanceUID", "StudyDate", "AccessionNumber"), "") | above
    entries: list[Entry | Odd] = []
    with asking(settings) as (association, watch):
        try:
            for number, study in enumerate(list(matches(association, watch, settings, "STUDY", wanted_keys, most)), 1):
                uid = study.get("StudyInstanceUID", "")
                if not is_uid(uid):
                    text = "its StudyInstanceUID is none; its series cannot be asked for"
                    entries.append(Odd(f"study {number}", "bad_uid", text))
                    continue
                pace.turn()
                names = ("SeriesInstanceUID", "Modality", "SeriesDescription", "NumberOfSeriesRelatedInstances")
                series = dict.fromkeys(names, "") | below | {"StudyInstanceUID": uid}
                for answer in matches(association, watch, settings, "SERIES", series, most - len(entries)):
                    entries.append(_entry(answer, study, query, len(entries) + 1))
        except TooMuch as error:
            entries.append(Odd(f"more than {most} answers", "too_many", str(error)))
            association.abort()  # there is more to come, and nobody listens
        except Failed as error:
            if UNABLE <= error.status < UNABLE + 0x1000:
                raise Passing(str(error)) from error
            raise Denied(f"{error} to a query") from error
    studies: dict[str, str] = {}
    return [checked_entry for entry in entries for checked_entry in first_time(entry, studies)]


def _entry(answer: Mapping[str, str], study: Mapping[str, str], query: Query, number: int) -> Entry | Odd:
    uid = study["StudyInstanceUID"]
    if answer.get("StudyInstanceUID", uid) != uid:
        return Odd(uid, "not_asked_for", "a series of it is said to be of another study; it is not used")
    study_texts = {name: study.get(name, "") for name in ("StudyDate", "AccessionNumber")}
    return parse_entry({**study_texts, **answer, "StudyInstanceUID": uid}, query, number)


def matches(
    association: Association, watch: Watch, settings: DicomNode, level: str, keys: Mapping[str, str], most: int
) -> Iterator[dict[str, str]]:
    """The answers of one query, keyword -> text.

    Raises:
        TooMuch: there are more than `most`.
        Passing, Denied, Failed.
    """
    for number, (status, answer) in enumerate(association.send_c_find(identifier(level, keys), FIND), 1):
        watch.check()
        code = status_of(status)
        if code == DONE:
            return
        if code not in PENDING:
            raise meaning(code, settings)
        if number > most:
            raise TooMuch("narrow the query, or raise most")
        yield _texts(answer, keys)


def identifier(level: str, keys: Mapping[str, str]) -> Dataset:
    """What is asked for, as DICOM's own protocol says it."""
    with silence_warnings():
        dataset = Dataset()
        dataset.QueryRetrieveLevel = level
        if not all(text.isascii() for text in keys.values()):
            dataset.SpecificCharacterSet = "ISO_IR 192"
        for keyword, text in keys.items():
            setattr(dataset, keyword, text)
    return dataset


def status_of(status: Dataset) -> int:
    """The number of a status. Raises: Passing: there is none."""
    if "Status" not in status:
        raise Passing("the connection broke before the answer was whole")
    return int(status.Status)


def meaning(code: int, settings: DicomNode) -> Passing | Denied | Failed:
    """What a status says that is neither success nor pending."""
    failed = Failed(code)
    if code in FORBIDDEN:
        why = f"it does not know {settings.calling} as a destination" if code == 0xA801 else "check our permissions"
        return Denied(f"{failed}: {why}")
    if 0xA700 <= code <= 0xA7FF or code == 0xFE00:
        return Passing(str(failed))
    return failed


def _texts(answer: Dataset | None, keys: Mapping[str, str]) -> dict[str, str]:
    """An answer's texts; one that cannot be read is as if missing."""
    texts: dict[str, str] = {}
    for keyword in keys if answer is not None else ():
        try:
            with silence_warnings():
                value = answer[keyword].value if answer is not None and keyword in answer else None
                value = value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else value
                text = "" if value is None else str(value)
        except Exception:  # parsers raise exceptions of many types on damaged values
            text = ""
        if text:
            texts[keyword] = text[: LONGEST_TEXT + 1]
    return texts
