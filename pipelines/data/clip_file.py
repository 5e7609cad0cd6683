"""The files of a CLIP: weights as safetensors, with config.json, vocab.json and merges.txt in the same folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from federation.models.clip import Clip, read_text_transformer, tokenize_classes
from federation.models.clip_words import parse_vocabulary
from pipelines.data.extractor_file import CONFIG, digest_at

VOCABULARY, MERGES = "vocab.json", "merges.txt"


def make_portable(model: Clip) -> Clip:
    """The model's settings for other machines: with digest, architecture and tokens in place of the file's folder.

    Settings that are portable already, or whose files are missing or wrong, are returned unchanged; checks of the
    settings report such files.
    """
    if model.tokens:
        return model
    try:
        return read_clip(model)
    except ValueError:
        return model


def read_clip(model: Clip) -> Clip:
    """The model's settings with the content of its files: digest, architecture, tokens and sentences.

    Raises:
        ValueError: a file is missing or wrong, or a sentence is too long.
    """
    path = Path(model.weights)
    try:
        stamps = [(path.parent / name).stat() for name in (path.name, CONFIG, VOCABULARY, MERGES)]
        return _read_clip_files(
            model, tuple(model.classes), tuple((stamp.st_size, stamp.st_mtime_ns) for stamp in stamps)
        )
    except OSError as error:
        where = Path(str(error.filename)).name
        text = f"{where} cannot be read ({error.strerror}); clip needs a safetensors file, and beside it "
        raise ValueError(f"{text}{CONFIG}, {VOCABULARY} and {MERGES} as they came with it") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"a file beside {path.name} is no text ({error})") from error


@lru_cache(maxsize=8)
def _read_clip_files(model: Clip, order: tuple[str, ...], stamps: tuple[tuple[int, int], ...]) -> Clip:
    """As `read`, cached until a file changes. order: of the classes; equal mappings may differ in it."""
    path = Path(model.weights)
    config, vocabulary, merges = ((path.parent / name).read_text("utf-8") for name in (CONFIG, VOCABULARY, MERGES))
    code = model.sha256 or digest_at(path, *stamps[0])
    shaped = replace(model, weights=path.name, sha256=code, architecture=model.architecture or config)
    tokens, sentences = tokenize_classes(shaped, parse_vocabulary(vocabulary, merges))
    return replace(shaped, tokens=tokens, sentences=sentences)


def read_weights(model: Clip) -> bytes:
    """The bytes of the model's file. Raises: ValueError: it cannot be read."""
    try:
        return Path(model.weights).read_bytes()
    except OSError as error:
        raise ValueError(f"{model.weights} cannot be read ({error.strerror}); give a safetensors file") from error


def find_clip_tensors(model: Clip) -> Mapping[str, Tensor] | None:
    """The tensors of the model's networks, from its file at the coordinator; None if the files are missing or wrong."""
    path = Path(model.weights)
    try:
        stamp = path.stat()
        return _load_clip_tensors(read_clip(model), path, stamp.st_size, stamp.st_mtime_ns)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=2)
def _load_clip_tensors(model: Clip, path: Path, size: int, changed: int) -> Mapping[str, Tensor]:
    """The tensors of the model's file; size and time in the cache's key detect a changed file."""
    return read_text_transformer(model, path.read_bytes())
