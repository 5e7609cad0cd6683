"""The file of examples that are tensors already: written whole, and opened without reading an example.

Safetensors: no byte of it is ever run, and an example is read from its place without those before it.
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

PARTS = ("x", "y", "mask")
TYPES = {"x": ("F32", "float32"), "y": ("I64", "int64"), "mask": ("U8", "uint8")}
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
    """The file's bytes, equal for equal examples. parts: `x`, and `y` or `mask`, as `TensorSource` says."""
    lists = {"patient": patient, "split": split, "classes": classes}
    said = {name: json.dumps([*values]) for name, values in lists.items() if values}
    data = save({name: np.ascontiguousarray(part) for name, part in parts.items()})
    return _with_metadata(data, said)


def _with_metadata(data: bytes, said: Mapping[str, str]) -> bytes:
    """The same file with metadata in a fixed order: the library's own order differs from process to process."""
    length = int.from_bytes(data[:8], "little")
    header = {"__metadata__": dict(sorted(said.items())), **json.loads(data[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes, as the format asks
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, or leave it where these bytes are in it already.

    Raises:
        OSError: the disk.
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
        found = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        said = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        if of_machine(error):
            raise
        raise ValueError(f"{str(path)!r} cannot be read as safetensors ({error})") from error
    problems = [f"unknown tensor {name!r}; allowed are {', '.join(PARTS)}" for name in sorted(set(found) - {*PARTS})]
    problems += [f"unknown metadata {name!r}; allowed are {', '.join(LISTS)}" for name in sorted(set(said) - {*KNOWN})]
    if "x" not in found:
        problems.append("no tensor x; give the examples, (n, *inputs) float32")
    problems += [
        f"{name} is {part.get_dtype()}, and {TYPES[name][0]} ({TYPES[name][1]}) is needed; convert it"
        for name, part in sorted(found.items())
        if name in TYPES and part.get_dtype() != TYPES[name][0]
    ]
    shapes = {name: tuple(int(side) for side in part.get_shape()) for name, part in found.items()}
    lists = {name: _texts(name, said.get(name), problems) for name in LISTS}
    if "x" in shapes:
        problems += _length_problems(shapes, lists, given=set(said))
    if problems:
        raise ValueError(f"{str(path)!r}: {'; '.join(problems)}")
    part = {name: _rows(one) for name, one in found.items()}
    return TensorFile(shapes, part, lists["patient"], lists["split"], lists["classes"])


def _rows(part: Any) -> Part:
    return lambda number: np.asarray(part[number : number + 1])


def _texts(name: str, text: str | None, problems: list[str]) -> tuple[str, ...]:
    """A list of texts in the metadata; empty if it is not there, or is none."""
    if text is None:
        return ()
    try:
        found: Json = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        problems.append(f"metadata {name!r} must be a JSON list of texts, found {text[:40]!r}")
        return ()
    return tuple(str(one) for one in found)


def _length_problems(
    shapes: Mapping[str, tuple[int, ...]], lists: Mapping[str, tuple[str, ...]], given: set[str]
) -> list[str]:
    """What does not have one entry for each example."""
    count = shapes["x"][0] if shapes["x"] else 0
    problems = [] if count else ["x has no example; give at least one"]
    if "patient" not in given:
        problems.append("metadata 'patient' is missing; give a JSON list with a name for each example")
    for name in ("y", "mask"):
        if name in shapes and shapes[name][:1] != (count,):
            problems.append(f"x has {count} examples and {name} is of shape {shapes[name]}; give one of each")
    for name in ("patient", "split"):
        if name in given and lists[name] and len(lists[name]) != count:
            problems.append(f"x has {count} examples and metadata {name!r} {len(lists[name])}; give one for each")
    return problems
