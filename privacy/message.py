"""Messages between the coordinator and the sites, and the call (request of a round) that a message belongs to.

Everything that is kept between rounds (the coordinator's state, a site's memory) is a message too: it is explicit and
serializable, so a run can be resumed, replayed and audited.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import safetensors
from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor, dtype

# `safetensors.torch` imports torch, which takes seconds. It is imported only where tensors are read or written, so that
# code that needs facts alone, such as the ledger's reader, starts at once.
Params: TypeAlias = "Mapping[str, Tensor]"
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Buffer: TypeAlias = "bytes | memoryview"
BufferT = TypeVar("BufferT", bytes, memoryview)

CHECKSUM = 32  # bytes of a sha256, before the parts of a sealed file
FACTS = "facts"  # the one key of the safetensors metadata block
LARGE = 2**24
"""Bytes of tensors from which memory counts for more than the time of one more read from the disk."""
TYPES = ("uint64", "int64", "float64", "complex64", "float32", "uint32", "int32", "bfloat16", "float16", "uint16",
         "int16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool")  # fmt: skip
"""Torch's types in the order in which safetensors lays out tensors."""
CODES = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16",
         "I16", "F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL")  # fmt: skip
"""Their names in its files."""
MOST_HEADER = 100_000_000  # bytes of names, shapes and facts, as in safetensors
MOST_NUMBERS = 2**60  # by a shape, with 1 in place of 0: of more, torch cannot even make an empty tensor
SYSTEM = re.compile(r"\(os error (\d+)\)")  # how Rust, in which safetensors is written, prints a system's error


@dataclass(frozen=True)
class Message:
    """Tensors by name, and facts: numbers, short lists and names; never a path, a patient's identifier or an image."""

    tensors: Params = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)


class Call(NamedTuple):
    """One request to a site, identified by (run, round, request). A repeated call gets the stored reply.

    `merged` maps each site to the last round of this run whose reply was merged (0 = none). A site whose reply was lost
    goes back to its memory of that round. `runs`: site -> its own name of the run, where one request to many sites
    belongs to a run for each; a site receives only its own name (`at`).
    """

    run: str
    round: int
    request: str
    merged: Mapping[str, int]
    runs: Mapping[str, str] = MappingProxyType({})

    def at(self, site: str) -> Call:
        """The call as this site gets it."""
        return self._replace(run=self.runs.get(site, self.run), runs=MappingProxyType({})) if self.runs else self


def as_mapping(value: Json) -> dict[str, Json]:
    """A fact that should be a mapping, copied; empty where it is none."""
    return dict(value) if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    """A fact that should be a list, copied; empty where it is none."""
    return list(value) if isinstance(value, list) else []


def number_of(facts: Mapping[str, Json], name: str, default: float | None = None) -> float:
    """A fact that is a number. default: where it is missing or null.

    Raises:
        ValueError: the fact is not a number, or is missing without a default.
    """
    value = default if facts.get(name) is None else facts[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, found {value!r}")
    return float(value)


def whole_of(facts: Mapping[str, Json], name: str, default: int | None = None) -> int:
    """A fact that is a whole number; as `number_of`."""
    value = default if facts.get(name) is None else facts[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, found {value!r}")
    return value


def numbers_of(facts: Mapping[str, Json], name: str) -> list[float]:
    """A fact that is a list of numbers. Raises: ValueError: it is something else."""
    return [number_of({name: item}, name) for item in _read_list(facts, name)]


def wholes_of(facts: Mapping[str, Json], name: str) -> list[int]:
    """A fact that is a list of whole numbers. Raises: ValueError: it is something else."""
    return [whole_of({name: item}, name) for item in _read_list(facts, name)]


def losses_of(facts: Mapping[str, Json], name: str = "losses") -> dict[int, float]:
    """The finite losses of a training by round; a loss that was not finite is null in the facts."""
    losses = as_mapping(facts.get(name))
    return {int(key): number_of(losses, key) for key, loss in losses.items() if loss is not None}


def _read_list(facts: Mapping[str, Json], name: str) -> list[Json]:
    """A fact that is a list. Raises: ValueError: it is something else."""
    value = facts.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, found {value!r}")
    return value


class Malformed(ValueError):
    """Bytes that are not a message as `to_bytes` writes it."""


def to_bytes(message: Message) -> bytes:
    """Serialize as safetensors, with the facts as JSON in its metadata. Equal messages give equal bytes.

    Raises:
        ValueError: a fact is not JSON, or is not finite.
    """
    facts = json.dumps(dict(message.facts), sort_keys=True, allow_nan=False)
    tensors = _lay_tensors(message.tensors)
    if sys.byteorder == "big":
        from safetensors.torch import save

        return save(tensors, metadata={FACTS: facts})
    # As `safetensors.torch.save`, without slow numpy views. `tensors` keeps alive the memory that `specs` points at.
    specs = {
        name: safetensors.TensorSpec(
            dtype=str(t.dtype).removeprefix("torch."), shape=list(t.shape), data_ptr=t.data_ptr(), data_len=t.nbytes
        )
        for name, t in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata={FACTS: facts}))


def lay_out_bytes(message: Message) -> list[Buffer]:
    """The bytes of `to_bytes` in parts: a header, and the memory of each tensor, which is not copied.

    So a message is written or hashed without a second copy of it. Whoever changes a tensor changes its part.

    Raises:
        ValueError: a fact is not JSON, or is not finite.
    """
    import torch

    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in message.tensors.values()}
    if sys.byteorder == "big" or not kinds <= set(TYPES):
        return [to_bytes(message)]
    header, names = _write_header(message)
    tensors = (message.tensors[name].detach().cpu().contiguous() for name in names)
    return [header, *(tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in tensors)]


