from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.runs.listing import list_paths
from pipelines.runs.listing import walk_folder_tree as below
from pipelines.runs.store import (
    MANIFEST,
    UNFINISHED,
    ArtifactError,
    DiskFolder,
    check_artifact,
    content_digest,
    digest_json,
    read_manifest,
    remove_unfinished,
    short_digest,
    write_artifact,
)

ROOT = Path(__file__).parents[2]
QUICK = settings(max_examples=100, deadline=None, derandomize=True, database=None)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def fill(out: Path):
    (out / "curves.json").write_text("[1, 2, 3]")
    (out / "deep" / "er").mkdir(parents=True)
    (out / "deep" / "er" / "model.bin").write_bytes(bytes(range(256)) * 10)
    (out / "empty").write_bytes(b"")
    return {"patients": 12}


def make(root: Path, write=fill, digest12: str = "0123456789ab") -> Path:
    return write_artifact(root, "train", digest12, write, about={"version": 1, "settings": {"rounds": 3}})


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


@QUICK
@given(PLAIN)
def test_digest_is_that_of_the_data_and_not_of_its_order(data):
    def turned(value):
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(list(value))}
        return [turned(each) for each in value] if isinstance(value, list) else value

    assert digest_json(turned(data)) == digest_json(data)
    assert len(digest_json(data)) == 64
    assert short_digest(digest_json(data)) == digest_json(data)[:12]


@QUICK
@given(PLAIN, PLAIN)
def test_different_data_have_different_digests(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest_json(one) == digest_json(other)) == same


def test_digest_never_changes():
    """Worked out by hand from the canonical text: another value would orphan everybody's artifacts."""
    text = '{"a":[1,2.5,null],"b":"\\u00e4"}'
    assert digest_json({"b": "ä", "a": [1, 2.5, None]}) == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="JSON"):
        digest_json({"a": float("nan")})


def test_an_artifact_is_whole_and_says_what_it_is(tmp_path):
    path = make(tmp_path)
    manifest = read_manifest(path)
    assert check_artifact(path) is None
    assert path == tmp_path / "train" / "0123456789ab"
    assert manifest["summary"] == {"patients": 12}
    assert (manifest["stage"], manifest["version"], manifest["settings"]) == ("train", 1, {"rounds": 3})
    assert set(manifest["files"]) == {"curves.json", "deep/er/model.bin", "empty"}
    assert manifest["files"]["curves.json"] == {"size": 9, "sha256": hashlib.sha256(b"[1, 2, 3]").hexdigest()}
    assert set(manifest["versions"]) >= {"python", "torch"}
    assert manifest["seconds"] >= 0
    assert abs(manifest["finished"] - time.time()) < 60
    assert not [name for name in everything(tmp_path) if UNFINISHED in name]


FILES = ["curves.json", "deep/er/model.bin", "empty", MANIFEST]


@pytest.mark.parametrize("name", FILES)
def test_any_changed_file_is_named(tmp_path, name):
    path = make(tmp_path)
    (path / name).write_bytes(b"x" + (path / name).read_bytes()[1:])
    assert check_artifact(path) == f"corrupt: {name}"


@pytest.mark.parametrize("name", FILES)
def test_any_missing_file_is_named(tmp_path, name):
    path = make(tmp_path)
    (path / name).unlink()
    assert check_artifact(path) == f"missing: {name}"


def test_every_flipped_bit_of_a_manifest_that_changes_its_meaning_is_noticed(tmp_path):
    path = make(tmp_path)
    whole = (path / MANIFEST).read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        position, bit = chance.randrange(len(whole)), 1 << chance.randrange(8)
        changed = bytearray(whole)
        changed[position] ^= bit
        (path / MANIFEST).write_bytes(changed)
        try:
            same = json.loads(changed) == json.loads(whole)
        except ValueError:
            same = False
        assert (check_artifact(path) is None) == same


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"\xff\xfe", b'{"seal": 3}', b"[" * 100_000])
def test_a_manifest_of_another_shape_is_corrupt(tmp_path, data):
    path = make(tmp_path)
    (path / MANIFEST).write_bytes(data)
    assert check_artifact(path) == f"corrupt: {MANIFEST}"


def test_a_copied_or_absent_artifact_is_not_taken_for_the_asked_one(tmp_path):
    path = make(tmp_path)
    assert check_artifact(path.with_name("ffffffffffff")) == "missing"
    path.rename(path.with_name("ffffffffffff"))
    assert "belongs to train/0123456789ab" in str(check_artifact(path.with_name("ffffffffffff")))


def test_content_is_that_of_files_and_summary_only(tmp_path):
    one, same = make(tmp_path / "a"), make(tmp_path / "b")
    other = make(tmp_path / "c", lambda out: {**fill(out), "patients": 13})
    assert (
        content_digest(read_manifest(one))
        == content_digest(read_manifest(same))
        != content_digest(read_manifest(other))
    )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing_and_spares_the_older_one(tmp_path, error):
    def fail(out):
        fill(out)
        raise error("no")

    with pytest.raises(error):
        make(tmp_path, fail)
    assert everything(tmp_path) == {"train"}
    path = make(tmp_path)
    with pytest.raises(error):
        make(tmp_path, fail)
    assert check_artifact(path) is None
    assert len(list(path.parent.iterdir())) == 1


def test_a_newer_one_replaces_the_older_one_entirely(tmp_path):
    make(tmp_path)
    path = make(tmp_path, lambda out: {"files": (out / "only").write_text("x")})
    assert check_artifact(path) is None
    assert {each.name for each in path.iterdir()} == {"only", MANIFEST}
    assert len(list(path.parent.iterdir())) == 1


