"""Floors: the scores that a hospital reaches alone, with fixed features and a classical learner, in one round.

A federated model of images must beat them: on two real tasks a support vector machine on the same features, trained by
each hospital alone, scored as well as networks that all hospitals trained together (docs/results/one-message.md).

    name          what it fits to the features
    local_ridge   ridge regression on the classes, its strength by leave-one-out (scikit-learn's RidgeClassifierCV)
    local_svm     for each class a support vector machine with a Gaussian kernel, cost 1, width as scikit-learn's scale

A support vector machine keeps rows of its training patients. Here its kernel is that of random Fourier features (Rahimi
and Recht, NIPS 2007; orthogonal ones, Yu et al., Orthogonal random features, NIPS 2016), the same everywhere, so that a
model holds a weight for each wave, and no row of a patient.

Of a number they are ridge regression (RidgeCV) and support vector regression (SVR, epsilon 0.1 of the labels' standard
deviation), by the same strengths, cost and kernel. Of several findings each is learnt for itself, from the rows where
it is known.

Decisions become probabilities by logistic regression on decisions for patients that the learner was not fitted to
(Platt, 1999), in three folds by patient.
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
from federation.findings import UNKNOWN, decode_findings
from federation.local import Local
from federation.parameters import prefixed, read_parameters
from federation.promised import resolve_name
from federation.task import STEPS, Kind, Output, Task
from privacy.dp.access import Draw
from privacy.message import Call, Message

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
WAVES = 4096  # with 2,048 the AUC on HAM10000 is .003 lower, with the exact kernel .001 higher
ROWS = 4000  # most training rows of a support vector machine: its time grows with their square
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Learnt from this hospital's own training rows; nothing is sent after the common start, nothing is replied."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    rounds: ClassVar[int] = 1
    without_loss: ClassVar = "it solves for its machine from all training rows"

    name: Literal["local_ridge", "local_svm"] = "local_ridge"

    def network(self, task: Task) -> Machine:
        return Machine(
            task.inputs, task.classes, WAVES if resolve_name(self, ("local_ridge", "local_svm")) == "local_svm" else 0
        )

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = []
        if not getattr(module, "flat", False):
            problems.append(
                f"{self.name} learns from numbers, and examples here are images: give it features, as in "
                f"method_model: {{{self.name}: {{name: features, of: {{name: colour}}, public: skin_lesion}}}}"
            )
        if private:
            problems.append(
                f"{self.name} learns without noise, and its scores would tell of training patients: as a private floor "
                "take moments with others_gram: 0 and others_classes: 0"
            )
        return problems

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = Local.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        drawn = site.draw(full=True)
        if not isinstance(drawn, Draw):
            raise TypeError(f"{self.name} needs training rows, and private access hands out none")
        module = self.network(site.task)
        fit_machine(module, drawn.x.cpu(), drawn.y.cpu(), drawn.patient.cpu(), site.task.classes, site.task.kind)
        return Message(), Message(prefixed("model", read_parameters(module.to(site.device))))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return state

    model = Local.model


class Machine(nn.Module):
    """A linear map to logits, of x (b, d) or of cos and sin of `waves` fixed combinations of x. rate: scale of the
    waves.

    flat: whether an example is a vector of numbers, and no image.
    """

    def __init__(self, inputs: tuple[int, ...], classes: int, waves: int) -> None:
        super().__init__()
        self.flat, self.waves, width = len(inputs) == 1, waves, math.prod(inputs)
        if waves:
            self.rate = nn.Parameter(torch.ones(()))
            self.directions = _draw_directions(width, waves) if self.flat else torch.zeros(width, 0)
        self.head = nn.Linear(2 * waves or width, classes)

    def embed_rows(self, x: Tensor) -> Tensor:
        """The input of the head, for x (b, d)."""
        if not self.waves:
            return x
        angles = self.rate * (x @ self.directions.to(x))
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(self.waves)

    def forward(self, x: Tensor) -> Output:
        flat = x.flatten(1)
        return Output(self.head(self.embed_rows(flat)), flat)


@lru_cache(maxsize=8)
def _draw_directions(width: int, waves: int) -> Tensor:
    """Directions (width, waves) float32 of a Gaussian kernel of width 1, orthogonal in blocks, the same everywhere."""
    random = np.random.default_rng(0)
    blocks = -(-waves // width)
    axes = np.linalg.qr(random.standard_normal((blocks, width, width)))[0]
    lengths = np.linalg.norm(random.standard_normal((blocks, width, width)), axis=1)
    directions = (axes * lengths[:, None]).transpose(1, 0, 2).reshape(width, -1)[:, :waves]
    return torch.from_numpy(np.ascontiguousarray(directions)).float()


def fit_machine(
    module: Machine, x: Tensor, y: Tensor, patient: Tensor, classes: int, kind: Kind = "classification"
) -> None:
    """Fit the module's parameters to rows x (n, d) with labels y and patients (n,). classes: 1 = labels are numbers, in
    steps of their range. kind: of the task; `findings` = labels are those of `federation.findings`.
    """
    if module.waves and len(x) > ROWS:
        chosen_rows = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(x))[:ROWS]))
        x, y, patient = x[chosen_rows], y[chosen_rows], patient[chosen_rows]
    with torch.no_grad():
        if module.waves:
            variance = float(x.double().var(correction=0))
            module.rate.fill_(math.sqrt(2 / (x.shape[1] * variance)) if variance > 0 else 1.0)
        z = module.embed_rows(x).double().numpy()
        if classes == 1:
            weight, bias = fit_number(z, y.numpy(), machine=module.waves > 0)
        else:
            fit = fit_findings if kind == "findings" else fit_calibrated_logits
            weight, bias = fit(_fit_svm if module.waves else _fit_ridge, z, y.numpy(), patient.numpy(), classes)
        module.head.weight.copy_(torch.from_numpy(weight))
        module.head.bias.copy_(torch.from_numpy(bias))


class Decisions(NamedTuple):
    """A linear decision function. With two classes k = 1, for the second class; else k = classes. weight: (k, d), bias:
    (k,).
    """

    weight: Floats
    bias: Floats

    def compute_decisions(self, z: Floats) -> Floats:
        """z @ weight.T + bias of rows z (n, d): (n, k)."""
        decisions: Floats = z @ self.weight.T + self.bias
        return decisions


def fit_number(z: Floats, y: Integers, *, machine: bool) -> tuple[Floats, Floats]:
    """Weight (1, d) and bias (1,) of the number that is predicted for rows z (n, d), -1 and 1 at the ends of its range.

    y: (n,) steps of the range. machine: support vector regression with the kernel z @ z.T, or else ridge regression.
    Labels are standardized for both, so that neither depends on the range. Of equal labels the weights are 0.
    """
    from sklearn.linear_model import RidgeCV  # slow to import
    from sklearn.svm import SVR

    target = y * (2 / STEPS) - 1
    middle, spread = float(target.mean()), float(target.std())
    if spread == 0:
        return np.zeros((1, z.shape[1])), np.array([middle])
    standard = (target - middle) / spread
    if machine:
        regression = SVR(C=1.0, kernel="precomputed", epsilon=0.1).fit(z @ z.T, standard)
        weight, bias = regression.dual_coef_[0] @ z[regression.support_], float(regression.intercept_[0])
    else:
        ridge = RidgeCV(alphas=STRENGTHS).fit(z, standard)
        weight, bias = np.ravel(ridge.coef_), float(np.ravel(ridge.intercept_)[0])
    return spread * weight[None], np.array([middle + spread * bias])


Learner: TypeAlias = Callable[[Floats, Integers], Decisions]
"""learner(z (n, d), y (n,)) -> its decision function; at least two classes occur in y."""


def fit_calibrated_logits(
    learn: Learner, z: Floats, y: Integers, patient: Integers, classes: int
) -> tuple[Floats, Floats]:
    """Weight (classes, d) and bias (classes,) of logits: the learner's decisions as log probabilities up to a constant.
    A class that does not occur counts as half a row. If only one class occurs, weights are 0.
    """
    present, number = np.unique(y, return_inverse=True)
    weight = np.zeros((classes, z.shape[1]))
    bias = np.full(classes, math.log(0.5 / max(1, len(y))))
    if len(present) < 2:
        bias[present] = 0.0
        return weight, bias
    decisions, slope, offset = learn(z, number), *_fit_calibration(learn, z, number, patient)
    weight[present], bias[present] = slope @ decisions.weight, slope @ decisions.bias + offset
    return weight, bias


def fit_findings(learn: Learner, z: Floats, y: Integers, patient: Integers, number: int) -> tuple[Floats, Floats]:
    """Weight (number, d) and bias (number,) of the log-odds of each finding, from the rows where it is known; 0 where
    it never is. y: as `federation.findings.encode_findings` has it.
    """
    states = decode_findings(torch.from_numpy(y), number).numpy()
    weight, bias = np.zeros((number, z.shape[1])), np.zeros(number)
    for finding, column in enumerate(states.T):
        known = column != UNKNOWN
        if known.any():
            both, offsets = fit_calibrated_logits(learn, z[known], column[known], patient[known], 2)
            weight[finding], bias[finding] = both[1] - both[0], offsets[1] - offsets[0]
    return weight, bias


def _fit_calibration(learn: Learner, z: Floats, y: Integers, patient: Integers) -> tuple[Floats, Floats]:
    """Slope (classes, k) and offset (classes,) from decisions (k,) to logits."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    seen = _compute_unseen_decisions(learn, z, y, patient)
    if seen is None:  # too few patients for folds
        seen = (learn(z, y).compute_decisions(z), y)
    regression = LogisticRegression(max_iter=1000).fit(*seen)
    if len(regression.intercept_) == 1:  # with two classes, of the second class only
        slope, offset = np.asarray(regression.coef_), np.asarray(regression.intercept_)
        return np.concatenate([0 * slope, slope]), np.concatenate([0 * offset, offset])
    return np.asarray(regression.coef_), np.asarray(regression.intercept_)


