"""Shows a hospital's own page to a browser on the same machine, and takes marks of its cases.

It answers at 127.0.0.1 only, and only requests that know its token. A page of another site that a browser of this
machine shows can reach the port, but not the token; its requests are refused by `Host` (names that were bound to
127.0.0.1 later) and by `Origin` as well. Nothing is cached, logged or asked elsewhere.
"""

from __future__ import annotations

import hmac
import html
import json
import re
import secrets
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.rendering import read_script, write_digest
from pipelines.reviews.marks import (
    LONGEST_NOTE,
    OPINIONS,
    PAGE,
    Mark,
    ReviewError,
    ShownCases,
    read_cases,
    read_marks,
    remove_summary,
    replace_mark,
    summarize_marks,
    write_csv,
    write_marks,
    write_summary,
)
from privacy.durable import write_whole

ADDRESS = "127.0.0.1"
LARGEST = 65_536  # bytes of a mark
PATIENCE_S = 30.0  # of a request that does not come to its end
POLICY = re.compile(r'(<meta http-equiv="Content-Security-Policy" content=")([^"]*)(">)')
LAST = re.compile("; script-src [^;]*$")  # of a page's policy: a script's digest is written behind it
CONNECTED = "; connect-src 'self'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
HTML, JSON, CSV = "text/html; charset=utf-8", "application/json", "text/csv; charset=utf-8"


class Answer(NamedTuple):
    """An answer to a request. kind: its media type. policy: of the page's scripts. location: where to ask instead."""

    status: HTTPStatus
    kind: str
    body: bytes
    policy: str = "default-src 'none'"
    location: str = ""


@dataclass
class Review:
    """A page under review. folder: the hospital's. reviewer: whose marks are written."""

    folder: Path
    reviewer: str
    shown: ShownCases
    marks: tuple[Mark, ...]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def show_page(self) -> Answer:
        """The hospital's page as it is now, with the script that marks. No other script may run than those that the
        page itself allows: one that somebody put there is not allowed by being there.
        """
        page, script = self._read_page(), read_script("review.js")
        policies = [html.unescape(policy) for _, policy, _ in POLICY.findall(page)]
        if len(policies) != 1 or not LAST.search(policies[0]) or "</body>" not in page:
            raise ReviewError("the page is of another version; write it anew by the run, --from report")
        policy = f"{policies[0]} {write_digest(script)}{CONNECTED}"
        page = POLICY.sub(lambda match: f"{match[1]}{policy}{match[3]}", page)
        before, end, after = page.rpartition("</body>")
        text = f"{before}<script>{script}</script>\n{end}{after}"
        return Answer(HTTPStatus.OK, HTML, text.encode(), f"{policy}; frame-ancestors 'none'")

    def list_marks(self) -> Answer:
        """The reviewer, all marks of these cases, and their summary, as JSON."""
        return _answer_json(HTTPStatus.OK, self._describe())

    def export_csv(self) -> Answer:
        """The marks of these cases as CSV."""
        return Answer(HTTPStatus.OK, CSV, write_csv(self.marks, self.shown).encode())

    def take_mark(self, body: bytes) -> Answer:
        """Write a mark, and the summary on the page. body: JSON with case, opinion and note."""
        try:
            entry = json.loads(body)
            case, opinion, note = (entry.get(name) for name in ("case", "opinion", "note"))
        except (ValueError, AttributeError, RecursionError):
            return _refuse(HTTPStatus.BAD_REQUEST, "a mark is a JSON object with case, opinion and note")
        problems = []
        if case not in [shown.code for shown in self.shown.cases]:
            problems.append("case: it is none of this page")
        if opinion not in [*OPINIONS, ""]:
            problems.append(f"opinion: it is one of {', '.join(OPINIONS)}, or empty, which removes the mark")
        if not isinstance(note, str) or len(note) > LONGEST_NOTE:
            problems.append(f"note: a text of at most {LONGEST_NOTE} characters")
        if problems:
            return _refuse(HTTPStatus.BAD_REQUEST, "; ".join(problems))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        clean = note.encode("utf-8", "replace").decode()  # half of a pair of surrogates cannot be written
        self._write(Mark(self.shown.digest, self.shown.run, case, self.reviewer, opinion, clean, now))
        return self.list_marks()

    def _write(self, mark: Mark) -> None:
        """Write the marks, then the page. Raises: ReviewError: a run has written other cases; OSError: the disk."""
        with self.lock:
            self._read_page()
            marks = replace_mark(self.marks, mark)
            write_marks(self.folder, marks)
            self.marks = marks
            write_page_summary(self.folder, summarize_marks(marks, self.shown))

    def _read_page(self) -> str:
        """The page. Raises: ReviewError: a run has written other cases; OSError: it cannot be read."""
        page = (self.folder / PAGE).read_text(encoding="utf-8")
        if read_cases(page).digest != self.shown.digest:
            raise ReviewError("a run has written this page anew, with other cases; end this command and begin again")
        return page

    def _describe(self) -> dict[str, Any]:
        """What the script shows."""
        marks = [asdict(mark) for mark in self.marks if mark.cases == self.shown.digest]
        return {"reviewer": self.reviewer, "marks": marks, "summary": summarize_marks(self.marks, self.shown)}


