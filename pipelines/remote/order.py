"""An order: the run that the operator requests from the coordinator process that FLARE starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pipelines.runs.exits import Exit

MESSAGES, ALIVE, GONE, DONE, STOP = "told.txt", "alive", "gone.json", "done.json", "stop"


class Order(NamedTuple):
    """arguments: of `pipelines.run`. folder: its working directory. environment: variables that its YAML may use.
    inside, outside: hospitals of the federation, and external sites. silence_s: see `Remote`. command: to resume it.
    """

    arguments: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    inside: tuple[str, ...]
    outside: tuple[str, ...]
    silence_s: float
    command: str


class Ended(NamedTuple):
    """How a run ended: its exit code, and what its command would have printed."""

    code: int
    output: str = ""


def write_order(path: Path, order: Order) -> None:
    """Write an order, and remove the results of an earlier one."""
    for name in (MESSAGES, ALIVE, GONE, DONE, STOP):
        (path.parent / name).unlink(missing_ok=True)
    path.write_text(json.dumps(order._asdict(), indent=1))


def read_order(path: Path) -> Order:
    """Read what `write_order` wrote."""
    content = json.loads(path.read_text())
    lists = {key: tuple(content[key]) for key in ("arguments", "inside", "outside")}
    return Order(**{**content, **lists})


def is_resumable(place: Path, code: int) -> bool:
    """Whether a run ended only because hospitals were lost, or to let one rejoin: another job then goes on with it."""
    return code in (Exit.STOPPED, Exit.LOCKED) or (code == Exit.SITE and (place / GONE).exists())
