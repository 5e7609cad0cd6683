"""The epsilon of a private run and the noise it needs, computed before anything runs.

One round of each method is rehearsed without patients to learn its privacy events. A patient is in one split only:
training, validation (which pays for the choice of a round) or test (which pays for the evaluation). So each of the
three may cost the whole epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from federation.algorithm import sends_gradient_sums
from federation.descent import Work
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import method_schedule
from federation.task import Task
from personalize import AnyAlgorithm
from pipelines.settings.config import Config
from pipelines.settings.harmonization import Public
from pipelines.settings.privacy import PatientLevel
from privacy.dp.accounting import Cost, calibrate_noise, compute_cost, mu_of
from privacy.dp.events import (
    Composed,
    Event,
    Gaussian,
    Part,
    PoissonSampled,
    SelfComposed,
    SharedGaussian,
    assume_colluding,
    change_event,
)
from privacy.dp.protection import Protection
from privacy.release import ledger as ledgers
from privacy.release.policy import Policy

COUNTS_SHARE = 0.05
"""Label counts' share of the squared mu of training, where a method asks for them."""
TRAINING, VALIDATION, COUNTS = Gaussian(2.0), Gaussian(3.0), Gaussian(5.0)
"""Placeholders in the rehearsed events, replaced by mechanisms with the chosen noise."""


@dataclass(frozen=True)
class Plan:
    """How one method protects one site's patients, and what it costs them.

    evaluation_noise: of histograms of test scores. events: all privacy events. releases: of one reply of each kind.
    cost: of a patient in the split with the greatest cost.
    """

    protection: Protection
    evaluation_noise: float
    events: tuple[Event, ...]
    releases: tuple[Event, ...]
    cost: Cost


def plan_method(config: Config, label: str, site: str) -> Plan:
    """The plan of a method at a site.

    Raises:
        ValueError: no noise is enough for the epsilon that was asked for.
    """
    if not isinstance(config.privacy, PatientLevel):
        raise ValueError("privacy: none has no plan")
    evaluations = len(config.sites) if config.evaluate.public else 1
    rounds = count_rounds(config, label, site)
    releases = Releases(rounds, evaluations, config.split.validation > 0)
    task, method = config.task_of(label, site), config.method(label, site)
    return _plan_noise(method, task, config.work(label, site), config.privacy, releases, count_sharing(config, label))


def count_rounds(config: Config, label: str, site: str) -> int:
    """In how many rounds of a method a site trains at most: in buffered merging those of its own updates."""
    schedule = method_schedule(config.train.methods[label], config.train.schedule)
    inside = [name for name in config.sites if name not in config.outside]
    return schedule.count_updates(inside).get(site, schedule.rounds)


def count_sharing(config: Config, label: str) -> int:
    """How many hospitals share the noise of a method's sums; 1 = each adds all of it."""
    is_shared = isinstance(config.privacy, PatientLevel) and config.privacy.shared is not None
    if not (is_shared and sends_gradient_sums(config.train.methods[label])):
        return 1
    return sum(site not in config.outside for site in config.sites)


class Releases(NamedTuple):
    """Numbers of a site's releases: training rounds and histograms of test scores; and whether rounds are validated."""

    rounds: int
    evaluations: int
    validated: bool


def total_cost(config: Config, site: str, price: Callable[[Sequence[Event], float], Cost] = compute_cost) -> Cost:
    """Cost of all methods and syntheses together for a patient of a site. price: `cost` or `replaced_cost`."""
    privacy = config.privacy
    if not isinstance(privacy, PatientLevel):
        raise ValueError("privacy: none has no plan")
    plans = [plan_method(config, label, site) for label in config.train.methods]
    made = [*harmonization_events(config, site), *augmentation_events(config), *matching_events(config)]
    events = [*made, *(event for plan in plans for event in plan.events)]
    return price([assume_colluding(event, privacy.colluding) for event in events], privacy.delta)


def harmonization_events(config: Config, site: str) -> tuple[Event, ...]:
    """Events of harmonization's noised releases on a site's training patients, as if the site became the target.

    Steps without noise are not included, nor is the paper's own noise, which depends on the number of patients.
    """
    return (*score_events(config), *synthesis_events(config, site))


