"""Images that an archive sends to us in DICOM's own protocol, written to disk as they arrive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pynetdicom import _config, dimse_messages, evt
from pynetdicom.presentation import AllStoragePresentationContexts, PresentationContext, build_context

from pipelines.pacs.archive import Denied, Odd
from pipelines.pacs.association import Watch, entity, server_context, shut
from pipelines.pacs.inbox import Inbox, TooMuch
from pipelines.pacs.settings import DicomNode

SUCCESS, NO_RESOURCES = 0x0000, 0xA700
SYNTAXES = (
    "1.2.840.10008.1.2.1",  # explicit, little endian
    "1.2.840.10008.1.2",  # implicit
    "1.2.840.10008.1.2.4.90",  # JPEG 2000, lossless
    "1.2.840.10008.1.2.4.91",  # JPEG 2000
    "1.2.840.10008.1.2.4.70",  # JPEG, lossless
    "1.2.840.10008.1.2.4.57",  # JPEG, lossless, other predictors
    "1.2.840.10008.1.2.4.80",  # JPEG-LS
    "1.2.840.10008.1.2.4.81",  # JPEG-LS, near lossless
    "1.2.840.10008.1.2.4.50",  # JPEG, 8 bits
    "1.2.840.10008.1.2.4.51",  # JPEG, 12 bits
    "1.2.840.10008.1.2.5",  # RLE
    "1.2.840.10008.1.2.1.99",  # deflated
    "1.2.840.10008.1.2.4.201",  # High-Throughput JPEG 2000, lossless
    "1.2.840.10008.1.2.2",  # explicit, big endian
)
MOST_CONTEXTS = 128  # PS3.8, 9.3.2.2: odd numbers up to 255


class Arrivals:
    """Takes images for one series at a time. inbox, watch: of that series; None while nothing was asked for.
    senders: addresses from which the archive may send.
    """

    def __init__(self, senders: frozenset[str] = frozenset()) -> None:
        self.senders = senders
        self.inbox: Inbox | None = None
        self.watch: Watch | None = None
        self.lock = threading.Lock()
        self.written: list[_Arriving] = []

    @contextmanager
    def expecting(self, inbox: Inbox, watch: Watch) -> Iterator[None]:
        """Images that arrive inside belong to this series."""
        self.inbox, self.watch = inbox, watch
        try:
            yield
        finally:
            with self.lock:
                self.inbox = self.watch = None
                while self.written:
                    self.written.pop().close()

    def place(self) -> _Arriving:
        """In place of the temporary file that pynetdicom would write somewhere else, and leave there."""
        inbox, watch = self.inbox, self.watch
        if inbox is None or watch is None:
            raise OSError("nothing was asked for")
        try:
            self.written.append(_Arriving(inbox.place(), watch))
            return self.written[-1]
        except (OSError, TooMuch) as error:
            watch.fail(error)
            raise

    def opened(self, event: evt.Event) -> None:
        """Handler of EVT_CONN_OPEN where we listen: what the archive sends counts as an answer to what was
        asked; whoever calls from elsewhere is cut off.
        """
        watch = self.watch
        if event.address[0] not in self.senders:
            shut(event.assoc)
        elif watch is None:
            event.assoc.dul.socket.socket.settimeout(1.0)
        else:
            watch.attach(event, came=True)

    def stored(self, event: evt.Event) -> int:
        """Handler of EVT_C_STORE. Returns: the status for the archive, which is success also for what we cannot use: it
        has come, and sending it again would not help.
        """
        file = event.request._dataset_file
        if file is not None:
            file.close()
        with self.lock:
            self.written[:] = [other for other in self.written if other is not file]
            inbox, watch = self.inbox, self.watch
            if inbox is None or watch is None:
                return NO_RESOURCES
            if file is None:
                inbox.odd.append(Odd(inbox.entry.series, "not_dicom", "an image was sent without a data set"))
                return SUCCESS
            path = Path(file.name)
            try:
                if path.parent == inbox.folder and path.exists():
                    inbox.keep(path, str(event.request.AffectedSOPInstanceUID))
                    return SUCCESS
            except (OSError, MemoryError) as error:
                watch.fail(error)
            return NO_RESOURCES


class _Arriving:
    """What pynetdicom uses of a temporary file. A full disk ends the connection, and is told."""

    def __init__(self, path: Path, watch: Watch) -> None:
        self.name, self.watch = str(path), watch
        self.file = path.open("xb")

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.watch.fail(error)
            raise

    def close(self) -> None:
        self.file.close()


TEMPORARY: Any = dimse_messages.NamedTemporaryFile
OPEN: list[Arrivals] = []
"""Of all archives that are open; pynetdicom has one temporary file for all."""


def _place_file(**_: object) -> _Arriving:
    """The file of whichever archive sends: its connection's own thread asks for it."""
    thread = threading.current_thread()
    for arrivals in OPEN:
        if arrivals.watch is not None and any(each.dul is thread for each in arrivals.watch.open):
            return arrivals.place()
    raise OSError("nothing was asked for")


@contextmanager
def written_as_they_arrive(arrivals: Arrivals) -> Iterator[None]:
    """pynetdicom writes what it receives into files of `arrivals`, and sends from files, piece by piece."""
    OPEN.append(arrivals)
    _use_files(True)
    try:
        yield
    finally:
        OPEN.remove(arrivals)
        _use_files(bool(OPEN))


def _use_files(files: bool) -> None:
    """pynetdicom's settings, which hold for the process: files, or memory as it comes."""
    _config.STORE_RECV_CHUNKED_DATASET = _config.STORE_SEND_CHUNKED_DATASET = files
    dimse_messages.NamedTemporaryFile = _place_file if files else TEMPORARY


def senders_of(settings: DicomNode) -> frozenset[str]:
    """The addresses from which the archive may send: those in the settings, else those of its host; empty if that is
    not found, which whoever asks it is told.
    """
    if settings.listen is None:
        return frozenset()
    if settings.listen.senders:
        return frozenset(settings.listen.senders)
    try:
        return frozenset(str(info[4][0]) for info in socket.getaddrinfo(settings.host, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()


@contextmanager
def listening(settings: DicomNode, arrivals: Arrivals) -> Iterator[None]:
    """Our own storage service, for C-MOVE, if the settings ask for it.

    Raises:
        Denied: the port cannot be had.
    """
    if settings.listen is None:
        yield
        return
    ours = entity(settings)
    ours.require_called_aet = True
    ours.require_calling_aet = [*(settings.listen.titles or (settings.called,))]
    for context in AllStoragePresentationContexts:
        ours.add_supported_context(context.abstract_syntax, list(SYNTAXES))
    address = (settings.listen.address, settings.listen.port)
    handlers = [(evt.EVT_CONN_OPEN, arrivals.opened), (evt.EVT_C_STORE, arrivals.stored)]
    try:
        server = ours.start_server(address, False, server_context(settings), handlers)
    except OSError as error:
        text = f"cannot listen on {address[0]}, port {address[1]} ({error.strerror}); give another listen"
        raise Denied(text) from error
    try:
        yield
    finally:
        if server is not None:
            server.shutdown()


def storage_contexts(classes: set[str], room: int) -> list[PresentationContext]:
    """One context for each class and syntax, so that files come as they are stored; fewer where there is no room."""
    if len(classes) * len(SYNTAXES) <= room:
        return [build_context(name, syntax) for name in sorted(classes) for syntax in SYNTAXES]
    return [build_context(name, list(SYNTAXES)) for name in sorted(classes)[:room]]
