"""Translation of a site's images onto the shared ones by VAFL's modified CycleGAN.

Yan, Wicaksana, Wang, Yang, Cheng: Variation-Aware Federated Learning with Multi-Source Decentralized Medical Image
Data, IEEE JBHI 2021, section II.C, equations 3 to 7 (`equations.py`), over Zhu et al. (CycleGAN, ICCV 2017).

What the paper leaves open, and our readings: both cycle terms, both identity terms, T and F in one step; C_T is
trained in the same step on T(x) with labels, and is constant for T's gradient; F and Dis_own "in a similar way, except
for the classification loss". All gradients of a step are taken at the same weights, which is the usual alternation: T
and F see discriminators and a C_T from before their update, and those see translations from before T's and F's update.

T is trained on the site's patients without noise: no part of it may leave the site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from harmonize import equations
from harmonize.elastic import make_deformed_copies
from harmonize.generators import Discriminator, Norm, Transformer, translate_images
from harmonize.networks import CLASSES, Classifier, initialise_module
from harmonize.own import SiteImages, check_images, patient_means, shift_means
from harmonize.scale import Progress, ignore_progress
from harmonize.structure import structure_change
from harmonize.unfinished import Training, compute_fingerprint, restore_state, write_state
from harmonize.views import View, add_noise, augment_views, mix_with_pool, step_seed
from privacy.folder import Folder
from privacy.message import Params
from privacy.settings_error import Problem, refuse, shorten_value

TELL = 10  # steps between two progress reports

LR, RATES = 1e-4, ("lr_t", "lr_d", "lr_c")  # section III.C: of all networks
WEIGHTS = ("cycle", "identity", "classification", "structure", "noise")
# Section III.C: Adam, learning rate 1e-4, batch 24, for all networks. Options that the paper does not mention are off.
PAPER: dict[str, Any] = {
    "batch": 24, "lr_t": LR, "lr_d": LR, "lr_c": LR, "betas": (0.9, 0.999), "decay": False, "noise": 0.0,
    "pool": 0, "ema": 0.0, "norm": "instance", "residual": False, "augment": "flip", "keep_mean": "none",
    "cycle": 10.0, "identity": 5.0, "classification": 1.0, "structure": 0.0, "by_class": False, "members": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CycleGan:
    """The modified CycleGAN of VAFL, trained on the hospital's own images and on the shared ones.

    variant: `paper` fixes what `PAPER` lists; those fields may not be set then. lr: of all networks of that variant;
    the paper's 1e-4 goes with some 30,000 steps, and fewer may need more. steps: of training. batch: images of either
    kind in a step. width, downs, blocks, norm, residual: see `generators.Transformer`. critic: width of the
    discriminators. classifier: width of C_T. cycle, identity, classification: weights in equation 7. structure: weight
    of how much T changes the structure of its images (`structure.py`); 0 = not used. Use it with `norm: none`, because
    instance norm removes each image's own level. lr_t: of T and F; lr_d: of the discriminators; lr_c: of C_T. betas:
    Adam's. decay: learning rates fall linearly to 0 in the second half. noise: standard deviation of the noise on the
    discriminators' inputs, falling to 0 over the training. pool: number of earlier translations kept for the
    discriminators; 0 = none. ema: decay of the mean of T's and F's weights that is the result; 0 = the last weights.
    copies: deformed copies of every image, made before the training. augment: of each batch. keep_mean: `patient` gives
    every patient's images the mean that the central region had before, plus one number for the whole site: patients
    keep their order. amp: bfloat16 where the device is a GPU. every: steps between two states on disk.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = True

    name: Literal["cyclegan"] = "cyclegan"
    variant: Literal["consilium", "paper"] = "consilium"
    steps: int = 600
    batch: int = 6
    width: int = 8
    downs: int = 1
    blocks: int = 2
    norm: Norm = "instance"
    residual: bool = False
    critic: int = 16
    classifier: int = 8
    cycle: float = 10.0
    identity: float = 5.0
    classification: float = 1.0
    structure: float = 0.0
    lr_t: float = 1e-3
    lr_d: float = 1e-4
    lr_c: float = 1e-3
    lr: float = LR
    betas: tuple[float, float] = (0.5, 0.99)
    decay: bool = True
    noise: float = 0.1
    pool: int = 0
    ema: float = 0.995
    copies: int = 2
    augment: View = "flip"
    keep_mean: Literal["none", "patient"] = "none"
    by_class: bool = False
    patch: int = 2
    members: int = 1
    amp: bool = True
    every: int = 100

    def __post_init__(self) -> None:
        problems = [
            Problem((name,), f"must {rule}, found {shorten_value(getattr(self, name))}")
            for names, rule, fine in (
                (("steps", "every"), "be in [1, 1000000]", lambda v: 1 <= v <= 10**6),
                (("batch", "blocks"), "be in [1, 1024]", lambda v: 1 <= v <= 1024),
                (("width", "critic", "classifier"), "be a multiple of 4 in [4, 512]", lambda v: v in range(4, 513, 4)),
                (("downs",), "lie in 1..2", lambda v: 1 <= v <= 2),
                (("patch",), "lie in 1..3", lambda v: 1 <= v <= 3),
                (("members",), "be in [1, 10]", lambda v: 1 <= v <= 10),
                (WEIGHTS, "be finite and >= 0", lambda v: 0 <= v < math.inf),
                (("lr", *RATES), "be in (0, 1]", lambda v: 0 < v <= 1),
                (("pool", "copies"), "be in [0, 1000]", lambda v: 0 <= v <= 1000),
                (("ema",), "lie in [0, 1)", lambda v: 0 <= v < 1),
                (("betas",), "be two numbers in [0, 1)", lambda v: len(v) == 2 and all(0 <= beta < 1 for beta in v)),
            )
            for name in names
            if not fine(getattr(self, name))
        ]
        if self.variant == "paper":
            fixed_fields = [f.name for f in fields(self) if f.name in PAPER and getattr(self, f.name) != f.default]
            if fixed_fields:
                text = f"paper fixes {', '.join(fixed_fields)}: remove them, or set variant: consilium"
                problems.append(Problem(("variant",), text))
        if self.by_class and self.pool:
            text = f"must be 0 with by_class, found {self.pool}: earlier translations are kept without their class"
            problems.append(Problem(("pool",), text, needs=(("by_class",),)))
        if self.variant != "paper" and self.lr != LR:
            text = f"is of variant paper, found {self.lr} without it: say {', '.join(RATES)}"
            problems.append(Problem(("lr",), text))
        refuse(problems)

    def with_variant(self) -> CycleGan:
        """These settings with all values that `variant` fixes."""
        if self.variant == "consilium":
            return self
        return replace(self, variant="consilium", lr=LR, **{**PAPER, **dict.fromkeys(RATES, self.lr)})

    def transformer(self, channels: int) -> Transformer:
        """T's and F's network."""
        s = self.with_variant()
        return Transformer(channels, width=s.width, downs=s.downs, blocks=s.blocks, norm=s.norm, residual=s.residual)

    def fit(
        self,
        site_images: SiteImages,
        shared: Tensor,
        *,
        seed: int,
        folder: Folder | None = None,
        progress: Progress = ignore_progress,
        device: str | torch.device = "cpu",
        shared_labels: Tensor | None = None,
    ) -> Params:
        """Train T and F.

        Args:
            site_images: the site's training images, H and W multiples of 4.
            shared: (m, C, H, W), the shared images.
            seed: fixes everything: a training that was interrupted and resumed gives the same bits, on the same
                machine.
            folder: keeps a state every `every` steps; a training with the same settings, seed and images resumes from
                it.
            progress: called with the steps done; may raise to stop.
            device: where it is trained.
            shared_labels: (m,) classes of the shared images, for `by_class`.

        Returns:
            On the CPU: T under `translator/`, F under `back/`, those of further members under `translator-2/`,
            `back-2/` and so on, and `keep/own`, `keep/translated` (C,): mean over the site's patients of the central
            region's mean, before and after T.

        Raises:
            ValueError: the images do not fit each other or these settings; all reasons are named.
        """
        check_images(site_images, shared)
        settings, params = self.with_variant(), dict[str, Tensor]()
        pictures = Shared(shared, _check_classes(site_images, shared, shared_labels) if settings.by_class else None)
        for member in range(settings.members):
            done = member * settings.steps

            def tell(step: int, steps: int, what: str, done: int = done) -> None:
                progress(done + step, settings.members * steps, what)

            member_seed = step_seed(seed, -3 - member) if member else seed
            mean = _train_networks(settings, site_images, pictures, member_seed, folder, tell, torch.device(device))
            for name, value in mean.state_dict().items():
                network, _, inner = name.partition(".")
                params[f"{_name_member(network, member)}/{inner}"] = value.detach().cpu()
        images = site_images.images.to(device)
        before, after = (
            patient_means(x, site_images.patient).mean(dim=0) for x in (images, self._apply_members(params, images))
        )
        return {**params, "keep/own": before, "keep/translated": after}

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """T of images (n, C, H, W); with `keep_mean: patient` each patient's central mean is restored."""
        out = self._apply_members(params, images)
        if self.with_variant().keep_mean == "none":
            return out
        by = (params["keep/translated"] - params["keep/own"]).cpu()
        return shift_means(out, patient_means(images, patient) + by, patient)

    def translate_back(self, params: Params, images: Tensor) -> Tensor:
        """F(T(x)) of images (n, C, H, W), without `keep_mean`, for the cycle error; of each member, in the mean."""
        both = []
        for member in range(self.members):
            forth = translate_images(self._network(params, _name_member("translator", member)), images)
            both.append(translate_images(self._network(params, _name_member("back", member)), forth))
        return both[0] if len(both) == 1 else torch.stack(both).mean(dim=0)

    def _apply_members(self, params: Params, images: Tensor) -> Tensor:
        """The mean of all members' translations."""
        made = [
            translate_images(self._network(params, _name_member("translator", member)), images)
            for member in range(self.members)
        ]
        return made[0] if len(made) == 1 else torch.stack(made).mean(dim=0)

    def _network(self, params: Params, which: str) -> Transformer:
        """The transformer with the parameters under "translator/" or "back/"."""
        weights = {name.removeprefix(f"{which}/"): w for name, w in params.items() if name.startswith(f"{which}/")}
        with torch.device("meta"):  # draws no random numbers for weights that are replaced at once
            net = self.transformer(weights["layers.0.weight"].shape[1])
        net.load_state_dict(weights, assign=True)
        return net