def score_events(config: Config) -> tuple[Event, ...]:
    """Events of a site's noised scores."""
    if config.harmonize is None or config.harmonize.score.release != "dp":
        return ()
    from harmonize.complexity import noise_of  # slow to import

    return (Part("", "train", Gaussian(noise_of(config.harmonize.score))),)


def synthesis_events(config: Config, site: str) -> tuple[Event, ...]:
    """Events of a site's synthesis, as if it became the target."""
    plan = config.harmonize
    if plan is None or isinstance(plan.synthesis, Public) or plan.score.target not in (None, site):
        return ()
    how = plan.synthesis
    if not how.private or getattr(how, "variant", "") == "paper":
        return ()
    from harmonize import synthesis  # slow to import

    return tuple(synthesis.list_events(how, synthesis.make_protection(how, patients=1)))


def matching_events(config: Config) -> tuple[Event, ...]:
    """Events of the noised moments of models' channels, for each line outside that matches them."""
    return tuple(Part("", "train", Gaussian(noise)) for noise in (config.route.noises if config.route else ()))


def augmentation_events(config: Config) -> tuple[Event, ...]:
    """Events of a hospital's own synthesis of images for its training split."""
    if config.augment is None or not config.augment.synthesis.private or isinstance(config.augment.synthesis, Public):
        return ()
    from harmonize import synthesis  # slow to import

    how = config.augment.synthesis
    return tuple(synthesis.list_events(how, synthesis.make_protection(how, patients=1)))


def epsilon_after(
    ledger: Path, delta: float, events: Sequence[Event], *, run: str | None = None, colluding: int | None = None
) -> tuple[float, float]:
    """Epsilon that a ledger has charged a patient so far, and with these events added. run: by runs of this name.
    colluding: how many hospitals may work together with the coordinator, by the policy.
    """
    charged = ledgers.charged_lines(ledgers.read_lines(ledger))
    before = [event for line, event in charged if run in (None, ledgers.run_name(str(line.get("run"))))]
    spent, then = (
        compute_cost([assume_colluding(event, colluding) for event in counted], delta).epsilon
        for counted in (before, [*before, *events])
    )
    return spent, then


def foresee_refusals(
    policy: Policy, ledger: Path, *, run: str, releases: Mapping[str, Sequence[Event]], events: Sequence[Event]
) -> list[str]:
    """A sentence for each cap of a policy that a run will meet.

    Args:
        run: its name. releases: the event of one reply of each kind, by what it is of. events: all of the run.
    """
    if policy.budget is None:
        return []
    delta, caps = policy.budget.delta, policy.caps
    dear = {
        name: max(compute_cost([assume_colluding(event, policy.colluding)], delta).epsilon for event in each)
        for name, each in releases.items()
        if each
    }
    _, epsilon_of_run = epsilon_after(ledger, delta, events, run=run, colluding=policy.colluding)
    _, total = epsilon_after(ledger, delta, events, colluding=policy.colluding)
    rows = [(f"one reply of {name}", epsilon, caps["release"]) for name, epsilon in dear.items()]
    rows += [(f"runs named {run}", epsilon_of_run, caps["run"]), ("all that ever left", total, caps["total"])]
    return [
        f"{what} would cost epsilon = {epsilon:.4g}, and the policy allows {cap.epsilon:g} ({cap.line}): the hospital "
        "will refuse with budget what is above; ask for less, or let the hospital allow more"
        for what, epsilon, cap in rows
        if epsilon > cap.epsilon
    ]


def count_steps(events: Sequence[Event], times: int = 1, *, noise: float | None = None) -> int:
    """Number of noised gradients in these events; with `noise`, also of sums that leave with a gradient's noise."""
    count = 0
    for event in events:
        if isinstance(event, Composed):
            count += count_steps(event.events, times, noise=noise)
        elif isinstance(event, SelfComposed):
            count += count_steps([event.event], times * event.count, noise=noise)
        elif isinstance(event, Part):
            count += count_steps([event.event], times, noise=noise if event.split == "train" else None)
        else:
            sums = isinstance(event, Gaussian) and event.noise_multiplier == noise
            count += times * (sums or isinstance(event, PoissonSampled))
    return count


