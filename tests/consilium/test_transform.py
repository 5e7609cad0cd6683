"""`Examples(transform=)`: from Python to training draws, and to nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilium import ConfigError, Examples, PatientLevel, Results, train
from consilium.settings import ALL, transforms_of
from federation.transforms import register_transform
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.settings.config import Config


def hospital(seed: int, transform: Callable[..., Any] | None = None, n: int = 24) -> Examples:
    """Every number of an example is that of its patient, so that a view says whose it is."""
    number = 100 * seed + np.arange(n) // 2
    x = np.repeat(number, 16).reshape(n, 1, 4, 4) / 1000
    split = ["train", "train", "validation", "test"]
    return Examples(
        x, np.arange(n) // 2 % 2, number.tolist(), split={int(p): split[p % 4] for p in number}, transform=transform
    )


class Noting:
    """Appends whose view it gives to a file."""

    def __init__(self, file: Path, by: float = 0.0) -> None:
        self.file, self.by = str(file), by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with Path(self.file).open("a") as file:
            file.write(f"{round(1000 * float(x[0, 0, 0]))}\n")
        return x + self.by * torch.randn(x.shape)


def seen(file: Path) -> list[int]:
    found = [int(line) for line in file.read_text().split()] if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def trained(folder: Path, transform: Callable[..., Any] | None, **more: Any) -> Results:
    hospitals = {f"h{seed}": hospital(seed, transform) for seed in (1, 2)}
    say: dict[str, Any] = {"model": "mlp", "method": ["fedavg", "moments"], "rounds": 2, "work": {"lr": 0.01}}
    say |= {"settings": {"audit": {"canaries": 0}, "evaluate": {"copies": 0, "reference": "fedavg"}}}
    return train(hospitals, folder=folder, quiet=True, **say | more)


@pytest.mark.parametrize("private", [False, True])
def test_training_patients_alone_are_transformed_and_a_repeated_call_transforms_nothing(
    tmp_path: Path, private: bool
) -> None:
    file = tmp_path / "seen.txt"
    more = {"privacy": PatientLevel(epsilon=20.0, delta=1e-3, sampling=0.5)} if private else {}
    noting = Noting(file, by=0.1)
    done = trained(tmp_path / "runs", noting, **more)
    tried = 2 * 2 * 32  # invented examples, each twice, for each hospital
    views = seen(file)
    assert len(views) > tried and {number % 4 for number in views[tried:]} == {0, 1}, "0 and 1 are training patients"
    before = done.losses["fedavg"]
    again = trained(tmp_path / "runs", noting, **more)
    assert len(seen(file)) == tried and again.losses["fedavg"] == before
    if not private:
        other = trained(tmp_path / "runs", Noting(file, by=0.2), **more)
        assert len(seen(file)) > tried and other.losses["fedavg"] != before
        assert trained(tmp_path / "fresh", noting).losses["fedavg"] == before
        plain = trained(tmp_path / "none", None)
        assert plain.losses["fedavg"] != before and plain.losses["moments"] == again.losses["moments"]
    assert any("transform Noting computes" in text for text in done.not_guaranteed)


@pytest.mark.parametrize("private", [False, True])
def test_declared_views_of_torchio_train_in_the_same_places(tmp_path: Path, private: bool) -> None:
    """They change what batches teach and not what moments sum, and equal calls train equal models."""
    more = {"privacy": PatientLevel(epsilon=20.0, delta=1e-3, sampling=0.5)} if private else {}
    work = {"lr": 0.01, "torchio": [{"name": "noise", "std": [0.1, 0.1]}, {"name": "flip"}]}
    done = trained(tmp_path / "runs", None, work=work, **more)
    assert set(done.losses) == {"fedavg", "moments"}
    if not private:
        assert trained(tmp_path / "fresh", None, work=work).losses == done.losses
        plain = trained(tmp_path / "none", None)
        assert plain.losses["fedavg"] != done.losses["fedavg"] and plain.losses["moments"] == done.losses["moments"]
        settings = {"audit": {"canaries": 0}, "evaluate": {"copies": 0, "reference": "fedavg"}}
        settings |= {"train": {"method_work": {"fedavg": {"label_smoothing": 0.3, "mixup": 0.4}}}}
        both = trained(tmp_path / "both", None, settings=settings)
        assert both.losses["fedavg"] != plain.losses["fedavg"] and both.losses["moments"] == plain.losses["moments"]


def test_another_process_says_that_it_does_not_know_the_transform(tmp_path: Path, monkeypatch, capsys) -> None:
    trained(tmp_path, Noting(tmp_path / "seen.txt"))
    monkeypatch.setattr("federation.transforms._FUNCTIONS", {})
    assert main([str(tmp_path / "settings.yaml"), "--check"]) == 2
    assert "no transform 'Noting' is registered here" in " ".join(capsys.readouterr().err.split())


def test_hospitals_may_have_transforms_of_their_own_but_not_where_examples_are_pooled(tmp_path: Path) -> None:
    file = tmp_path / "seen.txt"
    one, other = Noting(file), Noting(file, by=1.0)
    hospitals = {"a": hospital(1, one), "b": hospital(2, other), "c": hospital(3)}
    done = train(
        hospitals,
        model="mlp",
        method="fedavg",
        rounds=1,
        folder=tmp_path,
        quiet=True,
        settings={"evaluate": {"copies": 0}},
    )
    config = validate_settings(read_yaml((tmp_path / "settings.yaml").read_text(), environment={}), Config)
    works = {site: config.work("fedavg", site).transform for site in "abc"}
    assert works["a"] != works["b"] and works["c"] is None and done.losses["fedavg"]
    assert not any(300 <= number < 400 for number in seen(file))
    with pytest.raises(ConfigError, match="central trains on all hospitals' examples together"):
        transforms_of(hospitals, {"central": "central"})
    assert [*transforms_of({"a": hospital(1, one), "b": hospital(2, one)}, {"central": "central"})] == [ALL]


def test_transforms_of_monai_and_torchio_and_modules_are_taken() -> None:
    from monai.transforms import Compose, RandFlip, RandGaussianNoise
    from torchio import RandomNoise

    both = [Compose([RandFlip(prob=0.5), RandGaussianNoise(prob=0.5, std=std)]) for std in (0.1, 0.1, 0.2)]
    codes = [register_transform(hospital(1, one).transform).code for one in both]
    assert codes[0] == codes[1] != codes[2]
    x = np.random.default_rng(0).normal(size=(8, 1, 4, 4, 4))
    Examples(x, np.arange(8) % 2, "each", transform=RandomNoise())
    Examples(x, np.arange(8) % 2, "each", transform=torch.nn.Dropout(0.5))


class Remembering:
    def __init__(self) -> None:
        self.last = torch.zeros(1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.last, mixed = x, x + self.last
        return mixed


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "own generator": (
        lambda x: x + np.random.default_rng().normal(),
        "draws from a generator of its own, or remembers",
    ),
    "memory": (Remembering(), "draws from a generator of its own, or remembers"),
    "shape": (lambda x: x[..., :2], "must keep the shape of x"),
    "type": (Remembering, "must be a function of an example"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_repeated_is_refused_at_once(name: str) -> None:
    transform, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as found:
        hospital(1, transform)
    assert [problem.where for problem in found.value.problems] == [("transform",)]


def test_views_of_masks_and_words_for_loaders() -> None:
    x, mask = np.zeros((8, 1, 4, 4)), np.arange(128).reshape(8, 4, 4) % 2
    Examples(x, None, "each", mask=mask, transform=lambda x, mask: (x.flip(-1), mask.flip(-1)))
    with pytest.raises(ConfigError, match=r"must give \(x, mask\)"):
        Examples(x, None, "each", mask=mask, transform=lambda x, mask: x)
    loader = torch.utils.data.DataLoader([(x[0], 0, "p")], batch_size=1)
    with pytest.raises(ConfigError, match=r"DataLoader is no sequence.*give its dataset, the run makes the batches"):
        Examples.of(loader)


def test_a_trial_shows_a_transform_no_patient(tmp_path: Path) -> None:
    x = (np.arange(40.0) % 2 * 1000).reshape(40, 1, 1, 1)
    Examples(x, np.arange(40) % 2, "each", transform=Noting(tmp_path / "seen.txt"))
    tried = seen(tmp_path / "seen.txt")
    assert len(tried) >= 48 and not {*tried} & {0, 1_000_000}


def test_own_generators_and_memories_are_seen_however_few_examples_there_are() -> None:
    rare = lambda x: x + 1 if np.random.default_rng().random() < 0.5 else x  # noqa: E731
    for transform in (rare, Remembering()):
        with pytest.raises(ConfigError, match="draws from a generator of its own, or remembers"):
            Examples(np.zeros((4, 5)), np.arange(4) % 2, "each", transform=transform)
