"""DICOMweb as no archive should answer: each case is one kind of malice or damage.

with hostile_web() as port: ...      at http://127.0.0.1:PORT/CASE
"""

from __future__ import annotations

import gzip
import io
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

STUDY, SERIES, IMAGE = "1.2.3", "1.2.3.4", "1.2.3.4.5"
MR = "1.2.840.10008.5.1.4.1.1.4"
DICOM_JSON = "application/dicom+json"
PARTS = 'multipart/related; type="application/dicom"; boundary=b'


def image(number: int = 1, *, study: str = STUDY, series: str = SERIES, instance: str = "", text: str = "") -> bytes:
    """A file of a series, small and without pixels."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = MR
    with pydicom.config.disable_value_validation():
        dataset.SOPInstanceUID = instance or f"{IMAGE}.{number}"
        dataset.file_meta.MediaStorageSOPInstanceUID = f"{IMAGE}.{number}"
        dataset.StudyInstanceUID, dataset.SeriesInstanceUID = study, series
        dataset.Modality, dataset.ImageComments = "MR", text
        dataset.PatientID, dataset.PatientName = "SECRET-ID", "Secret^Name"
        whole = io.BytesIO()
        dataset.save_as(whole, enforce_file_format=True)
    return whole.getvalue()


def bomb() -> bytes:
    """A deflated file of 30 kB that unpacks to 30 MB."""
    with pydicom.config.disable_value_validation():
        dataset = pydicom.dcmread(io.BytesIO(image()))
        dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        whole = io.BytesIO()
        dataset.save_as(whole, enforce_file_format=True)
    head = whole.getvalue()
    start = 144 + pydicom.dcmread(io.BytesIO(head)).file_meta.FileMetaInformationGroupLength
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = b"".join(packing.compress(bytes(2**20)) for _ in range(30))
    return head[:start] + packed + packing.flush()


def nested() -> bytes:
    """A file with sequences in sequences, ten thousand deep, before its UIDs."""
    opening = b"\x08\x00\x40\x11SQ\0\0\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    whole = image()
    at = whole.index(b"\x08\x00\x16\x00UI")
    return whole[:at] + opening * 10_000


def answer(number: int = 1, **changed: object) -> dict[str, object]:
    """A series as QIDO-RS describes it. changed: tag -> value, in place of the right one."""
    values: dict[str, object] = {
        "0020000D": STUDY,
        "0020000E": f"{SERIES}.{number}",
        "00080060": "MR",
        "0008103E": "t2",
        "00080020": "20260101",
        "00201209": 2,
    }
    values |= {tag.removeprefix("_"): value for tag, value in changed.items()}
    return {tag: {"vr": "LO", "Value": [value]} for tag, value in values.items()}


def multipart(*files: bytes) -> bytes:
    parts = [b"--b\r\nContent-Type: application/dicom\r\n\r\n" + file + b"\r\n" for file in files]
    return b"".join(parts) + b"--b--\r\n"


class Request(BaseHTTPRequestHandler):
    """One request; what is answered is in `WEB`, by the first part of the path."""

    protocol_version = "HTTP/1.1"

    def say(self, body: bytes, kind: str = DICOM_JSON, status: int = 200, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def raw(self, data: bytes) -> None:
        self.close_connection = True
        self.wfile.write(data)

    def endless(self, begin: bytes, more: bytes, kind: str, pause: float = 0.0) -> None:
        """A body without length and end."""
        self.close_connection = True
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n%s" % (kind.encode(), begin))
        while not self.server.stopped.is_set():  # type: ignore[attr-defined]
            self.wfile.write(more)
            time.sleep(pause)

    def offset(self) -> int:
        return int(next(part for part in self.path.split("&") if "offset=" in part).split("=")[-1])

    def do_GET(self) -> None:
        self.reply()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.reply()

    def reply(self) -> None:
        try:
            WEB[self.path.split("/")[1]](self)
        except OSError:
            self.close_connection = True  # the other side left

    def log_message(self, *_: object) -> None:
        pass


def series(*answers: object) -> Callable[[Request], None]:
    """The first page has these answers, the second none."""
    return lambda to: to.say(json.dumps(list(answers) if to.offset() == 0 else []).encode())


def said(body: bytes, kind: str = DICOM_JSON, status: int = 200, **headers: str) -> Callable[[Request], None]:
    return lambda to: to.say(body, kind, status, **headers)


def raw(data: bytes) -> Callable[[Request], None]:
    return lambda to: to.raw(data)


def files(*content: bytes) -> Callable[[Request], None]:
    return said(multipart(*content), PARTS)


def silent(to: Request) -> None:
    to.server.stopped.wait(60)  # type: ignore[attr-defined]


def million(to: Request) -> None:
    to.say(json.dumps([answer(number) for number in range(to.offset(), to.offset() + 200)]).encode())


def drip(head: bytes, kind: bytes = b"") -> Callable[[Request], None]:
    """A byte from time to time, sooner than any time limit for one."""

    def slowly(to: Request) -> None:
        to.close_connection = True
        to.wfile.write(head)
        while not to.server.stopped.wait(0.05):  # type: ignore[attr-defined]
            to.wfile.write(b"a")

    return slowly


def stored(failed: dict[str, object] | None = None, taken: str = "", status: int = 200) -> Callable[[Request], None]:
    body: dict[str, object] = {}
    if failed is not None:
        item = {tag: {"vr": "UI", "Value": [value]} for tag, value in failed.items()}
        body["00081198"] = {"vr": "SQ", "Value": [item]}
    if taken:
        body["00081199"] = {"vr": "SQ", "Value": [{"00081155": {"vr": "UI", "Value": [taken]}}]}
    return said(json.dumps(body).encode(), DICOM_JSON, status)


ODD_UIDS = ("1.2\n", "1.2\0", "1.02", "١.٢", ".", "1." * 40, "%2e%2e", "")
FIRST = f"{IMAGE}.1"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/dicom+json\r\n"
ANYTHING: dict[str, Callable[[Request], None]] = {
    "html": said(b"<html>Please log in</html>", "text/html"),
    "nothing": said(b""),
    "moved": said(b"", status=302, Location="http://127.0.0.1:1/elsewhere"),
    "bad": said(b"", status=400),
    "log_in": said(b"", status=401, WWW_Authenticate="Basic"),
    "forbidden": said(b"", status=403),
    "not_found": said(b"", status=404),
    "gone": said(b"", status=410),
    "too_fast": said(b"", status=429, Retry_After="999999999"),
    "broken": said(b"", status=500),
    "busy": said(b"", status=503, Retry_After="soon"),
    "unknown": said(b"", status=799),
    "no_http": raw(b"220 smtp ready\r\n" * 20),
    "closed": raw(b""),
    "short": raw(OK + b"Content-Length: 1000\r\n\r\n[]"),
    "negative": raw(OK + b"Content-Length: -5\r\n\r\n[]"),
    "chunks": raw(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[]"),
    "headers": raw(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(5000)) + b"\r\n"),
    "long_header": raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2**20),
    "silent": silent,
    "slow_header": drip(b"HTTP/1.1 200 OK\r\nX: "),
    "slow_body": drip(OK + b"Content-Length: 100000\r\n\r\n["),
    "slow_chunk": drip(OK + b"Transfer-Encoding: chunked\r\n\r\nFFFF\r\n["),
    "endless": lambda to: to.endless(b"[", b'"aaaaaaa",' * 10_000, DICOM_JSON),
    "zipped": said(gzip.compress(bytes(30 * 2**20)), Content_Encoding="gzip"),
    "garbage": said(bytes(range(256)) * 100),
    "deep": said(b"[" * 200_000),
    "digits": said(b"[" + b"9" * 10_000 + b"]"),
}
FIND: dict[str, Callable[[Request], None]] = {
    "good": series(answer(1), answer(2)),
    "numbers": series(1, 2.5, None, True, "text", [], {}),
    "no_list": said(b'"text"'),
    "empty_values": series({"0020000D": {"vr": "UI"}, "0020000E": {"Value": []}}),
    "up": series(answer(_0020000E="../../../etc/passwd"), answer(_0020000D="1.2/../../3")),
    "odd_uids": series(*(answer(_0020000E=uid) for uid in ODD_UIDS)),
    "types": series(answer(_0020000D={"Alphabetic": "A"}), answer(_00080060=["MR"]), answer(_00201209="many")),
    "long_text": series(answer(_0008103E="a" * 100_000)),
    "others": series(answer(_00080060="CT"), answer(_00080020="19990101")),
    "same_page": said(json.dumps([answer(number) for number in range(200)]).encode()),
    "all_at_once": said(json.dumps([answer(1), answer(2)]).encode()),
    "million": million,
    "million_at_once": said(b"[" + b",".join([b"{}"] * 1_000_000) + b"]"),
}
FETCH: dict[str, Callable[[Request], None]] = {
    "good": files(image(1), image(2)),
    "one_file": said(image(1), "application/dicom"),
    "preamble": said(b"read this\r\n" + multipart(image(1), image(2)) + b"and that", PARTS),
    "no_header": said(b"--b\r\n\r\n" + image(1) + b"\r\n--b--", PARTS),
    "no_boundary": said(multipart(image(1)), "multipart/related"),
    "other_boundary": said(multipart(image(1)), PARTS + "x"),
    "line_feeds": said(multipart(image(1)).replace(b"\r\n", b"\n"), PARTS),
    "no_parts": said(b"--b--\r\n", PARTS),
    "cut": said(multipart(image(1), image(2))[:-40], PARTS),
    "cut_short": raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: 99999\r\n\r\n" % PARTS.encode()
        + multipart(image(1), image(2))[:-40]
    ),
    "endless_part": lambda to: to.endless(b"--b\r\n\r\n" + image(1)[:200], b"a" * 100_000, PARTS),
    "endless_header": lambda to: to.endless(b"--b\r\n", b"a" * 1000, PARTS),
    "endless_parts": lambda to: to.endless(b"", b"--b\r\n\r\na\r\n", PARTS),
    "many": files(*(image(number) for number in range(100))),
    "slow_part": lambda to: to.endless(b"--b\r\n\r\n", b"a", PARTS, 0.05),
    "other_series": files(image(1, series="1.2.9")),
    "other_study": files(image(1, study="1.9")),
    "path": files(image(1, instance="../../../../tmp/evil")),
    "no_uid": files(image(1, instance=" ")),
    "twice": files(image(1), image(1)),
    "contradictory": files(image(1), image(1, text="other"), image(2)),
    "no_dicom": files(b"%PDF-1.4", b"", image(1)),
    "damaged": files(image(1)[:170], image(2)),
    "bomb": files(bomb()),
    "nested": files(nested()),
    "fewer": files(image(1)),
}
STORE: dict[str, Callable[[Request], None]] = {
    "good": stored(taken=FIRST),
    "there": stored({"00081155": FIRST, "00081197": 0x0111}, status=409),
    "failed": stored({"00081155": FIRST, "00081197": 0xA700}, status=409),
    "failed_200": stored({"00081155": FIRST, "00081197": 0xC000}, taken=FIRST),
    "no_reason": stored({"00081155": FIRST}, status=202),
    "odd_reason": stored({"00081155": FIRST, "00081197": "Secret^Name"}, status=409),
    "other": stored(taken="1.9.9"),
    "unclear": stored(),
    "xml": said(f"<NativeDicomModel><Value>{FIRST}</Value></NativeDicomModel>".encode(), "application/dicom+xml"),
    "xml_failed": said(f'<a keyword="FailedSOPSequence">{FIRST}</a>'.encode(), "application/dicom+xml", 202),
    "large": said(b"", status=413),
}
WEB = (
    {f"any-{name}": reply for name, reply in ANYTHING.items()}
    | {f"find-{name}": reply for name, reply in FIND.items()}
    | {f"fetch-{name}": reply for name, reply in FETCH.items()}
    | {f"store-{name}": reply for name, reply in STORE.items()}
)


@contextmanager
def hostile_web() -> Iterator[int]:
    """Serves all cases of `WEB` on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    server.stopped = threading.Event()  # type: ignore[attr-defined]
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the other side left
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.stopped.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
