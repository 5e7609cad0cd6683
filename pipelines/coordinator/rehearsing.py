"""What harmonization asks of the target is rehearsed before patients pay for it, without them."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.loader.document import ConfigError
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.config import Config
from pipelines.settings.harmonization import Public
from privacy.settings_error import Problem


def check_synthesis(config: Config, known: Mapping[str, int]) -> None:
    """Refuse a synthesis and a sampling rule that cannot give images together: `harmonize.foresight` says how.

    known: of each site the number of its patients, or of files, of which a patient has one or more; a phantom's
    settings tell its number. Where neither tells it of a site that may become the target, noise is not judged.

    Raises:
        ConfigError: with the settings, their values, and what to do.
    """
    plan = config.harmonize
    if plan is None or isinstance(plan.synthesis, Public):
        return
    from harmonize.foresight import find_impossible  # slow to import
    from harmonize.prior import PRIORS

    prior = PRIORS[plan.public_prior(config.images)]
    channels, height, width = config.images.inputs
    most = _count_patients(config, known)
    if impossible := find_impossible(plan.synthesis, plan.sampling, prior, (channels, height, width), most):
        raise ConfigError([Problem(("harmonize", setting), text) for setting, text in impossible])


def _count_patients(config: Config, known: Mapping[str, int]) -> int | None:
    """The most patients that a hospital which may become the target can have; None: not known."""
    plan = config.harmonize_settings
    inside = [site for site in config.sites if site not in config.outside]
    counts = dict(known)
    for site in inside:
        source = config.sites[site].source
        if isinstance(source, PhantomSource):
            counts[site] = min(counts.get(site, source.patients), source.patients)
    candidates = inside if plan.score.target is None else [plan.score.target]
    return max(counts[site] for site in candidates) if counts.keys() >= set(candidates) else None
