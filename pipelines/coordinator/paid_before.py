"""A training that patients paid for, and of which something is lost, is paid again only if a person says so."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.coordinator.world import World
from pipelines.runs.runner import CALL
from pipelines.settings.config import Config
from pipelines.settings.privacy import PatientLevel


class PaidBefore(ValueError):
    """Patients would pay again for what they paid for once, and nobody asked for it. Nothing was charged."""


def check_nothing_lost(world: World, lost: Mapping[str, str]) -> None:
    """Check that no training would be paid again unasked, before anything is. lost: method -> what is lost of it, in
    words.

    Raises:
        PaidBefore: some would.
    """
    if text := describe_lost(world, lost):
        raise PaidBefore(text)


def describe_lost(world: World, lost: Mapping[str, str]) -> str:
    """What is lost of trainings, what they would cost again, and how to pay; empty where nobody would pay unasked.

    lost: as in `check_nothing_lost`.
    """
    if not lost or not isinstance(world.config.privacy, PatientLevel) or "train" in world.spend:
        return ""
    complaints = "; ".join(f"{label}: {complaint}" for label, complaint in lost.items())
    how = "in a folder of its own the run pays, too"
    if not world.command.startswith(CALL):
        how = f"to pay: {world.command} --from train --spend"
    return (
        f"a training that was paid for is damaged ({complaints}). To train {', '.join(lost)} and to score"
        f" it again would cost a patient {_describe_price(world.config, [*lost])} at most; nothing was charged. Put the"
        f" files back from a backup; {how}"
    )


def _describe_price(config: Config, labels: list[str]) -> str:
    """ε of these methods at each site, in words."""
    from pipelines.coordinator.spending import plan_method
    from privacy.dp.accounting import compute_cost  # accountants: seconds

    delta = config.privacy.delta if isinstance(config.privacy, PatientLevel) else 0.0
    epsilons = {}
    for site in config.sites:
        if site not in config.outside:
            events = [event for label in labels for event in plan_method(config, label, site).events]
            epsilons[site] = f"{compute_cost(events, delta).epsilon:.3g}"
    if len({*epsilons.values()}) == 1:
        return f"ε = {next(iter(epsilons.values()))}"
    return f"ε = {', '.join(f'{epsilon} at {site}' for site, epsilon in epsilons.items())}"
