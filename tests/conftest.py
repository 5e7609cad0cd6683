"""Deterministic and quiet: one thread, and hypothesis without a clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("house")

DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data, or a skip with the reason."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}: set CONSILIUM_DATA to run this test")
    return DATA


@pytest.fixture
def doubles() -> Iterator[None]:
    """What a test makes is in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
