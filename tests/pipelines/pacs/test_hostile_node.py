"""Whatever is answered in DICOM's own protocol ends as what an archive may say: soon, and in the folder."""

from __future__ import annotations

import resource
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hostile_node
import pipelines.pacs.arrivals
import pipelines.pacs.patience
from archive_outcomes import outcome
from hostile_web import image
from orthanc import free_ports
from pipelines.pacs.arrivals import Arrivals, senders_of
from pipelines.pacs.opening import open_archive
from pipelines.pacs.settings import DicomNode, Limits, Listen

LISTENING = free_ports(1)[0]
SENDS_AS = ("PYNETDICOM",)  # the title under which the archive of these tests opens connections
SLOW = ("silent", "drip", "huge", "command", "no_pdu")
QUICK = Limits(timeout_s=0.5, answer_s=60, retries=0, most=100, largest_gib=0.001)
USUAL = Limits(timeout_s=20, answer_s=60, retries=1, most=100, largest_gib=0.001)
OF_STRANGERS = replace(USUAL, timeout_s=6)  # so long a connection of theirs stays open, and the last test waits for it
LONGEST = 30  # seconds of one case, on a busy machine

RAW = {
    "silent": "Unreachable",
    "closed": "Unreachable",
    "http": "Unreachable",
    "rejected": "Denied",
    "full": "Unreachable",
    "aborted": "Unreachable",
    "huge": "Unreachable",
    "drip": "Unreachable",
    "garbage": "Unreachable",
}
FIND = {
    "good": "2",
    "nothing": "0",
    "studies": "0 too_many",
    "series": "100 too_many",
    "up": "0 bad_uid",
    "odd_uids": "1 bad_uid",
    "odd_studies": "0 bad_uid",
    "other_study": "0 not_asked_for",
    "others": "0 not_asked_for",
    "long_text": "0 long_text",
    "twice": "1",
    "garbage": "1 bad_uid not_asked_for",
    "unexpected": "Unreachable",
    "aborted": "Unreachable",
    "silent": "Unreachable",
    "command": "Unreachable",
    "huge": "Unreachable",
    "drip": "Unreachable",
    "no_pdu": "Unreachable",
    "busy": "Unreachable",
    "unfit": "Denied",
    "failed": "Unreachable",
    "no_class": "Denied",
    "cancelled": "Unreachable",
    "odd_status": "Denied",
}
GET = {
    "good": "2",
    "nothing": "0 incomplete",
    "fewer": "1 incomplete",
    "other_series": "0 other_series",
    "other_study": "0 other_series",
    "other_image": "0 other_instance",
    "path": "0 bad_uid",
    "path_named": "0 other_instance",
    "twice": "1 sent_twice",
    "contradictory": "1 contradictory",
    "garbage": "1 unreadable",
    "empty": "1 incomplete",
    "some_failed": "1 incomplete",
    "failed": "1 refused",
    "busy": "Unreachable",
    "many": "100 too_large",
    "large": "0 too_large",
    "broken": "Unreachable",
    "silent": "Unreachable",
    "huge": "Unreachable",
    "drip": "Unreachable",
}
MOVE = {"good": "2", "nothing": "0 incomplete", "other_series": "0 other_series", "nowhere": "Denied"}
STORE = {
    "good": "",
    "there": "",
    "coerced": "",
    "busy": "Unreachable",
    "unfit": "refused",
    "failed": "refused",
    "forbidden": "Denied",
    "odd_status": "refused",
    "aborted": "Unreachable",
    "silent": "Unreachable",
}
KNOWN = {"RAW": RAW, "FIND": FIND, "GET": GET, "MOVE": MOVE, "STORE": STORE}
CASES = (
    [("RAW", case, "find", said) for case, said in RAW.items()]
    + [("SCP", case, "find", said) for case, said in FIND.items()]
    + [("SCP", case, "fetch", said) for case, said in GET.items()]
    + [("SCP", case, "move", said) for case, said in MOVE.items()]
    + [("SCP", case, "store", said) for case, said in STORE.items()]
    + [("EMPTY", "nothing", act, "Denied") for act in ("find", "fetch", "move", "store")]
)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    with hostile_node.hostile_node(LISTENING) as found:
        yield found


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(pipelines.pacs.patience, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(pipelines.pacs.patience, "LONGEST_WAIT", 0.001)


def test_each_case_is_tried():
    assert {name: set(cases) for name, cases in KNOWN.items()} == {
        name: set(getattr(hostile_node, name)) for name in KNOWN
    }


@pytest.mark.parametrize(("port", "case", "act", "expected"), CASES)
def test_every_answer_ends_as_what_an_archive_may_say(ports, tmp_path, recwarn, capfd, port, case, act, expected):
    one = tmp_path / "one.dcm"
    one.write_bytes(image())
    limits = QUICK if case in SLOW else USUAL
    how = {"retrieve": "move", "listen": Listen(port=LISTENING, titles=SENDS_AS)} if act == "move" else {}
    settings = DicomNode(host="127.0.0.1", port=ports[port], called=case, limits=limits, **how)
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_archive(settings) as archive:
        found = outcome(archive, act.replace("move", "fetch"), one, tmp_path / "series")
    assert found == expected
    assert time.monotonic() - begun < LONGEST
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    assert {path.name for path in tmp_path.iterdir()} <= {"one.dcm", "series"}
    assert [str(one.message) for one in recwarn.list if one.category is not ResourceWarning] == []
    assert capfd.readouterr() == ("", "")


STRAY = {
    "106 bytes": b"\xff" * 106,
    "a page": b"GET / HTTP/1.1\r\nHost: hospital\r\n\r\n",
    "a long message": b"\x01\x00" + b"\xff" * 4 + b"x" * 100,
    "data before titles": b"\x04\x00\x00\x00\x00\x0a" + b"\x00" * 10,
    "nothing": b"",
}


def asked(port: int, where: Path, **listen: Any) -> str:
    """What becomes of a series that the archive sends to us."""
    ours = Listen(port=LISTENING, **{"titles": SENDS_AS, **listen})
    settings = DicomNode(host="127.0.0.1", port=port, called="good", limits=OF_STRANGERS, retrieve="move", listen=ours)
    with open_archive(settings) as archive:
        return outcome(archive, "fetch", where / "one.dcm", where / "series")


@pytest.mark.parametrize("data", STRAY.values(), ids=STRAY)
def test_bytes_of_a_stranger_end_no_fetch(ports, tmp_path, monkeypatch, data):
    expecting, open_ones = Arrivals.expecting, list[socket.socket]()

    @contextmanager
    def disturbed(self, inbox, watch):
        with expecting(self, inbox, watch):
            for _ in range(3):
                open_ones.append(socket.create_connection(("127.0.0.1", LISTENING), 5))
                open_ones[-1].sendall(data)
            time.sleep(0.3)
            yield

    monkeypatch.setattr(Arrivals, "expecting", disturbed)
    try:
        assert asked(ports["SCP"], tmp_path) == "2"
    finally:
        for one in open_ones:
            one.close()


@pytest.mark.parametrize(
    ("senders", "is_heard"), [((), False), (("192.0.2.7",), False), (("192.0.2.7", "127.0.0.1"), True)]
)
def test_where_no_sender_is_known_nobody_is_heard(senders, is_heard, monkeypatch):
    ended, heard = list[object](), list[float]()
    monkeypatch.setattr(pipelines.pacs.arrivals, "shut", ended.append)
    wire = SimpleNamespace(dul=SimpleNamespace(socket=SimpleNamespace(socket=SimpleNamespace(settimeout=heard.append))))
    Arrivals(frozenset(senders)).opened(SimpleNamespace(address=("127.0.0.1", 4242), assoc=wire))
    assert (ended, len(heard)) == (([], 1) if is_heard else ([wire], 0))


def test_an_archive_whose_address_is_not_known_has_no_sender(monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    ours = {"host": "archive.invalid", "port": 104, "called": "A", "retrieve": "move"}
    assert senders_of(DicomNode(**ours, listen=Listen(port=LISTENING))) == frozenset()
    assert senders_of(DicomNode(**ours, listen=Listen(port=LISTENING, senders=("192.0.2.7",)))) == {"192.0.2.7"}


@pytest.mark.parametrize("listen", [{"titles": ("ARCHIVE",)}, {"titles": ()}, {"senders": ("192.0.2.7",)}])
def test_who_calls_by_another_title_or_from_elsewhere_brings_nothing(ports, tmp_path, listen):
    assert asked(ports["SCP"], tmp_path, **listen) == "Denied"
    assert not [*(tmp_path / "series").glob("*")]


def test_nobody_there_is_unreachable(tmp_path):
    with open_archive(DicomNode(host="127.0.0.1", port=free_ports(1)[0], called="A", limits=QUICK)) as archive:
        assert outcome(archive, "find", tmp_path, tmp_path) == "Unreachable"


def test_no_thread_and_no_file_stays(ports, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for case in ("good", "broken", "drip", "large"):
        settings = DicomNode(host="127.0.0.1", port=ports["SCP"], called=case, limits=QUICK)
        with open_archive(settings) as archive:
            outcome(archive, "fetch", tmp_path, tmp_path / case)
    assert list(temporary.iterdir()) == []
    end = time.monotonic() + LONGEST
    while left := [one for one in threading.enumerate() if type(one).__module__.startswith("pynetdicom")]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
