"""A finished model holds what its author fixed: it predicts as the hospital's did, whatever the code says later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilium import Examples, Work, own, train
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
