"""A message in parts, and in the memory of a file: the bytes of the library, and nothing that it would not read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from federation import wire
from federation.spool import move_params_to_file
from pipelines.runs.store import DiskFolder
from privacy.message import (
    CODES,
    TYPES,
    Call,
    Malformed,
    Message,
    add_checksum,
    count_message_bytes,
    digest_parts,
    from_bytes,
    from_file,
    lay_out_bytes,
    seal_parts,
    to_bytes,
    unseal_parts,
)

SHAPES = st.lists(st.integers(0, 3), max_size=3)
NAMES = st.text(max_size=6)
MESSAGES = st.builds(
    Message,
    st.dictionaries(NAMES, st.builds(lambda kind, shape: numbers(kind, shape), st.sampled_from(TYPES), SHAPES)),
    st.dictionaries(NAMES, st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | NAMES, max_size=3),
)


def numbers(kind: str, shape: list[int]) -> Tensor:
    """Some numbers of a type; a matrix is laid out column by column, as a view may be."""
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(getattr(torch, kind))
    return tensor.mT.contiguous().mT if len(shape) == 2 else tensor


def of_library(data: bytes) -> Message | None:
    """What the library reads; None: it refuses."""
    try:
        return from_bytes(data)
    except Malformed:
        return None


def in_memory(data: bytes) -> Message | None:
    """What is read from a memory, without a copy; None: it is refused."""
    try:
        return from_bytes(memoryview(bytearray(data)))
    except Malformed:
        return None


def assert_same(left: Message, right: Message) -> None:
    assert left.facts == right.facts
    assert {n: (t.dtype, t.shape) for n, t in left.tensors.items()} == {
        n: (t.dtype, t.shape) for n, t in right.tensors.items()
    }
    assert to_bytes(left) == to_bytes(right)


@given(MESSAGES)
def test_parts_are_the_bytes_that_the_library_writes(message: Message) -> None:
    joined = b"".join(lay_out_bytes(message))
    assert joined == to_bytes(message)
    form = Message({name: tensor.to("meta") for name, tensor in message.tensors.items()}, message.facts)
    assert count_message_bytes(form) == len(joined)
    assert digest_parts(lay_out_bytes(message)) == digest_parts([joined])
    assert b"".join(add_checksum(lay_out_bytes(message))) == seal_parts(joined)


def test_every_type_that_is_laid_out_here_is_one_of_the_library() -> None:
    known = {str(kind).removeprefix("torch."): code for code, kind in safetensors.torch._TYPES.items()}
    assert {kind: known[kind] for kind in TYPES} == dict(zip(TYPES, CODES, strict=True))


@given(MESSAGES, st.integers(0, 7))
def test_a_message_in_memory_is_what_the_library_reads_wherever_it_begins(message: Message, before: int) -> None:
    data = to_bytes(message)
    room = memoryview(bytearray(before) + bytearray(data))
    assert_same(from_bytes(room[before:]), from_bytes(data))


def with_header(text: str, length: int | None = None) -> bytes:
    """Bytes with this header, and no tensors behind it. length: that it says."""
    header = text.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header


METADATA = '"__metadata__":{"facts":"{\\"reply\\":{}}"}'
EMPTY = '"dtype":"F32","data_offsets":[0,0]'


@pytest.mark.parametrize(
    "data",
    [
        *(
            with_header(f'{{{METADATA},"w":{{"shape":{shape},{EMPTY}}}}}')
            for shape in ([2**62, 2**62, 0], [0, 2**62, 2**62], [2**64, 0], [0, 2**63], [True, 0], [1.5, 0], [-1, 0])
        ),
        with_header(f'{{{METADATA},"\\ud800":{{"shape":[0],{EMPTY}}}}}'),
        with_header(f"{{{METADATA}}}", length=2**63),
    ],
    ids=range(9),
)
def test_headers_of_nothing_that_torch_can_make_are_malformed_in_every_way_to_read_them(
    data: bytes, tmp_path: Path
) -> None:
    """Else a hospital's answer would end the coordinator's run by an error of torch."""
    assert of_library(data) is None and in_memory(data) is None
    assert wire.read_answer(data) == wire.read_answer(memoryview(bytearray(data))) == "malformed"
    (tmp_path / "message").write_bytes(data)
    with pytest.raises(Malformed):
        from_file(tmp_path / "message")


def test_a_header_is_as_long_as_the_library_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hospital could send gigabytes of names, which would be read into the coordinator's memory."""
    data = with_header(f"{{{METADATA}}}  ")
    assert in_memory(data) == of_library(data) == Message({}, {"reply": {}})
    monkeypatch.setattr("privacy.message.MOST_HEADER", len(data) - 9)
    assert in_memory(data) is None and of_library(data) is None


@given(MESSAGES, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3), st.integers(-3, 3))
def test_damaged_bytes_are_refused_where_the_library_refuses_them(
    message: Message, flips: list[tuple[int, int]], longer: int
) -> None:
    data = bytearray(to_bytes(message))
    for place, value in flips:
        data[place % len(data)] = value
    data = data[:longer] if longer < 0 else data + bytes(longer)
    read, expected = in_memory(bytes(data)), of_library(bytes(data))
    if read is not None:
        assert expected is not None
        assert_same(read, expected)


@pytest.mark.parametrize("size", [10, 2**12])
def test_a_mapped_file_reads_as_its_bytes_and_is_nobodys_but_the_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("pipelines.runs.store.LARGE", 1000)
    folder, message = DiskFolder(tmp_path), Message({"w": torch.arange(float(size))}, {"n": 1})
    folder.write_parts("a/b", add_checksum(lay_out_bytes(message)))
    assert folder.read("a/b") == seal_parts(to_bytes(message))
    mapped = from_bytes(unseal_parts(folder.map("a/b")))
    mapped.tensors["w"].zero_()
    assert from_bytes(unseal_parts(folder.read("a/b"))).tensors["w"].equal(message.tensors["w"])
    again = from_bytes(unseal_parts(folder.map("a/b")))
    folder.write("a/b", b"another")
    folder.remove("a/b")
    assert again.tensors["w"].equal(message.tensors["w"]), "who reads a file reads on when it is gone"


def test_parameters_in_a_file_are_the_same_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("federation.spool.LARGE", 1000)
    params = {"b": torch.randn(500), "a": torch.arange(3), "c": torch.randn(3, 5).T, "d": torch.zeros(0, 2)}
    moved = move_params_to_file(params, tmp_path / "new")
    assert [*moved] == [*params] and all(moved[name].equal(params[name]) for name in params)
    assert not list((tmp_path / "new").iterdir())
    small = {"a": torch.arange(3)}
    assert move_params_to_file(small, tmp_path) is small


@given(st.lists(st.binary(max_size=5), max_size=4), st.integers(0, 25), st.integers(0, 25))
def test_a_cut_is_a_part_of_the_whole(parts: list[bytes], start: int, length: int) -> None:
    assert wire.cut_parts([memoryview(part) for part in parts], start, length) == b"".join(parts)[start:][:length]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=9))
def test_a_piece_is_no_message_and_comes_as_it_went(start: int, size: int, data: bytes) -> None:
    piece = wire.Piece(start, size, bytes(range(32)), data)
    assert wire.read_piece(wire.write_piece(piece)) == piece
    assert wire.read_answer(wire.write_piece(piece)) == "malformed"
    assert wire.read_piece(wire.build_question(Call("r", 1, "train", {}), Message({"w": torch.ones(3)}))) is None
