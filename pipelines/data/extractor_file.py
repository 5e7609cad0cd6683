"""The weights of feature extractors: an encoder's file (safetensors with config.json beside it, or ONNX), or a
package's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from federation.features import AnyExtractor, Extractor, load_extractor, select_weighted_part
from federation.features.detector import Detector
from federation.features.encoder import Encoder, file_digest
from federation.features.joined import Joined
from federation.features.lite0 import Lite0
from federation.features.lite0_file import read_lite0_weights
from federation.features.onnx_encoder import FileEncoder

CONFIG = "config.json"


def open_extractor(extractor: AnyExtractor) -> tuple[Extractor, bytes]:
    """The feature extractor with its weights, those of an encoder's file or of lite0's package; empty if it has none.

    Raises:
        ValueError: an encoder's file is missing, or cannot be used: see `federation.features.load_extractor`; or
            lite0's package is missing. TypeError: a detector, which has to learn first.
    """
    portable, weighted = make_portable(extractor), select_weighted_part(extractor)
    if isinstance(weighted, Detector):
        raise TypeError("a detector has no file: its weights are learnt by a run")
    if isinstance(weighted, Lite0):
        weights = read_lite0_weights()
        return load_extractor(portable, weights), weights
    if weighted is None:
        return load_extractor(portable), b""
    data = _read_encoder_file(weighted)
    try:
        return load_extractor(portable, data), data
    except ValueError as error:
        raise ValueError(f"{weighted.file} cannot be used: {error}") from error


def _read_encoder_file(encoder: FileEncoder) -> bytes:
    """The bytes of its file. Raises: ValueError: the file, or its config.json, is missing."""
    what = "a safetensors file" if isinstance(encoder, Encoder) else "an ONNX file"
    try:
        data = Path(encoder.file).read_bytes()
    except OSError as error:
        raise ValueError(f"{encoder.file} cannot be read ({error.strerror}); give {what}") from error
    if isinstance(encoder, Encoder) and not _read_architecture(encoder):
        raise ValueError(f"there is no {CONFIG} beside {encoder.file}; put it there, as it came with the weights")
    return data


def make_portable(extractor: AnyExtractor) -> AnyExtractor:
    """The extractor's settings for other machines: of an encoder with digest and architecture in place of the file's
    folder.

    Settings that are portable already, or whose file is missing, are returned unchanged; checks report the latter.
    """
    if isinstance(extractor, Joined):
        parts = (make_portable_encoder(part) if isinstance(part, FileEncoder) else part for part in extractor.of)
        return replace(extractor, of=tuple(parts))
    return make_portable_encoder(extractor) if isinstance(extractor, FileEncoder) else extractor


def make_portable_encoder(encoder: FileEncoder) -> FileEncoder:
    """One encoder's settings for other machines."""
    path = Path(encoder.file)
    try:
        stamp = path.stat()
    except OSError:
        return encoder
    code = encoder.sha256 or digest_at(path, stamp.st_size, stamp.st_mtime_ns)
    if not isinstance(encoder, Encoder):
        return replace(encoder, file=path.name, sha256=code)
    architecture = _read_architecture(encoder)
    return replace(encoder, file=path.name, sha256=code, architecture=architecture) if architecture else encoder


def _read_architecture(encoder: Encoder) -> str:
    """The text of its config.json; empty if there is none."""
    try:
        return encoder.architecture or (Path(encoder.file).parent / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@lru_cache(maxsize=8)
def digest_at(path: Path, size: int, changed: int) -> str:
    """The digest of a file; read again when it changed."""
    return file_digest(path.read_bytes())
