"""What a run from Python says of code that only its process knows: how it goes on, is exported, what it began with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilium import ConfigError, Examples, PatientLevel, Results, RunFailed, own, train
from pipelines.coordinator.stages import report
from pipelines.export import main as export

READ = {"weights": torch.full((4, 1, 3, 3), 0.125)}


class Learnt(nn.Module):
    """Its constructor reads weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)
        with torch.no_grad():
            self.stem.weight.copy_(READ["weights"])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).relu().amax((2, 3)))


def hospital(seed: int, n: int = 24) -> Examples:
    y = np.arange(n) // 2 % 2
    x = np.random.default_rng(seed).normal(size=(n, 1, 8, 8)) + 0.6 * y[:, None, None, None]
    return Examples(x, y, [f"{seed}-{i // 2}" for i in range(n)])


def trained(folder: Path, model: object, **more: object) -> Results:
    hospitals = {"north": hospital(1), "south": hospital(2)}
    say = {"evaluate": {"copies": 0}, "audit": {"canaries": 0}}
    return train(hospitals, model=model, method="fedavg", rounds=1, folder=folder, quiet=True, settings=say, **more)


NET = {"stem": "stem", "head": "head"}


def test_an_own_network_is_exported_from_python_and_a_command_says_so(tmp_path: Path, monkeypatch, capsys) -> None:
    done = trained(tmp_path / "runs", own(Learnt, **NET))
    files = done.export("fedavg", "north", tmp_path / "out", "card", "onnx")
    assert {path.name for path in files} == {"fedavg.card.md", "fedavg.card.json", "fedavg.onnx"}
    assert all(path.is_file() for path in files)
    with pytest.raises(KeyError, match="no model of 'fedavg' at 'west'"):
        done.export("fedavg", "west", tmp_path / "out", "card")
    with pytest.raises(RuntimeError, match=r"(?s)is not exported.*say what to make"):
        done.export("fedavg", "north", tmp_path / "out")
    monkeypatch.setattr("federation.models.own._BUILDERS", {})
    path = done.folder / "sites" / "north" / "ready" / "fedavg.safetensors"
    assert export([str(path), "--out", str(tmp_path / "other"), "--card"]) != 0
    assert "Results.export" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("registered", [True, False])
def test_a_run_that_ended_early_says_what_goes_on_with_it(tmp_path: Path, monkeypatch, registered: bool) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("no report today")

    monkeypatch.setattr(report, "label_measures", broken)
    model = own(Learnt, **NET) if registered else {"name": "mlp"}
    with pytest.raises(RunFailed) as found:
        trained(tmp_path / "runs", model)
    last = str(found.value).splitlines()
    assert any("the same call of consilium.train" in line for line in last) == registered
    assert any(line.startswith("python -m pipelines.run") for line in last) != registered


@pytest.mark.parametrize("registered", [True, False])
def test_a_statement_says_that_nobody_reviewed_what_a_constructor_reads(tmp_path: Path, registered: bool) -> None:
    model = own(Learnt, **NET) if registered else {"name": "mlp"}
    done = trained(tmp_path / "runs", model, privacy=PatientLevel(epsilon=20.0, delta=1e-3, sampling=0.5))
    statement = done.statements["north"]
    began = statement.text.partition("## What models began with")[2]
    assert ("the code of learnt makes them" in began and "whose data shaped them" in began) == registered
    assert began.strip().startswith("Random numbers") != registered
    assert any("own network reads" in text for text in statement.outside) == registered
    assert "code that only a process from Python registers" in (tmp_path / "runs" / "settings.yaml").read_text()
    assert json.dumps(done.starts) == "{}"


def test_names_of_classes_are_told_how_to_become_numbers() -> None:
    x, names = np.zeros((4, 2)), np.array(["benign", "malignant"] * 2)
    with pytest.raises(ConfigError, match=r"np.unique\(y, return_inverse=True\)"):
        Examples(x, names, "each")
    kinds, y = np.unique(names, return_inverse=True)
    assert Examples(x, y, "each").classes == {0, 1} and [*kinds] == ["benign", "malignant"]
    with pytest.raises(ConfigError, match="say which number each stands for"):
        Examples(names[:, None], y, "each")
