"""A connection in DICOM's own protocol (PS3.8) with an archive that is not trusted.

pynetdicom clears a connection's timeout once it stands, reads messages of any length, waits without end for the rest of
one, and prints what goes wrong in its threads. A `Watch` bounds all of that from outside.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.dul import DULServiceProvider
from pynetdicom.presentation import PresentationContext

from pipelines.pacs.archive import Denied
from pipelines.pacs.inbox import TooMuch
from pipelines.pacs.patience import Passing
from pipelines.pacs.settings import DicomNode, Limits

LARGEST_PDU = 2**17  # bytes of a message that we accept; a longer one breaks the protocol
TICK = 0.1  # seconds between two looks of a watch
Handlers = Sequence[tuple[Any, Any]]


class Watch:
    """Ends connections that are silent or last too long, and counts their bytes. failure: why one was ended."""

    def __init__(self, limits: Limits, largest: float) -> None:
        self.limits, self.largest = limits, largest
        self.failure: Exception | None = None
        self.received = 0
        self.active = time.monotonic()
        self.end = self.active + limits.answer_s
        self.over = threading.Event()
        self.open: list[Association] = []
        threading.Thread(target=self._look, daemon=True).start()

    def fail(self, error: Exception) -> None:
        """Remember the first reason, and let the watch end the connections."""
        self.failure = self.failure or error

    def attach(self, event: evt.Event, *, came: bool = False) -> None:
        """Handler of EVT_CONN_OPEN: this connection is watched.

        came: somebody opened it to us. Until its titles were accepted it may be anybody's, so what is wrong with it
        ends that connection only, and its bytes are nobody's answer.
        """
        wrapped = event.assoc.dul.socket
        wrapped.socket.settimeout(self.limits.timeout_s)
        real = wrapped.recv

        def recv(size: int) -> bytearray:
            strange = came and not event.assoc.is_established
            if size > LARGEST_PDU + 1024 and strange:
                raise OSError("message too long")
            if size > LARGEST_PDU + 1024:
                self.fail(Passing(f"the archive breaks the protocol: a message of {size} bytes, at most {LARGEST_PDU}"))
                raise OSError("message too long")
            data: bytearray = real(size)
            if strange:
                return data
            self.active = time.monotonic()
            self.received += len(data)
            if self.received > self.largest:
                self.fail(TooMuch(f"more than {self.largest:.0f} bytes"))
                raise OSError("too many bytes")
            return data

        send = wrapped.send

        def send_watched(data: bytes) -> None:
            if not came or event.assoc.is_established:
                self.active = time.monotonic()
            send(data)

        wrapped.recv, wrapped.send = recv, send_watched
        self.open.append(event.assoc)

    def check(self) -> None:
        """Raise the reason for which connections were ended, if they were."""
        if self.failure is not None:
            raise self.failure

    def _look(self) -> None:
        while not self.over.wait(TICK):
            now = time.monotonic()
            if now > self.end:
                self.fail(Passing(f"no whole answer within {self.limits.answer_s:g} s"))
            elif self.open and now - self.active > self.limits.timeout_s:
                self.fail(Passing(f"the archive says nothing for {self.limits.timeout_s:g} s"))
            for association in self.open:
                if self.failure is not None:
                    shut(association)
                if self.failure is not None or not association.dul.is_alive():
                    association.dimse.msg_queue.put((None, None))  # whoever waits for a message stops waiting


def entity(settings: DicomNode) -> AE:
    """Our side of connections, with the timeouts of the settings."""
    ours = AE(ae_title=settings.calling)
    ours.connection_timeout = ours.acse_timeout = ours.network_timeout = settings.limits.timeout_s
    ours.dimse_timeout = settings.limits.answer_s  # for a whole message, images included
    ours.maximum_pdu_size = LARGEST_PDU
    return ours


@contextmanager
def open_association(
    settings: DicomNode,
    contexts: Sequence[PresentationContext],
    watch: Watch,
    handlers: Handlers = (),
    roles: Sequence[Any] = (),
) -> Iterator[Association]:
    """A connection on which at least one of the contexts was accepted.

    Raises:
        Passing, Denied: there is none.
    """
    context = client_context(settings)
    name = settings.host if settings.tls is None else settings.tls.name or settings.host
    try:
        association = entity(settings).associate(
            settings.host,
            settings.port,
            list(contexts),
            settings.called,
            max_pdu=LARGEST_PDU,
            ext_neg=list(roles) or None,
            tls_args=None if context is None else (context, name),
            evt_handlers=[(evt.EVT_CONN_OPEN, watch.attach), *handlers],
        )
    except OSError as error:  # of the host's name
        raise Passing(f"{settings.host} is not found ({error.strerror})") from error
    if not association.is_established:
        raise watch.failure or _refusal(association, settings)
    try:
        yield association
        association.release()
    finally:
        if association.is_established:
            association.abort()


def client_context(settings: DicomNode) -> ssl.SSLContext | None:
    """TLS as a client that checks certificate and name; None if the settings have none."""
    if settings.tls is None:
        return None
    context = ssl.create_default_context(cafile=settings.tls.ca)
    return _with_key(context, settings)


def server_context(settings: DicomNode) -> ssl.SSLContext | None:
    """TLS as a server that lets in whoever has a certificate of the same authority; None if the settings have none."""
    if settings.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=settings.tls.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return _with_key(context, settings)


@contextmanager
def threads_that_fail_in_silence() -> Iterator[None]:
    """What pynetdicom's threads raise is not printed: it is noticed by whoever waits for them."""
    before = threading.excepthook

    def ignore_failure(failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.thread, DULServiceProvider | Association):
            before(failure)

    threading.excepthook = ignore_failure
    try:
        yield
    finally:
        threading.excepthook = before


