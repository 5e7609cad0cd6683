"""`consilium review`: who may mark cases, what is written, and that none of it leaves the hospital."""

from __future__ import annotations

import csv
import html
import http.client
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.cases import MISSED, UNSURE, Case, Cases, build_cases_section
from evaluation.page import Page
from evaluation.rendering import read_script, render_page, write_digest
from pipelines.review import main
from pipelines.reviews.marks import (
    MARKS,
    OPINIONS,
    Mark,
    ShownCase,
    ShownCases,
    read_cases,
    read_marks,
    remove_summary,
    replace_mark,
    show_marks,
    summarize_marks,
    write_csv,
    write_marks,
    write_summary,
)
from pipelines.reviews.server import Review, ReviewServer, open_review
from pipelines.run import main as run
from pipelines_settings import BASE

ROOT = Path(__file__).parents[2]
EVIL = "<img src=x onerror=alert(1)><!--end of marks-->"
NOTE = "The radiologist disagrees quietly"
TIME = "2026-11-29T12:00:00+00:00"


@pytest.fixture
def runs(finished_run, tmp_path: Path) -> Path:
    """A copy of a finished run with pictures: the folder of tiny.yaml."""
    shutil.copytree(finished_run({**BASE, "name": "reviewed"}, figures=True), tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def hospital(runs: Path) -> Path:
    return runs / "runs" / "reviewed" / "sites" / "a"


@pytest.fixture
def served(hospital: Path) -> Iterator[ReviewServer]:
    with serve(open_review(hospital, "A. Berg")) as server:
        yield server


def serve(review: Review) -> Any:
    """A server on a free port, in a thread of its own."""

    class Served(ReviewServer):
        def __enter__(self) -> Served:
            threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
            return self

        def __exit__(self, *args: object) -> None:
            self.shutdown()
            self.server_close()

    return Served(review, 0)


def ask(
    server: ReviewServer, path: str = "", body: object = None, **changed: str | None
) -> tuple[int, dict[str, str], bytes]:
    """The answer to a browser's request below the token: its status, headers and body. changed: headers, None = left
    out.
    """
    host = f"localhost:{server.server_port}"
    headers: dict[str, str | None] = {"Host": host, "Sec-Fetch-Site": "same-origin"}
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers |= {"Origin": f"http://{host}", "Content-Type": "application/json", "Content-Length": str(len(data))}
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    place = path if path.startswith("/") else f"/{server.review.token}/{path}"
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest("GET" if data is None else "POST", place, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(data)
    answer = connection.getresponse()
    result = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return result


def mark(server: ReviewServer, place: int = 0, opinion: str = "agree", note: str = "") -> dict[str, Any]:
    """Mark one of the cases."""
    case = server.review.shown.cases[place].code
    status, _, body = ask(server, "marks", {"case": case, "opinion": opinion, "note": note})
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def test_the_page_shows_the_test_patients_on_whom_the_model_is_wrong_most_the_worst_first(hospital):
    page = (hospital / "report.html").read_text()
    shown = read_cases(page)
    chances = [float(dict(re.findall(r"(\w+) ([\d.]+)", case.predicted))[case.label]) for case in shown.cases]
    assert len(shown.cases) == 3 == len({case.code for case in shown.cases}) and chances == sorted(chances)
    for article in re.findall(r"<article.*?</article>", page, re.DOTALL):
        views = article.count("data-slice=")
        assert article.count('<svg viewBox="') == 2 * views and article.count("as the model saw it: ") == 2 * views > 2
        assert f"{views - 1} other slices of {views}" in article and article.count("<details") == 1
        first = article.partition("<details")[0]
        answer = re.findall(r'data-predicted="([^"]+)"', article)[0]
        assert first.count("data-slice=") == 1 and f"as the model saw it: {answer}<" in first, "the worst is not folded"


def test_marks_are_written_beside_the_page_with_who_when_and_of_what_and_counted_on_it(served, hospital):
    answer = mark(served, 0, "agree", "a shadow")
    mark(served, 1, "unsure")
    answer = mark(served, 0, "disagree", "a vessel")
    assert answer["summary"] == ["A. Berg: 2 of 3 seen: 1 disagree, 1 unsure."]
    page = (hospital / "report.html").read_text()
    assert "<!--marks-->A. Berg: 2 of 3 seen: 1 disagree, 1 unsure.<!--end of marks--></p>" in page
    (stored,) = [m for m in read_marks(hospital) if m.opinion == "disagree"]
    shown = read_cases(page)
    assert (stored.case, stored.note, stored.reviewer) == (shown.cases[0].code, "a vessel", "A. Berg")
    assert (stored.cases, stored.run) == (shown.digest, "reviewed") and stored.time.endswith("+00:00")
    assert (hospital / MARKS).stat().st_mode & 0o777 == 0o600
    answer = mark(served, 0, "")
    assert answer["summary"] == ["A. Berg: 1 of 3 seen: 1 unsure."], "an empty opinion removes a mark"


def test_marks_come_back_at_the_next_opening_and_as_csv(served, hospital, tmp_path):
    mark(served, 2, "agree", '=HYPERLINK("http://x")')
    with serve(open_review(hospital, "C. Dahl")) as second:
        mark(second, 2, "disagree")
        (status, _, body), (_, headers, table) = ask(second, "marks"), ask(second, "marks.csv")
        answer = json.loads(body)
        assert status == 200 and {m["reviewer"]: m["opinion"] for m in answer["marks"]} == {
            "A. Berg": "agree", "C. Dahl": "disagree"}  # fmt: skip
        assert answer["summary"] == [
            "A. Berg: 1 of 3 seen: 1 agree.",
            "C. Dahl: 1 of 3 seen: 1 disagree.",
        ]
    rows = [*csv.DictReader(io.StringIO(table.decode()))]
    assert headers["Content-Type"].startswith("text/csv") and [row["note"][:2] for row in rows] == ["'=", ""]
    assert main([str(hospital), "--csv", str(tmp_path / "marks.csv")]) == 0
    assert (tmp_path / "marks.csv").read_bytes() == table
    assert [row["label"] for row in rows] == [read_cases((hospital / "report.html").read_text()).cases[2].label] * 2


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Host": "evil.example"}, "ssh -L"),
        ({"Host": "localhost"}, "ssh -L"),
        ({"Host": "localhost:1"}, "ssh -L"),
        ({"Host": "127.0.0.1.evil.example"}, "ssh -L"),
        ({"Host": None}, "ssh -L"),
        ({"Origin": "http://evil.example"}, "another site"),
        ({"Origin": "null"}, "another site"),
        ({"Origin": None}, "another site"),
        ({"Origin": "http://localhost:1"}, "another site"),
        ({"Sec_Fetch_Site": "cross-site"}, "another site"),
        ({"Sec_Fetch_Site": "same-site"}, "another site"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_mark_from_another_page_or_name_is_refused_though_it_knows_the_token(served, hospital, headers, said):
    body = {"case": served.review.shown.cases[0].code, "opinion": "agree", "note": ""}
    status, _, answer = ask(served, "marks", body, **headers)
    assert status == 403 and said in json.loads(answer)["error"]
    assert not (hospital / MARKS).exists()


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_nothing_is_shown_to_another_page_or_name(served, headers):
    for path in ("", "marks", "marks.csv"):
        status, _, answer = ask(served, path, **headers)
        assert status == 403 and b"pseudonym" not in answer and len(answer) < 300


def test_nothing_is_shown_or_written_without_the_token(served, hospital):
    for path in (
        "/",
        "/marks",
        "//",
        f"/{'x' * 43}/",
        "/%00/",
        f"/{served.review.token}x/",
        "/%C3%A9/",
    ):
        assert ask(served, path)[0] == 404
        assert ask(served, f"{path}marks", {"opinion": "agree"})[0] == 404
    assert len(served.review.token) >= 43 and ask(served)[0] == 200 and not (hospital / MARKS).exists()


def test_two_hosts_are_no_host(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=20)
    connection.putrequest("GET", f"/{served.review.token}/", skip_host=True)
    for host in (f"localhost:{served.server_port}", "evil.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status == 403


def test_it_listens_at_this_machine_only(served):
    assert served.server_address[0] == "127.0.0.1" and served.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "JSON object"),
        (b"[]", "JSON object"),
        (b"[" * 50_000, "JSON object"),
        ({"case": "no such", "opinion": "maybe", "note": 7}, "case: "),
        ({"case": ["a"], "opinion": "agree", "note": ""}, "case: "),
        ({"case": None, "opinion": ["agree"], "note": "x" * 4001}, "note: a text of at most 4000"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_mark_is_refused_in_words(served, hospital, body, said):
    status, _, answer = ask(served, "marks", body)
    assert status == 400 and said in json.loads(answer)["error"] and not (hospital / MARKS).exists()
    if isinstance(body, dict) and body["opinion"] == "maybe":
        assert all(name in json.loads(answer)["error"] for name in ("case: ", "opinion: ", "note: ")), "all at once"


def test_a_form_of_another_site_is_refused_by_its_type_too(served):
    case = served.review.shown.cases[0].code
    body = json.dumps({"case": case, "opinion": "agree", "note": ""}).encode()
    assert ask(served, "marks", body, Content_Type="text/plain")[0] == 400
    assert ask(served, "marks", body, Content_Length="999999")[0] == 400


def test_the_page_may_run_its_two_scripts_and_speak_to_its_server_only(served):
    _, headers, body = ask(served)
    policy = headers["Content-Security-Policy"]
    assert policy.count("'sha256-") == 2 and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe-inline'; script-src 'sha256-" in policy and policy.split(";")[0] == "default-src 'none'"
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert body.decode().count("Content-Security-Policy") == 1


def test_a_script_that_somebody_put_on_the_page_is_not_allowed_by_being_there(served, hospital):
    page = (hospital / "report.html").read_text(encoding="utf-8")
    evil = "document.title = 'taken'"
    (hospital / "report.html").write_text(page.replace("</body>", f"<script>{evil}</script></body>"), encoding="utf-8")
    _, headers, body = ask(served)
    policy = headers["Content-Security-Policy"]
    assert evil in body.decode() and write_digest(evil) not in policy and policy.count("'sha256-") == 2
    (own,) = re.findall(r"script-src ([^;\"]*)", html.unescape(page))
    assert own in policy and write_digest(read_script("review.js")) in policy


def test_hostile_words_are_text_on_the_page(served, hospital):
    before = (hospital / "report.html").read_bytes()
    with serve(open_review(hospital, EVIL)) as evil:
        mark(evil, 0, "agree", EVIL)
        page = ask(evil)[2].decode()
    assert EVIL not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    assert remove_summary((hospital / "report.html").read_bytes()) == before, "a name cannot end the summary"


def test_a_hostile_case_is_text_on_the_page_and_read_back_as_it_was():
    case = Case(EVIL, f'"{EVIL}', f"'{EVIL}")
    cases = Cases("run", EVIL, "by chance", 1, [case], None, "command")
    text = render_page(Page("t", "h", "f", build_cases_section(cases)))
    assert "<img" not in text and read_cases(text).cases == ((EVIL, f'"{EVIL}', f"'{EVIL}"),)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_page_says_whose_cases_they_are_where_no_model_is_recommended(is_used):
    cases = Cases("run", "local", "by chance", 3, [], None, "command", {MISSED: 1, UNSURE: 2}, is_used=is_used)
    text = render_page(Page("t", "h", "f", build_cases_section(cases)))
    assert ("these are the cases of the first that was" in text) == (not is_used)


@pytest.mark.parametrize(("patients", "has_others"), [(3, False), (4, True)])
def test_right_and_sure_is_said_of_others_where_there_are_some(patients, has_others):
    cases = Cases("run", "local", "by chance", patients, [], None, "command", {MISSED: 1, UNSURE: 2}, 0.75, "slice")
    text = render_page(Page("t", "h", "f", build_cases_section(cases)))
    assert ("On the others it is right and sure." in text) == has_others


def test_marks_of_other_cases_are_kept_and_neither_shown_nor_counted(served, hospital):
    mark(served, 0)
    other = Mark("0" * 64, "another", served.review.shown.cases[0].code, "A. Berg", "disagree", "", TIME)
    write_marks(hospital, [*read_marks(hospital), other])
    with serve(open_review(hospital, "A. Berg")) as second:
        assert mark(second, 1)["summary"] == ["A. Berg: 2 of 3 seen: 2 agree."]
        assert b"another" not in ask(second, "marks.csv")[2]
    assert other in read_marks(hospital)


def test_a_page_that_a_run_wrote_anew_takes_no_marks_of_the_old_cases(served, hospital):
    page = hospital / "report.html"
    page.write_text(page.read_text().replace(served.review.shown.digest, "1" * 64))
    status, _, answer = ask(
        served, "marks", {"case": served.review.shown.cases[0].code, "opinion": "agree", "note": ""}
    )
    assert status == 409 and "begin again" in json.loads(answer)["error"] and not (hospital / MARKS).exists()


def test_what_cannot_be_written_is_said_and_is_no_mark(served, hospital, monkeypatch):
    mark(served, 0)

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device", "review.json")

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.reviews.marks.write_whole", fail)
        body = {"case": served.review.shown.cases[1].code, "opinion": "agree", "note": ""}
        status, _, answer = ask(served, "marks", body)
    assert status == 500 and "No space left" in json.loads(answer)["error"]
    assert mark(served, 2)["summary"] == ["A. Berg: 2 of 3 seen: 2 agree."]


def test_nothing_of_it_leaves_the_hospital(runs, monkeypatch):
    """The run's files but the hospital's, its ledger, and what the run says, are those without any mark."""
    monkeypatch.chdir(runs)
    root = runs / "runs" / "reviewed"
    hospital, ledger = root / "sites" / "a", root / "sites" / "a" / "ledger.jsonl"
    before, lines = digest_outside(root), ledger.read_bytes()
    with serve(open_review(hospital, NOTE)) as server:
        mark(server, 0, "disagree", NOTE)
    assert NOTE in (hospital / "report.html").read_text()
    assert run(["tiny.yaml"]) == 0
    assert digest_outside(root) == before, "no stage ran again because a person marked a case"
    assert ledger.read_bytes().startswith(lines)
    assert run(["tiny.yaml", "--from", "report", "--fresh"]) == 0, "another page of the same cases"
    assert NOTE in (hospital / "report.html").read_text(), "it counts the marks, too"
    told = [path for path in root.rglob("*") if path.is_file() and NOTE.encode() in path.read_bytes()]
    assert {path.name for path in told} == {MARKS, "report.html"} and {path.parent for path in told} == {hospital}


def digest_outside(root: Path) -> dict[str, bytes]:
    """What the coordinator holds of a run."""
    outside = (path for path in root.rglob("*") if path.is_file() and "sites" not in path.relative_to(root).parts)
    return {str(path): path.read_bytes() for path in outside if path.name not in (".lock", "progress.html")}


def test_a_second_writer_a_busy_port_and_pages_without_cases_are_said(hospital, runs, capsys, tmp_path):
    command = [sys.executable, "-m", "pipelines.review", str(hospital), "--port", "0", "--name", "A. Berg"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        port = re.search(r"127\.0\.0\.1:(\d+)/", first)
        assert port is not None and first.startswith("3 cases, as A. Berg: http://127.0.0.1:")
        assert main([str(hospital), "--port", "0"]) == 6
        assert f"process {process.pid}" in capsys.readouterr().err
        other = hospital.parent / "b"
        with pytest.raises(SystemExit) as end:
            main([str(other), "--port", port[1]])
        assert end.value.code == 2 and f"port {port[1]}" in (told := capsys.readouterr().err) and "--port" in told
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not (hospital / ".review.lock").exists() and not (hospital / ".review.lock.json").exists()
    (other / "report.html").write_text("<html></html>")
    assert main([str(other)]) == 2 and "shows no cases" in capsys.readouterr().err
    (hospital / MARKS).write_text('{"marks": [{"opinion": 1}]}')
    assert main([str(hospital)]) == 2 and "backup" in capsys.readouterr().err
    for arguments, words in (
        ([str(tmp_path / "no")], "has no report.html"),
        ([str(runs / "runs" / "reviewed")], "sites/a, "),
        ([str(hospital), "--name", "\n"], "printable"),
        ([str(hospital), "--port", "70000"], "65535"),
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2 and words in capsys.readouterr().err


def test_a_killed_command_leaves_no_lock(hospital):
    command = [sys.executable, "-m", "pipelines.review", str(hospital), "--port", "0"]
    for _ in range(2):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and "http://127.0.0.1:" in process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
CODES = st.sampled_from(["one", "two", "three"])
SHOWN = ShownCases("d" * 64, "run", tuple(ShownCase(code, "given", "predicted") for code in ("one", "two", "three")))
MARKED = st.builds(
    Mark,
    cases=st.sampled_from([SHOWN.digest, "e" * 64]),
    run=st.just("run"),
    case=CODES,
    reviewer=st.sampled_from(["A", "B"]) | TEXTS,
    opinion=st.sampled_from(OPINIONS),
    note=TEXTS,
    time=st.just(TIME),
)


@given(marks=st.lists(MARKED, max_size=12), sentences=st.lists(TEXTS, max_size=3))
def test_marks_are_read_as_they_were_written_and_a_page_without_its_summary_is_the_page(
    tmp_path_factory, marks, sentences
):
    folder = tmp_path_factory.mktemp("marks")
    newest: dict[tuple[str, str, str], Mark] = {}
    stored: tuple[Mark, ...] = ()
    for each in marks:
        stored = replace_mark(stored, each)
        newest[each.cases, each.case, each.reviewer] = each
    write_marks(folder, stored)
    assert set(read_marks(folder)) == set(newest.values()) == set(stored) and len(stored) == len(newest)
    of_page = [m for m in newest.values() if m.cases == SHOWN.digest]
    counted = [int(words.rsplit(": ", 1)[0].rsplit(": ", 1)[1].split()[0]) for words in summarize_marks(stored, SHOWN)]
    assert sum(counted) == len(of_page)
    assert len([*csv.reader(io.StringIO(write_csv(stored, SHOWN), newline=""))]) == 1 + len(of_page)
    page = b"<p><!--marks--><!--end of marks--></p><!--end of marks-->"
    assert remove_summary(write_summary(page, sentences)) == page


def test_damaged_marks_do_not_keep_a_run_from_its_page(tmp_path):
    page = '<section data-cases="d"><article data-case="c"><!--marks--><!--end of marks-->'
    (tmp_path / MARKS).write_text("{")
    assert show_marks(page, tmp_path) == page
