"""What `--check` warns of: a run that would go, though not as its settings may be read."""

from __future__ import annotations

from federation.weights import Weights
from pipelines.coordinator.permissions import permissions_in, unanswered
from pipelines.settings.config import Config
from pipelines.settings.sites import Elsewhere
from privacy.release.policy import TRACKING


def cautions(config: Config) -> list[str]:
    """A sentence each."""
    private = config.privacy != "none"
    return [
        *unanswered(config, permissions_in(config), optional=True),
        *untracked(config),
        *(uncovered(config) if private else []),
    ]


def uncovered(config: Config) -> list[str]:
    """Starts of a private run that no epsilon covers."""
    found = {label: config.train.start_of(label) for label in config.train.methods}
    return [
        f"train: {label} begins with {how.file}, not said to be public: no epsilon covers whose data shaped it; "
        "say public: true only if no patient of these hospitals did"
        for label, how in found.items()
        if isinstance(how, Weights) and not how.public
    ]


def untracked(config: Config) -> list[str]:
    """Hospitals that answer `track`, but whose policies, where they are known here, name no tracking server."""
    if config.track is None:
        return []
    places, found = " and ".join(config.track.places), []
    for site, one in config.sites.items():
        if isinstance(one.source, Elsewhere):
            continue
        if "track" in one.policy.requests and config.track.server and TRACKING not in one.policy.recipients:
            text = f"its policy names no recipient {TRACKING}, so no figure of it goes to {places}; say recipients: "
            found.append(f"{site}: {text}[coordinator, {TRACKING}] in the policy, or track into a folder")
    return found
