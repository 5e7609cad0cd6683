"""Floors: what a hospital reaches alone with fixed features and a classical learner, in one round, at home.

Any federated model of images must face them: on two real tasks a support vector machine on the same features, each
hospital alone, did as well as networks that all hospitals trained together (docs/results/one-message.md).

    name          of its features learns
    local_ridge   ridge regression on the classes, its strength by leave-one-out (scikit-learn's RidgeClassifierCV)
    local_svm     for each class a support vector machine with a Gaussian kernel, cost 1, width as scikit-learn's scale

A support vector machine keeps its patients' rows. Here its kernel is that of random Fourier features (Rahimi and Recht,
NIPS 2007; orthogonal ones, Yu et al., Orthogonal random features, NIPS 2016), the same everywhere, so that a model
holds a weight for each wave and no patient's row.

Decisions become probabilities by logistic regression on decisions for patients whom the learner did not see (Platt,
1999), in three folds by patient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.parameters import prefixed, read
from federation.promised import name_among
from federation.task import Output, Task
from privacy.dp.access import Draw
from privacy.message import Call, Message

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
WAVES = 4096  # with 2,048 the AUC on HAM10000 is .003 lower, with the exact kernel .001 higher
ROWS = 4000  # of a hospital that the kernel's machine learns from: its time grows with their square
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Learnt from this hospital's own training rows; nothing is sent after the common start, nothing is replied."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    rounds: ClassVar[int] = 1

    name: Literal["local_ridge", "local_svm"] = "local_ridge"

    def network(self, task: Task) -> Machine:
        return Machine(
            task.inputs, task.classes, WAVES if name_among(self, ("local_ridge", "local_svm")) == "local_svm" else 0
        )

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        found = []
        if not getattr(module, "flat", False):
            found.append(
                f"{self.name} learns from numbers, and examples here are images: give it features, as in "
                f"method_model: {{{self.name}: {{name: features, of: {{name: colour}}, public: skin_lesion}}}}"
            )
        if private:
            found.append(
                f"{self.name} learns without noise, and its scores would tell of training patients: as a private floor "
                "take moments with others_gram: 0 and others_classes: 0"
            )
        return found

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = Local.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        drawn = site.draw(full=True)
        if not isinstance(drawn, Draw):
            raise TypeError(f"{self.name} needs training rows, and private access hands out none")
        module = self.network(site.task)
        solved(module, drawn.x.cpu(), drawn.y.cpu(), drawn.patient.cpu(), site.task.classes)
        return Message(), Message(prefixed("model", read(module.to(site.device))))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return state

    model = Local.model


class Machine(nn.Module):
    """A linear map of x (b, d), or of cos and sin of `waves` fixed combinations of x, to logits. rate: of the waves.

    flat: whether examples are numbers and no images.
    """

    def __init__(self, inputs: tuple[int, ...], classes: int, waves: int) -> None:
        super().__init__()
        self.flat, self.waves, width = len(inputs) == 1, waves, math.prod(inputs)
        if waves:
            self.rate = nn.Parameter(torch.ones(()))
            self.directions = _directions(width, waves) if self.flat else torch.zeros(width, 0)
        self.head = nn.Linear(2 * waves or width, classes)

    def embedded(self, x: Tensor) -> Tensor:
        """What the head gets, for x (b, d)."""
        if not self.waves:
            return x
        angles = self.rate * (x @ self.directions.to(x))
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(self.waves)

    def forward(self, x: Tensor) -> Output:
        flat = x.flatten(1)
        return Output(self.head(self.embedded(flat)), flat)


@lru_cache(maxsize=8)
def _directions(width: int, waves: int) -> Tensor:
    """Directions (width, waves) float32 of a Gaussian kernel of width 1, orthogonal in blocks, the same everywhere."""
    random = np.random.default_rng(0)
    blocks = -(-waves // width)
    axes = np.linalg.qr(random.standard_normal((blocks, width, width)))[0]
    lengths = np.linalg.norm(random.standard_normal((blocks, width, width)), axis=1)
    found = (axes * lengths[:, None]).transpose(1, 0, 2).reshape(width, -1)[:, :waves]
    return torch.from_numpy(np.ascontiguousarray(found)).float()


def solved(module: Machine, x: Tensor, y: Tensor, patient: Tensor, classes: int) -> None:
    """Learn the module's parameters from rows x (n, d) with classes y and patients (n,)."""
    if module.waves and len(x) > ROWS:
        kept = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(x))[:ROWS]))
        x, y, patient = x[kept], y[kept], patient[kept]
    with torch.no_grad():
        if module.waves:
            variance = float(x.double().var(correction=0))
            module.rate.fill_(math.sqrt(2 / (x.shape[1] * variance)) if variance > 0 else 1.0)
        z = module.embedded(x).double().numpy()
        learn = _machine if module.waves else _ridge
        weight, bias = calibrated(learn, z, y.numpy(), patient.numpy(), classes)
        module.head.weight.copy_(torch.from_numpy(weight))
        module.head.bias.copy_(torch.from_numpy(bias))


