"""The file of a network's initial weights. Nothing is unpickled: only safetensors files are accepted."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError

from federation.task import Task
from federation.weights import Weights, select_fitting_tensors
from privacy.message import Params


class LoadedWeights(NamedTuple):
    """The tensors of a file, and its SHA-256."""

    tensors: Params
    sha256: str


def load_start_weights(how: Weights, task: Task) -> LoadedWeights:
    """The initial weights of the task's networks, by our parameter names, and the digest of the file.

    Raises:
        ValueError: the file is missing, is no safetensors, is another than `sha256` says, or does not fit the network;
            all misfits at once.
    """
    path = Path(how.file)
    try:
        stamp = path.stat()
        loaded = _load_weights(path, stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        text = f"{how.file} cannot be read ({error.strerror}); give a safetensors file of the network's weights"
        raise ValueError(text) from error
    if how.sha256 not in ("", loaded.sha256):
        raise ValueError(
            f"{how.file} has the SHA-256 {loaded.sha256}, and sha256 says {how.sha256}; take the right file"
        )
    with torch.device("meta"):
        network = task.model.build(inputs=task.inputs, classes=task.classes)
    try:
        return LoadedWeights(select_fitting_tensors(loaded.tensors, network, head=how.head), loaded.sha256)
    except ValueError as error:
        raise ValueError(f"{how.file} is not of this network: {error}") from error


def weights_digest(how: Weights) -> str:
    """The digest of the file as it is now. Raises: ValueError: it cannot be read."""
    path = Path(how.file)
    try:
        stamp = path.stat()
        return _load_weights(path, stamp.st_size, stamp.st_mtime_ns).sha256
    except OSError as error:
        raise ValueError(f"{how.file} cannot be read ({error.strerror})") from error


@lru_cache(maxsize=2)
def _load_weights(path: Path, size: int, changed: int) -> LoadedWeights:
    """The file's tensors, cached until it changes. Raises: OSError, ValueError."""
    from safetensors.torch import load

    data = path.read_bytes()
    try:
        return LoadedWeights(load(data), hashlib.sha256(data).hexdigest())
    except SafetensorError as error:
        remedy = "write one by safetensors.torch.save_file(network.state_dict(), FILE); nothing else is opened"
        raise ValueError(f"{path} is no safetensors file ({error}); {remedy}") from error
