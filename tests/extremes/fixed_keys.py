"""Hospitals' secret keys are the same in every run of a test: a key divides patients between training and test.

`tests/conftest.py` calls `fix_keys`, and `sitecustomize.py` does in every Python that a test starts. A key follows from
the variable KEYS and from the place of its file below the folder of pytest, so that hospitals have different ones.
`make test KEYS=2` tries others; KEYS=random leaves them to chance.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from pathlib import Path

VARIABLE, DEFAULT, RANDOM = "KEYS", "0", "random"
OWNERS = {("pipelines.hospital.hospital", "key"), ("pipelines.batch.key", "read_key")}
"""The functions that make a secret key."""

_token_bytes = secrets.token_bytes


def token_bytes(nbytes: int | None = None) -> bytes:
    """As `secrets.token_bytes`, but for a hospital's key."""
    caller = sys._getframe(1)
    if nbytes != 32 or (caller.f_globals.get("__name__"), caller.f_code.co_name) not in OWNERS:
        return _token_bytes(nbytes)
    path = caller.f_locals["path"] if "path" in caller.f_locals else caller.f_locals["self"].vault
    return fixed_key(Path(path))


def fixed_key(path: Path) -> bytes:
    """The key of a file: of the parts of its path below pytest's folder, without the number of a temporary folder."""
    parts = list(path.absolute().parts)
    below = max((at for at, part in enumerate(parts) if re.fullmatch(r"pytest-\d+|popen-gw\d+", part)), default=-1) + 1
    if below < len(parts):
        parts[below] = re.sub(r"\d+$", "", parts[below])
    return hashlib.sha256("/".join([os.environ[VARIABLE], *parts[below:]]).encode()).digest()


def fix_keys() -> None:
    """Keys that this process makes from now on are fixed, and those of the processes that it starts."""
    if os.environ.setdefault(VARIABLE, DEFAULT) == RANDOM:
        return
    secrets.token_bytes = token_bytes
    folder, paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])