def test_what_is_no_artifact_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="use null"):
        make(tmp_path, lambda out: {"auc": float("nan")})
    with pytest.raises(ArtifactError, match="JSON"):
        make(tmp_path, lambda out: {"path": out})
    with pytest.raises(ArtifactError, match="plain files only"):
        make(tmp_path, lambda out: (out / "link").symlink_to("/etc") or {})
    with pytest.raises(ArtifactError, match="must not write"):
        make(tmp_path, lambda out: {"n": (out / MANIFEST).write_text("{}")})
    with pytest.raises(ArtifactError, match=r"found '\.\./x'"):
        write_artifact(tmp_path, "../x", "0", fill, about={})
    assert everything(tmp_path) <= {"train"}


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    """Otherwise a stage's files would not be sealed, and what an artifact refers to would be removed."""
    for name in ("a/b/c.json", "a/.hidden/d.json", "e/b/f.txt", "g.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    for pattern in ("*", "*/", "*/*", "*/*/", "a/*/*.json", "*/b/*", "none/*", "g.json/*", "[ae]/?/*.json"):
        found = list_paths(tmp_path, pattern)
        assert found == sorted(p for p in tmp_path.glob(pattern) if p.is_dir() or not pattern.endswith("/")), pattern
    assert sorted(below(tmp_path)) == sorted(tmp_path.rglob("*"))
    real = os.listdir

    def closed(path: Path) -> list[str]:
        if Path(path).name == "b":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", closed)
    for look in (lambda: list_paths(tmp_path, "*/*/*"), lambda: list(below(tmp_path))):
        with pytest.raises(PermissionError):
            look()
    assert list_paths(tmp_path, "*/*") == sorted(tmp_path.glob("*/*")), "nothing in it was asked for"
    with pytest.raises(PermissionError):
        make(tmp_path, lambda out: {"n": [(out / "b").mkdir(), (out / "b" / "model").write_text("x")][1]})
    assert not list(tmp_path.glob("train/*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from pipelines.runs.store import write_artifact
def write(out):
    (out / "half").write_text("x")
    if sys.argv[2] == "kill": os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)
write_artifact(Path(sys.argv[1]), "train", "0123456789ab", write, about={})
"""


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("exit", 7)])
def test_a_killed_process_leaves_no_artifact_and_the_next_start_cleans_up(tmp_path, how, code):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), how], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == code
    assert check_artifact(tmp_path / "train" / "0123456789ab") == "missing"
    assert len(remove_unfinished(tmp_path)) == 1
    assert everything(tmp_path) == {"train"}
    assert check_artifact(make(tmp_path)) is None


OFTEN = """
import sys
from pathlib import Path
from pipelines.runs.store import DiskFolder
folder = DiskFolder(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        folder.write("state", letter * 200_000)
"""


def test_bytes_are_whole_whenever_the_writer_is_killed(tmp_path):
    chance = random.Random(1)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", OFTEN, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(0.02 + chance.random() / 20)
            writer.kill()
        folder = DiskFolder(tmp_path)
        if folder.has("state"):
            assert folder.read("state") in (b"a" * 200_000, b"b" * 200_000)
        assert set(folder.names()) <= {"state"}
        remove_unfinished(tmp_path)
        assert everything(tmp_path) <= {"state"}
    assert folder.has("state"), "no writer lived long enough to write; the test shows nothing"


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from(["write", "remove"]), st.sampled_from(["a", "b.json", "c/d", "c/e", "x-1"]),
                          st.binary(max_size=50)), max_size=15))  # fmt: skip
def test_a_folder_is_a_dictionary_on_disk(tmp_path_factory, steps):
    folder, model = DiskFolder(tmp_path_factory.mktemp("folder") / "new"), {}
    for what, name, data in steps:
        if what == "write":
            folder.write(name, data)
            model[name] = data
        else:
            folder.remove(name)
            model.pop(name, None)
        again = DiskFolder(folder.root)
        assert list(again.names()) == sorted(model)
        assert {each: again.read(each) for each in again.names()} == model
        assert all(again.has(each) == (each in model) for each in ("a", "b.json", "c/d", "c/e", "x-1"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc/x",
        "a/../b",
        "a//b",
        "a/",
        ".part-x",
        "a\\b",
        "a\x00",
        "a b",
        "x" * 201,
        "-x",
        "a\n",
    ],
)
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    folder = DiskFolder(tmp_path / "in")
    for act in (folder.read, folder.has, folder.remove, lambda n: folder.write(n, b"x")):
        with pytest.raises(ArtifactError):
            act(name)
    assert everything(tmp_path) == set()


def test_what_is_not_there_is_told(tmp_path):
    DiskFolder(tmp_path).write("a/b", b"x")
    with pytest.raises(FileNotFoundError, match=r"'c'.*\['a/b'\]"):
        DiskFolder(tmp_path).read("c")
    with pytest.raises(FileNotFoundError):
        DiskFolder(tmp_path).read("a")


def full(handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    folder, path = DiskFolder(tmp_path / "folder"), make(tmp_path)
    folder.write("state", b"old")
    before = everything(tmp_path)
    monkeypatch.setattr("pipelines.runs.store.os.fsync", full)
    for act in (lambda: folder.write("state", b"new"), lambda: folder.write("other", b"x"), lambda: make(tmp_path)):
        with pytest.raises(OSError, match="No space left"):
            act()
    assert everything(tmp_path) == before
    assert folder.read("state") == b"old"
    assert check_artifact(path) is None
