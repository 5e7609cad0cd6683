"""WGAN-GP with a critic that is linear in public features: patients are asked a few times, the game is played without.

Noise comes to every number of a critic that patients train. A network of tens of thousands drowns in it with tens of
patients; 121 numbers for 30 components do not. And since the gradient of -D(x, y) for the weights of a linear critic,
minus the features of x, does not depend on these weights, all that training needs of patients is its mean: asked
`looks` times through data access (which clips each patient and adds noise) and averaged. All else of equation 1 needs
no patient: D(G(z, y), y) is that of fakes, and the penalty is put on mixtures of fakes and public images. So the game
can go on as long as it likes. It is the mean embedding of Harder et al., Pre-trained perceptual features improve
differentially private image generation, TMLR 2023, with WGAN-GP in the place of a distance of means.

How large the noise is follows from how much the answers differ. What does not stand out of it is left as the public
start has it, and what does is shrunk towards that (James and Stein, 1961): where nothing does, as with very few
patients or a very small epsilon, the generator stays as it started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from harmonize.embedding import basis
from harmonize.game import BETAS, TOLD_EVERY, Players, Rules
from harmonize.networks import CLASSES, Generator, Inputs, Moments
from privacy.dp.access import Access, Batch
from privacy.message import Params

TRUSTED = 3.0  # deviations of pure noise's square norm by which an answer must exceed it
LEAST_SHARE = 0.05  # of a class among the fakes
CHECKED = 8  # times that the generator's running mean is looked at
LONGEST = 0.25  # step of the critic, where about 1 makes its slope 1: the penalty is steep where squares are large
MIXED = 512  # fakes behind the features that the start has


class Answer(NamedTuple):
    """weights: by the layer of `Moments`, the mean of its features over patients. deviation: of each number, or 0."""

    weights: dict[str, Tensor]
    deviation: float


def moments(public: Tensor, inputs: Inputs, components: int) -> Moments:
    """The critic that stands on public images (n, C, H, W), n >= 2, and has learnt nothing yet.

    Where the images span fewer dimensions than asked for, what is missing sees nothing.
    """
    found, critic = basis(public, components), Moments(inputs, components)
    missing = components - len(found.deviation)
    with torch.no_grad():
        critic.mean.copy_(found.mean)
        critic.components.copy_(functional.pad(found.components, (0, 0, 0, missing)))
        least = float(found.deviation[0]) * 1e-3  # nothing is divided by 0
        critic.deviation.copy_(functional.pad(found.deviation, (0, missing)).clamp(min=max(least, 1e-6)))
        critic.unit.copy_(critic.features(public[:MIXED]).norm(dim=1).median())
    return critic


def asked(access: Access, critic: Moments, looks: int, *, told: Callable[[int], None] = lambda done: None) -> Answer:
    """Compute the gradient of -D(x, y) `looks` times through data access, each time on all patients."""
    answers = []
    for look in range(looks):
        told(look)
        found = access.gradient(critic, _real, access.draw(full=True)).gradient
        answers.append({name: -value.detach().cpu().flatten().double() for name, value in found.items()})
    mean = {name: torch.stack([one[name] for one in answers]).mean(dim=0) for name in answers[0]}
    if looks == 1:
        return Answer(mean, 0.0)
    apart = torch.cat([torch.stack([one[name] for one in answers]).var(dim=0) for name in mean])
    return Answer(mean, float((apart.mean() / looks).sqrt()))


def trusted(answer: Tensor, start: Tensor, deviation: float, bound: float) -> Tensor:
    """Of an answer (d,) with noise of a deviation, what stands out of the noise, as seen from `start` (d,).

    (1 - d s^2 / |answer - start|^2) of the way from start to answer, and none of it unless that square exceeds d s^2,
    the noise's own, by `TRUSTED` of its deviations. With noise nothing is farther from 0 than `bound`, as no mean of
    clipped features is.
    """
    if deviation == 0:
        return answer
    noise = len(answer) * deviation**2
    away = answer - start
    square = float(away.square().sum())
    if square <= noise * (1 + TRUSTED * (2 / len(answer)) ** 0.5):
        return start
    found = start + (1 - noise / square) * away
    return found * (bound / max(bound, float(found.norm())))


def learnt(
    own: Players,
    critic: Moments,
    answer: Answer,
    rules: Rules,
    public: Tensor,
    *,
    bound: float,
    seed: int,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Both players learn, in place, and no patient is looked at. Where nothing is trusted nothing is learnt.

    Adversaries may end farther off than they were. So the generator's running mean is looked at now and then, and the
    one stays whose features came nearest to what is trusted: the start, if none came nearer.

    Args:
        public: (n, C, H, W) public images, of class 0 and 1 in turn, n even: what the penalty mixes fakes with.
        rules: lr is the generator's and falls to 0; that of the critic, `critic_lr`, counts in square units of its
            features. bound: what each patient's features were clipped to.
    """
    rng = torch.Generator().manual_seed(seed)
    device = next(critic.parameters()).device
    share = min(max(float(answer.weights["share.weight"]) + 0.5, LEAST_SHARE), 1 - LEAST_SHARE)
    target = _target(own.generator, critic, answer, share, bound, rng)
    if target is None:
        told(rules.steps, rules.steps)
        return
    pools = public.to(device).reshape(-1, CLASSES, *own.inputs)
    making = Adam(own.generator.parameters(), lr=rules.lr, betas=BETAS)
    every = max(1, rules.steps // CHECKED)

    def reached() -> tuple[float, Params]:
        state = {name: value.clone() for name, value in own.average.module.state_dict().items()}
        return _missed(cast(Generator, own.average.module), critic, target, share), state

    best = reached()
    for step in range(rules.steps):
        if step % TOLD_EVERY == 0:
            told(step, rules.steps)
        fake, y = _fakes(own.generator, share, rules.batch, rng, device)
        other = pools[torch.randint(len(pools), (len(y),), generator=rng).to(device), y]
        alpha = torch.rand(len(y), 1, 1, 1, generator=rng).to(device)
        _judged(critic, target, fake, alpha * other + (1 - alpha) * fake, y, rules)
        if (step + 1) % rules.critic_steps == 0:
            _made(own, critic, making, share, rules, rng)
            making.param_groups[0]["lr"] = rules.lr * (1 - step / rules.steps)
        if (step + 1) % every == 0 or step + 1 == rules.steps:
            best = min(best, reached(), key=lambda one: one[0])
    own.average.module.load_state_dict(best[1])
    told(rules.steps, rules.steps)


def _real(forward: Callable[..., Tensor], batch: Batch) -> Tensor:
    return -forward(batch.x, batch.y)


def _judged(
    critic: Moments, target: Mapping[str, Tensor], fake: Tensor, between: Tensor, y: Tensor, rules: Rules
) -> None:
    """One step of the critic down equation 1, where the target stands for patients."""
    judged = {name: p for name, p in critic.named_parameters() if p.requires_grad}
    loss = critic(fake, y).mean() + rules.gp_weight * (_slope(critic, between, y) - 1).square().mean()
    found = torch.autograd.grad(loss, list(judged.values()))
    down = [slope - target[name].view_as(slope) for name, slope in zip(judged, found, strict=True)]
    size, unit = float(torch.stack([one.norm() for one in down]).norm()), float(critic.unit)
    step = unit * min(rules.critic_lr * unit, LONGEST / max(size, 1e-12))
    with torch.no_grad():
        for p, one in zip(judged.values(), down, strict=True):
            p.sub_(step * one)


def _missed(generator: Generator, critic: Moments, target: Mapping[str, Tensor], share: float) -> float:
    """How far the mean features of fakes, always of the same z, lie from their target."""
    device = next(critic.parameters()).device
    fake, y = _fakes(generator, share, MIXED, torch.Generator().manual_seed(0), device)
    judged = {name: p for name, p in critic.named_parameters() if p.requires_grad}
    means = torch.autograd.grad(critic(fake, y).mean(), list(judged.values()))
    return float(
        torch.stack([(mean.flatten() - target[name]).norm() for name, mean in zip(judged, means, strict=True)]).norm()
    )


def _slope(critic: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    square: Tensor = torch.func.grad(lambda image: critic(image, y).sum())(x).flatten(1).square().sum(dim=1)
    return (square + 1e-16).sqrt()  # a root has no slope at 0


def _fakes(
    generator: Generator, share: float, batch: int, rng: torch.Generator, device: torch.device, *, learn: bool = False
) -> tuple[Tensor, Tensor]:
    z = torch.randn(batch, generator.latent, generator=rng).to(device)
    y = (torch.rand(batch, generator=rng) < share).long().to(device)
    with torch.set_grad_enabled(learn):
        return generator(z, y), y


def _made(own: Players, critic: Moments, making: Adam, share: float, rules: Rules, rng: torch.Generator) -> None:
    device = next(critic.parameters()).device
    fake, y = _fakes(own.generator, share, rules.batch, rng, device, learn=True)
    named = list(own.generator.parameters())
    found = torch.autograd.grad(-critic(fake, y).mean(), named)
    for p, slope in zip(named, found, strict=True):
        p.grad = slope
    making.step()
    own.average.update_parameters(own.generator)


def _target(
    generator: Generator, critic: Moments, answer: Answer, share: float, bound: float, rng: torch.Generator
) -> dict[str, Tensor] | None:
    """What the fakes' mean features are to become: block by block (coordinates and squares apart) what is trusted.

    None: no block stands out of the noise.
    """
    device = next(critic.parameters()).device
    z = torch.randn(MIXED, generator.latent, generator=rng).to(device)
    means = []
    with torch.no_grad():
        for label in range(CLASSES):
            y = torch.full((MIXED,), label, device=device)
            means.append(critic.features(generator(z, y)).double().mean(dim=0).cpu())
    start = {
        "score.weight": share * means[1] + (1 - share) * means[0],
        "of_class.weight": critic.class_weight * 0.5 * (share * means[1] - (1 - share) * means[0]),
    }
    found = {"share.weight": torch.tensor([share - 0.5], dtype=torch.float64)}
    for name, before in start.items():
        blocks = zip(answer.weights[name].chunk(2), before.chunk(2), strict=True)
        found[name] = torch.cat([trusted(now, then, answer.deviation, bound) for now, then in blocks])
    if all(torch.equal(found[name], before) for name, before in start.items()):
        return None
    return {name: value.float().to(device) for name, value in found.items()}