def _with_key(context: ssl.SSLContext, settings: DicomNode) -> ssl.SSLContext:
    if settings.tls is not None and settings.tls.certificate is not None:
        context.load_cert_chain(settings.tls.certificate, settings.tls.key)
    return context


def _refusal(association: Association, settings: DicomNode) -> Exception:
    """Why there is no connection."""
    answer = association.acceptor.primitive
    if association.is_rejected and answer is not None:
        text = f"the archive rejects us: {answer.reason_str}; check called ({settings.called}) and calling"
        return Denied(text) if answer.result == 1 else Passing(text)  # PS3.8, 9.3.4: 1 = permanent
    if association.rejected_contexts:
        names = sorted({context.abstract_syntax.name for context in association.rejected_contexts})[:3]
        return Denied(f"the archive does not offer {', '.join(names)} to {settings.calling}")
    return _tls_failure(settings) or Passing(f"no connection with {settings.host}, port {settings.port}")


def _tls_failure(settings: DicomNode) -> Denied | None:
    """Try TLS alone, as pynetdicom does not say why a connection failed."""
    context = client_context(settings)
    if context is None or settings.tls is None:
        return None
    try:
        with (
            socket.create_connection((settings.host, settings.port), settings.limits.timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=settings.tls.name or settings.host) as encrypted,
        ):
            encrypted.settimeout(min(1.0, settings.limits.timeout_s))
            encrypted.recv(1)  # in TLS 1.3 a server refuses our certificate only now
    except ssl.SSLCertVerificationError as error:
        return Denied(f"the certificate of {settings.host} is not trusted ({error.verify_message}); check ca and name")
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None
    except ssl.SSLError as error:
        return Denied(f"TLS with {settings.host} fails ({error.reason}); check port, certificate and key")
    except OSError:
        return None
    return None


def shut(association: Association) -> None:
    """End a connection, whatever it is at."""
    wrapped = association.dul.socket
    try:
        if wrapped is not None and wrapped.socket is not None:
            wrapped.socket.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):
        pass  # it has ended meanwhile
