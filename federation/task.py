"""The learning task of all sites: the kind of label, the network, and the loss of one example.

Classification has a class per example; segmentation has a class per pixel or voxel, of which 0 is the background;
regression has a number per example, as a step of its declared range; findings are several an example, each yes, no or
unknown, in one whole number (`federation.findings`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.findings import MOST_FINDINGS, findings_loss
from federation.parameters import loaded
from federation.windows import average_by_slabs, average_windows, cut_windows
from privacy.dp.access import Batch, Forward, Rows
from privacy.dp.chunks import apply_to_each_row, at_once
from privacy.dp.stored_rows import split_rows
from privacy.message import Params

Kind: TypeAlias = Literal["classification", "segmentation", "regression", "findings"]
STEPS = 2**16
"""A number that is learnt is kept as one of the steps 0 .. STEPS of its declared range: labels are whole numbers in
every task, and nothing that is learnt or scored depends on the unit."""
IGNORED = 255
"""In a mask: nobody says which class is there. No loss, score or draw of a patch counts it."""
SMOOTH = 1e-5  # in both parts of the Dice ratio, as in MONAI: an absent class that is not predicted has loss 0


class Output(NamedTuple):
    """What every network returns. logits: (b, classes); features: (b, d); maps: class activation maps or None; deep:
    logits of lower resolutions for deep supervision, the highest first, in training mode.

    In segmentation logits are (b, classes, *spatial), features (b, d, *spatial), and maps None. In regression logits
    are (b, 1): -1 is the low end of the range, 1 the high end. Of findings each has a logit of its own, (b, findings).
    """

    logits: Tensor
    features: Tensor
    maps: Tensor | None = None
    deep: tuple[Tensor, ...] = ()


class Model(Protocol):
    """Settings that build a network. Its parts are named `stem`, `blocks.k`, `head`, so that methods can split it.

    A segmentation model has an attribute `kind`, and one that is trained on patches of images `patch`, their sides. A
    model of labels that can also give one number an example, or several findings, because its loss is `label_loss`, has
    an attribute `numbers`, which is True. One whose loss is of the network's maps has `needs_maps`, which is True.
    """

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A new network for inputs of shape (C, H, W) or (features,)."""
        ...

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Per-example training losses (b,)."""
        ...


class Holder(Protocol):
    """A network with tensors that it does not train."""

    def hold(self, frozen: Params) -> None:
        """Store these tensors."""
        ...


@dataclass(frozen=True)
class Task:
    """inputs: shape of one example, without the batch; classes: number of label values, which are 0 .. classes-1; 1 in
    regression, whose labels are 0 .. STEPS; of several findings their number.
    begun: initial parameters of a new network; parameters that are not in it are drawn at random, all if it is None.
    frozen: tensors that networks use and neither train nor send, as the text transformer of `federation.models.clip`.
    ordered: whether each class is more than the one before it, as grades are; then losses know the order.
    smoothing: of labels in training losses (`smoothing_term`), never in those of validation. A `Site` sets it.
    shared: names of the parameters and buffers that the networks of all hospitals have in the same shape, where
    hospitals have networks of their own; None: all have this one.

    Raises:
        ValueError: the model is for another kind of task, or something else than classes has an order or is smoothed.
    """

    model: Model
    inputs: tuple[int, ...]
    classes: int
    kind: Kind = "classification"
    begun: Params | None = field(default=None, compare=False, repr=False)
    frozen: Params | None = field(default=None, compare=False, repr=False)
    ordered: bool = False
    smoothing: float = 0.0
    shared: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        model_kind: Kind = getattr(self.model, "kind", "classification")
        what = getattr(self.model, "name", type(self.model).__name__)
        if self.kind == "regression":
            if model_kind != "classification" or getattr(self.model, "numbers", False) is not True:
                raise ValueError(f"the model {what} gives no number: choose another, as cnn, resnet18, mlp or features")
            if self.classes != 1:
                raise ValueError(f"regression has one number an example, found classes {self.classes}: say 1")
        elif self.kind == "findings":
            if model_kind != "classification" or getattr(self.model, "numbers", False) is not True:
                raise ValueError(f"the model {what} gives no findings: choose another, as cnn, resnet18 or features")
            if getattr(self.model, "logits", "all") == "one":
                raise ValueError(f"the model {what} has logits: one, and each finding needs its own: say all")
            if not 2 <= self.classes <= MOST_FINDINGS:
                raise ValueError(f"there are 2 to {MOST_FINDINGS} findings an example, found {self.classes}")
        elif model_kind != self.kind:
            raise ValueError(f"the model {what} is for {model_kind}, the task is {self.kind}: choose another of them")
        if self.ordered and self.kind != "classification":
            raise ValueError(f"only classes are ordered, and the task is {self.kind}: leave ordered out")
        if self.smoothing and self.smoothing_refusal:
            raise ValueError(self.smoothing_refusal)

    @property
    def smoothing_refusal(self) -> str:
        """Why labels of this task cannot be smoothed; empty if they can."""
        if self.kind in ("regression", "findings"):
            what = "a number" if self.kind == "regression" else "several findings, each for itself"
            return f"label smoothing spreads a label over classes, and the task is {what}: say label_smoothing: 0"
        if self.ordered:
            return (
                "label smoothing takes all wrong classes for equally wrong, and grades are ordered: say "
                "label_smoothing: 0, or leave ordered out"
            )
        return ""

    def drop_smoothing(self) -> Task:
        """The same task, with training losses without label smoothing, for patients that are not trained on."""
        return replace(self, smoothing=0.0) if self.smoothing else self

    @property
    def spatial(self) -> tuple[int, ...]:
        """Shape of one example's target: its sides in segmentation, empty where there is one label."""
        return self.inputs[1:] if self.kind == "segmentation" else ()

    @property
    def patch(self) -> tuple[int, ...] | None:
        """Sides of the patches on which the model is trained; None = whole images."""
        sides: tuple[int, ...] | None = getattr(self.model, "patch", None)
        return sides

    @property
    def trained_inputs(self) -> tuple[int, ...]:
        """Shape of what a step of training sees of an example: a patch, or all of it."""
        return self.inputs if self.patch is None else (self.inputs[0], *self.patch)

    def cut_rows(self, rows: Rows) -> Rows:
        """What passes the network of rows in one piece: the rows, or of a model that is trained on patches the windows
        that cover each image, with its patient.
        """
        if self.patch is None:
            return rows
        x, y = cut_windows(rows.x, self.patch), cut_windows(rows.y.unsqueeze(1), self.patch)[:, 0]
        return Rows(x, y, rows.patient.repeat_interleave(len(x) // len(rows.x) if len(rows.x) else 1))

    def network(self) -> nn.Module:
        """A new network, initialized from torch's generator, or by `begun`."""
        module = self.give_frozen(self.model.build(inputs=self.inputs, classes=self.classes))
        return module if self.begun is None else loaded(module, {**module.state_dict(), **self.begun})

    def complete(self, params: Params, device: torch.device) -> Params:
        """Parameters of a network, with new ones on the device for those that are missing, where hospitals have
        networks of their own and the coordinator can send no others than those of `shared`.
        """
        if self.shared is None:
            return params
        return {**{name: new.to(device) for name, new in self.network().state_dict().items()}, **params}

    def give_frozen(self, module: nn.Module) -> nn.Module:
        """A network of this task's model, with the frozen tensors of the task."""
        if self.frozen is not None:
            cast(Holder, module).hold(self.frozen)
        return module

    def objective(self, forward: Forward, batch: Batch) -> Tensor:
        """The training loss for each example (b,)."""
        return self.losses(*_read_labelled(forward, batch))

    def objective_of_method(self, forward: Forward, batch: Batch) -> Tensor:
        """The training loss of each example (b,) of whatever network a method built: `losses`, or `mapless_losses`
        where the model's own loss needs maps, and the network gives none.
        """
        output, y = _read_labelled(forward, batch)
        has_maps = output.maps is not None or not getattr(self.model, "needs_maps", False)
        return self.losses(output, y) if has_maps else self.mapless_losses(output, y)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """The model's own loss of each example (b,). Of ordered classes `ranked_probability_loss` takes its place where
        it is `label_loss`, as an attribute `numbers` tells, and is added to a loss of another kind. Of several findings
        `findings_loss`. With label smoothing the cross-entropy of the output in it is smoothed.
        """
        if self.kind == "findings":
            return findings_loss(output.logits, y)
        if not self.ordered:
            return self._smooth_losses(self.model.losses(output, y), output, y)
        ranked = ranked_probability_loss(output.logits, y)
        return ranked if getattr(self.model, "numbers", False) is True else ranked + self.model.losses(output, y)

    def mapless_losses(self, output: Output, y: Tensor) -> Tensor:
        """The training loss of each example (b,) where there are no maps, as of two networks side by side:
        `comparable_loss`, with label smoothing.
        """
        return self._smooth_losses(self.comparable_loss(output, y), output, y)

    def _smooth_losses(self, losses: Tensor, output: Output, y: Tensor) -> Tensor:
        """Losses (b,) with a cross-entropy in them, with smoothed labels."""
        return losses + self.smoothing * smoothing_term(output, y) if self.smoothing else losses

    def validation(self, forward: Forward, batch: Batch) -> Tensor:
        """Loss of each example (b,) by `comparable_loss`: the same for all methods. A model that is trained on patches
        sees windows of that size, and the average of their logits counts: memory follows the patch.
        """
        if self.patch is None:
            return self.comparable_loss(*_read_labelled(forward, batch))

        def predict(pieces: Tensor) -> Tensor:
            output, _ = _read_labelled(forward, Batch(pieces, batch.y))
            return output.logits

        if batch.y is None:
            raise TypeError("a loss needs labels")
        return overlap_by_slabs(average_by_slabs(predict, batch.x, self.patch), batch.y)

    def comparable_loss(self, output: Output, y: Tensor) -> Tensor:
        """The loss of each example (b,) that depends on no model's settings and needs no maps: `label_loss`, of ordered
        classes `ranked_probability_loss`, of several findings `findings_loss`, or in segmentation `overlap_loss`.
        """
        if self.kind == "findings":
            return findings_loss(output.logits, y)
        if self.kind == "segmentation":
            return overlap_loss(output, y)
        return ranked_probability_loss(output.logits, y) if self.ordered else label_loss(output, y)

    def probabilities(self, module: nn.Module, x: Tensor, *, alone: bool = False) -> Tensor:
        """Predicted probabilities (n, classes, *spatial) float32, in evaluation mode, of a model that is trained on
        patches by windows of that size; in regression (n, 1), the place of the predicted number in its range, 0 = the
        low end, 1 = the high end; of findings (n, findings), each for itself, so that a row does not sum to 1.

        alone: each example passes by itself, so that its probabilities do not depend on the others, not even by
        rounding. Values that are released with noise must be computed so: `privacy.dp.persample` says why.
        """

        def predict(part: Tensor) -> Tensor:
            if self.patch is not None and part.shape[2:] != self.patch:
                return average_windows(predict, part, self.patch)
            logits: Tensor = module(part).logits
            if self.kind == "findings":
                return logits.sigmoid()
            return place_in_range(logits) if self.kind == "regression" else logits.softmax(dim=1)

        module.eval()
        with torch.no_grad():
            if not len(x):
                return x.new_zeros(0, self.classes, *self.spatial)
            if alone:
                return apply_to_each_row(predict, x)
            parts = split_rows(x, at_once(x))
            return predict(x[parts[0]]) if len(parts) == 1 else torch.cat([predict(x[part]) for part in parts])


def _read_labelled(forward: Forward, batch: Batch) -> tuple[Output, Tensor]:
    """The output for a batch, and its labels. Raises: TypeError: it is no `Output`, or there are no labels."""
    output = forward(batch.x)
    if not isinstance(output, Output) or batch.y is None:
        raise TypeError(f"a network returns Output and a loss needs labels, found {type(output).__name__}")
    return output, batch.y


def is_segmenting(module: nn.Module) -> bool:
    """Whether an unwrapped network predicts a class per pixel."""
    return getattr(module, "kind", "classification") == "segmentation"


def label_loss(output: Output, y: Tensor) -> Tensor:
    """The loss of one label an example, (b,): cross-entropy, or of a network with a single logit, which gives a number,
    `huber_loss`.
    """
    return huber_loss(output, y) if output.logits.shape[1] == 1 else cross_entropy(output, y)


def huber_loss(output: Output, y: Tensor) -> Tensor:
    """Half the squared difference of logits (b, 1) and labels y (b,) in 0 .. STEPS, the range scaled to [-1, 1]: (b,).

    Beyond half the range it is linear (Huber, Annals of Mathematical Statistics 35, 1964, with delta 1), so that its
    slope is at most 1, as that of cross-entropy: the same sizes of steps do for both.
    """
    target = y.to(output.logits.dtype) * (2 / STEPS) - 1
    return functional.huber_loss(output.logits[:, 0], target, reduction="none", delta=1.0)


def place_in_range(logits: Tensor) -> Tensor:
    """Where in the range predictions lie, in [0, 1]: a number outside of it is never predicted. logits: (b, 1)."""
    return ((logits + 1) / 2).clamp(0, 1)


def cross_entropy(output: Output, y: Tensor) -> Tensor:
    """Cross-entropy of the logits, per example (b,): its mean over pixels if y has any, (b, *spatial), without those
    that are `IGNORED`.
    """
    if y.dim() == 1:
        return functional.cross_entropy(output.logits, y, reduction="none")
    losses = functional.cross_entropy(output.logits, y, reduction="none", ignore_index=IGNORED)
    return losses.flatten(1).mean(dim=1) * _rest_of_known(y).to(losses.dtype)


def _rest_of_known(y: Tensor) -> Tensor:
    """By how much a mean over all pixels of masks y (b, *spatial), in which those that are ignored are 0, is less than
    the mean over the others: (b,) float64, exactly 1 where none is ignored.
    """
    known = (y != IGNORED).flatten(1)
    return known.shape[1] / known.sum(dim=1).clamp(min=1).double()


def smoothing_term(output: Output, y: Tensor) -> Tensor:
    """What label smoothing adds to a cross-entropy for each unit of it, (b,): the mean over classes of -log p, minus
    -log p of the label. Of masks y (b, *spatial) it is the mean over pixels.

    CE + s (mean over classes of -log p - CE) = (1 - s) CE + s (mean over classes of -log p): Szegedy, Vanhoucke, Ioffe,
    Shlens, Wojna: Rethinking the Inception architecture for computer vision, CVPR 2016, section 7, with uniform u(k).
    """
    uniform = -output.logits.log_softmax(dim=1).mean(dim=1)
    if uniform.dim() > 1:
        known = (uniform * (y != IGNORED)).flatten(1).mean(dim=1)
        uniform = known * _rest_of_known(y).to(uniform.dtype)
    return uniform - cross_entropy(output, y)


def ranked_probability_loss(logits: Tensor, y: Tensor) -> Tensor:
    """How far the probability lies from the true grade, (b,) in [0, C - 1]: the sum over the cuts between grades of
    (P(grade <= k) - [y <= k])^2. logits: (b, C); y: (b,) in 0 .. C-1.

    It is the ranked probability score (Epstein, Journal of Applied Meteorology 8, 1969), by which Hou, Yu, Samaras
    (Squared earth mover's distance-based loss for training deep neural networks, 2016) train networks. Like
    cross-entropy it is proper: it is expected to be lowest at the true probabilities.
    """
    below = logits.softmax(dim=1).cumsum(dim=1)[:, :-1]
    reached = (y[:, None] <= torch.arange(below.shape[1], device=y.device)).to(below.dtype)
    return (below - reached).square().sum(dim=1)


def overlap_loss(output: Output, y: Tensor) -> Tensor:
    """Soft Dice loss plus cross-entropy, per example (b,), for masks y (b, *spatial).

    Milletari, Navab, Ahmadi: V-Net, 3DV 2016, section 3, with probabilities not squared: 1 - (2 sum p g + s) /
    (sum p + sum g + s), the mean over the classes but the background.
    """
    return dice_loss(output.logits, y) + cross_entropy(output, y)


def dice_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Soft Dice loss of each example (b,), the mean over foreground classes. logits: (b, C, *spatial). Pixels that are
    `IGNORED` are in no class, and the network's shares of them count as 0.
    """
    from monai.losses.dice import DiceLoss  # MONAI takes seconds to import

    criterion = DiceLoss(include_background=False, reduction="none", smooth_nr=SMOOTH, smooth_dr=SMOOTH)
    classes = torch.arange(logits.shape[1], device=y.device).view(-1, *[1] * (y.dim() - 1))
    shares = logits.softmax(dim=1) * (y != IGNORED).unsqueeze(1)
    losses: Tensor = criterion(shares, (y.unsqueeze(1) == classes).to(logits.dtype))
    return losses.flatten(1).mean(dim=1)


def overlap_by_slabs(slabs: Iterable[tuple[int, Tensor]], y: Tensor) -> Tensor:
    """`overlap_loss` of large images (b,), to rounding and without a gradient, of their logits slab by slab: the first
    place along the first axis, and (b, C, length, *rest). No logits of whole images are held.
    """
    both = sizes = entropy = torch.zeros((), device=y.device)
    planes = ((start + place, logits[:, :, place]) for start, logits in slabs for place in range(logits.shape[2]))
    for place, plane in planes:
        slab, labels = plane.flatten(2), y[:, place].flatten(1)
        numbers = torch.arange(slab.shape[1], device=y.device)
        shares = slab.softmax(dim=1) * (labels != IGNORED)[:, None]
        true = (labels[:, None] == numbers[:, None]).to(slab.dtype)
        both = both + (shares * true).sum(dim=2)
        sizes = sizes + shares.sum(dim=2) + true.sum(dim=2)
        entropy = entropy + functional.cross_entropy(slab, labels, reduction="none", ignore_index=IGNORED).sum(dim=1)
    dice = 1 - (2 * both + SMOOTH) / (sizes + SMOOTH)
    return dice[:, 1:].mean(dim=1) + entropy / y[0].numel() * _rest_of_known(y).to(entropy.dtype)


def pool_features(features: Tensor) -> Tensor:
    """Features of examples (b, d): the mean over all places of (b, d, *spatial); (b, d) is returned unchanged."""
    return features.flatten(2).mean(dim=2) if features.dim() > 2 else features
