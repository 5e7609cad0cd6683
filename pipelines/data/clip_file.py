"""The files of a CLIP: weights as safetensors, with config.json, vocab.json and merges.txt beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from federation.models.clip import Clip, held_by, spoken
from federation.models.clip_words import words
from pipelines.data.encoder_file import CONFIG, digest_at

VOCABULARY, MERGES = "vocab.json", "merges.txt"


def portable(model: Clip) -> Clip:
    """The model as other machines know it: digest, architecture and tokens in place of the file's folder.

    One that is portable, or whose files are missing or wrong, stays as it is; checks of the settings tell of the
    latter.
    """
    if model.tokens:
        return model
    try:
        return read(model)
    except ValueError:
        return model


def read(model: Clip) -> Clip:
    """The model with all that its files say.

    Raises:
        ValueError: a file is missing or wrong, or a sentence is too long.
    """
    path = Path(model.weights)
    try:
        stamps = [(path.parent / name).stat() for name in (path.name, CONFIG, VOCABULARY, MERGES)]
        return _read(model, tuple(model.classes), tuple((one.st_size, one.st_mtime_ns) for one in stamps))
    except OSError as error:
        where = Path(str(error.filename)).name
        text = f"{where} cannot be read ({error.strerror}); clip needs a safetensors file, and beside it "
        raise ValueError(f"{text}{CONFIG}, {VOCABULARY} and {MERGES} as they came with it") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"a file beside {path.name} is no text ({error})") from error


@lru_cache(maxsize=8)
def _read(model: Clip, order: tuple[str, ...], stamps: tuple[tuple[int, int], ...]) -> Clip:
    """Read again when a file changed: a vocabulary takes a second. order: of the classes, which equal mappings hide."""
    path = Path(model.weights)
    config, vocabulary, merges = ((path.parent / name).read_text("utf-8") for name in (CONFIG, VOCABULARY, MERGES))
    code = model.sha256 or digest_at(path, *stamps[0])
    shaped = replace(model, weights=path.name, sha256=code, architecture=model.architecture or config)
    tokens, sentences = spoken(shaped, words(vocabulary, merges))
    return replace(shaped, tokens=tokens, sentences=sentences)


def weights_of(model: Clip) -> bytes:
    """The bytes of its file. Raises: ValueError: it cannot be read."""
    try:
        return Path(model.weights).read_bytes()
    except OSError as error:
        raise ValueError(f"{model.weights} cannot be read ({error.strerror}); give a safetensors file") from error


def held(model: Clip) -> Mapping[str, Tensor] | None:
    """What its networks hold, from its file at the coordinator; None if there is none, of which checks tell."""
    path = Path(model.weights)
    try:
        stamp = path.stat()
        return _held(read(model), path, stamp.st_size, stamp.st_mtime_ns)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=2)
def _held(told: Clip, path: Path, size: int, changed: int) -> Mapping[str, Tensor]:
    return held_by(told, path.read_bytes())
