"""The file of weights with which networks begin. Nothing is unpickled: what is no safetensors is refused."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError

from federation.task import Task
from federation.weights import Weights, fitting
from privacy.message import Params


class Found(NamedTuple):
    """The tensors of a file, and its SHA-256."""

    tensors: Params
    sha256: str


def start_from(how: Weights, task: Task) -> Found:
    """What the task's networks begin with, by our names, and the digest of the file.

    Raises:
        ValueError: the file is missing, is no safetensors, is another than `sha256` says, or does not fit the network;
            all that does not.
    """
    path = Path(how.file)
    try:
        stamp = path.stat()
        found = _read(path, stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        text = f"{how.file} cannot be read ({error.strerror}); give a safetensors file of the network's weights"
        raise ValueError(text) from error
    if how.sha256 not in ("", found.sha256):
        raise ValueError(
            f"{how.file} has the SHA-256 {found.sha256}, and sha256 says {how.sha256}; take the right file"
        )
    with torch.device("meta"):
        network = task.model.build(inputs=task.inputs, classes=task.classes)
    try:
        return Found(fitting(found.tensors, network, head=how.head), found.sha256)
    except ValueError as error:
        raise ValueError(f"{how.file} is not of this network: {error}") from error


def stamp_of(how: Weights) -> str:
    """The digest of the file as it is now. Raises: ValueError: it cannot be read."""
    path = Path(how.file)
    try:
        stamp = path.stat()
        return _read(path, stamp.st_size, stamp.st_mtime_ns).sha256
    except OSError as error:
        raise ValueError(f"{how.file} cannot be read ({error.strerror})") from error


@lru_cache(maxsize=2)
def _read(path: Path, size: int, changed: int) -> Found:
    """Read again when it changed. Raises: OSError, ValueError."""
    from safetensors.torch import load

    data = path.read_bytes()
    try:
        return Found(load(data), hashlib.sha256(data).hexdigest())
    except SafetensorError as error:
        remedy = "write one by safetensors.torch.save_file(network.state_dict(), FILE); nothing else is opened"
        raise ValueError(f"{path} is no safetensors file ({error}); {remedy}") from error
