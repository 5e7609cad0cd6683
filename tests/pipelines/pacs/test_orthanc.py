"""Each way to reach a real archive finds, fetches and stores the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

import pydicom
import pytest
from pydicom.data import get_testdata_file

import pipelines.pacs.patience
from orthanc import Orthanc, running_orthanc, sign
from pipelines.pacs.archive import Archive, Denied, Entry, Odd, Query, Unreachable
from pipelines.pacs.opening import open_archive
from pipelines.pacs.secret import Secret
from pipelines.pacs.settings import DicomNode, DicomWeb, Limits, Tls

WAYS = ("web", "node", "moved")
NAMES = ("CT_small.dcm", "MR_small.dcm", "JPEG2000.dcm", "JPGExtended.dcm", "liver_1frame.dcm")
FILES = [Path(str(get_testdata_file(name))) for name in NAMES]


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    with running_orthanc(tmp_path_factory.mktemp("pacs")) as one:
        one.load(FILES)
        yield one


@pytest.mark.parametrize("way", WAYS)
def test_what_is_fetched_is_what_was_stored(orthanc, way, tmp_path):
    with open_archive(getattr(orthanc, way)) as archive:
        entries = list(archive.find(Query()))
        fetched = [archive.fetch(entry, tmp_path / str(number)) for number, entry in enumerate(entries)]
    assert all(isinstance(entry, Entry) for entry in entries)
    assert [one.odd for one in fetched] == [()] * len(entries)
    assert [len(one.files) for one in fetched] == [entry.instances for entry in entries]
    came = sorted((file for one in fetched for file in one.files), key=instance)
    for file, stored in zip(came, sorted(FILES, key=instance), strict=True):
        if way == "web":
            assert file.read_bytes() == stored.read_bytes()
        else:  # what stands before the data set is made anew, and Orthanc leaves out the padding after it
            expected = pydicom.dcmread(stored)
            expected.pop("DataSetTrailingPadding", None)
            assert pydicom.dcmread(file) == expected


def instance(file: Path) -> str:
    return str(pydicom.dcmread(file, stop_before_pixels=True).SOPInstanceUID)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query(modality="MR"), {"MR"}),
        (Query(since=date(2004, 8, 1), until=date(2004, 8, 31)), {"MR", "NM"}),
        (Query(until=date(2004, 1, 19)), {"CT", "SEG"}),  # SEG has no date, and Orthanc says it matches
        (Query(since=date(2004, 1, 19), until=date(2004, 1, 19)), {"CT"}),
        (Query(since=date(2020, 1, 1)), set()),
        (Query(more={"StudyDescription": "e*1"}), {"CT"}),
        (Query(more={"StudyDescription": "a+b & c=d #?/"}), set()),
    ],
)
def test_a_query_finds_what_it_says(orthanc, way, query, found):
    with open_archive(getattr(orthanc, way)) as archive:
        assert {entry.modality for entry in archive.find(query)} == found


@pytest.mark.parametrize("way", ["web", "node"])
def test_a_series_in_two_studies_is_named_and_not_left_out_in_silence(way, tmp_path):
    copy = pydicom.dcmread(FILES[1])
    copy.StudyInstanceUID, copy.PatientID = "1.2.3", "ANOTHER"
    copy.save_as(tmp_path / "copy.dcm")
    with running_orthanc(tmp_path) as one, open_archive(getattr(one, way)) as archive:
        one.load([FILES[1], tmp_path / "copy.dcm"])
        entry, odd = archive.find(Query())
    assert isinstance(entry, Entry)
    assert isinstance(odd, Odd)
    assert (odd.what, odd.reason) == (entry.series, "two_studies")


@pytest.mark.parametrize("way", WAYS)
def test_a_series_that_is_gone_is_odd(orthanc, way, tmp_path):
    with open_archive(getattr(orthanc, way)) as archive:
        files, odd = archive.fetch(Entry("1.2.3", "1.2.3.4", instances=3), tmp_path / "none")
    assert files == ()
    assert odd[-1].reason in ("gone", "incomplete")


@pytest.mark.parametrize("way", WAYS)
def test_storing_again_changes_nothing_and_is_no_refusal(orthanc, way):
    before = orthanc.ask("GET", "/statistics")
    with open_archive(getattr(orthanc, way)) as archive:
        assert archive.store(FILES) == []
    assert orthanc.ask("GET", "/statistics") == before


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_dicom_is_not_stored(orthanc, way):
    with open_archive(getattr(orthanc, way)) as archive:
        (odd,) = archive.store([Path(__file__)])
    assert odd[:2] == Odd("file 1", "not_dicom", "")[:2]


@pytest.mark.parametrize("way", WAYS[:2])
def test_an_empty_archive_takes_all_files(way, tmp_path):
    with running_orthanc(tmp_path) as one, open_archive(getattr(one, way)) as archive:
        assert list(archive.find(Query())) == []
        assert archive.store(FILES) == []
        assert one.ask("GET", "/statistics")["CountInstances"] == len(FILES)


def refused(settings: DicomWeb | DicomNode) -> str:
    """What an archive's refusal says."""
    with open_archive(settings) as archive, pytest.raises(Denied) as found:
        list(archive.find(Query()))
    return str(found.value)


