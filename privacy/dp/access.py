"""Data access: the only way in which training code reads patients' data.

All code that learns from patients (local training, a GAN's critic) calls this interface and gets gradients or means.
So one place decides which patients are drawn, how far each can influence the result, and which privacy event to record.
`Access.events` collects the events; the gate reads them before a reply leaves.

`PlainAccess` clips nothing and adds no noise; each of its functions records a non-private event. Private access is in
`privacy/dp/private_access.py`. Both have the same interface, so a method cannot tell them apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from privacy.dp.batches import batches_per_epoch, iterate_minibatches
from privacy.dp.chunks import at_once, copy_rows, in_turn
from privacy.dp.events import NON_PRIVATE, Event
from privacy.dp.mixup import Blend, blend_losses, blend_rows
from privacy.dp.moments import Embed, Moments, Patients, exact_moments
from privacy.dp.passes import PLAIN, Passes
from privacy.dp.stored_rows import defer_rows, split_rows, take_rows
from privacy.message import Params

Split: TypeAlias = Literal["train", "validation", "test"]
Augment: TypeAlias = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""augment(x (b, ...), y, generator) -> views of both: masks y (b, *spatial) move with x, labels y (b,) stay."""
Assign: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""assign(x (m, ...), y (m,)) -> (m,) int64: the bin that each row of one patient votes for; out of range = no vote."""
SUM_UNIT = 2.0**-32
"""The step of summed gradients (`gradient_sum`), which whole numbers count: sums over hospitals are exact."""
CHUNK = 64  # rows of a gradient in evaluation mode: larger passes fall out of a processor's cache, and fill memory


@dataclass(frozen=True)
class Rows:
    """One split of a site's patients.

    x: (n, ...). y: (n,) int64 classes, or masks (n, *spatial) int64, a class a pixel. patient: (n,) int64, equal for
    one patient's rows.
    """

    x: Tensor
    y: Tensor
    patient: Tensor


class Batch(NamedTuple):
    """The input of an objective. x: (b, ...); y: (b,), masks (b, *spatial), or None; aux: (b, ...) extra input that
    does not come from patients, or None.
    """

    x: Tensor
    y: Tensor | None
    aux: Tensor | None = None


class Draw(NamedTuple):
    """Rows that the site drew from its training split. x: (b, ...); y: (b,) or (b, *spatial); patient: (b,). blend: of
    each row of x with another one, in mixup.
    """

    x: Tensor
    y: Tensor
    patient: Tensor
    blend: Blend | None = None


class Sample(NamedTuple):
    """A handle to patients that private data access drew; only that access can resolve the number."""

    number: int


Forward: TypeAlias = Callable[..., object]
Objective: TypeAlias = Callable[..., Tensor]
"""objective(forward, batch) -> per-example losses (b,), where forward is the module or a functional form of it."""


class Gradient(NamedTuple):
    """gradient: by parameter name; losses: (m,) whose sum is the mean over the draw, or nothing under differential
    privacy, where it stays at the site; deviation: of the noise in each number of the gradient, which follows from
    public settings and the released size.

    Losses are tensors, because who reads a number waits until a GPU is done with all before.
    """

    gradient: Params
    losses: Tensor
    deviation: float = 0.0

    @property
    def loss(self) -> float:
        """The mean loss over the draw, read; NaN under differential privacy."""
        return sum_losses([self.losses])[0]


class Questions(Protocol):
    """What a method can compute on a site's patients; it has no other access to them (`privacy.dp.capability`)."""

    @property
    def device(self) -> torch.device:
        """Where the patients lie."""
        ...

    def epoch(self) -> int:
        """How many draws make an epoch."""
        ...

    def size(self, split: Split) -> int:
        """Number of rows of a split (a fact about patients, hence an event)."""
        ...

    def shares(self, classes: int) -> Tensor:
        """(classes,) float64 of the training split that sum to 1: how common each class is, among pixels for masks."""
        ...

    def draw(self, *, full: bool = False) -> Draw | Sample:
        """Draw from the training split, or with `full` take all of it."""
        ...

    def gradient(
        self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
    ) -> Gradient:
        """Gradient of the mean loss over a draw, for every parameter of `module` that requires one.

        aux: (A, K, ...), extra inputs that do not come from patients. Plain access gives each row of the draw one of
        the A K inputs, in turn. Private access gives each patient one of the A sets at random; K is then the number of
        views of a patient.
        """
        ...

    def gradient_sum(self, module: nn.Module, objective: Objective, draw: Draw | Sample) -> Params:
        """The sum, not the mean, of the loss's gradients over a draw: int64 of SUM_UNIT, by name. The only question
        whose noise hospitals can share.
        """
        ...

    def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
        """Mean of a statistic over a split, in evaluation mode; NaN if the split is empty or no noise was paid for."""
        ...

    def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
        """Moments of the training patients' embedded rows (m, width), each patient weighing the same.

        radius: to which private access cuts the norm of a row, from public knowledge.
        """
        ...


