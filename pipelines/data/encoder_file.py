"""The file of an encoder: weights as safetensors, with config.json in the same folder."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from federation.features import Extractor, Ready
from federation.features.encoder import Encoder, file_digest, load_encoder

CONFIG = "config.json"


def open_extractor(extractor: Encoder | Ready) -> tuple[Extractor, bytes]:
    """The feature extractor; and the bytes of an encoder's file, empty for other extractors.

    Raises:
        ValueError: an encoder's file is missing, or cannot be used: see `federation.features.encoder.load_encoder`.
    """
    if not isinstance(extractor, Encoder):
        return extractor, b""
    try:
        data = Path(extractor.file).read_bytes()
    except OSError as error:
        raise ValueError(f"{extractor.file} cannot be read ({error.strerror}); give a safetensors file") from error
    encoder = make_portable(extractor)
    if not encoder.architecture:
        raise ValueError(f"there is no {CONFIG} beside {extractor.file}; put it there, as it came with the weights")
    try:
        return load_encoder(encoder, data), data
    except ValueError as error:
        raise ValueError(f"{extractor.file} cannot be used: {error}") from error


def make_portable(encoder: Encoder) -> Encoder:
    """The encoder's settings for other machines: with digest and architecture in place of the file's folder.

    Settings that are portable already, or whose file is missing, are returned unchanged; checks report the latter.
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
    return file_digest(path.read_bytes())
