"""The file of examples that are tensors already: written in one step, and opened without reading an example.

It is a safetensors file: none of its bytes is executed, and an example is read without those before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from privacy.durable import make_folder, write_whole
from privacy.message import Json
from privacy.system_errors import of_machine

PARTS = ("x", "y", "mask", "findings")
TYPES = {
    "x": ("F32", "float32"),
    "y": ("I64", "int64"),
    "mask": ("U8", "uint8"),
    "findings": ("I8", "int8"),
}
LISTS = ("patient", "split", "classes")
KNOWN = (*LISTS, "format")  # torch's own writer adds the last
Part = Callable[[int], NDArray[np.generic]]


@dataclass(frozen=True)
class TensorFile:
    """An open file. shapes: of its tensors. part: name -> function from an example's number to its row (1, ...).
    patient, split: of each example; split is empty where the file gives none. classes: names, or empty.
    """

    shapes: Mapping[str, tuple[int, ...]]
    part: Mapping[str, Part] = field(repr=False)
    patient: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def tensor_bytes(
    parts: Mapping[str, NDArray[np.generic]],
    patient: Sequence[str],
    split: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> bytes:
    """The file's bytes, equal for equal examples. parts: `x`, and `y`, `mask` or `findings`, as `TensorSource` says."""
    lists = {"patient": patient, "split": split, "classes": classes}
    metadata = {name: json.dumps([*values]) for name, values in lists.items() if values}
    data = save({name: np.ascontiguousarray(part) for name, part in parts.items()})
    return _with_metadata(data, metadata)


def _with_metadata(data: bytes, metadata: Mapping[str, str]) -> bytes:
    """The same file with metadata in a fixed order: the library's own order differs from process to process."""
    length = int.from_bytes(data[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(data[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes, as the format asks
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read; a file with the same bytes is left as it is.

    Raises:
        OSError: the file cannot be written.
    """
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    make_folder(path.parent, mode=0o700)
    write_whole(path, data, mode=0o600)


def open_tensor_file(path: Path) -> TensorFile:
    """Open a file and check its form; no example is read.

    Raises:
        ValueError: it cannot be read, or is of another form: all problems at once.
    """
    try:
        opened: Any = safe_open(path, framework="numpy")
        tensors = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        metadata = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        if of_machine(error):
            raise
        raise ValueError(f"{str(path)!r} cannot be read as safetensors ({error})") from error
    problems = [f"unknown tensor {name!r}; allowed are {', '.join(PARTS)}" for name in sorted(set(tensors) - {*PARTS})]
    problems += [
        f"unknown metadata {name!r}; allowed are {', '.join(LISTS)}" for name in sorted(set(metadata) - {*KNOWN})
    ]
    if "x" not in tensors:
        problems.append("no tensor x; give the examples, (n, *inputs) float32")
    problems += [
        f"{name} is {part.get_dtype()}, and {TYPES[name][0]} ({TYPES[name][1]}) is needed; convert it"
        for name, part in sorted(tensors.items())
        if name in TYPES and part.get_dtype() != TYPES[name][0]
    ]
    shapes = {name: tuple(int(side) for side in part.get_shape()) for name, part in tensors.items()}
    lists = {name: _parse_texts(name, metadata.get(name), problems) for name in LISTS}
    if "x" in shapes:
        problems += _length_problems(shapes, lists, metadata_names=set(metadata))
    if problems:
        raise ValueError(f"{str(path)!r}: {'; '.join(problems)}")
    part = {name: _row_reader(tensor) for name, tensor in tensors.items()}
    return TensorFile(shapes, part, lists["patient"], lists["split"], lists["classes"])


def _row_reader(part: Any) -> Part:
    """A function that reads the row (1, ...) of an example from the open file."""
    return lambda number: np.asarray(part[number : number + 1])


def _parse_texts(name: str, text: str | None, problems: list[str]) -> tuple[str, ...]:
    """A list of texts in the metadata; empty if it is not there, or is none."""
    if text is None:
        return ()
    try:
        texts: Json = json.loads(text)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        problems.append(f"metadata {name!r} must be a JSON list of texts, found {text[:40]!r}")
        return ()
    return tuple(str(item) for item in texts)


def _length_problems(
    shapes: Mapping[str, tuple[int, ...]], lists: Mapping[str, tuple[str, ...]], metadata_names: set[str]
) -> list[str]:
    """Problems with tensors and lists that do not have one entry for each example."""
    count = shapes["x"][0] if shapes["x"] else 0
    problems = [] if count else ["x has no example; give at least one"]
    if "patient" not in metadata_names:
        problems.append("metadata 'patient' is missing; give a JSON list with a name for each example")
    for name in ("y", "mask", "findings"):
        if name in shapes and shapes[name][:1] != (count,):
            problems.append(f"x has {count} examples and {name} is of shape {shapes[name]}; give one of each")
    for name in ("patient", "split"):
        if name in metadata_names and lists[name] and len(lists[name]) != count:
            problems.append(f"x has {count} examples and metadata {name!r} {len(lists[name])}; give one for each")
    return problems
