"""HTTP with an archive that is not trusted: every answer is bounded, every failure has one of four meanings.

`Passing` (may pass: no connection, busy), `Denied` (a person must correct it), `Refused` (this request, with a status),
`Unusable` (an answer that is none).
"""

from __future__ import annotations

import base64
import http.client
import io
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from pipelines.pacs.archive import Denied
from pipelines.pacs.patience import Passing, run_within
from pipelines.pacs.settings import DicomWeb
from privacy.pickled import reduce_error

T = TypeVar("T")
CHUNK = 2**17
ANSWERS = (200, 204, 206)
PASSING = (408, 425, 429, 500, 502, 503, 504)
DENIED = (401, 403, 407)
FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


class Refused(Exception):
    """The archive refuses this one request. status: of HTTP."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the archive answers {status} ({http.client.responses.get(status, 'unknown')})")
        self.status = status

    __reduce__ = reduce_error


class Unusable(Exception):
    """The archive's answer cannot be used. reason: a code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    __reduce__ = reduce_error


class Wildcards(HTTPAdapter):
    """Sends * and ? of a query as they are: dicomweb-client escapes them, and Orthanc 1.10 with DICOMweb 1.7 does not
    undo that. RFC 3986, 3.4 allows both.
    """

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """See `HTTPAdapter.send`."""
        request.url = (request.url or "").replace("%2A", "*").replace("%3F", "?")
        return super().send(request, *args, **kwargs)


def session_of(settings: DicomWeb) -> requests.Session:
    """A session with our credentials and certificates, and nothing from the environment (.netrc, proxies, bundles)."""
    session = requests.Session()
    session.trust_env = False
    session.mount("https://", Wildcards())
    session.mount("http://", Wildcards())
    session.headers["Accept-Encoding"] = "identity"  # so that what is counted is what is unpacked
    system = ssl.get_default_verify_paths().cafile
    session.verify = settings.ca or (system if system and Path(system).is_file() else True)
    if settings.certificate is not None and settings.key is not None:
        session.cert = (settings.certificate, settings.key)
    secret = settings.token or settings.password
    if secret is not None:
        token = secret.read()
        basic = base64.b64encode(f"{settings.user}:{token}".encode()).decode()
        header = f"Bearer {token}" if settings.token else f"Basic {basic}"

        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = header.encode()
            return request

        session.auth = authorize
    return session


def make_guard(largest: int) -> Callable[..., None]:
    """A response hook of requests: refuses by status before a redirection is followed, and reads at most `largest`
    bytes of a body that is read as a whole.
    """

    def check(response: requests.Response, *_: object, stream: bool = False, **__: object) -> None:
        status = response.status_code
        if 300 <= status < 400 or status in DENIED or status in PASSING:
            response.close()
        if 300 <= status < 400:
            raise Denied(f"the archive answers {status}, a redirection; give the address that it should be asked at")
        if status in DENIED:
            raise Denied(f"the archive answers {status}; check credentials, certificate and permission")
        if status in PASSING:
            raise Passing(f"the archive answers {status}", _parse_seconds(response.headers.get("Retry-After", "")))
        if stream:
            return
        if response.request.method == "GET" and status not in ANSWERS:
            response.close()
            raise Refused(status)
        content = bytearray()
        for chunk in response.raw.stream(CHUNK, decode_content=True):
            content += chunk
            if len(content) > largest:
                response.close()
                raise Unusable("too_large", f"an answer of more than {largest} bytes; narrow the query")
        if not content and status == 200:
            raise Unusable("empty", "the archive answers 200 and says nothing")
        response.raw = io.BytesIO(content)

    return check


def run_request(settings: DicomWeb, action: Callable[[], T]) -> T:
    """What a request returns, up to its header if its body is streamed, within the time of an answer.

    Raises:
        Passing, Denied, Refused, Unusable.
    """
    try:
        return run_within(settings.limits.answer_s, action)
    except (Passing, Denied, Refused, Unusable):
        raise
    except FAILURES as error:
        raise translate_error(error, settings) from error


def translate_error(error: BaseException, settings: DicomWeb) -> Exception:
    """The meaning of a failed request; the library's own text may hold an address with a patient's values."""
    host = urlsplit(settings.url).hostname
    chain = list(_list_causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Denied(f"the certificate of {host} is not trusted ({cause.verify_message}); check ca and url")
    for cause in chain:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return Denied(f"TLS with {host} fails ({cause.reason}); check url, certificate and key")
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return Refused(error.response.status_code)
    if isinstance(error, requests.JSONDecodeError):
        return Unusable("no_json", "the answer is no JSON")
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in chain)
    if not refused and any(isinstance(cause, urllib3.exceptions.TimeoutError | TimeoutError) for cause in chain):
        return Passing(f"{host} does not answer within {settings.limits.timeout_s:g} s")
    return Passing(f"no connection with {host}, or it broke ({type(chain[-1]).__name__})")


def stream_body(response: requests.Response, settings: DicomWeb) -> Iterator[bytes]:
    """The bytes of a streamed answer, as they come, within the time of an answer.

    Raises:
        Passing: it broke off, or takes too long.
    """
    end = time.monotonic() + settings.limits.answer_s
    late = threading.Timer(settings.limits.answer_s, _shut_response, [response])
    late.daemon = True
    late.start()
    chunks = response.iter_content(CHUNK)
    try:
        while True:
            try:
                chunk = next(chunks, None)
            except FAILURES as error:
                raise translate_error(error, settings) from error
            if time.monotonic() > end:
                raise Passing(f"no whole answer within {settings.limits.answer_s:g} s")
            if chunk is None:
                return
            yield chunk
    finally:
        late.cancel()


@contextmanager
def close_response(response: requests.Response) -> Iterator[requests.Response]:
    """The response, closed at the end, whatever is left of its body."""
    try:
        yield response
    finally:
        response.close()


def _shut_response(response: requests.Response) -> None:
    try:
        response.raw.shutdown()
    except Exception:  # it may have ended meanwhile
        response.close()


def _parse_seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it stands for: requests and urllib3 wrap them in arguments, reasons and contexts."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            waiting += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]
    yield from seen
