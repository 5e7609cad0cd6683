"""FENDA on own tensors and network: three hospitals whose cameras differ. Run: python examples/fenda_own_data.py"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import consilium


class SmallNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        return self.fc(self.conv2(h).relu().amax(dim=(2, 3)))


def hospital(number: int) -> TensorDataset:
    """Images, labels and patients: 240 of 120. Contrasts differ, and the last hospital's are negatives."""
    digits, rows = load_digits(), slice(240 * number, 240 * (number + 1))
    x = torch.tensor(digits.images[rows] / 16, dtype=torch.float32)[:, None] ** (1 + number)
    y, patient = torch.tensor(digits.target[rows] < 5).long(), torch.arange(240) // 2 + 1000 * number
    return TensorDataset(1 - x if number == 2 else x, y, patient)


results = consilium.train(
    {f"hospital-{number}": hospital(number) for number in range(3)},
    model=consilium.own(SmallNet, stem="conv1", blocks=["conv2"], head="fc"),
    method=["local", "fedavg", "fenda"],
    rounds=10,
    work=consilium.Work(lr=0.01, batch=16, epochs=2),
    folder="runs/fenda",
)
print(results)
