"""DICOM's own protocol as no archive should speak it: each case is one kind of malice or damage.

    with hostile_node(listening) as ports: ...      ports: of `SCP`, `RAW` and `EMPTY`; the called AE title is the case

It runs as a program of its own, python hostile_node.py LISTENING, as pynetdicom's settings hold for a whole process.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pydicom
from pydicom.dataset import Dataset
from pynetdicom import AE, AllStoragePresentationContexts, evt
from pynetdicom.dimse_primitives import C_FIND, C_STORE
from pynetdicom.sop_class import (
    StudyRootQueryRetrieveInformationModelFind,
    StudyRootQueryRetrieveInformationModelGet,
    StudyRootQueryRetrieveInformationModelMove,
)

from hostile_web import IMAGE, MR, ODD_UIDS, SERIES, STUDY, image

Found = Iterator[tuple[int, Dataset | None]]


def match(event: evt.Event, number: int = 1, **changed: str) -> Dataset:
    """The right answer to a query of any level. changed: keyword -> another value."""
    found = Dataset()
    found.QueryRetrieveLevel = event.identifier.QueryRetrieveLevel
    found.StudyInstanceUID = STUDY
    if found.QueryRetrieveLevel == "STUDY":
        found.StudyDate = "20260101"
    else:
        found.SeriesInstanceUID, found.Modality = f"{SERIES}.{number}", "MR"
    if found.QueryRetrieveLevel == "IMAGE":
        found.SeriesInstanceUID, found.SOPClassUID, found.SOPInstanceUID = SERIES, MR, f"{IMAGE}.{number}"
    with pydicom.config.disable_value_validation():
        for keyword, value in changed.items():
            setattr(found, keyword, value)
    return found


def series(*changes: dict[str, str]) -> Callable[[evt.Event], Found]:
    """One study, and a series for each of these changes to a right one."""

    def reply(event: evt.Event) -> Found:
        if event.identifier.QueryRetrieveLevel == "STUDY":
            yield 0xFF00, match(event)
            return
        for number, changed in enumerate(changes, 1):
            yield 0xFF00, match(event, number, **changed)

    return reply


def studies(*changes: dict[str, str]) -> Callable[[evt.Event], Found]:
    return lambda event: iter([(0xFF00, match(event, **changed)) for changed in changes])


def endless(level: str) -> Callable[[evt.Event], Found]:
    def reply(event: evt.Event) -> Found:
        if event.identifier.QueryRetrieveLevel != level:
            yield 0xFF00, match(event)
            return
        for number in itertools.count(1):
            if event.is_cancelled or event.assoc.is_aborted:
                return
            keyword = "StudyInstanceUID" if level == "STUDY" else "SeriesInstanceUID"
            yield 0xFF00, match(event, **{keyword: f"1.2.{number}"})

    return reply


def status(code: int) -> Callable[[evt.Event], Found]:
    return lambda event: iter([(code, None)])


def bytes_of(event: evt.Event, data: bytes, pause: float = 0.0) -> None:
    """Send these bytes again and again, past pynetdicom."""
    connection = event.assoc.dul.socket.socket
    for _ in range(100_000):
        connection.sendall(data)
        time.sleep(pause)


def raw(head: bytes, data: bytes = b"", pause: float = 0.05) -> Callable[[evt.Event], Found]:
    def reply(event: evt.Event) -> Found:
        try:
            event.assoc.dul.socket.socket.sendall(head)
            if data:
                bytes_of(event, data, pause)
            time.sleep(2)
        except OSError:
            pass  # the other side left
        yield 0xFF00, None

    return reply


def garbage(event: evt.Event) -> Found:
    answer = C_FIND()
    answer.MessageIDBeingRespondedTo, answer.Status = event.request.MessageID, 0xFF00
    answer.AffectedSOPClassUID = event.request.AffectedSOPClassUID
    answer.Identifier = BytesIO(b"\x20\x00\x0d\x00UI\xff\xff\xff")
    event.assoc.dimse.send_msg(answer, event.context.context_id)
    yield 0xFF00, match(event)


def unexpected(event: evt.Event) -> Found:
    send(event, image(), number=1, context=event.context.context_id)
    yield 0xFF00, match(event)


def aborted(event: evt.Event) -> Found:
    yield 0xFF00, match(event)
    event.assoc.abort()
    yield 0xFF00, match(event)


def silent(_: evt.Event) -> Iterator[Any]:
    time.sleep(5)
    yield 0, None


COMMAND = b"\0\0\0\1\2\0\0\0\x99\x99" + b"\0\0\0\x08\2\0\0\0\1\1"  # of a kind that does not exist
DATA = (len(COMMAND) + 2).to_bytes(4, "big") + b"\1\3" + COMMAND
BAD_COMMAND = b"\x04\0" + len(DATA).to_bytes(4, "big") + DATA
FIND: dict[str, Callable[[evt.Event], Found]] = {
    "good": series({}, {}),
    "nothing": status(0x0000),
    "studies": endless("STUDY"),
    "series": endless("SERIES"),
    "up": series({"SeriesInstanceUID": "../../../etc/passwd"}),
    "odd_uids": series(*({"SeriesInstanceUID": uid} for uid in ODD_UIDS if uid.isascii())),
    "odd_studies": studies({"StudyInstanceUID": "../1"}, {"StudyInstanceUID": ""}),
    "other_study": series({"StudyInstanceUID": "1.9.9"}),
    "others": series({"Modality": "CT"}),
    "long_text": series({"SeriesDescription": "a" * 9000}),
    "twice": series({"SeriesInstanceUID": "1.2.3.4"}, {"SeriesInstanceUID": "1.2.3.4"}),
    "garbage": garbage,
    "unexpected": unexpected,
    "aborted": aborted,
    "silent": silent,
    "command": raw(BAD_COMMAND),
    "huge": raw(b"\x04\0\xff\xff\xff\xff", bytes(2**16), 0.0),
    "drip": raw(b"\x04\0\0\0\x10\0", b"a"),
    "no_pdu": raw(b"\x99\0\0\0\0\4aaaa"),
    "busy": status(0xA700),
    "unfit": status(0xA900),
    "failed": status(0xC001),
    "no_class": status(0x0122),
    "cancelled": status(0xFE00),
    "odd_status": status(0x1234),
}


def send(event: evt.Event, file: bytes, number: int, *, instance: str = "", context: int = 0) -> None:
    """Send a file at once, without waiting for an answer."""
    whole = BytesIO(file)
    length = 144 + int.from_bytes(file[140:144], "little")
    request = C_STORE()
    request.MessageID, request.Priority = number, 2
    request.AffectedSOPClassUID, request.AffectedSOPInstanceUID = MR, instance or f"{IMAGE}.{number}"
    request.DataSet = BytesIO(whole.getvalue()[length:])
    accepted = {str(each.abstract_syntax): each for each in event.assoc.accepted_contexts}
    explicit = [each for each in event.assoc.accepted_contexts if each.transfer_syntax[0] == "1.2.840.10008.1.2.1"]
    known = next((each for each in explicit if each.abstract_syntax == MR), accepted.get(MR))
    event.assoc.dimse.send_msg(request, context or known.context_id)


def sent(*images: bytes, then: int = 0x0000, names: tuple[str, ...] = ()) -> Callable[[evt.Event], Iterator[Any]]:
    def reply(event: evt.Event) -> Iterator[Any]:
        for number, file in enumerate(images, 1):
            send(event, file, number, instance=names[number - 1] if names else "")
            time.sleep(0.05)
        yield 1 if then else 0
        if then:
            yield then, None

    return reply


def many(event: evt.Event) -> Iterator[Any]:
    for number in range(1, 2000):
        if event.assoc.is_aborted:
            return
        send(event, image(number), number)
    yield 0


def large(event: evt.Event) -> Iterator[Any]:
    send(event, image(1) + bytes(3 * 2**20), 1)
    yield 0


def broken(event: evt.Event) -> Iterator[Any]:
    send(event, image(1), 1)
    event.assoc.abort()
    yield 0


GET: dict[str, Callable[[evt.Event], Iterator[Any]]] = {
    "good": sent(image(1), image(2)),
    "nothing": sent(),
    "fewer": sent(image(1)),
    "other_series": sent(image(1, series="1.2.9")),
    "other_study": sent(image(1, study="1.9")),
    "other_image": sent(image(1), names=(f"{IMAGE}.7",)),
    "path": sent(image(1, instance="../../../../tmp/evil"), names=(f"{IMAGE}.1",)),
    "path_named": sent(image(1), names=("../../../../tmp/evil",)),
    "twice": sent(image(1), image(1), names=(f"{IMAGE}.1",) * 2),
    "contradictory": sent(image(1), image(1, text="other"), image(2), names=(f"{IMAGE}.1", f"{IMAGE}.1", f"{IMAGE}.2")),
    "garbage": sent(image(1)[:400] + b"\xff" * 100, image(2)),
    "empty": sent(image(1)[: 144 + int.from_bytes(image(1)[140:144], "little")], image(2)),
    "some_failed": sent(image(1), then=0xB000),
    "failed": sent(image(1), then=0xC001),
    "busy": sent(then=0xA701),
    "many": many,
    "large": large,
    "broken": broken,
    "silent": silent,
    "huge": raw(b"\x04\0\xff\xff\xff\xff", bytes(2**16), 0.0),
    "drip": raw(b"\x04\0\0\0\x10\0", b"a"),
}


def moved(listening: int, *images: bytes) -> Callable[[evt.Event], Iterator[Any]]:
    def reply(_: evt.Event) -> Iterator[Any]:
        yield "127.0.0.1", listening
        yield len(images)
        for file in images:
            yield 0xFF00, pydicom.dcmread(BytesIO(file))

    return reply


def nowhere(_: evt.Event) -> Iterator[Any]:
    yield None, None


MOVE = ("good", "nothing", "other_series", "nowhere")
STORE = {
    "good": 0x0000,
    "there": 0x0111,
    "coerced": 0xB000,
    "busy": 0xA700,
    "unfit": 0xA900,
    "failed": 0xC123,
    "forbidden": 0x0124,
    "odd_status": 0x1234,
    "aborted": -1,
    "silent": -2,
}
RAW: dict[str, Callable[[socket.socket], None]] = {
    "silent": lambda _: time.sleep(5),
    "closed": lambda _: None,
    "http": lambda one: one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "rejected": lambda one: one.sendall(b"\x03\0\0\0\0\4\0\1\1\7"),
    "full": lambda one: one.sendall(b"\x03\0\0\0\0\4\0\2\3\2"),
    "aborted": lambda one: one.sendall(b"\x07\0\0\0\0\4\0\0\0\0"),
    "huge": lambda one: again(one, b"\x02\0\xff\xff\xff\xff", bytes(2**16), 0.0),
    "drip": lambda one: again(one, b"\x02\0\0\0\x10\0", b"a", 0.05),
    "garbage": lambda one: one.sendall(b"\x02\0\0\0\x01\0" + bytes(range(256))),
}


def request(one: socket.socket) -> bytes:
    """The whole request: a connection that is closed with unread bytes is reset, and the answer lost."""
    found = b""
    while len(found) < 6 or len(found) < 6 + int.from_bytes(found[2:6], "big"):
        if not (more := one.recv(4096)):
            break
        found += more
    return found


def again(one: socket.socket, head: bytes, data: bytes, pause: float) -> None:
    one.sendall(head)
    for _ in range(10_000):
        one.sendall(data)
        time.sleep(pause)


def case(event: evt.Event) -> str:
    return str(event.assoc.requestor.primitive.called_ae_title).strip().split("-")[-1]


def on_find(event: evt.Event) -> Found:
    if case(event) in FIND and event.identifier.QueryRetrieveLevel != "IMAGE":
        yield from FIND[case(event)](event)
    elif event.identifier.QueryRetrieveLevel == "IMAGE":
        yield 0xFF00, match(event, 1)
        yield 0xFF00, match(event, 2)


def on_store(event: evt.Event) -> int:
    code = STORE[case(event)]
    if code == -1:
        event.assoc.abort()
    if code == -2:
        time.sleep(3)
    return max(code, 0)


def serve(listening: int) -> None:
    """Print three ports, and serve until the input ends."""
    moves = {
        "good": moved(listening, image(1), image(2)),
        "nothing": moved(listening),
        "other_series": moved(listening, image(1, series="1.2.9")),
        "nowhere": nowhere,
    }
    full, empty = AE(), AE()
    for context in AllStoragePresentationContexts:
        full.add_supported_context(context.abstract_syntax, scu_role=True, scp_role=True)
        full.add_requested_context(context.abstract_syntax) if context.abstract_syntax == MR else None
    for name in (
        StudyRootQueryRetrieveInformationModelFind,
        StudyRootQueryRetrieveInformationModelGet,
        StudyRootQueryRetrieveInformationModelMove,
    ):
        full.add_supported_context(name)
    empty.add_supported_context("1.2.840.10008.1.1")
    handlers = [
        (evt.EVT_C_FIND, on_find),
        (evt.EVT_C_GET, lambda event: GET[case(event)](event)),
        (evt.EVT_C_MOVE, lambda event: moves[case(event)](event)),
        (evt.EVT_C_STORE, on_store),
    ]
    threading.excepthook = lambda _: None
    servers = [one.start_server(("127.0.0.1", 0), False, evt_handlers=handlers) for one in (full, empty)]
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    ports = [one.server_address[1] for one in servers if one is not None]
    sys.stdout.write(json.dumps([ports[0], listener.getsockname()[1], ports[1]]) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer_raw, args=(connection,), daemon=True).start()


def answer_raw(connection: socket.socket) -> None:
    with connection:
        try:
            RAW[request(connection)[10:26].decode().strip().split("-")[-1]](connection)
            time.sleep(0.2)
        except OSError:
            pass  # the other side left


@contextmanager
def hostile_node(listening: int) -> Iterator[dict[str, int]]:
    """Ports: of an archive that knows all cases of `FIND`, `GET`, `MOVE` and `STORE`; of `RAW`; of one without any.

    listening: where C-MOVE sends images to.
    """
    command = [sys.executable, str(Path(__file__)), str(listening)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield dict(zip(("SCP", "RAW", "EMPTY"), json.loads(process.stdout.readline()), strict=True))
        finally:
            process.kill()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
