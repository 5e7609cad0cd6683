"""Adversarial training of WGAN-GP: a critic trained on patients through data access, and a generator trained only by
the critic.

Gulrajani et al., Improved training of Wasserstein GANs, NeurIPS 2017, algorithm 1, with classes. `harmonize/wgan.py`
explains its settings and its privacy guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from harmonize.drawn_generator import DrawnGenerator
from harmonize.networks import CLASSES, Critic, Generator, Inputs, Module, initialise_module
from harmonize.prior import PriorName
from privacy.dp.access import Access, Batch
from privacy.message import Params

BETAS = (0.5, 0.9)
REPORT_EVERY = 5

AnyGenerator: TypeAlias = Generator | DrawnGenerator
Losses: TypeAlias = Callable[[Callable[..., Tensor], Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The numbers of one training; `harmonize.wgan.WganGp` explains them. noise: standard deviation of what is added to
    every coordinate of the critic's gradient, in addition to what data access adds. Nothing bounds that gradient, so
    this noise gives no guarantee.
    """

    steps: int
    critic_steps: int
    views: int
    batch: int
    lr: float
    gp_weight: float
    critic_lr: float = 0.006
    betas: tuple[float, float] = BETAS
    noise: float = 0.0


class Players(NamedTuple):
    """average: the running mean of the generator, which makes the images. inputs: (C, H, W)."""

    generator: AnyGenerator
    average: AveragedModel
    critic: Critic
    inputs: Inputs


def make_generator(latent: int, inputs: Inputs, width: int, classes: int, drawn: PriorName | None) -> AnyGenerator:
    """A generator with random weights. drawn: the prior whose pictures it draws; None: a network."""
    return DrawnGenerator(drawn, inputs) if drawn else Generator(latent, inputs, width, classes)


def make_players(
    latent: int,
    inputs: Inputs,
    width: int,
    *,
    ema: float,
    start: Params | None,
    seed: int,
    device: torch.device,
    classes: int = CLASSES,
    drawn: PriorName | None = None,
) -> Players:
    """Both networks with the weights of `start`, or with random weights from the seed. classes: 0 = neither knows any.
    drawn: as of `make_generator`.

    Raises:
        ValueError: inputs that these networks do not take, or `start` of other networks.
    """
    generator = initialise_module(lambda: make_generator(latent, inputs, width, classes, drawn), seed)
    critic = initialise_module(lambda: Critic(inputs, width, classes), seed + 1)
    if start is not None:
        generator, critic = load_module(generator, start, "generator"), load_module(critic, start, "critic")
    generator, critic = generator.to(device), critic.to(device)
    average = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(ema))  # type: ignore[no-untyped-call]
    return Players(generator, average, critic, inputs)