class Batch(NamedTuple):
    """x: (b, C, H, W) own images, y: (b,) their labels; z: (b, C, H, W) shared images, x^ in the paper, w: (b,) their
    labels where discriminators see classes.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    w: Tensor | None = None


Sides: TypeAlias = Sequence[Tensor] | None
"""The rows of each class, (m,) each; None: classes do not count."""


class Shared(NamedTuple):
    """images: (m, C, H, W). labels: (m,), where discriminators see classes."""

    images: Tensor
    labels: Tensor | None


class Losses(NamedTuple):
    """transformers: equation 7 for T, and the same without C_T for F. critics: the loss of Dis and C_T."""

    transformers: Tensor
    critics: Tensor


def make_networks(settings: CycleGan, inputs: tuple[int, int, int]) -> nn.ModuleDict:
    """T, F, Dis_shared, Dis_own, C_T for images (C, H, W), as `translator, back, dis_shared, dis_own, classifier`."""
    parts: dict[str, nn.Module] = {
        "translator": settings.transformer(inputs[0]),
        "back": settings.transformer(inputs[0]),
        "dis_shared": _make_discriminator(settings, inputs[0]),
        "dis_own": _make_discriminator(settings, inputs[0]),
        "classifier": Classifier(inputs, settings.classifier),
    }
    for part in parts.values():
        # Convolutions are quicker with channels last, group norm many times slower (on a CPU).
        if not any(isinstance(module, nn.GroupNorm) for module in part.modules()):
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return nn.ModuleDict(parts)


def _make_discriminator(settings: CycleGan, channels: int) -> Discriminator:
    """Dis_shared's and Dis_own's network."""
    classes = CLASSES if settings.by_class else 0
    return Discriminator(channels, width=settings.critic, layers=settings.patch, classes=classes)


def _name_member(network: str, member: int) -> str:
    """The name of a member's network: plain for the first, and numbered from 2 for the others."""
    return f"{network}-{member + 1}" if member else network


