"""Artifact folders, written atomically and checked before use.

    <root>/<stage>/<digest12>/manifest.json   settings, inputs, sha256 of every file, versions, summary
                              ...             files of the stage

An artifact is written to a hidden folder next to its place, flushed to disk, and renamed. A folder with its final name
is therefore complete. A killed process leaves only a hidden folder: `remove_unfinished` removes it at the next start.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pipelines.runs.listing import walk_folder_tree
from pipelines.runs.written import note_written_file
from privacy.durable import flush_folder
from privacy.formats import check_format
from privacy.message import LARGE, map_file
from privacy.system_errors import of_machine

if TYPE_CHECKING:
    from privacy.message import Buffer, Json

MANIFEST, FORMAT = "manifest.json", 1
UNFINISHED = ".part-"  # prefix of the names of unfinished files and folders
UNFINISHED_TENSORS = re.compile(r"\.tmp[A-Za-z0-9]{6}")  # names of the files that safetensors has not finished
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@=-]{0,199}")


class ArtifactError(ValueError):
    """An artifact that cannot be read or written, or an invalid name."""


def digest_json(plain: Json) -> str:
    """Sha256 of the canonical JSON form, 64 hexadecimal digits. Equal plain data have equal digests.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value is not JSON.
    """
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def short_digest(full: str) -> str:
    """The first 12 hexadecimal digits, for folder names."""
    return full[:12]


def write_artifact(
    root: Path,
    name: str,
    digest12: str,
    write: Callable[[Path], Mapping[str, Json]],
    *,
    about: Mapping[str, Json],
) -> Path:
    """Let `write` fill an empty folder, seal it with a manifest and move it to its place. An older one is replaced.

    write: gets the folder, returns the summary for the manifest. If it raises, the folder is removed.
    about: further facts of the manifest (version, settings, inputs, ...).

    Raises:
        ArtifactError: a name that cannot be a folder, an entry in the folder that is not a plain file, a summary or an
            `about` that is not finite JSON.
        OSError: a file cannot be written.
    """
    place = root / check_name(name) / check_name(digest12)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = make_hidden_name(place.parent)
    part.mkdir()
    start = time.monotonic()
    try:
        summary = dict(write(part))
        manifest = {
            **about,
            "format": FORMAT,
            "stage": name,
            "digest": digest12,
            "files": _digest_files(part),
            "seconds": round(time.monotonic() - start, 3),
            "finished": time.time(),
            "versions": library_versions(),
            "summary": summary,
        }
        _write_atomically(part / MANIFEST, _seal_manifest(manifest))
        _move_into_place(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # after the rename this does nothing
    return place


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of an artifact, after checking its seal.

    Raises:
        ArtifactError: it is missing, is not JSON, or was changed after it was sealed.
        LaterVersion: a newer program made it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        seal = manifest.pop("seal")
        intact = seal == digest_json(manifest)
    except FileNotFoundError:
        raise ArtifactError(f"missing: {MANIFEST}") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        if of_machine(error):  # it may be intact
            raise
        raise ArtifactError(f"corrupt: {MANIFEST}") from error
    if not intact:
        raise ArtifactError(f"corrupt: {MANIFEST}")
    check_format(manifest.get("format"), FORMAT, str(path))
    content: dict[str, Any] = manifest
    return content


def check_artifact(path: Path) -> str | None:
    """None if the artifact is intact; otherwise the problem: `missing`, `missing: a.json`, `corrupt: a.json`."""
    if not path.is_dir():
        return "missing"
    try:
        manifest = read_manifest(path)
    except ArtifactError as error:
        return str(error)
    if (manifest.get("stage"), manifest.get("digest")) != (path.parent.name, path.name):
        return f"corrupt: {MANIFEST} belongs to {manifest.get('stage')}/{manifest.get('digest')}"
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            return f"missing: {name}"
        if file.stat().st_size != expected["size"] or _digest_file(file) != expected["sha256"]:
            return f"corrupt: {name}"
    return None


def content_digest(manifest: Mapping[str, Any]) -> str:
    """Digest of an artifact's content, its files and summary, independent of when and where it was made."""
    return digest_json({"files": manifest["files"], "summary": manifest["summary"]})


def remove_unfinished(root: Path) -> tuple[Path, ...]:
    """Remove unfinished files of killed processes below a root. The caller must hold its `RunLock`."""
    hidden = sorted(
        path for path in root.rglob(".*") if path.name.startswith(UNFINISHED) or UNFINISHED_TENSORS.fullmatch(path.name)
    )
    stale = [path for path in hidden if path.exists()]
    for path in stale:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return tuple(stale)


def library_versions() -> dict[str, str]:
    """Versions of Python, of this package and of the libraries on which results may depend."""
    version_by_name = {"python": platform.python_version()}
    for package in ("consilium", "torch", "monai", "numpy"):
        with suppress(importlib.metadata.PackageNotFoundError):
            version_by_name[package] = importlib.metadata.version(package)
    return version_by_name


