"""An archive over DICOM's own protocol (PS3.4, annexes B and C): C-FIND to ask, C-GET or C-MOVE to fetch, C-STORE."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydicom.dataset import Dataset
from pynetdicom import build_context, build_role, evt
from pynetdicom.association import Association
from pynetdicom.dsutils import split_dataset
from pynetdicom.presentation import StoragePresentationContexts
from pynetdicom.sop_class import StudyRootQueryRetrieveInformationModelGet, StudyRootQueryRetrieveInformationModelMove

from pipelines.pacs.archive import Archive, Entry, Fetched, Odd, Query, is_uid
from pipelines.pacs.arrivals import (
    MOST_CONTEXTS,
    Arrivals,
    listening,
    senders_of,
    storage_contexts,
    written_as_they_arrive,
)
from pipelines.pacs.association import Watch, threads_that_fail_in_silence
from pipelines.pacs.cfind import (
    BYTES_AN_ANSWER,
    DONE,
    PENDING,
    Failed,
    asking,
    identifier,
    matches,
    meaning,
    open_checked_association,
    series_of,
    status_of,
)
from pipelines.pacs.inbox import Inbox, TooMuch
from pipelines.pacs.outbox import Outgoing, read_outgoing
from pipelines.pacs.patience import Pace, run_within
from pipelines.pacs.settings import GIB, DicomNode

GET = str(StudyRootQueryRetrieveInformationModelGet)
MOVE = str(StudyRootQueryRetrieveInformationModelMove)
SOME_FAILED = 0xB000
TAKEN = (0x0000, 0x0111, 0xB000, 0xB006, 0xB007)  # 0x0111: it is there already; 0xB...: taken, with a remark
FILES_AT_A_TIME = 64


@contextmanager
def open_node(settings: DicomNode) -> Iterator[Archive]:
    """The archive; for C-MOVE our own storage service runs as long as the block."""
    arrivals = Arrivals(senders_of(settings))
    with ExitStack() as stack:
        stack.enter_context(threads_that_fail_in_silence())
        stack.enter_context(written_as_they_arrive(arrivals))
        stack.enter_context(listening(settings, arrivals))
        yield Node(settings=settings, arrivals=arrivals, pace=Pace(settings.limits))


@dataclass(frozen=True, kw_only=True)
class Node:
    """See `Archive`."""

    settings: DicomNode
    arrivals: Arrivals
    pace: Pace

    @property
    def _patience(self) -> float:
        """Seconds after which an answer is given up even if its watch cannot end it."""
        return self.settings.limits.answer_s + self.settings.limits.timeout_s

    def find(self, query: Query) -> Iterator[Entry | Odd]:
        """See `Archive`. All answers are taken before the first is handed on, so that the archive need not wait."""
        yield from self.pace.again(
            lambda: run_within(self._patience, lambda: series_of(self.settings, self.pace, query))
        )

    def fetch(self, entry: Entry, folder: Path) -> Fetched:
        """See `Archive`."""
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty")
        inbox = Inbox(entry, folder, self.settings.limits)
        how = self._get if self.settings.retrieve == "get" else self._move

        def attempt() -> None:
            inbox.empty()
            run_within(self._patience, lambda: how(inbox))

        try:
            self.pace.again(attempt)
        except (Failed, TooMuch) as error:
            inbox.odd.append(Odd(entry.series, "refused" if isinstance(error, Failed) else "too_large", str(error)))
        except BaseException:
            inbox.empty()
            raise
        return inbox.fetched()

    def _get(self, inbox: Inbox) -> None:
        limits = self.settings.limits
        with asking(self.settings) as (association, watch):
            keys = {"SOPInstanceUID": "", "SOPClassUID": "", **_list_uids(inbox.entry)}
            images = list(matches(association, watch, self.settings, "IMAGE", keys, limits.most))
        inbox.expected = len({image.get("SOPInstanceUID", "") for image in images})
        classes = {name for image in images if is_uid(name := image.get("SOPClassUID", ""))}
        stored = storage_contexts(classes, MOST_CONTEXTS - 1) or StoragePresentationContexts[: MOST_CONTEXTS - 1]
        roles = [build_role(name, scp_role=True) for name in sorted({str(each.abstract_syntax) for each in stored})]
        handlers = [(evt.EVT_C_STORE, self.arrivals.stored)]
        with (
            open_checked_association(
                self.settings, [build_context(GET), *stored], limits.largest_gib * GIB, handlers, roles
            ) as both,
            self.arrivals.expecting(inbox, both[1]),
        ):
            _wait_for_end(
                self.settings, both[0].send_c_get(identifier("SERIES", _list_uids(inbox.entry)), GET), both[1], inbox
            )

    def _move(self, inbox: Inbox) -> None:
        with (
            open_checked_association(self.settings, [build_context(MOVE)], self.settings.limits.largest_gib * GIB) as (
                association,
                watch,
            ),
            self.arrivals.expecting(inbox, watch),
        ):
            query = identifier("SERIES", _list_uids(inbox.entry))
            _wait_for_end(self.settings, association.send_c_move(query, self.settings.calling, MOVE), watch, inbox)

    def store(self, files: Sequence[Path]) -> Sequence[Odd]:
        """See `Archive`. On a connection for some files at a time; after a failure only those are sent that remain."""
        odd: list[Odd] = []
        sent: dict[Path, Outgoing] = {}
        for number, path in enumerate(files, 1):
            about = read_outgoing(path)
            if isinstance(about, Odd):
                odd.append(about._replace(what=f"file {number}"))
            elif (path.stat().st_size - split_dataset(path)[1]) % 2:
                odd.append(Odd(about.instance, "odd_length", "its data set has an odd length; it was not sent"))
            else:
                sent[path] = about
        paths = list(sent)
        for first in range(0, len(paths), FILES_AT_A_TIME):
            remaining = {path: sent[path] for path in paths[first : first + FILES_AT_A_TIME]}
            self.pace.again(partial(self._store_all, remaining, odd))
        return odd

    def _store_all(self, remaining: dict[Path, Outgoing], odd: list[Odd]) -> None:
        """Send what remains; what is done is taken out, and the reasons for refusals are added."""
        pairs = sorted({(about.sop_class, about.syntax) for about in remaining.values()})
        contexts = [build_context(name, syntax) for name, syntax in pairs]
        with open_checked_association(self.settings, contexts, len(remaining) * BYTES_AN_ANSWER) as (
            association,
            watch,
        ):
            accepted = {
                (str(each.abstract_syntax), str(each.transfer_syntax[0])) for each in association.accepted_contexts
            }
            for path, about in list(remaining.items()):
                if (about.sop_class, about.syntax) in accepted:
                    refused = self._store(association, watch, path)
                else:
                    refused = f"the archive does not take class {about.sop_class} in syntax {about.syntax}"
                if refused:
                    odd.append(Odd(about.instance, "refused", refused))
                del remaining[path]

    def _store(self, association: Association, watch: Watch, path: Path) -> str:
        """Send one file; the reason for its refusal, or empty."""
        self.pace.turn()
        watch.active = time.monotonic()
        watch.end = watch.active + self.settings.limits.answer_s
        status = run_within(self._patience, lambda: association.send_c_store(path))
        watch.check()
        code = status_of(status)
        if code in TAKEN:
            return ""
        error = meaning(code, self.settings)
        if not isinstance(error, Failed):
            raise error
        return str(error)


def _wait_for_end(settings: DicomNode, answers: Iterator[tuple[Dataset, Any]], watch: Watch, inbox: Inbox) -> None:
    """Wait for the end of what was asked for; files arrive meanwhile."""
    for status, _ in answers:
        watch.check()
        code = status_of(status)
        if code == SOME_FAILED:
            failed = status.get("NumberOfFailedSuboperations", "some")
            text = f"the archive could not send {failed} of its images"
            inbox.odd.append(Odd(inbox.entry.series, "incomplete", text))
        elif code not in (DONE, *PENDING):
            raise meaning(code, settings)
    watch.check()


def _list_uids(entry: Entry) -> dict[str, str]:
    return {"StudyInstanceUID": entry.study, "SeriesInstanceUID": entry.series}
