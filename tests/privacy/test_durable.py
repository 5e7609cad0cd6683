"""What is written is on the disk when a function says so: contents before names, names before it returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privacy import durable
from privacy.durable import flush_files, flush_folder, make_folder, write_once, write_whole


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was done, in order, with the inode of the file or folder that it was done to."""
    acts: list[tuple[str, int]] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def act(what: Any, *more: Any) -> Any:
            acts.append((name, os.fstat(what).st_ino if isinstance(what, int) else os.stat(what).st_ino))
            return real(what, *more)

        return act

    for name in ("fsync", "replace", "link"):
        monkeypatch.setattr(durable.os, name, noted(name))
    return acts


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_content_comes_before_the_name_and_the_name_before_the_return(tmp_path: Path, done: list[Any]) -> None:
    (tmp_path / "a").write_text("old")
    write_whole(tmp_path / "a", b"new")
    file = inode(tmp_path / "a")
    assert done == [("fsync", file), ("replace", file), ("fsync", inode(tmp_path))]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_names_of_new_folders_are_forced_to_the_disk_too(tmp_path: Path, done: list[Any]) -> None:
    make_folder(tmp_path / "a" / "b")
    assert {one for _, one in done} == {inode(tmp_path), inode(tmp_path / "a")}
    done.clear()
    write_whole(tmp_path / "a" / "b" / "c", b"1", flush_name=False)
    file = inode(tmp_path / "a" / "b" / "c")
    assert done == [("fsync", file), ("replace", file)]
    done.clear()
    flush_files([tmp_path / "a" / "b" / "c"])
    assert done == [("fsync", file), ("fsync", inode(tmp_path / "a" / "b"))]


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
def test_a_key_is_there_whole_or_not_at_all_and_never_replaced(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refused(*paths: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(durable.os, "link", refused)
    path = tmp_path / "key"
    write_once(path, b"12345678")
    acts = [name for name, _ in done]
    assert acts == ["fsync", "link" if links else "replace", "fsync"]
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / ".key.part").write_bytes(b"of a killed call")
    with pytest.raises(FileExistsError):
        write_once(path, b"abcdefgh")
    assert path.read_bytes() == b"12345678"
    assert [one.name for one in tmp_path.iterdir()] == ["key"], "no second copy of a secret stays"


def test_a_key_that_is_there_is_said_to_be_also_where_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    (tmp_path / "key").write_bytes(b"12345678")
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(FileExistsError):
        write_once(tmp_path / "key", b"abcdefgh")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), MemoryError()], ids=["disk", "memory"])
@pytest.mark.parametrize("write", [write_whole, write_once])
def test_nothing_is_left_of_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None], error: BaseException
) -> None:
    def fails(number: int) -> None:
        raise error

    monkeypatch.setattr(durable.os, "fsync", fails)
    with pytest.raises(type(error)):
        write(tmp_path / "a", b"new")
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_cannot_force_names_is_not_an_error_and_a_failing_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [errno.EINVAL, errno.ENOTSUP, errno.EIO]

    def fails(number: int) -> None:
        raise OSError(codes[0], "no")

    monkeypatch.setattr(durable.os, "fsync", fails)
    for _ in range(2):
        flush_folder(tmp_path)
        codes.pop(0)
    with pytest.raises(OSError, match="no"):
        flush_folder(tmp_path)