def train_adversarially(
    networks: Players,
    access: Access,
    rules: Rules,
    *,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Train critic and generator in place. The fakes, alpha and the generator's z follow from the seed.

    progress: (done, total) every few steps of the critic; an exception that it raises ends the training.
    """
    objective = make_critic_losses(networks.inputs, rules.gp_weight, networks.generator.classes)
    rng = torch.Generator().manual_seed(seed)
    judging, making = (
        Adam(net.parameters(), lr=rules.lr, betas=rules.betas) for net in (networks.critic, networks.generator)
    )
    for step in range(rules.steps):
        if step % REPORT_EVERY == 0:
            progress(step, rules.steps)
        aux = make_fakes(networks.generator, rng, batch=rules.batch, views=rules.views, device=access.device)
        gradient = access.gradient(networks.critic, objective, access.draw(), aux).gradient
        _optimizer_step(judging, networks.critic, add_noise(gradient, rules.noise, rng) if rules.noise else gradient)
        if (step + 1) % rules.critic_steps == 0:
            _optimizer_step(making, networks.generator, _generator_gradient(networks, rng, rules.batch, access.device))
            networks.average.update_parameters(networks.generator)
    progress(rules.steps, rules.steps)


def train_on_noise(networks: Players, rules: Rules, *, seed: int) -> None:
    """`train_adversarially` in place, where the critic's gradients are noise alone and no patient is there: what is
    left of it when noise is many times what patients say. Adam forgets the noise's size.
    """
    rng = torch.Generator().manual_seed(seed)
    judging, making = (
        Adam(net.parameters(), lr=rules.lr, betas=rules.betas) for net in (networks.critic, networks.generator)
    )
    nothing = {name: torch.zeros_like(value) for name, value in networks.critic.named_parameters()}
    for step in range(rules.steps):
        _optimizer_step(judging, networks.critic, add_noise(nothing, 1.0, rng))
        if (step + 1) % rules.critic_steps == 0:
            device = next(networks.generator.parameters()).device
            _optimizer_step(making, networks.generator, _generator_gradient(networks, rng, rules.batch, device))
            networks.average.update_parameters(networks.generator)


def train_on_pairs(
    networks: Players,
    z: Tensor,
    y: Tensor,
    images: Tensor,
    rules: Rules,
    *,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Train the generator in place to map z (n, m) and class y (n,) to its image (n, C, H, W), as far as z determines
    it.

    By mean absolute difference: adversarial training takes ten times as long, and blurs as well. The generator learns
    to ignore the numbers of its z beyond m. Of the rules, steps, batch and lr are used: lr is the peak of one cycle.
    """
    rng = torch.Generator().manual_seed(seed)
    rule = Adam(networks.generator.parameters(), lr=rules.lr, betas=(0.9, 0.99))
    rate = OneCycleLR(rule, rules.lr, total_steps=rules.steps + 1)
    for step in range(rules.steps):
        if step % REPORT_EVERY == 0:
            progress(step, rules.steps)
        index = torch.randint(len(images), (rules.batch,), generator=rng)
        spare = torch.randn(rules.batch, networks.generator.latent - z.shape[1], generator=rng)
        made = networks.generator(torch.cat([z[index], spare], dim=1), y[index])
        rule.zero_grad()
        (made - images[index]).abs().mean().backward()
        rule.step()
        rate.step()
    networks.average.update_parameters(networks.generator)
    progress(rules.steps, rules.steps)


def add_noise(gradient: Params, deviation: float, rng: torch.Generator) -> Params:
    """The gradient with N(0, deviation^2) added to every coordinate."""
    return {
        name: value + deviation * torch.randn(value.shape, generator=rng).to(value) for name, value in gradient.items()
    }


def make_critic_losses(inputs: Inputs, gp_weight: float, classes: int = CLASSES) -> Losses:
    """The critic's objective: (forward, batch) -> (b,), one loss per view.

    D(fake, y) - D(x, y) + gp_weight (||grad D(x~, y)||_2 - 1)^2 (equation 1 of the paper), x~ = alpha x + (1 - alpha)
    fake, where the fake is of the view's own class y and batch.aux is the tensor of `make_fakes`. classes: 0 = without
    y.
    """

    def losses(forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        if batch.aux is None or batch.y is None:
            raise ValueError("the critic's loss needs classes and fakes, found none: give `fakes` as aux")
        y, alpha = batch.y, batch.aux[:, -1].view(-1, 1, 1, 1)
        of_classes = batch.aux[:, :-1].reshape(-1, classes or 1, *inputs)
        fake = torch.where(y.view(-1, 1, 1, 1) == 1, of_classes[:, -1], of_classes[:, 0])
        between = alpha * batch.x + (1 - alpha) * fake

        def score(image: Tensor) -> Tensor:
            return forward(image, y).sum()

        square: Tensor = torch.func.grad(score)(between).flatten(1).square().sum(dim=1)
        slope = (square + 1e-16).sqrt()  # the derivative of the root at 0 is not finite
        return forward(fake, y) - forward(batch.x, y) + gp_weight * (slope - 1).square()

    return losses


def make_fakes(
    generator: AnyGenerator, rng: torch.Generator, *, batch: int, views: int, device: torch.device
) -> Tensor:
    """For each view slot a fake of either class and alpha, flat: (A, K, 2 C H W + 1), with K = views, A K >= batch.

    Of either class, because only data access knows which class a view has; without classes one fake.
    """
    sets = -(-batch // views)
    z = torch.randn(sets * views, generator.latent, generator=rng).to(device)
    alpha = torch.rand(len(z), 1, generator=rng).to(device)
    with torch.no_grad():
        of = [torch.full((len(z),), c, device=device) for c in range(generator.classes or 1)]
        made = [generator(z, y).flatten(1) for y in of]
    return torch.cat([*made, alpha], dim=1).reshape(sets, views, -1)


def load_module(module: Module, params: Params, part: str) -> Module:
    """`module`, with its parameters from params under "part/...".

    Raises:
        ValueError: names that are missing or unknown, or other shapes, all at once.
    """
    part_params = {
        name.removeprefix(f"{part}/"): value for name, value in params.items() if name.startswith(f"{part}/")
    }
    needed = module.state_dict()
    wrong = [f"{name} is missing" for name in sorted(needed.keys() - part_params.keys())]
    wrong += [f"{name} has no place" for name in sorted(part_params.keys() - needed.keys())]
    wrong += [
        f"{name} has shape {tuple(part_params[name].shape)}, needed is {tuple(value.shape)}"
        for name, value in needed.items()
        if name in part_params and part_params[name].shape != value.shape
    ]
    if wrong:
        raise ValueError(f"these parameters are of another {part}: {'; '.join(wrong)}; use equal sizes and settings")
    module.load_state_dict(part_params)
    return module


def copy_players(networks: Players) -> Params:
    """The generator's running mean under "generator/...", the critic under "critic/...", copied to the CPU."""
    return copy_parameters({"generator": networks.average.module, "critic": networks.critic})


def copy_parameters(parts: Mapping[str, nn.Module]) -> Params:
    """Parameters of several networks, each under "part/...", copied to the CPU."""
    return {
        f"{part}/{name}": value.detach().cpu().clone()
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }


def _generator_gradient(networks: Players, rng: torch.Generator, batch: int, device: torch.device) -> Params:
    """Gradient of -mean D(G(z, y), y), with classes equally likely."""
    z = torch.randn(batch, networks.generator.latent, generator=rng).to(device)
    y = torch.randint(CLASSES, (batch,), generator=rng).to(device)
    named = dict(networks.generator.named_parameters())
    gradients = torch.autograd.grad(-networks.critic(networks.generator(z, y), y).mean(), list(named.values()))
    return dict(zip(named, gradients, strict=True))


def _optimizer_step(rule: Adam, module: nn.Module, gradient: Mapping[str, Tensor]) -> None:
    """One step of the optimizer with the given gradient."""
    for name, p in module.named_parameters():
        p.grad = gradient[name]
    rule.step()
