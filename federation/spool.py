"""Large messages in pieces: bytes that arrive one call after another wait in a file without a name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

from privacy.message import LARGE, Message, Params, digest_parts, from_bytes, lay_out_bytes, map_file
from privacy.release.bounds import BYTES, HEADER


class Spool:
    """A message that arrives in pieces. The system frees the file's space with the last of the message's tensors, or
    with the process; it is not forced to the disk.
    """

    def __init__(self, folder: Path | None, size: int, digest: bytes) -> None:
        """folder: where the file lies; None: where the system has its temporary files. size: bytes of the message.
        digest: its sha256.

        Raises:
            ValueError: no message is so large.
            OSError: the disk.
        """
        if not 0 < size <= BYTES + HEADER:
            raise ValueError(f"a message has at most {BYTES + HEADER} bytes, found {size}")
        self._file = _open_file(folder)
        self.size, self.digest, self.received = size, digest, 0

    def add(self, start: int, data: bytes) -> bool:
        """Add a piece, if it is the next one; returns whether it was. Raises: OSError: the disk."""
        if start != self.received or not 0 < len(data) <= self.size - start:
            return False
        self._file.seek(start)  # behind what a full disk took of an earlier try
        self._file.write(data)
        self._file.flush()
        self.received += len(data)
        return True

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self.received == self.size

    def view(self) -> memoryview | None:
        """The message's bytes, as writable memory of the file; None: they have another digest. Raises: OSError."""
        data = map_file(self._file)
        return data if digest_parts([data]) == self.digest.hex() else None


def move_params_to_file(params: Params, folder: Path | None = None) -> Params:
    """Tensors that lie in a file without a name, if they are large, and no longer in memory; else as they are.

    folder: as of `Spool`. Raises: OSError: the disk.
    """
    if sum(tensor.nbytes for tensor in params.values()) <= LARGE:
        return params
    with _open_file(folder) as file:
        for part in lay_out_bytes(Message(params)):
            file.write(part)
        file.flush()
        tensors = from_bytes(map_file(file)).tensors
    return {name: tensors[name] for name in params}


def _open_file(folder: Path | None) -> IO[bytes]:
    """A file without a name in a folder, which is made."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder)