class Access(Questions, Protocol):
    """Access to a site's patients during one request."""

    @property
    def events(self) -> list[Event]:
        """The privacy events so far."""
        ...

    def votes(self, assign: Assign, bins: int) -> Tensor:
        """(bins,) float64: the sum over training patients of each patient's vote shares, which sum to 1."""
        ...


@dataclass(frozen=True)
class PlainAccess:
    """Access without differential privacy. stream: an endless iterator of row indices (b,) of the training split.
    passes: how networks pass over the rows of a gradient. mixup: alpha, 0 = none. fixed_size: whether each batch has as
    many rows as all others.
    """

    splits: Mapping[Split, Rows]
    batch: int
    stream: Iterator[Tensor]
    generator: torch.Generator
    augment: Augment | None = None
    events: list[Event] = field(default_factory=list)
    passes: Passes = PLAIN
    mixup: float = 0.0
    fixed_size: bool = False

    @property
    def device(self) -> torch.device:
        """Where the patients lie."""
        return self.splits["train"].x.device

    def epoch(self) -> int:
        """Mini-batches in an epoch of the training split."""
        return batches_per_epoch(self.size("train"), self.batch, fixed_size=self.fixed_size)

    def size(self, split: Split) -> int:
        """Number of rows of a split (a fact about patients, hence an event)."""
        self.events.append(NON_PRIVATE)
        return len(self.splits[split].y) if split in self.splits else 0

    def shares(self, classes: int) -> Tensor:
        """How common each class is among the training rows, or the pixels of their masks: (classes,) float64; uniform
        where no class is known.
        """
        self.events.append(NON_PRIVATE)
        y, counts = self.splits["train"].y, torch.zeros(classes, dtype=torch.float64)
        for part in split_rows(y, CHUNK if y.dim() == 1 else 1):
            every = torch.bincount(y[part].flatten(), minlength=classes)[:classes]  # without what masks ignore
            counts = counts + every.double().to(counts.device)
        counts = counts if counts.any() else torch.ones_like(counts)  # masks may ignore every pixel
        return counts / counts.sum()

    def draw(self, *, full: bool = False) -> Draw:
        """Draw a mini-batch of training rows (augmented, then mixed), or with `full` every training row as it is."""
        self.events.append(NON_PRIVATE)
        rows = self.splits["train"]
        if full:
            return Draw(rows.x, rows.y, rows.patient)
        index = next(self.stream)
        if self.augment is not None:
            x, y = self.augment(defer_rows(rows.x, index), defer_rows(rows.y, index), self.generator)
        else:
            x, y = take_rows(rows.x, index)[:], take_rows(rows.y, index)[:]
        if not self.mixup:
            return Draw(x, y, rows.patient[index])
        x, blend = blend_rows(x, y, self.mixup, self.generator)
        return Draw(x, y, rows.patient[index], blend)

    def gradient(
        self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
    ) -> Gradient:
        """Gradient of the mean loss over a draw, for every parameter of `module` that requires one.

        A parameter that the loss does not depend on gets zeros, so that every site replies with the same names. In
        training mode the draw is one batch; in evaluation mode rows are independent and are processed in chunks.

        aux: (A, K, ...) for any A and K: the rows of the draw take the A K inputs in turn.

        Raises:
            ValueError: aux has fewer than two axes, or is empty.
        """
        if isinstance(draw, Sample):
            raise TypeError("this draw belongs to private data access; ask the access that drew it")
        extra = None if aux is None else in_turn(aux, len(draw.y))
        self.events.append(NON_PRIVATE)
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        size = len(draw.y) if module.training else min(CHUNK, at_once(draw.x))
        parts = -(-len(draw.y) // size)
        extra_parts = [None] * parts if extra is None else torch.split(extra, size)
        partners = [None] * parts if draw.blend is None else torch.split(draw.blend.y, size)
        gradient, total = dict[str, Tensor](), list[Tensor]()
        forward = self.passes.forward(module, draw.x.device)
        rows = zip(torch.split(draw.x, size), torch.split(draw.y, size), extra_parts, partners, strict=True)
        for x, y, other, partner in rows:
            compute_losses = partial(_compute_losses, objective, x, other)
            blend = None if draw.blend is None or partner is None else Blend(partner, draw.blend.share)
            losses = compute_losses(forward, y) if blend is None else blend_losses(compute_losses, forward, y, blend)
            loss = losses.mean() * (len(y) / len(draw.y))
            total.append(loss.detach())
            grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for (name, p), g in zip(named.items(), grads, strict=True):
                dense_gradient = torch.zeros_like(p) if g is None else g.contiguous()
                gradient[name] = gradient[name] + dense_gradient if name in gradient else dense_gradient
        return Gradient(gradient, torch.stack(total))

    def gradient_sum(self, module: nn.Module, objective: Objective, draw: Draw | Sample) -> Params:
        """The sum of the rows' gradients over a draw, int64 of SUM_UNIT, by name."""
        mean = self.gradient(module, objective, draw).gradient
        rows = 0 if isinstance(draw, Sample) else len(draw.y)
        return {name: (value.double() * (rows / SUM_UNIT)).round().long() for name, value in mean.items()}

    def votes(self, assign: Assign, bins: int) -> Tensor:
        """The sum of all training patients' vote shares: (bins,) float64. See `count_ballots`."""
        self.events.append(NON_PRIVATE)
        cast = count_ballots(self.splits["train"], assign, bins)
        total = cast.sum(dim=1, keepdim=True)
        return (cast / total.clamp(min=1.0)).sum(dim=0)

    def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
        """Moments of the training patients' embedded rows. Nothing is cut."""
        self.events.append(NON_PRIVATE)
        rows = self.splits["train"]
        whose = [(rows.patient == patient).nonzero()[:, 0] for patient in torch.unique(rows.patient)]
        return exact_moments(Patients(rows.x, rows.y, whose), embed, classes)

    def measure(self, module: nn.Module, statistic: Objective, split: Split, *, chunk: int | None = None) -> float:
        """Mean of a per-example statistic over a split, in evaluation mode; NaN for an empty split."""
        self.events.append(NON_PRIVATE)
        rows = self.splits.get(split)
        if rows is None or len(rows.y) == 0:
            return float("nan")
        training, chunk = module.training, chunk or at_once(rows.x)
        module.eval()
        with torch.no_grad():
            values = [statistic(module, Batch(rows.x[part], rows.y[part])) for part in split_rows(rows.y, chunk)]
        module.train(training)
        return float(torch.cat(values).double().mean())


def open_access(
    splits: Mapping[Split, Rows],
    *,
    batch: int,
    seed: int,
    balance: bool = False,
    augment: Augment | None = None,
    passes: Passes = PLAIN,
    mixup: float = 0.0,
    fixed_size: bool = False,
) -> PlainAccess:
    """Open plain data access for one request. `seed` fixes which rows are drawn and how they are augmented and mixed.
    fixed_size: as in `iterate_minibatches`.

    Raises:
        ValueError: the batch size is not positive, or `balance` or `mixup` is given and the labels are masks.
    """
    problems = [] if batch >= 1 else [f"batch must be at least 1, found {batch}"]
    if balance and splits["train"].y.dim() > 1:
        problems.append(
            f"balance needs a label an example, found masks of {list(splits['train'].y.shape[1:])}: say balance: false"
        )
    if mixup and splits["train"].y.dim() > 1:
        problems.append(f"mixup needs a label an example, found masks, and mixup: {mixup:g}: say mixup: 0")
    if problems:
        raise ValueError("; ".join(problems))
    generator = torch.Generator().manual_seed(seed)
    stream = iterate_minibatches(
        splits["train"].y, batch=batch, balance=balance, generator=generator, fixed_size=fixed_size
    )
    return PlainAccess(splits, batch, stream, generator, augment, passes=passes, mixup=mixup, fixed_size=fixed_size)


def sum_losses(losses: Sequence[Tensor]) -> list[float]:
    """The sum of each tensor's numbers (m,) in float64, in order; NaN where m = 0. All are read at once."""
    read = torch.cat(list(losses)).tolist() if losses else []
    numbers = iter(read)
    return [sum(itertools.islice(numbers, len(part)), 0.0) if len(part) else math.nan for part in losses]


def _compute_losses(objective: Objective, x: Tensor, aux: Tensor | None, forward: Forward, y: Tensor) -> Tensor:
    """The losses (b,) of rows x with labels y."""
    return objective(forward, Batch(x, y, aux))


def count_ballots(rows: Rows, assign: Assign, bins: int) -> Tensor:
    """How many of each patient's rows vote for each bin: (N patients, bins) float64.

    `assign` is called for one patient at a time, so that no vote depends on other patients: matrix products round
    differently in batches of another size, which can change a near tie. A vote for a bin that does not exist (such as
    -1) is ignored, because an error would reveal that such a patient is present.

    Raises:
        ValueError: bins is not positive, or `assign` gives another shape or type than (m,) int64.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, found {bins}")
    patients, whose = torch.unique(rows.patient.cpu(), return_inverse=True)
    cast = torch.zeros(len(patients), bins, dtype=torch.float64)
    for patient in range(len(patients)):
        patient_rows = (whose == patient).nonzero()[:, 0]
        choice = assign(copy_rows(rows.x, patient_rows), copy_rows(rows.y, patient_rows)).cpu()
        if choice.shape != (len(patient_rows),) or choice.dtype != torch.int64:
            raise ValueError(
                f"assign must give one int64 a row, (m,), found {choice.dtype} with {choice.dim()} axes: give the "
                f"index of a bin for each row"
            )
        cast[patient] = torch.bincount(choice[(choice >= 0) & (choice < bins)], minlength=bins)
    return cast