def test_who_is_not_trusted_or_does_not_trust_us_is_denied(orthanc, tmp_path):
    sign(tmp_path)  # another authority
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    ca, ours = str(tmp_path / "ca.pem"), {"certificate": str(tmp_path / "ours.pem"), "key": str(tmp_path / "ours.key")}
    web, node = orthanc.web, orthanc.node
    assert "401" in refused(replace(web, password=Secret(file=str(wrong))))
    assert "401" in refused(replace(web, user=None, password=None, token=Secret(file=str(wrong))))
    assert "certificate" in refused(replace(web, ca=ca))
    assert "certificate" in refused(replace(web, ca=None))
    assert "not trusted" in refused(replace(node, tls=replace(node.tls, ca=ca)))
    assert "not trusted" in refused(replace(node, tls=replace(node.tls, name="other.example.org")))
    assert "TLS" in refused(replace(node, tls=Tls(ca=node.tls.ca, **ours)))
    assert "Called AE title" in refused(replace(node, called="OTHER"))


@pytest.mark.parametrize("way", WAYS[:2])  # the third is asked as the second
def test_an_archive_that_was_away_is_asked_again(way, tmp_path, monkeypatch):
    monkeypatch.setattr(pipelines.pacs.patience, "FIRST_WAIT", 0.5)
    with running_orthanc(tmp_path) as one:
        one.load(FILES)
        settings = replace(getattr(one, way), limits=Limits(timeout_s=20, answer_s=60, retries=0))
        one.end()
        with open_archive(settings) as archive, pytest.raises(Unreachable):
            list(archive.find(Query()))
        timer = threading.Timer(1.0, one.begin)
        timer.start()
        with open_archive(replace(settings, limits=replace(settings.limits, retries=8))) as archive:
            found = list(archive.find(Query(modality="MR")))
            timer.join()
            fetched = archive.fetch(found[0], tmp_path / "series")
    assert len(found) == len(fetched.files) == 1


def test_two_archives_may_be_open_and_asked_at_the_same_time(orthanc, tmp_path):
    with open_archive(orthanc.node) as one, open_archive(orthanc.moved) as other, open_archive(orthanc.web) as third:
        entries = list(one.find(Query()))

        def fetch(job: tuple[int, Archive]) -> int:
            return sum(
                len(job[1].fetch(entry, tmp_path / str(job[0]) / str(number)).files)
                for number, entry in enumerate(entries)
            )

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(fetch, enumerate((one, other, third)))) == [len(FILES)] * 3


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_fetched(tmp_path):
    """In a process of its own, as others leave memory that is used again."""
    large = pydicom.dcmread(FILES[1])
    large.Rows = large.Columns = 512
    large.NumberOfFrames = 400
    large.PixelData = bytes(400 * 512 * 512 * 2)
    large.save_as(tmp_path / "large.dcm")
    program = """
import resource, sys
from pathlib import Path
from pipelines.pacs.archive import Query
from pipelines.pacs.opening import open_archive
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def grown(settings, small, large, folder):
    with open_archive(settings) as archive:
        first, second = sorted(archive.find(Query(modality="MR")), key=lambda entry: entry.series != small)
        archive.fetch(first, folder / "small")
        before = peak()
        assert archive.fetch(second, folder / "large").files[0].stat().st_size > 200 * 2**20
        return peak() - before
"""
    with running_orthanc(tmp_path) as one:
        large.SeriesInstanceUID, large.SOPInstanceUID = "1.2.3.4", "1.2.3.4.5"
        large.save_as(tmp_path / "large.dcm")
        one.load([FILES[1], tmp_path / "large.dcm"])
        small = str(pydicom.dcmread(FILES[1]).SeriesInstanceUID)
        for way in WAYS:
            call = f"print(grown({getattr(one, way)!r}, {small!r}, '1.2.3.4', Path({str(tmp_path / way)!r})))"
            names = "from pipelines.pacs.settings import *; from pipelines.pacs.secret import Secret\n"
            secret = f"Secret(file={str(one.password)!r})"
            text = program + names + call.replace("Secret()", secret)
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
            assert int(done.stdout) < 30, f"{way}: {done.stdout} MiB for 200 MiB"