def check_name(name: str) -> str:
    """Return the name if it is valid for a folder or file.

    Raises:
        ArtifactError: it is not valid.
    """
    if not NAME.fullmatch(name):
        raise ArtifactError(
            f"names are made of A-Z a-z 0-9 _ . + @ = -, begin without a dot or dash, found {name[:80]!r}"
        )
    return name


def _raise_unless_missing(error: OSError) -> None:
    """An `onerror` of `os.walk`: a missing folder counts as empty, any other error is raised."""
    if not isinstance(error, FileNotFoundError):
        raise error


@dataclass(frozen=True)
class DiskFolder:
    """Named bytes below a folder: the `Folder` of `privacy.folder` on disk. A name may have parts: `fedavg/state`."""

    root: Path

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file atomically, and flush it to disk.

        Raises:
            ArtifactError: a name that is invalid or leads out of the folder.
            OSError: the file cannot be written.
        """
        self.write_parts(name, (data,))

    def write_parts(self, name: str, parts: Sequence[Buffer]) -> None:
        """As `write`, of parts one after another, which are not joined in memory."""
        path = self._file_path(name)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, *parts)

    def read(self, name: str) -> bytes:
        """Read a file's bytes.

        Raises:
            FileNotFoundError: the name does not exist.
        """
        path = self._file_path(name)
        if not path.is_file():
            raise FileNotFoundError(f"nothing named {name!r} in {self.root}; there are {list(self.names())[:20]}")
        return path.read_bytes()

    def map(self, name: str) -> memoryview:
        """What `read` reads, as writable memory that belongs to the reader: what is written there changes no file.

        Pages of a large file are read when they are needed, and stay readable when the name is written anew or removed.

        Raises:
            FileNotFoundError: the name does not exist.
        """
        path = self._file_path(name)
        if not path.is_file() or path.stat().st_size <= LARGE:
            return memoryview(bytearray(self.read(name)))
        with path.open("rb") as file:
            return map_file(file)

    def has(self, name: str) -> bool:
        """Whether the name exists."""
        return self._file_path(name).is_file()

    def names(self) -> Sequence[str]:
        """All names, sorted."""
        prefix_length = len(os.path.join(self.root, ""))
        folders = os.walk(self.root, onerror=_raise_unless_missing)
        files = ((place, name) for place, _, names in folders for name in names)
        names = (os.path.join(place, name)[prefix_length:] for place, name in files if not name.startswith(UNFINISHED))
        return sorted(name.replace(os.sep, "/") for name in names)

    def remove(self, name: str) -> None:
        """Remove the name if it exists.

        The removal is not flushed to disk: an unneeded file does no harm if it reappears after a loss of power.
        """
        path = self._file_path(name)
        if path.is_file():
            path.unlink()

    def _file_path(self, name: str) -> Path:
        """The path of a valid name below the folder."""
        return self.root.joinpath(*(check_name(part) for part in name.split("/")))


def _seal_manifest(manifest: dict[str, Any]) -> bytes:
    """The manifest as JSON bytes, with the digest of its content as seal."""
    try:
        sealed = {**manifest, "seal": digest_json(manifest)}
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"the manifest of {manifest['stage']} must be finite JSON: {error}; use null") from error
    return (json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _digest_files(folder: Path) -> dict[str, Json]:
    """Size and sha256 of every file; flushes them to disk."""
    facts_by_file: dict[str, Json] = {}
    for path in walk_folder_tree(folder):
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ArtifactError(f"an artifact holds plain files only, found {name}; write a copy")
        if name == MANIFEST:
            raise ArtifactError(f"a stage must not write {MANIFEST}; return its summary instead")
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            facts_by_file[name] = {"size": path.stat().st_size, "sha256": _digest_file(path)}
        else:
            flush_folder(path)
    return facts_by_file


def _move_into_place(part: Path, place: Path) -> None:
    """Rename a finished folder to its place; an older one there is removed."""
    flush_folder(part)
    if place.exists():
        replaced = make_hidden_name(place.parent)
        place.rename(replaced)
        part.rename(place)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        part.rename(place)
    flush_folder(place.parent)


def _write_atomically(path: Path, *parts: Buffer) -> None:
    """Write a file under a hidden name, flush it to disk, and rename it."""
    part = make_hidden_name(path.parent)
    try:
        with part.open("xb") as file:
            for data in parts:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)
    note_written_file(path)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file that nobody needs after a loss of power: whole, but not forced to the disk. Its owner alone may
    read it. Of two processes that replace it, one at a time may. Raises: OSError.
    """
    part = path.with_name(f".{path.name.removeprefix('.')}.part")
    try:
        with open(part, "wb", opener=lambda name, how: os.open(name, how, 0o600)) as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def make_hidden_name(folder: Path) -> Path:
    """A new hidden name. Not from `tempfile`, whose files ignore the umask and are readable by their owner only."""
    return folder / f"{UNFINISHED}{secrets.token_hex(8)}"


def _digest_file(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
