"""The file of an encoder: weights as safetensors, with config.json beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from federation.features import Extractor, Ready
from federation.features.encoder import Encoder, digest, frozen

CONFIG = "config.json"


def opened(of: Encoder | Ready) -> tuple[Extractor, bytes]:
    """What computes features, and of an encoder the bytes of its file.

    Raises:
        ValueError: an encoder's file is missing, or cannot be used: see `federation.features.encoder.frozen`.
    """
    if not isinstance(of, Encoder):
        return of, b""
    try:
        data = Path(of.file).read_bytes()
    except OSError as error:
        raise ValueError(f"{of.file} cannot be read ({error.strerror}); give a safetensors file") from error
    told = portable(of)
    if not told.architecture:
        raise ValueError(f"there is no {CONFIG} beside {of.file}; put it there, as it came with the weights")
    try:
        return frozen(told, data), data
    except ValueError as error:
        raise ValueError(f"{of.file} cannot be used: {error}") from error


def portable(encoder: Encoder) -> Encoder:
    """The encoder as other machines know it: digest and architecture in place of the file's folder.

    One that is portable, or whose file is missing, stays as it is; checks of the settings tell of the latter.
    """
    path = Path(encoder.file)
    try:
        stamp = path.stat()
        architecture = encoder.architecture or (path.parent / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return encoder
    code = encoder.sha256 or digest_at(path, stamp.st_size, stamp.st_mtime_ns)
    return replace(encoder, file=path.name, sha256=code, architecture=architecture)


@lru_cache(maxsize=8)
def digest_at(path: Path, size: int, changed: int) -> str:
    """The digest of a file; read again when it changed."""
    return digest(path.read_bytes())
