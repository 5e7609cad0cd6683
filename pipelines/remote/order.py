"""An order: what the coordinator process that FLARE starts shall run, written by the operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

TOLD, ALIVE, GONE, DONE, STOP = "told.txt", "alive", "gone.json", "done.json", "stop"


class Order(NamedTuple):
    """arguments: of `pipelines.run`. folder: where it was called. environment: variables that its YAML may name.
    inside, outside: hospitals of the federation, and outside it. silence_s: see `Remote`. command: to be typed again.
    """

    arguments: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    inside: tuple[str, ...]
    outside: tuple[str, ...]
    silence_s: float
    command: str


def write_order(path: Path, order: Order) -> None:
    """Write an order; what became of an earlier one goes."""
    for name in (TOLD, ALIVE, GONE, DONE, STOP):
        (path.parent / name).unlink(missing_ok=True)
    path.write_text(json.dumps(order._asdict(), indent=1))


def read_order(path: Path) -> Order:
    """Read what `write_order` wrote."""
    said = json.loads(path.read_text())
    lists = {key: tuple(said[key]) for key in ("arguments", "inside", "outside")}
    return Order(**{**said, **lists})
