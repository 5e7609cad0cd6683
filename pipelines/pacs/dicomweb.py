"""An archive over DICOMweb (PS3.18, 10): QIDO-RS to ask, WADO-RS to fetch, STOW-RS to store.

`dicomweb-client` asks, and checks and writes addresses. Files are streamed here, byte for byte: it would hold each one
in memory and encode it anew.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import requests
from dicomweb_client import URI
from dicomweb_client.web import DICOMwebClient

from pipelines.pacs.answers import RETURNED, first_time, is_match, keys_of, parse_entry, texts_of, widen_keys
from pipelines.pacs.archive import Archive, Denied, Entry, Fetched, Odd, Query, Unreachable
from pipelines.pacs.http import (
    ANSWERS,
    Refused,
    Unusable,
    close_response,
    make_guard,
    run_request,
    session_of,
    stream_body,
)
from pipelines.pacs.inbox import Inbox, TooMuch
from pipelines.pacs.multipart import Malformed, Mark, Truncated, media_type, split_parts
from pipelines.pacs.outbox import read_outgoing
from pipelines.pacs.patience import Pace, Passing
from pipelines.pacs.settings import DicomWeb
from pipelines.pacs.stored import find_refusal

BYTES_AN_ANSWER = 2**13  # of a query, on average
FEWEST_ANSWERS = 1000  # for which there is room, as some archives do not know pages
DICOM, MULTIPART, JSON = "application/dicom", "multipart/related", "application/dicom+json"
ACCEPTED = f'{MULTIPART}; type="{DICOM}"; transfer-syntax=*'


@contextmanager
def open_web(settings: DicomWeb) -> Iterator[Archive]:
    """The archive, with one session for all requests."""
    with session_of(settings) as session:
        largest = BYTES_AN_ANSWER * max(settings.page, FEWEST_ANSWERS)
        address = settings.url.rstrip("/")
        timeout = settings.limits.timeout_s
        client = DICOMwebClient(address, session, callback=make_guard(largest), timeout=(timeout, timeout))
        client.set_http_retry_params(retry=False)
        yield Web(settings=settings, session=session, client=client, pace=Pace(settings.limits), address=address)


@dataclass(frozen=True, kw_only=True)
class Web:
    """See `Archive`."""

    settings: DicomWeb
    session: requests.Session
    client: DICOMwebClient
    pace: Pace
    address: str

    def find(self, query: Query) -> Iterator[Entry | Odd]:
        """See `Archive`. Odd also where a page cannot be used, comes twice, or there are too many answers."""
        limits, keys, studies, number = self.settings.limits, keys_of(query), dict[str, str](), 0
        end = time.monotonic() + limits.answer_s
        before: list[Any] = []
        while page := (yield from self._page(query, number)):
            if page == before:  # the archive does not know offsets
                if len(page) == self.settings.page:
                    yield Odd(f"answers from {number + 1}", "same_page", "a page came twice; others may be missing")
                return
            for answer in page:
                number += 1
                if number > limits.most:
                    yield Odd(f"more than {limits.most} answers", "too_many", "narrow the query, or raise most")
                    return
                texts = texts_of(answer, keys)
                entry = parse_entry(texts, query, number)
                if isinstance(entry, Odd) or is_match(keys, texts):
                    yield from first_time(entry, studies)
            before = page
            if time.monotonic() > end:
                raise Unreachable(f"no whole answer to a query within {limits.answer_s:g} s")

    def _page(self, query: Query, offset: int) -> Generator[Odd, None, list[Any]]:
        """A page of answers; of one that cannot be used an Odd, and no answers."""
        try:
            return self.pace.again(partial(run_request, self.settings, partial(self._ask, query, offset)))
        except Refused as error:
            raise Denied(f"{error} to a query; check url, and whether the archive offers QIDO-RS") from error
        except Unusable as error:
            yield Odd(f"answers from {offset + 1}", error.reason, str(error))
            return []

    def _ask(self, query: Query, offset: int) -> list[Any]:
        fields = [*RETURNED, *(keyword for keyword in query.more if keyword not in RETURNED)]
        filters = widen_keys(keys_of(query))
        try:
            answers: object = self.client.search_for_series(
                search_filters=filters, fields=fields, limit=self.settings.page, offset=offset
            )
        except requests.RequestException:
            raise
        except (RecursionError, ValueError) as error:
            raise Unusable("no_json", f"the answer cannot be read ({type(error).__name__})") from error
        if not isinstance(answers, list):
            raise Unusable("no_list", "the answer is JSON, and no list of series")
        return answers

    def fetch(self, entry: Entry, folder: Path) -> Fetched:
        """See `Archive`. Odd also where the whole answer cannot be used: `fetched.files` are then those before it."""
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty")
        inbox, cut = Inbox(entry, folder, self.settings.limits), 0
        url = str(URI(self.address, entry.study, entry.series))

        def attempt() -> None:
            nonlocal cut
            inbox.empty()
            try:
                self._receive(url, inbox)
            except Truncated as error:
                cut += 1
                if cut <= self.settings.limits.retries:
                    raise Passing("the archive's answer is cut off") from error
                inbox.odd.append(Odd(entry.series, "truncated", f"{error}; only whole files before that are there"))

        try:
            self.pace.again(attempt)
        except Refused as error:
            reason = "gone" if error.status in (404, 410) else "refused"
            inbox.odd.append(Odd(entry.series, reason, str(error)))
        except (Unusable, TooMuch, Malformed) as error:
            reason = error.reason if isinstance(error, Unusable) else "malformed"
            inbox.odd.append(Odd(entry.series, "too_large" if isinstance(error, TooMuch) else reason, str(error)))
        except BaseException:
            inbox.empty()
            raise
        return inbox.fetched()

    def _receive(self, url: str, inbox: Inbox) -> None:
        def get() -> requests.Response:
            timeout = self.settings.limits.timeout_s
            response = self.session.get(url, headers={"Accept": ACCEPTED}, stream=True, timeout=(timeout, timeout))
            if response.status_code not in ANSWERS:
                response.close()
                raise Refused(response.status_code)
            return response

        with close_response(run_request(self.settings, get)) as response:
            kind, boundary = media_type(response.headers.get("Content-Type", ""))
            chunks = _count_chunks(stream_body(response, self.settings), inbox)
            if kind == DICOM:
                pieces: Iterator[Mark | bytes] = chain((Mark.BEGIN,), chunks, (Mark.END,))
            elif kind == MULTIPART and boundary:
                pieces = split_parts(chunks, boundary)
            else:
                raise Unusable("wrong_content_type", f"asked for {MULTIPART}, and got something else")
            for piece in pieces:
                if piece is Mark.BEGIN:
                    _one_file(pieces, inbox)

    def store(self, files: Sequence[Path]) -> Sequence[Odd]:
        """See `Archive`. One request a file, so that an answer is about that file alone."""
        odd = [self._store(path, f"file {number}") for number, path in enumerate(files, 1)]
        return [refusal for refusal in odd if refusal is not None]

    def _store(self, path: Path, what: str) -> Odd | None:
        sent = read_outgoing(path)
        if isinstance(sent, Odd):
            return sent._replace(what=what)
        boundary = uuid.uuid4().hex
        with tempfile.TemporaryFile() as body:
            with path.open("rb") as file:
                body.write(f"--{boundary}\r\nContent-Type: {DICOM}\r\n\r\n".encode())
                shutil.copyfileobj(file, body)
                body.write(f"\r\n--{boundary}--\r\n".encode())
            try:
                answer = self.pace.again(partial(run_request, self.settings, partial(self._post, body, boundary)))
            except Unusable as error:
                return Odd(sent.instance, error.reason, str(error))
        return find_refusal(answer, sent.instance)

    def _post(self, body: IO[bytes], boundary: str) -> requests.Response:
        body.seek(0)
        timeout = self.settings.limits.timeout_s
        kind = f'{MULTIPART}; type="{DICOM}"; boundary={boundary}'
        headers = {"Content-Type": kind, "Accept": JSON}
        return self.session.post(f"{self.address}/studies", data=body, headers=headers, timeout=(timeout, timeout))


def _one_file(pieces: Iterator[Mark | bytes], inbox: Inbox) -> None:
    with inbox.arriving() as file:
        for piece in pieces:
            if isinstance(piece, Mark):
                return
            file.write(piece)


def _count_chunks(chunks: Iterator[bytes], inbox: Inbox) -> Iterator[bytes]:
    for chunk in chunks:
        inbox.grew(len(chunk))
        yield chunk