def count_message_bytes(form: Message) -> int:
    """The bytes of `to_bytes` of a message of this form, whose tensors may be on torch's device without memory."""
    return len(_write_header(form)[0]) + sum(tensor.nbytes for tensor in form.tensors.values())


def _write_header(message: Message) -> tuple[bytes, list[str]]:
    """What stands before the tensors of a message, with its length; and their names in their order.

    Raises:
        ValueError: a fact is not JSON, or is not finite, or a tensor's type has no place.
    """
    kinds = {name: TYPES.index(str(tensor.dtype).removeprefix("torch.")) for name, tensor in message.tensors.items()}
    names = sorted(kinds, key=lambda name: (kinds[name], name))
    facts = json.dumps(dict(message.facts), sort_keys=True, allow_nan=False)
    header, end = dict[str, Any](__metadata__={FACTS: facts}), 0
    for name in names:
        tensor = message.tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": CODES[kinds[name]], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, names


def count_bytes(parts: Sequence[Buffer]) -> int:
    """The bytes of all parts."""
    return sum(len(part) for part in parts)


def _lay_tensors(tensors: Params) -> dict[str, Tensor]:
    """Tensors in the order of their names, each contiguous and on the CPU; those that are so already, themselves."""
    return {
        name: tensors[name] if _is_laid(tensors[name]) else tensors[name].detach().cpu().contiguous()
        for name in sorted(tensors)
    }


