"""Results are records: a later run in their folder changes nothing that they give, or they say what it replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilium import Examples, Results, Work, train
from pipelines.ledger import FILE

SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "rounds": 1,
    "work": Work(batch=8, lr=0.05),
    "settings": {"evaluate": {"copies": 5}, "audit": {"membership": False, "canaries": 0}},
    "quiet": True,
}


def hospital(seed: int) -> Examples:
    chance = np.random.default_rng(seed)
    y = np.arange(32) // 2 % 2
    return Examples(chance.normal(size=(32, 4)) + y[:, None], y, [f"{seed}-{row // 2}" for row in range(32)])


def gives(results: Results) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything public that a record gives, by name."""
    arguments: dict[str, tuple[Any, ...]] = {
        "score": ("fedavg", "north"),
        "model": ("fedavg", "north"),
        "ready": ("fedavg", "north"),
        "probabilities": ("fedavg", "north", torch.ones(3, 4)),
        "ledger": ("north",),
    }
    for name in sorted(part for part in dir(results) if not part.startswith("_")):
        if name in ("frame", "settings", "folder", "export"):  # pandas is optional; paths; export writes `ready`
            continue

        def get(name: str = name) -> Any:
            value = getattr(results, name)
            return value(*arguments.get(name, ())) if callable(value) else value

        yield name, get


def content(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, Path):
        return value.read_bytes() if value.is_file() else value
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, torch.nn.Module):
        return {name: tensor.tolist() for name, tensor in value.state_dict().items()}
    if hasattr(value, "module"):  # a ready model
        return content(value.module)
    return repr(value)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, dict[str, Any], Results]:
    """The first results, what they gave, and those of another run in their folder."""
    folder = tmp_path_factory.mktemp("records")
    hospitals = {"north": hospital(1), "south": hospital(2)}
    first = train(hospitals, model={"name": "mlp", "hidden": [6]}, folder=folder, **SETTINGS)
    gave = {name: content(get()) for name, get in gives(first)}
    return first, gave, train(hospitals, model={"name": "mlp", "hidden": [9]}, folder=folder, **SETTINGS)


REPLACED = {"model", "ready", "probabilities", "yaml"}


def test_a_record_gives_what_it_gave_or_says_what_was_replaced(two: Any) -> None:
    first, gave, _ = two
    assert {"losses", "rows", "page", "ledger", "statements", "recommended", "table"} | REPLACED <= set(gave)
    for name, get in gives(first):
        if name in REPLACED:
            with pytest.raises(ValueError, match="a later run in this folder replaced"):
                get()
        else:
            assert content(get()) == gave[name], name


def test_the_later_run_has_its_own(two: Any) -> None:
    first, gave, second = two
    assert next(second.model("fedavg", "north").parameters()).shape[0] == 9
    assert content(second.page) != gave["page"] and len(second.ledger("north")) > len(first.ledger("north")) > 0


def test_the_same_run_again_replaces_nothing(tmp_path: Path) -> None:
    hospitals = {"north": hospital(1), "south": hospital(2)}
    runs = [train(hospitals, model={"name": "mlp", "hidden": [6]}, folder=tmp_path, **SETTINGS) for _ in range(2)]
    assert content(runs[0].model("fedavg", "north")) == content(runs[1].model("fedavg", "north"))
    assert runs[0].yaml == runs[1].yaml is not None


def test_a_ledger_that_was_cut_off_since_is_said_to_be(tmp_path: Path) -> None:
    results = train({"a": hospital(1), "b": hospital(2)}, model={"name": "mlp"}, folder=tmp_path, **SETTINGS)
    path = results.folder / "sites" / "a" / FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="line"):
        results.ledger("a")
