"""The operations that a site offers a method: draws, gradients, means and descent on its own patients.

Whether a descent is plain or private is decided by the site's `Access`; a method only defines the loss, the trainable
parameters, and what is added to the gradient. `correction` is added after any noise, so it costs no privacy as long as
it depends only on received messages and on privately trained values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from federation.task import Task
from federation.torchio_views import AnyView
from federation.transforms import Transform
from privacy.dp.access import Draw, Objective, Questions, Sample, Split, sum_losses
from privacy.dp.moments import Embed, Moments
from privacy.dp.passes import PLAIN, Passes, Precision
from privacy.message import Params
from privacy.settings_error import Problem, refuse, unmet

Correction: TypeAlias = Callable[[Params], Params]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The learning rate over the rounds of a run, as a factor of `lr`. Within a round it is constant.

    cosine: floor + (1 - floor) (1 + cos(pi p)) / 2 (Loshchilov and Hutter 2017, equation 5, without restarts).
    polynomial: floor + (1 - floor) (1 - p)^power, with 0.9 as in nnU-Net. p: the share of the rounds after the warm-up
    that lie behind. warmup: rounds in which the rate rises linearly before.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["constant", "cosine", "polynomial"] = "constant"
    warmup: int = 0
    floor: float = 0.0
    power: float = 0.9

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                warmup=(self.warmup >= 0, ">= 0"),
                floor=(0 <= self.floor <= 1, "in [0, 1]"),
                power=(self.power > 0, "> 0"),
            )
        )

    def factor(self, round_: int, rounds: int) -> float:
        """The factor in a round, 1 = the first, of so many; in (0, 1]."""
        round_ = min(max(1, round_), rounds)  # training is introduced before the first round, and ends after the last
        if round_ <= self.warmup:
            return round_ / (self.warmup + 1)
        behind = (round_ - self.warmup - 1) / (rounds - self.warmup)
        shares = {
            "constant": 1.0,
            "cosine": (1 + math.cos(math.pi * behind)) / 2,
            "polynomial": float((1 - behind) ** self.power),
        }
        return self.floor + (1 - self.floor) * shares[self.name]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The local work of one round, the same for every method unless a method or a site overrides a field.

    epochs or steps: exactly one of them. nesterov: the momentum of sgd is Nesterov's. keep_optimizer: whether a site
    keeps its optimizer state between rounds. balance: draw the classes of the training split equally often. augment:
    flips, or flips with small affine maps or with random smooth deformations (elastic). transform: a registered
    function that gives a view of one training example, before `augment`. torchio: random transforms of TorchIO
    (`federation.torchio_views`), in this order, after `transform` and before `augment`. rate: how the learning rate
    changes over rounds. clip_norm: the largest norm of a step's gradient, with what a method adds to it; null = any.
    label_smoothing: s in (1 - s) CE + s (the mean over classes of -log p), in training losses alone. mixup: alpha,
    where each batch is blended with a permutation of itself by a share from Beta(alpha, alpha) (`privacy.dp.mixup`), 0
    = not; not in private training. foreground: the share of patches about foreground, for a model that is trained on
    patches (`federation.patches`). decay_on: what weight decay is for, all parameters or only those of two or more
    axes, without biases and norms. randomize: strength of the additional random disturbance of images, 1 = as in
    `federation.randomization`. precision, channels_last: settings of passes through a network, see `privacy.dp.passes`;
    not in private training.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    batch: int = 24
    epochs: int | None = 1
    steps: int | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    keep_optimizer: bool = True
    balance: bool = False
    augment: Literal["none", "flip", "affine", "elastic"] = "none"
    transform: Transform | None = None
    torchio: tuple[AnyView, ...] = ()
    randomize: float = 0.0
    precision: Precision = "float32"
    channels_last: bool = False
    rate: Rate = Rate()
    clip_norm: float | None = None
    decay_on: Literal["all", "weights"] = "all"
    label_smoothing: float = 0.0
    mixup: float = 0.0
    foreground: float = 0.0

    def __post_init__(self) -> None:
        problems = unmet(
            self,
            clip_norm=(self.clip_norm is None or self.clip_norm > 0, "> 0 or null"),
            lr=(self.lr > 0, "> 0"),
            batch=(self.batch >= 1, ">= 1"),
            weight_decay=(self.weight_decay >= 0, ">= 0"),
            momentum=(0 <= self.momentum < 1, "in [0, 1)"),
            mixup=(0 <= self.mixup <= 100, "in [0, 100]"),
            foreground=(0 <= self.foreground <= 1, "in [0, 1]"),
            label_smoothing=(0 <= self.label_smoothing < 1, "in [0, 1)"),
            randomize=(0 <= self.randomize <= 3, "in [0, 3]"),
            epochs=(self.epochs is None or self.epochs >= 1, ">= 1"),
            steps=(self.steps is None or self.steps >= 1, ">= 1"),
        )
        if (self.epochs is None) == (self.steps is None):
            text = f"give either epochs or steps (the other null), found {self.epochs} and {self.steps}"
            problems = [problem for problem in problems if problem.where not in (("epochs",), ("steps",))]
            problems.append(Problem((), text))
        if self.momentum and self.optimizer != "sgd":
            problems.append(Problem(("momentum",), f"belongs to sgd, found {self.optimizer}"))
        if self.nesterov and not self.momentum:
            problems.append(Problem(("nesterov",), "needs a momentum above 0, found 0: say nesterov: false"))
        refuse(problems)

    def at_round(self, round_: int, rounds: int) -> Work:
        """The work of one round, with the learning rate of that round."""
        return self if self.rate == Rate() else replace(self, lr=self.lr * self.rate.factor(round_, rounds))

    @property
    def passes(self) -> Passes:
        """The settings of passes through a network."""
        return Passes(self.precision, self.channels_last)

    @property
    def private_problems(self) -> list[str]:
        """Why private training refuses these settings, a sentence for each problem."""
        problems = []
        if self.mixup:
            problems.append(
                f"mixup {self.mixup:g}: it blends images of different patients, so that a patient's gradient would "
                "depend on others, and no clip would bound what one patient changes; say mixup: 0"
            )
        if self.passes == PLAIN:
            return problems
        settings = {"precision": self.precision, "channels_last": self.channels_last}
        words = ", ".join(f"{name} {value}" for name, value in settings.items() if value not in ("float32", False))
        return [
            *problems,
            f"{words}: private training computes each patient's gradient in float32, because rounding before the cut "
            "and the noise has no proof here; say precision: float32 and channels_last: false",
        ]


class Descent(NamedTuple):
    """Result of a descent. optimizer: its state as tensors `<parameter>/<slot>`, for the next descent."""

    steps: int
    lr: float
    loss: float
    optimizer: Params


@dataclass(frozen=True)
class Site:
    """One site during one request, as a method sees it. The site, never the method, selects patients.

    task: with the label smoothing of the work, so that every method's training losses have it.
    """

    name: str
    task: Task
    work: Work
    access: Questions

    def __post_init__(self) -> None:
        if self.task.smoothing != self.work.label_smoothing:
            object.__setattr__(self, "task", replace(self.task, smoothing=self.work.label_smoothing))

    def size(self, split: Split = "train") -> int:
        """Number of examples in a split."""
        return self.access.size(split)

    @property
    def device(self) -> torch.device:
        """The device of this site's patients, on which it computes."""
        return self.access.device

    def shares(self) -> Tensor:
        """(classes,) The share of each class in training; under differential privacy among patients, with noise."""
        return self.access.shares(self.task.classes)

    def draw(self, *, full: bool = False) -> Draw | Sample:
        """A mini-batch, or all training examples; under differential privacy an opaque sample of patients."""
        return self.access.draw(full=full)

    def gradient(
        self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
    ) -> Params:
        """Gradient of the mean loss over the draw, by name, for parameters that require one."""
        return self.access.gradient(module, objective, draw, aux).gradient

    def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
        """Mean of a per-example statistic over a split."""
        return self.access.measure(module, statistic, split)

    def moments(self, embed: Embed, *, width: int, radius: float) -> Moments:
        """Class sizes, class sums and second moments of the training patients' embedded rows (m, width)."""
        return self.access.moments(embed, self.task.classes, width=width, radius=radius)

    def descend(
        self,
        module: nn.Module,
        objective: Objective,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        trainable: Callable[[str], bool] | None = None,
        lr: float | None = None,
        correction: Correction | None = None,
        after: Callable[[nn.Module], None] | None = None,
        optimizer: Params | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> Descent:
        """Train `module` in place on this site's patients; missing arguments come from the site's `Work`.

        Args:
            objective: (forward, batch) -> per-example losses (b,).
            trainable: predicate on parameter names; the others, and those that require no gradient, stay as they are.
            correction: (current parameters) -> tensors added to the gradient, after any noise.
            after: called on the module after each step (clamps).
            optimizer: state of an earlier descent over the same parameters; empty or None starts afresh.
            rates: parameter name -> its own learning rate, if it differs from that of the others.
        """
        lr = self.work.lr if lr is None else lr
        total = self.steps(steps, epochs)
        everything = dict(module.named_parameters())
        flags = {name: p.requires_grad for name, p in everything.items()}
        params = {n: p for n, p in everything.items() if p.requires_grad and (trainable is None or trainable(n))}
        for name, p in everything.items():
            p.requires_grad_(name in params)
        groups = _group_parameters(self.work, params, lr, rates)
        state = _restore_state(params, optimizer or {}) if self.work.keep_optimizer else {}
        module.train()
        losses = list[Tensor]()
        for _ in range(total):
            gradient, step_losses, _ = self.access.gradient(module, objective, self.access.draw())
            losses.append(step_losses)
            extra = {} if correction is None else correction({name: p.detach() for name, p in params.items()})
            for name, p in params.items():  # so that `after` can read it
                p.grad = gradient[name] + extra[name] if name in extra else gradient[name]
            if self.work.clip_norm is not None:
                nn.utils.clip_grad_norm_(params.values(), self.work.clip_norm)
            for group in groups:
                _step_optimizer(self.work, group, state)
            if after is not None:
                after(module)
            gradient, extra = {}, {}
            for p in params.values():
                p.grad = None  # else it would lie in memory beside the next one
        for name, p in everything.items():
            p.requires_grad_(flags[name])
        loss = sum((value / total for value in sum_losses(losses)), 0.0)  # read once, when all steps are under way
        return Descent(total, lr, loss, state if self.work.keep_optimizer else {})

    def steps(self, steps: int | None = None, epochs: int | None = None) -> int:
        """Number of batches of this much local work; without arguments, of this site's `Work`."""
        if steps is None and epochs is None:
            steps, epochs = self.work.steps, self.work.epochs
        if steps is not None:
            return steps
        return (epochs or 0) * self.access.epoch()


class _Group(NamedTuple):
    """Parameters with the same learning rate and weight decay."""

    lr: float
    weight_decay: float
    params: Mapping[str, nn.Parameter]


def _group_parameters(
    work: Work, params: Mapping[str, nn.Parameter], lr: float, rates: Mapping[str, float] | None
) -> list[_Group]:
    """The parameters by learning rate and weight decay. rates: of parameters whose rate is another."""
    groups: dict[tuple[float, float], dict[str, nn.Parameter]] = {}
    for name, p in params.items():
        decay = work.weight_decay if work.decay_on == "all" or p.dim() > 1 else 0.0
        groups.setdefault(((rates or {}).get(name, lr), decay), {})[name] = p
    return [_Group(*key, members) for key, members in groups.items()]


@torch.no_grad()
def _step_optimizer(work: Work, group: _Group, state: dict[str, Tensor]) -> None:
    """One step of the optimizer, by the gradients; changes the parameters, and the state `<parameter>/<slot>`.

    It calls the functions behind the classes of torch.optim, which import torch's compiler: 1.5 s of every run.
    """
    lr, weight_decay, params = group
    values: list[Tensor] = list(params.values())
    gradients = [cast(Tensor, p.grad) for p in params.values()]
    if work.optimizer == "sgd":
        keys = [f"{name}/momentum_buffer" for name in params]
        buffers = [state.get(key) for key in keys]
        sgd(
            values, gradients, buffers, lr=lr, momentum=work.momentum, weight_decay=weight_decay, dampening=0.0,
            nesterov=work.nesterov, maximize=False,
        )  # fmt: skip
        state |= {key: buffer for key, buffer in zip(keys, buffers, strict=True) if buffer is not None}
        return
    for name, p in params.items():
        if f"{name}/step" not in state:
            state[f"{name}/step"] = torch.tensor(0.0)
            state |= {f"{name}/{slot}": torch.zeros_like(p) for slot in ("exp_avg", "exp_avg_sq")}
    steps, means, squares = ([state[f"{name}/{slot}"] for name in params] for slot in ("step", "exp_avg", "exp_avg_sq"))
    adam(
        values, gradients, means, squares, [], steps, lr=lr, weight_decay=weight_decay, beta1=0.9, beta2=0.999,
        eps=1e-8, decoupled_weight_decay=work.optimizer == "adamw", amsgrad=False, maximize=False,
    )  # fmt: skip


def _restore_state(params: Mapping[str, nn.Parameter], state: Params) -> dict[str, Tensor]:
    """A copy of an earlier descent's state for these parameters."""
    # A step counter stays on the CPU, as in torch, whatever the parameters' device.
    return {
        key: value.clone() if value.dim() else value.cpu().clone()
        for key, value in state.items()
        if key.rsplit("/", 1)[0] in params
    }


def find_plain_sgd_problems(work: Work, method: str) -> list[str]:
    """A complaint if the local work's optimizer does not fit a method's own update rule."""
    if work.optimizer == "sgd" and not work.momentum and not work.weight_decay and work.clip_norm is None:
        return []
    return [
        f"{method} needs plain sgd without momentum, weight decay and clip_norm, found {work.optimizer}, "
        f"momentum {work.momentum}, weight_decay {work.weight_decay}, clip_norm {work.clip_norm}: give it work of its "
        f"own, as in method_work: {{{method}: {{optimizer: sgd, lr: 0.05}}}}"
    ]


def average_records(names: Sequence[str], seen: Sequence[Tensor], descent: Descent) -> dict[str, float]:
    """Recorded values averaged over the steps of training, for the site alone.

    Empty under differential privacy: there not even the loss is released, and `seen` must not be read.
    """
    if not seen or math.isnan(descent.loss):
        return {}
    return dict(zip(names, torch.stack(list(seen)).mean(dim=0).tolist(), strict=True))
