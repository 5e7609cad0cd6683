"""A Dataset that gives other items each time is refused, and so are dictionaries; one that does not is taken."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from consilium.examples import Examples
from pipelines.loader.document import ConfigError

DRAWS: dict[str, Callable[[np.ndarray], object]] = {
    "noise": lambda x: x + np.random.default_rng().normal(size=x.shape),
    "torch noise": lambda x: torch.from_numpy(x) + torch.randn(x.shape),
    "flip": lambda x: x[..., ::-1] if np.random.default_rng().random() < 0.5 else x,
    "crop": lambda x: x[..., : np.random.default_rng().integers(2, 9)],
}


class Items:
    def __init__(self, change: Callable[[np.ndarray], object]) -> None:
        self.change = change
        self.x = np.random.default_rng(0).normal(size=(40, 1, 8, 8))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[object, int, str]:
        return self.change(self.x[number]), number % 2, f"p{number}"


@pytest.mark.chance(3e-10, "32 flips of a coin come twice alike: 2^-32")
@pytest.mark.parametrize("name", DRAWS)
def test_random_dataset_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"draws random numbers.*Work\(augment"):
        Examples.of(Items(DRAWS[name]))


def test_fixed_dataset_with_missing_values_is_not_called_random() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        Examples.of(Items(lambda x: x * np.nan))
    assert len(Examples.of(Items(lambda x: x * 2)).x) == 40


def test_dictionaries_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="dictionaries with 'image', 'label'"):
        Examples.of([{"image": np.zeros((1, 8, 8)), "label": 0}])