def _check_classes(site_images: SiteImages, shared: Tensor, labels: Tensor | None) -> Tensor:
    """The shared images' classes. Raises: ValueError: they are missing, or a class is, here or there."""
    problems = []
    if labels is None or labels.shape != shared.shape[:1]:
        problems.append("by_class needs the classes of the shared images")
    else:
        for what, have in (("own", site_images.labels), ("shared", labels)):
            missing = sorted({0, 1} - set(have.tolist()))
            problems += [f"by_class needs {what} images of both classes, and none has {label}" for label in missing]
    if labels is None or problems:
        raise ValueError(f"translation: {'; '.join(problems)}; leave by_class out")
    return labels


def compute_losses(
    settings: CycleGan,
    nets: Mapping[str, nn.Module] | nn.ModuleDict,
    batch: Batch,
    *,
    noise: float = 0.0,
    pool: dict[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Losses:
    """Equations 3 to 7 on a batch. noise: standard deviation of the noise on the discriminators' inputs."""
    x, y, z, w = batch
    T, F, C_T = nets["translator"], nets["back"], nets["classifier"]
    Tx, Tz = T(torch.cat([x, z])).split([len(x), len(z)])
    Fz, Fx = F(torch.cat([z, x])).split([len(z), len(x)])
    probability = torch.sigmoid(C_T(Tx))
    transformers = (
        settings.cycle * (equations.cycle_loss(F(Tx), x) + equations.cycle_loss(T(Fz), z))
        + settings.identity * (equations.identity_loss(Tz, z) + equations.identity_loss(Fx, x))
        + settings.classification * equations.classification_loss(probability, y)
    )
    if settings.structure:
        transformers = transformers + settings.structure * structure_change(Tx, x)
    critics = equations.classification_loss(probability, y)
    seen = (w, y) if settings.by_class else (None, None)
    for name, real, made, (of_real, of_made) in (("dis_shared", z, Tx, seen), ("dis_own", x, Fz, seen[::-1])):
        scores = nets[name](add_noise(made, noise, generator), of_made)
        transformers = transformers + equations.adversarial_loss(scores)
        if settings.pool and pool is not None:
            scores = nets[name](
                add_noise(mix_with_pool(pool, name, made.detach(), settings.pool, generator), noise, generator)
            )
        judged = nets[name](add_noise(real, noise, generator), of_real)
        critics = critics + equations.discrimination_loss(judged, scores)
    return Losses(transformers, critics)


def _train_networks(
    s: CycleGan,
    site_images: SiteImages,
    shared: Shared,
    seed: int,
    folder: Folder | None,
    progress: Progress,
    device: torch.device,
) -> nn.Module:
    """Train all networks, from the state in `folder` if there is one; returns the running mean of T and F."""
    C, H, W = site_images.images.shape[1:]
    nets = initialise_module(lambda: make_networks(s, (C, H, W)), seed).to(device)
    mean = AveragedModel(_select_transformers(nets), multi_avg_fn=get_ema_multi_avg_fn(s.ema))  # type: ignore[no-untyped-call]
    sides = ((s.lr_t, ("translator", "back")), (s.lr_d, ("dis_shared", "dis_own")), (s.lr_c, ("classifier",)))
    groups = [{"params": [p for name in names for p in nets[name].parameters()], "base": lr} for lr, names in sides]
    training = Training(nets, mean, torch.optim.Adam(groups, betas=s.betas, fused=True), {})
    inputs = [site_images.images, site_images.labels, *(part for part in shared if part is not None)]
    training_id = compute_fingerprint([asdict(s), seed, device.type], inputs)
    first = restore_state(training, folder, training_id)
    if first < s.steps:
        data = _add_copies(s, site_images, shared, seed, device)
        rows = _rows_by_class(data.y if s.by_class else None), _rows_by_class(data.w)
        for step in range(first, s.steps):
            if step % TELL == 0:
                progress(step, s.steps, "translation")
            _train_step(s, training, data, rows, seed, step)
            if folder is not None and ((step + 1) % s.every == 0 or step + 1 == s.steps):
                write_state(training, folder, step + 1, training_id)
    progress(s.steps, s.steps, "translation")
    return mean.module


def _train_step(s: CycleGan, training: Training, data: Batch, sides: tuple[Sides, Sides], seed: int, step: int) -> None:
    """One step. Everything random in it comes from (seed, step), so that a resume needs no random state.

    sides: the own and the shared images' rows by class, None where classes do not count.
    """
    device = data.x.device
    g = torch.Generator(device).manual_seed(step_seed(seed, step))
    i, j = _draw_rows(sides[0], len(data.x), s.batch, g), _draw_rows(sides[1], len(data.z), s.batch, g)
    batch = Batch(
        augment_views(data.x[i], s.augment, g),
        data.y[i],
        augment_views(data.z[j], s.augment, g),
        None if data.w is None else data.w[j],
    )
    left = 1.0 - step / s.steps
    with torch.autocast(device.type, torch.bfloat16, enabled=s.amp and device.type == "cuda"):
        step_losses = compute_losses(s, training.nets, batch, noise=s.noise * left, pool=training.pool, generator=g)
    groups = training.rule.param_groups
    transformers, critics = groups[0]["params"], [*groups[1]["params"], *groups[2]["params"]]
    # Gradients are computed for each side's own weights only: they pass through the other side's weights.
    grads = [
        *torch.autograd.grad(step_losses.transformers, transformers, retain_graph=True),
        *torch.autograd.grad(step_losses.critics, critics),
    ]
    for p, grad in zip([*transformers, *critics], grads, strict=True):
        p.grad = torch.empty_like(p).copy_(grad)  # fused Adam needs the same memory layout for all its tensors
    for group in groups:
        group["lr"] = group["base"] * (min(1.0, 2.0 * left) if s.decay else 1.0)
    training.rule.step()
    training.mean.update_parameters(_select_transformers(training.nets))


def _rows_by_class(labels: Tensor | None) -> Sides:
    """The rows of each class. Read once: how many there are hangs on values, for which a GPU waits."""
    return None if labels is None else [(labels == label).nonzero()[:, 0] for label in range(CLASSES)]


def _draw_rows(sides: Sides, rows: int, batch: int, g: torch.Generator) -> Tensor:
    """Rows of a batch (b,); of sides either class equally often, the second once less where b is odd."""
    if sides is None:
        return torch.randint(rows, (batch,), generator=g, device=g.device)
    sizes = (batch - batch // 2, batch // 2)
    return torch.cat(
        [
            side[torch.randint(len(side), (size,), generator=g, device=g.device)]
            for side, size in zip(sides, sizes, strict=True)
        ]
    )


def _select_transformers(nets: nn.ModuleDict) -> nn.ModuleDict:
    """T and F, without the discriminators and C_T."""
    return nn.ModuleDict({name: nets[name] for name in ("translator", "back")})


def _add_copies(s: CycleGan, site_images: SiteImages, shared: Shared, seed: int, device: torch.device) -> Batch:
    """All images and their deformed copies, on the device. Shared images are deformed too, so that both kinds blur
    equally.
    """
    x = torch.cat([site_images.images, make_deformed_copies(site_images.images, s.copies, seed=step_seed(seed, -1))])
    z = torch.cat([shared.images, make_deformed_copies(shared.images, s.copies, seed=step_seed(seed, -2))])
    w = None if shared.labels is None else _repeat_labels(shared.labels, s.copies).to(device)
    return Batch(x.to(device), _repeat_labels(site_images.labels, s.copies).to(device), z.to(device), w)


def _repeat_labels(labels: Tensor, copies: int) -> Tensor:
    """The labels of images and of their copies."""
    return torch.cat([labels, labels.repeat_interleave(copies)])
