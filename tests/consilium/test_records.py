"""Results are records: a later run in their folder changes nothing that they give, or they say what it replaced."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilium import Examples, Results, Work, train
from pipelines.ledger import FILE

SETTINGS: dict[str, Any] = {
    "method": ["fedavg", "local"],
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
        "compare": ("fedavg", "local"),
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


FEDAVG, FEDPROX, VARIANT = "fedavg", "fedprox", "calm"
CALLS: tuple[tuple[list[str], list[str], list[str]], ...] = (  # hospitals, methods, variants
    (["north", "south", "east"], [FEDAVG, FEDPROX], [VARIANT]),
    (["north", "south"], [FEDPROX], []),
    (["north", "south"], [FEDAVG], [VARIANT]),
)
SITES, LABELS = ("north", "south", "east", "west", ".."), (FEDAVG, FEDPROX, VARIANT, "local", "../../x")


def called(folder: Path, call: tuple[list[str], list[str], list[str]], copies: int = 5) -> Results:
    sites, methods, variants = call
    calibrated = {name: {"of": methods[0], "calibration": "centred"} for name in variants}
    settings = {"evaluate": {"copies": copies, "variants": calibrated}, "audit": SETTINGS["settings"]["audit"]}
    given = {name: hospital(number) for number, name in enumerate(sites, 1)}
    asked = {**SETTINGS, "method": methods, "settings": settings}
    return train(given, model={"name": "mlp", "hidden": [6]}, folder=folder, **asked)


def models_of(results: Results, label: str, site: str, out: Path) -> list[Callable[[], Any]]:
    """Every way to one model."""
    return [
        lambda: results.ready(label, site),
        lambda: results.model(label, site),
        lambda: results.probabilities(label, site, torch.ones(2, 4)),
        lambda: results.export(label, site, out, "card"),
    ]


def refusal(get: Callable[[], Any], what: str) -> tuple[str, str]:
    """What was asked, and what there is, in the words of a refusal."""
    with pytest.raises(KeyError, match=f"this run has no {what} of") as refused:
        get()
    asked, _, there = str(refused.value).partition("; there are ")
    return asked, there


@pytest.mark.repeats(2)
@pytest.mark.parametrize("order", list(itertools.permutations(range(len(CALLS)), 2)))
def test_results_answer_for_their_own_methods_variants_and_hospitals_only(order: Any, tmp_path: Path) -> None:
    for number in order:
        sites, methods, variants = CALLS[number]
        results, own = called(tmp_path / "r", CALLS[number]), {*methods, *variants}
        for site, label in itertools.product(SITES, LABELS):
            ways = models_of(results, label, site, tmp_path / "out")
            if site in sites and label in own:
                assert isinstance(ways[1](), torch.nn.Module)
                continue
            for asked, there in (refusal(get, "model") for get in ways):
                assert repr(label) in asked and repr(site) in asked
                assert {one for one in LABELS if f"'{one}'" in there} == own
                assert {one for one in SITES if f"'{one}'" in there} == {*sites}
        assert all(results.ledger(site) for site in sites)
        for site in {*SITES} - {*sites}:
            asked, there = refusal(partial(results.ledger, site), "ledger")
            assert repr(site) in asked and {one for one in SITES if f"'{one}'" in there} == {*sites}
    assert not (tmp_path / "out").exists()


def test_a_card_has_the_figures_of_its_own_run_or_says_that_they_were_replaced(tmp_path: Path) -> None:
    runs = [called(tmp_path / "r", CALLS[1], copies) for copies in (5, 40)]
    for number, results in enumerate(runs):
        results.export(FEDPROX, "north", tmp_path / str(number), "card")
        told = json.loads((tmp_path / str(number) / f"{FEDPROX}.card.json").read_text())
        scored = {row["measure"]: [row[key] for key in ("value", "low", "high")] for row in told["scores"]}
        own = {
            r.measure: [r.value, r.low, r.high] for r in results.rows if (r.method, r.hospital) == (FEDPROX, "north")
        }
        assert scored and all(scored[name] == pytest.approx(own[name], nan_ok=True) for name in scored), number
    cards = [(tmp_path / str(number) / f"{FEDPROX}.card.json").read_bytes() for number in range(2)]
    assert cards[0] != cards[1], "else nothing was shown"
    path = runs[0].report / "report.json"
    path.write_text(path.read_text().replace(" ", "  "))
    with pytest.raises(ValueError, match="a later run in this folder replaced the report of this one"):
        runs[0].export(FEDPROX, "north", tmp_path / "x", "card")
    assert not (tmp_path / "x").exists()
