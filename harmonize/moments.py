"""WGAN-GP with a critic that is linear in public features: patients are used a few times, training then needs none.

Noise is added to every number of a critic that patients train. It drowns a network of tens of thousands of numbers
with tens of patients; it does not drown 121 numbers for 30 components. And since the gradient of -D(x, y) for the
weights of a linear critic, minus the features of x, does not depend on these weights, training needs only its mean over
patients: taken `looks` times through data access (which clips each patient and adds noise) and averaged. All other
terms of equation 1 need no patient: D(G(z, y), y) is that of fakes, and the penalty is put on mixtures of fakes and
public images. So training may take any number of steps. It is the mean embedding of Harder et al., Pre-trained
perceptual features improve differentially private image generation, TMLR 2023, with WGAN-GP in place of a distance of
means.

The noise is estimated from the differences between the repeated means. A part that does not exceed the noise is
replaced by the value of the public start, and a part that does is shrunk towards that (James and Stein, 1961): if none
does, as with very few patients or a very small epsilon, the generator stays as it started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from harmonize.embedding import compute_basis
from harmonize.game import BETAS, REPORT_EVERY, AnyGenerator, Players, Rules
from harmonize.networks import CLASSES, Inputs, Moments
from privacy.dp.access import Access, Batch
from privacy.message import Params

TRUSTED = 3.0  # deviations of pure noise's square norm by which a mean must exceed it
LEAST_SHARE = 0.05  # of a class among the fakes
CHECKED = 8  # how often the generator's running mean is evaluated
LONGEST = 0.25  # largest step of the critic; about 1 makes its slope 1, and the penalty is steep for large squares
MIXED = 512  # fakes from which the start's features are computed


class Answer(NamedTuple):
    """weights: by the layer of `Moments`, the mean of its features over patients. deviation: of the noise in each,
    or 0.
    """

    weights: dict[str, Tensor]
    deviation: float


def make_moments(public: Tensor, inputs: Inputs, components: int) -> Moments:
    """A critic on public images (n, C, H, W), n >= 2, before training.

    If the images span fewer dimensions than `components`, the missing components are zero.
    """
    public_basis, critic = compute_basis(public, components), Moments(inputs, components)
    missing = components - len(public_basis.deviation)
    with torch.no_grad():
        critic.mean.copy_(public_basis.mean)
        critic.components.copy_(functional.pad(public_basis.components, (0, 0, 0, missing)))
        least = float(public_basis.deviation[0]) * 1e-3  # avoids a division by 0
        critic.deviation.copy_(functional.pad(public_basis.deviation, (0, missing)).clamp(min=max(least, 1e-6)))
        critic.unit.copy_(critic.features(public[:MIXED]).norm(dim=1).median())
    return critic


def mean_features(
    access: Access, critic: Moments, looks: int, *, progress: Callable[[int], None] = lambda done: None
) -> Answer:
    """The gradient of -D(x, y), computed `looks` times through data access, each time on all patients."""
    answers = []
    for look in range(looks):
        progress(look)
        gradient = access.gradient(critic, _real_loss, access.draw(full=True)).gradient
        answers.append({name: -value.detach().cpu().flatten().double() for name, value in gradient.items()})
    mean = {name: torch.stack([answer[name] for answer in answers]).mean(dim=0) for name in answers[0]}
    if looks == 1:
        return Answer(mean, 0.0)
    variances = torch.cat([torch.stack([answer[name] for answer in answers]).var(dim=0) for name in mean])
    return Answer(mean, float((variances.mean() / looks).sqrt()))


def shrink_mean(answer: Tensor, start: Tensor, deviation: float, bound: float) -> Tensor:
    """Shrink a noised mean (d,) towards `start` (d,), by the size of the noise.

    The result is (1 - d s^2 / |answer - start|^2) of the way from start to answer; it is `start` unless that square
    exceeds d s^2, the noise's own, by `TRUSTED` of its deviations. With noise, its norm is at most `bound`, as that of
    every mean of clipped features.
    """
    if deviation == 0:
        return answer
    noise = len(answer) * deviation**2
    away = answer - start
    square = float(away.square().sum())
    if square <= noise * (1 + TRUSTED * (2 / len(answer)) ** 0.5):
        return start
    shrunk = start + (1 - noise / square) * away
    return shrunk * (bound / max(bound, float(shrunk.norm())))


def train_generator(
    networks: Players,
    critic: Moments,
    answer: Answer,
    rules: Rules,
    public: Tensor,
    *,
    bound: float,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Train critic and generator in place, without patients. If no part exceeds the noise, nothing is trained.

    Adversarial training may end farther from its target than it began. So the generator's running mean is evaluated a
    few times, and the one whose features came nearest to the target is kept: the start, if none came nearer.

    Args:
        public: (n, C, H, W) public images, of class 0 and 1 in turn, n even: the penalty mixes them with fakes.
        rules: lr is the generator's and falls to 0; that of the critic, `critic_lr`, is in square units of its
            features. bound: what each patient's features were clipped to.
    """
    rng = torch.Generator().manual_seed(seed)
    device = next(critic.parameters()).device
    share = min(max(float(answer.weights["share.weight"]) + 0.5, LEAST_SHARE), 1 - LEAST_SHARE)
    target = _target_features(networks.generator, critic, answer, share, bound, rng)
    if target is None:
        progress(rules.steps, rules.steps)
        return
    pools = public.to(device).reshape(-1, CLASSES, *networks.inputs)
    making = Adam(networks.generator.parameters(), lr=rules.lr, betas=BETAS)
    every = max(1, rules.steps // CHECKED)

    def measure_average() -> tuple[float, Params]:
        state = {name: value.clone() for name, value in networks.average.module.state_dict().items()}
        return _distance_to_target(cast(AnyGenerator, networks.average.module), critic, target, share), state

    best = measure_average()
    for step in range(rules.steps):
        if step % REPORT_EVERY == 0:
            progress(step, rules.steps)
        fake, y = _draw_fakes(networks.generator, share, rules.batch, rng, device)
        other = pools[torch.randint(len(pools), (len(y),), generator=rng).to(device), y]
        alpha = torch.rand(len(y), 1, 1, 1, generator=rng).to(device)
        _critic_step(critic, target, fake, alpha * other + (1 - alpha) * fake, y, rules)
        if (step + 1) % rules.critic_steps == 0:
            _generator_step(networks, critic, making, share, rules, rng)
            making.param_groups[0]["lr"] = rules.lr * (1 - step / rules.steps)
        if (step + 1) % every == 0 or step + 1 == rules.steps:
            best = min(best, measure_average(), key=lambda candidate: candidate[0])
    networks.average.module.load_state_dict(best[1])
    progress(rules.steps, rules.steps)


def _real_loss(forward: Callable[..., Tensor], batch: Batch) -> Tensor:
    """-D(x, y): the only term of the critic's loss that needs patients."""
    return -forward(batch.x, batch.y)


def _critic_step(
    critic: Moments, target: Mapping[str, Tensor], fake: Tensor, between: Tensor, y: Tensor, rules: Rules
) -> None:
    """One step of the critic down equation 1, with the target features in place of patients."""
    named = {name: p for name, p in critic.named_parameters() if p.requires_grad}
    loss = critic(fake, y).mean() + rules.gp_weight * (_critic_slope(critic, between, y) - 1).square().mean()
    slopes = torch.autograd.grad(loss, list(named.values()))
    down = [slope - target[name].view_as(slope) for name, slope in zip(named, slopes, strict=True)]
    size, unit = float(torch.stack([direction.norm() for direction in down]).norm()), float(critic.unit)
    step = unit * min(rules.critic_lr * unit, LONGEST / max(size, 1e-12))
    with torch.no_grad():
        for p, direction in zip(named.values(), down, strict=True):
            p.sub_(step * direction)


def _distance_to_target(generator: AnyGenerator, critic: Moments, target: Mapping[str, Tensor], share: float) -> float:
    """Distance of the mean features of fakes, always of the same z, from their target."""
    device = next(critic.parameters()).device
    fake, y = _draw_fakes(generator, share, MIXED, torch.Generator().manual_seed(0), device)
    named = {name: p for name, p in critic.named_parameters() if p.requires_grad}
    means = torch.autograd.grad(critic(fake, y).mean(), list(named.values()))
    return float(
        torch.stack([(mean.flatten() - target[name]).norm() for name, mean in zip(named, means, strict=True)]).norm()
    )


def _critic_slope(critic: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The norm of the critic's gradient for each image, (b,)."""
    square: Tensor = torch.func.grad(lambda image: critic(image, y).sum())(x).flatten(1).square().sum(dim=1)
    return (square + 1e-16).sqrt()  # the derivative of the root at 0 is not finite


def _draw_fakes(
    generator: AnyGenerator,
    share: float,
    batch: int,
    rng: torch.Generator,
    device: torch.device,
    *,
    learn: bool = False,
) -> tuple[Tensor, Tensor]:
    """Fakes and their classes; class 1 has the probability `share`. learn: whether gradients reach the generator."""
    z = torch.randn(batch, generator.latent, generator=rng).to(device)
    y = (torch.rand(batch, generator=rng) < share).long().to(device)
    with torch.set_grad_enabled(learn):
        return generator(z, y), y


def _generator_step(
    networks: Players, critic: Moments, making: Adam, share: float, rules: Rules, rng: torch.Generator
) -> None:
    """One step of the generator up the critic's score, and of its running mean."""
    device = next(critic.parameters()).device
    fake, y = _draw_fakes(networks.generator, share, rules.batch, rng, device, learn=True)
    named = list(networks.generator.parameters())
    slopes = torch.autograd.grad(-critic(fake, y).mean(), named)
    for p, slope in zip(named, slopes, strict=True):
        p.grad = slope
    making.step()
    networks.average.update_parameters(networks.generator)


def _target_features(
    generator: AnyGenerator, critic: Moments, answer: Answer, share: float, bound: float, rng: torch.Generator
) -> dict[str, Tensor] | None:
    """The target of the fakes' mean features: each block (coordinates and squares separately) shrunk towards the start.

    None: no block exceeds the noise.
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
    target = {"share.weight": torch.tensor([share - 0.5], dtype=torch.float64)}
    for name, before in start.items():
        blocks = zip(answer.weights[name].chunk(2), before.chunk(2), strict=True)
        target[name] = torch.cat([shrink_mean(now, then, answer.deviation, bound) for now, then in blocks])
    if all(torch.equal(target[name], before) for name, before in start.items()):
        return None
    return {name: value.float().to(device) for name, value in target.items()}