def _is_laid(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie one after another on the CPU. A subclass may have them elsewhere."""
    is_plain = type(tensor).__name__ == "Tensor" and not tensor.requires_grad
    return is_plain and tensor.device.type == "cpu" and tensor.is_contiguous()


def from_bytes(data: Buffer) -> Message:
    """Read what `to_bytes` wrote. Tensors of a memoryview, which must be writable, lie in its memory; those of bytes
    are copied.

    Raises:
        Malformed: the bytes are not safetensors, or carry no facts, or facts that are not finite.
    """
    from safetensors.torch import load

    try:
        if isinstance(data, memoryview) and sys.byteorder != "big":
            return _view_message(data)
        data = bytes(data)
        _, header = _read_header(data)
        return Message(load(data), _read_facts(header))
    except (SafetensorError, struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed(f"{len(data)} bytes are not a message: {type(error).__name__}: {error}") from error


def _view_message(view: memoryview) -> Message:
    """The message in a memory, without a copy. It is as strict as safetensors: tensors follow one another without gaps.

    Raises:
        ValueError, KeyError, TypeError, struct.error: it is none.
    """
    import torch

    length, header = _read_header(view)
    facts, end, tensors = _read_facts(header), 0, dict[str, "Tensor"]()
    texts = header.pop("__metadata__")
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("metadata are texts")
    for text in (*header, *texts, *texts.values()):
        text.encode()  # half a character is none
    entries = {name: (entry["data_offsets"], entry["shape"], entry["dtype"]) for name, entry in header.items()}
    layout = list[tuple[str, int, "dtype", list[int]]]()
    for name, ((start, stop), shape, code) in sorted(entries.items(), key=lambda item: item[1][0]):
        kind: dtype = getattr(torch, TYPES[CODES.index(code)])
        if not all(type(number) is int and number >= 0 for number in (start, stop)):
            raise ValueError(f"{name}: places are whole numbers")
        if (start, stop) != (end, end + math.prod(shape) * kind.itemsize):
            raise ValueError(f"{name}: its bytes do not follow those before it")
        layout.append((name, 8 + length + start, kind, shape))
        end = stop
    if 8 + length + end != len(view):
        raise ValueError(f"there must be {8 + length + end} bytes")
    for name, begin, kind, shape in layout:
        if (count := math.prod(shape)) == 0:
            tensors[name] = torch.empty(shape, dtype=kind)
            continue
        raw = torch.frombuffer(view[begin : begin + count * kind.itemsize], dtype=torch.uint8)
        if raw.data_ptr() % kind.itemsize:  # behind tensors of smaller numbers
            raw = raw.clone()
        tensors[name] = raw.view(kind).reshape(shape)
    return Message(tensors, facts)


def _read_header(data: Buffer) -> tuple[int, dict[str, Any]]:
    """The length of a message's header, and the header: entries by name, whose shapes torch can make.

    Raises:
        ValueError, KeyError, TypeError, struct.error: it is none.
    """
    (length,) = struct.unpack("<Q", data[:8])
    if length > MOST_HEADER:
        raise ValueError(f"a header has at most {MOST_HEADER} bytes, found {length}")
    header = json.loads(bytes(data[8 : 8 + length]).decode())
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name != "__metadata__":
            _check_shape(name, entry["shape"])
    return length, header


def _check_shape(name: str, shape: list[int]) -> None:
    """Raises: ValueError: it is none, or has too many numbers."""
    if not (isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape)):
        raise ValueError(f"{name!a}: a shape is whole numbers")
    if math.prod(max(side, 1) for side in shape) > MOST_NUMBERS:
        raise ValueError(f"{name!a}: a tensor has at most {MOST_NUMBERS} numbers")


def _read_facts(header: Mapping[str, Any]) -> dict[str, Json]:
    """The facts in the header of a safetensors file. Raises: ValueError, KeyError, TypeError: there are none."""
    text = header["__metadata__"][FACTS]
    facts = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    if not isinstance(facts, dict):
        raise TypeError(f"facts are a {type(facts).__name__}, not a mapping")
    return facts


def glance_at_facts(path: Path) -> dict[str, Json]:
    """The facts of a file of `seal_parts(to_bytes(...))`, without its tensors and without a look at its checksum: for
    displays alone.

    Raises:
        Malformed: there are no facts.
        OSError: reading failed.
    """
    with path.open("rb") as file:
        file.seek(CHECKSUM)
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            return _read_facts(json.loads(file.read(min(length, path.stat().st_size))))
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Malformed(f"{path.name} has no facts: {type(error).__name__}: {error}") from error


def to_file(message: Message, path: Path) -> str:
    """Write the bytes of `to_bytes` without holding them in memory, and sync the file to disk; returns its sha256.

    Raises:
        ValueError: a fact is not JSON, or is not finite.
        OSError: writing failed.
    """
    from safetensors.torch import save_file

    facts = json.dumps(dict(message.facts), sort_keys=True, allow_nan=False)
    tensors = _lay_tensors(message.tensors)
    try:
        save_file(tensors, path, metadata={FACTS: facts})
    except SafetensorError as error:
        raise system_error(error, path) or error from error
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_file(path: Path) -> Message:
    """Read what `to_file` wrote. Tensors are memory-mapped.

    Raises:
        Malformed: as `from_bytes`.
        OSError: reading failed.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()[FACTS], parse_constant=_refuse_constant, parse_float=_parse_finite)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                _check_shape(name, list(file.get_slice(name).get_shape()))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(facts, dict):
            raise TypeError(f"facts are a {type(facts).__name__}, not a mapping")
        return Message(tensors, facts)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if (system := system_error(error, path)) is not None:
            raise system from error
        raise Malformed(f"{path.name} is not a message: {type(error).__name__}: {error}") from error


def map_file(file: IO[bytes]) -> memoryview:
    """The bytes of a file, which is not empty, as memory: pages are read when they are needed. What is written there
    changes no file.

    Raises:
        OSError: there is no memory, or the file is none that can be mapped.
    """
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def system_error(error: BaseException, path: Path | None = None) -> OSError | None:
    """The system's error that safetensors reports as text, as an OSError; None for any other of its errors.

    Its files are written and read by Rust, whose errors are no OSError: a full disk would look like a damaged file.
    """
    match = SYSTEM.search(str(error)) if isinstance(error, SafetensorError) else None
    if match is None:
        return None
    number = int(match.group(1))
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))


def _refuse_constant(constant: str) -> None:
    """Raises: ValueError: always; for NaN and infinities, which Python reads in JSON."""
    raise ValueError(f"{constant} is not a number that a message may carry")


def _parse_finite(text: str) -> float:
    """A JSON number as a float. Raises: ValueError: it overflows to infinity, as 1e999 does."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number that a message may carry")
    return value


def digest_parts(parts: Sequence[Buffer]) -> str:
    """The sha256 of parts one after another, 64 hexadecimal digits."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


def add_checksum(parts: Sequence[Buffer]) -> list[Buffer]:
    """The sha256 of the parts, and the parts: for files in which a flipped bit must be detected."""
    return [bytes.fromhex(digest_parts(parts)), *parts]


def seal_parts(*parts: Buffer) -> bytes:
    """`add_checksum` as one."""
    return b"".join(add_checksum(parts))


def unseal_parts(data: BufferT) -> BufferT:
    """Undo `seal_parts`; of a memoryview it is a part, without a copy.

    Raises:
        Malformed: the checksum does not match.
    """
    body = data[CHECKSUM:]
    if hashlib.sha256(body).digest() != data[:CHECKSUM]:
        raise Malformed(f"{len(data)} bytes do not match their checksum: the file is damaged")
    return body
