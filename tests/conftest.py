"""Deterministic and quiet: one thread, and hypothesis without a clock. The default suite is a part of `--thorough`.

A law that hypothesis tries on examples is tried on a fifth of them by default, which are the same in every
run (`derandomize`). `pytest --thorough`, which is `make test-all`, tries them all and runs the tests marked `slow` too.
"""

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

SHARE, LEAST = 5, 4  # the default suite tries one example in SHARE, but LEAST of them where a law has so many
LAW = "_hypothesis_internal_use_settings"  # what `@settings` writes on a law; there is no public name for it

DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="all examples of every law, and the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--thorough"):
        config.option.markexpr = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let laws have fewer examples, unless asked to be thorough."""
    if config.getoption("--thorough"):
        return
    laws = {item.function for item in items if hasattr(getattr(item, "function", None), LAW)}
    for law in laws:
        full = getattr(law, LAW)
        setattr(law, LAW, settings(full, max_examples=fewer(full.max_examples)))


def fewer(examples: int) -> int:
    """How many examples of a law the default suite tries."""
    return max(min(LEAST, examples), examples // SHARE)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data, or a skip with the reason."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}: set CONSILIUM_DATA to run this test")
    return DATA


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether everything is tried, not a part of it."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture
def doubles() -> Iterator[None]:
    """What a test makes is in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