class Decisions(NamedTuple):
    """Decisions z @ weight.T + bias: of the second class for two, else of each class. weight: (k, d), bias: (k,)."""

    weight: Floats
    bias: Floats

    def of(self, z: Floats) -> Floats:
        """(n, k)"""
        found: Floats = z @ self.weight.T + self.bias
        return found


Learner: TypeAlias = Callable[[Floats, Whole], Decisions]
"""From rows z (n, d) and their classes y (n,), of which at least two occur."""


def calibrated(learn: Learner, z: Floats, y: Whole, patient: Whole, classes: int) -> tuple[Floats, Floats]:
    """Weight (classes, d) and bias (classes,) of logits: the learner's decisions as log probabilities, but for a
    constant. A class that does not occur counts half a row; with one class nothing else is learnt.
    """
    present, number = np.unique(y, return_inverse=True)
    weight = np.zeros((classes, z.shape[1]))
    bias = np.full(classes, math.log(0.5 / max(1, len(y))))
    if len(present) < 2:
        bias[present] = 0.0
        return weight, bias
    whole, slope, offset = learn(z, number), *_probabilities(learn, z, number, patient)
    weight[present], bias[present] = slope @ whole.weight, slope @ whole.bias + offset
    return weight, bias


def _probabilities(learn: Learner, z: Floats, y: Whole, patient: Whole) -> tuple[Floats, Floats]:
    """Slope (classes, k) and offset (classes,) from decisions (k,) to logits."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    seen = _unseen(learn, z, y, patient)
    if seen is None:  # too few patients to set some aside
        seen = (learn(z, y).of(z), y)
    found = LogisticRegression(max_iter=1000).fit(*seen)
    if len(found.intercept_) == 1:  # of two classes the second alone
        slope, offset = np.asarray(found.coef_), np.asarray(found.intercept_)
        return np.concatenate([0 * slope, slope]), np.concatenate([0 * offset, offset])
    return np.asarray(found.coef_), np.asarray(found.intercept_)


def _unseen(learn: Learner, z: Floats, y: Whole, patient: Whole) -> tuple[Floats, Whole] | None:
    """Decisions (n, k) for patients whom the learner did not see, and their classes; None if a class has too few
    patients for it to be in each part.
    """
    from sklearn.model_selection import StratifiedGroupKFold  # slow to import

    classes = np.unique(y)
    if min(len(np.unique(patient[y == c])) for c in classes) < FOLDS:
        return None
    parts = [*StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0).split(z, y, patient)]
    if any(len(np.unique(y[train])) < len(classes) for train, _ in parts):
        return None
    held = [(learn(z[train], y[train]).of(z[test]), y[test]) for train, test in parts]
    return np.concatenate([one for one, _ in held]), np.concatenate([one for _, one in held])


def _ridge(z: Floats, y: Whole) -> Decisions:
    from sklearn.linear_model import RidgeClassifierCV  # slow to import

    found = RidgeClassifierCV(alphas=STRENGTHS).fit(z, y)
    return Decisions(np.atleast_2d(found.coef_), np.atleast_1d(found.intercept_))


def _machine(z: Floats, y: Whole) -> Decisions:
    """One machine for each class against the rest, on the rows' products."""
    from sklearn.svm import SVC  # slow to import

    gram, classes = z @ z.T, np.unique(y)
    weights, biases = [], []
    for c in classes[1:] if len(classes) == 2 else classes:
        found = SVC(C=1.0, kernel="precomputed", class_weight="balanced").fit(gram, y == c)
        weights.append(found.dual_coef_[0] @ z[found.support_])
        biases.append(found.intercept_[0])
    return Decisions(np.array(weights), np.array(biases))
