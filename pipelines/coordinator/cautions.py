"""What `--check` warns of: a run that would go, though not as its settings may be read."""

from __future__ import annotations

from federation.weights import Weights
from pipelines.coordinator.permissions import find_unanswered_requests, permissions_in
from pipelines.settings.config import Config
from pipelines.settings.home_lines import list_unpaired_home_lines
from pipelines.settings.sites import Elsewhere
from privacy.release.policy import TRACKING


def list_cautions(config: Config) -> list[str]:
    """A sentence each."""
    private = config.privacy != "none"
    return [
        *find_unanswered_requests(config, permissions_in(config), optional=True),
        *find_untracked_sites(config),
        *find_unpaired_home_lines(config),
        *(find_uncovered_starts(config) if private else []),
    ]


def find_uncovered_starts(config: Config) -> list[str]:
    """Starts of a private run that no epsilon covers."""
    starts = {label: config.train.start_of(label) for label in config.train.methods}
    return [
        f"train: {label} begins with {how.file}, not said to be public: no epsilon covers whose data shaped it; "
        "say public: true only if no patient of these hospitals did"
        for label, how in starts.items()
        if isinstance(how, Weights) and not how.public
    ]


def find_unpaired_home_lines(config: Config) -> list[str]:
    """Methods at each hospital alone of which no line is the same in the federation."""
    return [
        f"train: {label} is a method at each hospital alone, and no line is the same method in the federation, with "
        "the same settings, network, start, images and work, as often at every hospital; so what other hospitals add "
        "to it is not told"
        for label in list_unpaired_home_lines(config)
    ]


def find_untracked_sites(config: Config) -> list[str]:
    """Hospitals that answer `track`, but whose policies, where they are known here, name no tracking server."""
    if config.track is None:
        return []
    places, sentences = " and ".join(config.track.places), []
    for site, site_settings in config.sites.items():
        if isinstance(site_settings.source, Elsewhere):
            continue
        if (
            "track" in site_settings.policy.requests
            and config.track.server
            and TRACKING not in site_settings.policy.recipients
        ):
            text = f"its policy names no recipient {TRACKING}, so no figure of it goes to {places}; say recipients: "
            sentences.append(f"{site}: {text}[coordinator, {TRACKING}] in the policy, or track into a folder")
    return sentences
