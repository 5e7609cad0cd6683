"""What settings of an archive say: secrets are never in them, nor in anything that is shown."""

from __future__ import annotations

import logging
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from pipelines.loader.document import ConfigError
from pipelines.loader.files import read_document
from pipelines.loader.validation import validate_settings
from pipelines.pacs.archive import Query
from pipelines.pacs.opening import Missing, open_archive
from pipelines.pacs.secret import Secret
from pipelines.pacs.settings import ARCHIVE, DicomNode, DicomWeb, Limits, Listen, Tls, archive_problems
from privacy.settings_error import SettingsError

PLAIN = "hunter2-in-the-clear"
SECRET = Secret(env="CONSILIUM_TEST_SECRET")
WEB = "https://pacs.example.org/dicom-web"


def read(tmp_path, text: str, kind: type = DicomWeb) -> object:
    file = tmp_path / "archive.yaml"
    file.write_text(text)
    return validate_settings(read_document(str(file)), kind)


def test_yaml_becomes_settings(tmp_path):
    found = read(
        tmp_path,
        f"kind: dicomweb\nurl: {WEB}\nuser: me\npassword: {{file: secret}}\nlimits: {{retries: 2, per_second: 5}}\n",
    )
    expected = DicomWeb(url=WEB, user="me", password=Secret(file="secret"), limits=Limits(retries=2, per_second=5.0))
    assert found == expected
    text = "kind: dicom_node\nhost: pacs\ncalled: PACS\nretrieve: move\nlisten: {port: 11112}\n"
    node = read(tmp_path, text, DicomNode)
    assert node == DicomNode(host="pacs", called="PACS", retrieve="move", listen=Listen(port=11112))
    least = {"kind": "dicom_node", "host": "a", "called": "B"}
    assert ARCHIVE.validate_python(least) == DicomNode(host="a", called="B")


@pytest.mark.parametrize(
    "text",
    [
        f"password: {PLAIN}",
        f"password: [{PLAIN}]",
        f"password: {{text: {PLAIN}}}",
        f"password: {{env: '{PLAIN}'}}",
        f"password: {{file: {PLAIN}, env: {PLAIN}}}",
        "password: 12345678901",
    ],
)
def test_a_plain_secret_is_refused_and_not_shown(tmp_path, text):
    with pytest.raises(ConfigError) as found:
        read(tmp_path, f"url: {WEB}\nuser: me\n{text}\n")
    assert "password" in str(found.value)
    assert PLAIN not in str(found.value)
    assert "12345678901" not in str(found.value)


def test_a_plain_secret_is_explained(tmp_path):
    with pytest.raises(ConfigError, match=r"file: PATH.*env: NAME"):
        read(tmp_path, f"url: {WEB}\ntoken: {PLAIN}\n")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o666])
def test_a_secret_that_others_may_read_is_refused(tmp_path, mode):
    file = tmp_path / "secret"
    file.write_text(PLAIN)
    file.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600") as found:
        Secret(file=str(file)).read()
    assert PLAIN not in str(found.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"\xff\xfe", b"a\0b", b"tab\tbed"])
def test_a_secret_is_one_line_of_text(tmp_path, content):
    file = tmp_path / "secret"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(SettingsError, match="file"):
        Secret(file=str(file)).read()


def test_a_secret_is_read_from_its_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "secret"
    file.write_text("ünï wörd\n")
    file.chmod(0o400)
    monkeypatch.setenv("CONSILIUM_TEST_SECRET", PLAIN)
    assert Secret(file=str(file)).read() == "ünï wörd"
    assert SECRET.read() == PLAIN
    monkeypatch.delenv("CONSILIUM_TEST_SECRET")
    with pytest.raises(SettingsError, match="env"):
        SECRET.read()