@lru_cache(maxsize=256)
def _plan_noise(
    algorithm: AnyAlgorithm, task: Task, work: Work, privacy: PatientLevel, releases: Releases, hospitals: int
) -> Plan:
    """The least noise whose cost over all rounds and evaluations is within the epsilon. hospitals: that share it."""
    rounds, evaluations, validated = releases
    colluding = privacy.colluding if hospitals > 1 else None
    placeholder = TRAINING if hospitals == 1 else SharedGaussian(TRAINING.noise_multiplier, hospitals)
    parts = 1.0 if hospitals == 1 else math.sqrt(max(1, hospitals - (privacy.colluding or 0)))
    marked = replace(
        privacy.protection(TRAINING.noise_multiplier),
        hospitals=hospitals,
        validation_noise=VALIDATION.noise_multiplier,
        counts_noise=COUNTS.noise_multiplier,
    )
    seen = rehearse_events(algorithm, task, work, initial_parameters(algorithm, task, seed=0), marked)
    learning = [seen.introduction, SelfComposed(seen.training, rounds)]
    if any(count_uses(event, VALIDATION) for event in learning):
        raise ValueError(
            f"{algorithm.name} looks at validation patients while it trains, for which no noise is planned; train it "
            "without differential privacy"
        )

    # A method may ask for label counts once, or every round: all of them together get `COUNTS_SHARE`.
    count_releases = max(1, sum(count_uses(event, COUNTS) for event in learning))

    def price_events(noise: float, mu: float) -> list[Event]:
        noises: dict[Event, Event] = {
            placeholder: Gaussian(noise) if hospitals == 1 else SharedGaussian(noise / parts, hospitals),
            COUNTS: Gaussian(_sufficient_noise(COUNTS_SHARE / count_releases, mu)),
        }
        return [replace_mechanisms(event, noises) for event in learning]

    def assume_honest(noise: float, mu: float) -> list[Event]:
        return [assume_colluding(event, colluding) for event in price_events(noise, mu)]

    epsilon = privacy.epsilon or compute_cost(assume_honest(float(privacy.noise or 0), 1.0), privacy.delta).epsilon
    mu = mu_of(epsilon, privacy.delta)
    noise = privacy.noise or calibrate_noise(
        lambda noise: assume_honest(noise, mu), epsilon=epsilon, delta=privacy.delta
    )
    validation_noise, evaluation_noise = _sufficient_noise(1.0 / rounds, mu), _sufficient_noise(1.0 / evaluations, mu)
    validation = replace_mechanisms(seen.validation, {VALIDATION: Gaussian(validation_noise)})
    events = (
        *price_events(noise, mu),
        SelfComposed(validation, rounds * validated),
        Part(marked.cut, "test", SelfComposed(Gaussian(evaluation_noise), evaluations)),
    )
    introduced, trained = price_events(noise, mu)
    once = [introduced, *([trained.event] if isinstance(trained, SelfComposed) else []), *([validation] * validated)]
    single = (*once, Part(marked.cut, "test", Gaussian(evaluation_noise)))
    counts_noise = _sufficient_noise(COUNTS_SHARE / count_releases, mu)
    protection = replace(marked, noise=noise / parts, validation_noise=validation_noise, counts_noise=counts_noise)
    cost = compute_cost([assume_colluding(event, colluding) for event in events], privacy.delta)
    return Plan(protection, evaluation_noise, events, single, cost)


def _sufficient_noise(share: float, mu: float) -> float:
    """The noise multiplier of one of several Gaussian mechanisms that gets this share of the total squared mu.

    Slightly more than exactly enough, because the accountant rounds its sum up.
    """
    return 1.002 / (mu * math.sqrt(share))


def at_cut(event: Event, cut: str) -> Event:
    """The same event on the patients of this division into splits."""
    return change_event(event, lambda part: replace(part, cut=cut) if isinstance(part, Part) else None)


def count_uses(event: Event, mark: Event) -> int:
    """How often a placeholder is used in an event."""
    if event == mark:
        return 1
    if isinstance(event, Composed):
        return sum(count_uses(part, mark) for part in event.events)
    if isinstance(event, SelfComposed):
        return event.count * count_uses(event.event, mark)
    return count_uses(event.event, mark) if isinstance(event, PoissonSampled | Part) else 0


def replace_mechanisms(event: Event, noises: Mapping[Event, Event]) -> Event:
    """The same event with mechanisms in place of placeholders."""
    return change_event(event, noises.get)