def _compute_unseen_decisions(
    learn: Learner, z: Floats, y: Integers, patient: Integers
) -> tuple[Floats, Integers] | None:
    """Decisions (n, k) for patients outside the learner's fold, and their classes; None if a class has too few patients
    for every fold.
    """
    from sklearn.model_selection import StratifiedGroupKFold  # slow to import

    classes = np.unique(y)
    if min(len(np.unique(patient[y == c])) for c in classes) < FOLDS:
        return None
    parts = [*StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0).split(z, y, patient)]
    if any(len(np.unique(y[train])) < len(classes) for train, _ in parts):
        return None
    fold_results = [(learn(z[train], y[train]).compute_decisions(z[test]), y[test]) for train, test in parts]
    return np.concatenate([part for part, _ in fold_results]), np.concatenate([part for _, part in fold_results])


def _fit_ridge(z: Floats, y: Integers) -> Decisions:
    """Ridge regression on classes, with the strength chosen by leave-one-out."""
    from sklearn.linear_model import RidgeClassifierCV  # slow to import

    ridge = RidgeClassifierCV(alphas=STRENGTHS).fit(z, y)
    return Decisions(np.atleast_2d(ridge.coef_), np.atleast_1d(ridge.intercept_))


def _fit_svm(z: Floats, y: Integers) -> Decisions:
    """One support vector machine for each class against the rest, with the kernel z @ z.T."""
    from sklearn.svm import SVC  # slow to import

    gram, classes = z @ z.T, np.unique(y)
    weights, biases = [], []
    for c in classes[1:] if len(classes) == 2 else classes:
        svm = SVC(C=1.0, kernel="precomputed", class_weight="balanced").fit(gram, y == c)
        weights.append(svm.dual_coef_[0] @ z[svm.support_])
        biases.append(svm.intercept_[0])
    return Decisions(np.array(weights), np.array(biases))