def test_where_a_secret_was_expected_nothing_is_shown(tmp_path):
    settings = DicomWeb(url=WEB, user="me", password=Secret(file=str(tmp_path / PLAIN)))
    assert PLAIN not in repr(settings)
    assert PLAIN not in str([str(problem) for problem in archive_problems(settings)])
    with pytest.raises(SettingsError, match=r"password\.file") as found, open_archive(settings):
        pass
    assert PLAIN not in str(found.value)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"url": "http://pacs.example.org/dicom-web", "token": SECRET}, "url"),
        ({"url": "http://127.0.0.1.example.org", "token": SECRET}, "url"),
        ({"url": "ftp://pacs"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": "https://pacs/a b"}, "url"),
        ({"url": "https://pacs:port"}, "url"),
        ({"url": "https://pacs/dicom-web?a=b"}, "url"),
        ({"url": f"https://me:{PLAIN}@pacs/"}, "url"),
        ({"user": "me"}, "password"),
        ({"password": SECRET}, "user"),
        ({"user": "a:b", "password": SECRET}, "user"),
        ({"user": "me", "password": SECRET, "token": SECRET}, "token"),
        ({"certificate": "a.pem"}, "key"),
        ({"page": 0}, "page"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed, wrong):
    with pytest.raises(SettingsError) as found:
        DicomWeb(**{"url": WEB, **changed})
    assert [problem.where[0] for problem in found.value.problems] == [wrong]
    assert PLAIN not in str(found.value)


@pytest.mark.parametrize("url", ["http://localhost:8042/dicom-web", "http://127.0.0.2", "http://[::1]:80", WEB])
def test_credentials_may_go_where_nobody_listens(url):
    assert DicomWeb(url=url, token=SECRET).url == url
    assert DicomWeb(url="http://pacs", token=SECRET, plain_http="allow").plain_http == "allow"
    assert DicomWeb(url="http://pacs").token is None


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"called": "SEVENTEEN_LETTERS"}, "called"),
        ({"called": "BACK\\SLASH"}, "called"),
        ({"calling": " BLANK"}, "calling"),
        ({"calling": ""}, "calling"),
        ({"host": "a/b"}, "host"),
        ({"port": 0}, "port"),
        ({"retrieve": "move"}, "listen"),
        ({"listen": Listen(port=11112)}, "listen"),
        ({"retrieve": "move", "listen": Listen(port=11112), "tls": Tls(ca="ca.pem")}, "tls"),
    ],
)
def test_what_no_node_can_be_is_refused(changed, wrong):
    with pytest.raises(SettingsError) as found:
        DicomNode(**{"host": "pacs", "called": "PACS", **changed})
    assert [problem.where[0] for problem in found.value.problems] == [wrong]


def test_limits_and_queries_are_checked():
    with pytest.raises(SettingsError, match=r"timeout_s.*retries"):
        Limits(timeout_s=0, retries=-1)
    with pytest.raises(SettingsError, match="StudyDescripton"):
        Query(more={"StudyDescripton": "prostate"})
    with pytest.raises(SettingsError, match="description"):
        Query(description="a\\b")
    with pytest.raises(SettingsError, match="address"):
        Listen(port=1, address="localhost")


def test_certificates_are_looked_at_before_anything_is_sent(tmp_path):
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    key.chmod(0o600)
    one = DicomWeb(url=WEB, ca=str(tmp_path / "none"), certificate=str(key), key=str(key))
    assert [problem.where for problem in archive_problems(one)] == [("ca",), ("key",)]
    key.chmod(0o644)
    node = DicomNode(host="a", called="B", tls=Tls(certificate=str(key), key=str(key)))
    assert [problem.where for problem in archive_problems(node)] == [("tls", "key")]


@pytest.mark.parametrize(
    ("settings", "package"),
    [(DicomWeb(url=WEB), "dicomweb_client"), (DicomNode(host="a", called="B"), "pynetdicom")],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, settings, package):
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == package or name.startswith("pipelines.pacs.")]:
        monkeypatch.delitem(sys.modules, name) if name not in KEPT else None
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Missing, match=r"pip install consilium\[pacs\]"), open_archive(settings):
        pass


KEPT = ("pipelines.pacs.settings", "pipelines.pacs.secret", "pipelines.pacs.archive", "pipelines.pacs.opening")


def test_nothing_is_logged_while_an_archive_is_open(caplog, monkeypatch):
    monkeypatch.setenv("CONSILIUM_TEST_SECRET", PLAIN)
    settings = replace(DicomWeb(url="http://127.0.0.1:9/", token=SECRET), limits=Limits(timeout_s=1, retries=0))
    with open_archive(settings):
        pass  # libraries tell at their first import what else is installed
    with caplog.at_level(logging.DEBUG), open_archive(settings) as archive:
        with pytest.raises(Exception, match="no connection") as found:
            list(archive.find(Query(more={"PatientID": "SECRET-ID"})))
        assert "SECRET-ID" not in str(found.value)
    assert caplog.records == []
    assert "SECRET-ID" not in os.environ


@pytest.mark.parametrize("kind", [DicomWeb, DicomNode, Limits, Tls, Listen])
def test_the_page_names_each_key(kind):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "archives.md").read_text()
    assert [field.name for field in fields(kind) if f"`{field.name}`" not in page and field.name != "kind"] == []