def open_review(folder: Path, reviewer: str) -> Review:
    """A hospital's page and its marks, with the summary on the page as the marks say it. folder: the hospital's.

    Raises:
        ReviewError: the page has no cases, or the file of marks is damaged.
        OSError: they cannot be read or written.
    """
    shown, marks = read_cases((folder / PAGE).read_text(encoding="utf-8")), read_marks(folder)
    write_page_summary(folder, summarize_marks(marks, shown))
    return Review(folder, reviewer, shown, marks)


def write_page_summary(folder: Path, sentences: tuple[str, ...]) -> None:
    """Write the summary on the page, if it is not there yet. Raises: OSError: the disk."""
    path = folder / PAGE
    page = path.read_bytes()
    if (changed := write_summary(remove_summary(page), sentences)) != page:
        write_whole(path, changed, mode=path.stat().st_mode & 0o777)


class ReviewServer(ThreadingHTTPServer):
    """Serves one review at 127.0.0.1. Raises: OSError: the port is taken."""

    daemon_threads = True

    def __init__(self, review: Review, port: int) -> None:
        self.review = review
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Bind to the port, without looking up the machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{ADDRESS}:{self.server_port}/{self.review.token}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers a browser."""

    timeout = PATIENCE_S
    server: ReviewServer

    def do_GET(self) -> None:
        """Show the page or its marks."""
        review = self.server.review
        routes = {"": review.show_page, "marks": review.list_marks, "marks.csv": review.export_csv}
        self._answer(lambda name: routes[name]() if name in routes else None, needs_origin=False)

    def do_POST(self) -> None:
        """Take a mark."""
        self._answer(lambda name: self._read_mark() if name == "marks" else None, needs_origin=True)

    def _read_mark(self) -> Answer:
        """Read a mark from the request's body."""
        kind, length = self.headers.get_content_type(), self.headers.get("Content-Length", "")
        if kind != JSON or not re.fullmatch("[0-9]{1,6}", length) or int(length) > LARGEST:
            text = f"a mark is sent as {JSON}, with its length, at most {LARGEST} bytes"
            return _refuse(HTTPStatus.BAD_REQUEST, text)
        return self.server.review.take_mark(self.rfile.read(int(length)))

    def _answer(self, find: Callable[[str], Answer | None], *, needs_origin: bool) -> None:
        """Answer, or refuse. find: gives the answer by the path's last part."""
        _, _, rest = self.path.partition("/")
        token, slash, name = rest.partition("/")
        try:
            if refusal := find_refusal(self.headers, self.server.server_port, needs_origin=needs_origin):
                answer: Answer | None = _refuse(HTTPStatus.FORBIDDEN, refusal)
            elif not hmac.compare_digest(token.encode(), self.server.review.token.encode()):
                answer = None
            elif not slash:  # the page's script asks beside its own address
                answer = Answer(HTTPStatus.PERMANENT_REDIRECT, JSON, b"{}", location=f"/{token}/")
            else:
                answer = find(name)
        except ReviewError as error:
            answer = _refuse(HTTPStatus.CONFLICT, str(error))
        except OSError as error:
            text = f"this is not saved: {error.strerror or type(error).__name__} ({error.filename or 'the connection'})"
            answer = _refuse(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        self._send(
            answer or _refuse(HTTPStatus.NOT_FOUND, "there is nothing; take the address that the command printed")
        )

    def _send(self, answer: Answer) -> None:
        """Send an answer."""
        self.send_response(answer.status)
        for header, value in HEADERS.items():
            self.send_header(header, value)
        if answer.location:
            self.send_header("Location", answer.location)
        self.send_header("Content-Security-Policy", answer.policy)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def version_string(self) -> str:
        """Say no version."""
        return "consilium"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: addresses hold the token."""


def find_refusal(headers: Message[str, str], port: int, *, needs_origin: bool) -> str:
    """Why a request is refused by where it comes from; empty if it is not. needs_origin: of requests that write."""
    hosts, origins = _read_all(headers, "Host"), _read_all(headers, "Origin")
    names = [f"{name}:{port}" for name in (ADDRESS, "localhost")]
    if len(hosts) != 1 or hosts[0].lower() not in names:
        return (
            f"this page is asked for as {' or '.join(names)}; through a tunnel take the same port at both ends: "
            f"ssh -L {port}:localhost:{port} MACHINE"
        )
    allowed = [f"http://{hosts[0].lower()}"]
    if (needs_origin or origins) and [origin.lower() for origin in origins] != allowed:
        return "this request comes from a page of another site"
    if _read_all(headers, "Sec-Fetch-Site") not in ([], ["same-origin"], ["none"]):
        return "this request comes from a page of another site"
    return ""


def _read_all(headers: Message[str, str], name: str) -> list[str]:
    """All values of a header."""
    return [str(value).strip() for value in headers.get_all(name, [])]


def _answer_json(status: HTTPStatus, content: Mapping[str, Any]) -> Answer:
    """An answer in JSON."""
    return Answer(status, JSON, json.dumps(content).encode())


def _refuse(status: HTTPStatus, text: str) -> Answer:
    """A refusal in words."""
    return _answer_json(status, {"error": text})
