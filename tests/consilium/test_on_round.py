"""A function of the caller's sees each round once, with what hospitals released, and may fail without harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilium import ConfigError, Examples, Flare, RoundEnded, RunFailed, train

SETTINGS: dict[str, Any] = {"audit": {"membership": False}, "evaluate": {"copies": 0}}


def two() -> dict[str, Examples]:
    made = {}
    for seed, name in enumerate("ab"):
        chance, y = np.random.default_rng(seed), np.arange(40) // 2 % 2
        made[name] = Examples(chance.normal(size=(40, 4)) + y[:, None], y, [f"{name}{row // 2}" for row in range(40)])
    return made


@pytest.mark.parametrize("engine", ["in process", "wire"])
def test_every_round_of_every_training_is_seen_once_and_in_order(engine, tmp_path):
    seen: list[RoundEnded] = []
    more = {**SETTINGS, "train": {"repeats": 2}}
    results = train(two(), model="mlp", method=["fedavg", "local"], rounds=3, folder=tmp_path, settings=more,
                    quiet=True, engine=engine, on_round=seen.append)  # fmt: skip
    names = ["fedavg", "local", "fedavg--2", "local--2"]
    assert [(each.method, each.round) for each in seen] == [(name, number) for name in names for number in (1, 2, 3)]
    assert {each.rounds for each in seen} == {3}
    for each in seen:
        known = results.losses.get(each.method)
        for site, losses in each.losses.items():
            assert [*losses] == [*range(1, each.round)], "the newest model's loss comes with the next round"
            assert known is None or losses == {number: known[site][number] for number in losses}


def test_a_round_that_an_earlier_call_made_is_not_seen_again(tmp_path):
    arguments = {"model": "mlp", "method": "fedavg", "rounds": 4, "settings": SETTINGS, "quiet": True}
    seen: list[int] = []

    def fail_at_two(ended: RoundEnded) -> None:
        seen.append(ended.round)
        if ended.round == 2:
            raise ValueError("my own mistake")

    with pytest.raises(RunFailed, match="my own mistake"):
        train(two(), folder=tmp_path / "one", on_round=fail_at_two, **arguments)
    later: list[int] = []
    results = train(two(), folder=tmp_path / "one", on_round=lambda ended: later.append(ended.round), **arguments)
    whole = train(two(), folder=tmp_path / "two", **arguments)
    assert seen == [1, 2] and later[-1] == 4 and set(later) <= {2, 3, 4}
    assert [row.value for row in results.rows] == [row.value for row in whole.rows]
    kept: list[int] = []
    train(two(), folder=tmp_path / "one", on_round=lambda ended: kept.append(ended.round), **arguments)
    assert kept == []


def test_rounds_that_end_in_another_process_cannot_be_seen(tmp_path):
    with pytest.raises(ConfigError, match="over FLARE is another"):
        train(two(), model="mlp", method="fedavg", rounds=1, folder=tmp_path, engine=Flare(kit="kit"), on_round=print)
