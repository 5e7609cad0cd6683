"""What in the settings of harmonization cannot be done, or would break a promise of privacy: all of it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harmonize import synthesis
from harmonize.prior import PRIORS
from pipelines.loader.names import named
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.harmonization import RAW, Exported, Harmonize, Oracle

if TYPE_CHECKING:
    from pipelines.settings.config import Config

SMALLEST, LARGEST, STEP = 32, 256, 8
"""Pixels along each side of the images that the networks here take."""


def misplaced(config: Config) -> list[str]:
    """Everything that is wrong with `harmonize` and with `train.method_images`."""
    plan = config.harmonize
    known = [RAW, *(plan.translate if plan else ())]
    problems = [
        f"train.method_images.{label}: {space!r} is no space of images; known are {', '.join(known)}"
        for label, space in config.train.method_images.items()
        if space not in known
    ]
    if plan is None:
        return problems
    return [*problems, *_unfit(config, plan), *_strangers(config, plan), *_promises(config, plan)]


def _unfit(config: Config, plan: Harmonize) -> list[str]:
    """Images and names that do not suit."""
    problems = []
    sides = config.images.inputs[1:]
    fit = all(SMALLEST <= side <= LARGEST and side % STEP == 0 for side in sides)
    if config.images.kind not in ("slices", "pictures"):
        problems.append(f"harmonize: is for slices and pictures, found images.kind {config.images.kind}; remove it")
    elif not fit:
        problems.append(
            f"images.size must be a multiple of {STEP} in [{SMALLEST}, {LARGEST}] for harmonize, found {sides[0]}"
        )
    problems += [
        f"harmonize.translate: the space {space!r} is not made of a-z 0-9 _ - (at most 80)"
        for space in plan.translate
        if not named(space)
    ]
    channels = PRIORS[plan.public_prior(config.images)].channels if config.images.kind in ("slices", "pictures") else 0
    if channels and channels != config.images.inputs[0]:
        problems.append(
            f"harmonize.synthesis.prior: {plan.public_prior(config.images)} has {channels} channels, and images have "
            f"{config.images.inputs[0]}; known are {', '.join(PRIORS)}"
        )
    if plan.synthesis.private and getattr(plan.synthesis, "variant", "") != "paper":
        try:
            synthesis.protection(plan.synthesis, patients=1)
        except ValueError as error:
            problems.append(f"harmonize.synthesis: {error}")
    if len(config.sites) < 2:
        problems.append("harmonize: there is one hospital, and nobody to share a space with; remove it")
    return problems


def _strangers(config: Config, plan: Harmonize) -> list[str]:
    """Targets that are no hospital, and what only phantoms can do."""
    problems = []
    problems += [
        f"harmonize.score.{field}: {name!r} is no site; sites are {', '.join(config.sites)}"
        for field, name in (("target", plan.score.target), ("current", plan.score.current))
        if name is not None and name not in config.sites
    ]
    real = [name for name, site in config.sites.items() if not isinstance(site.source, PhantomSource)]
    for space, translator in plan.translate.items():
        if isinstance(translator, Oracle | Exported) and real:
            problems.append(
                f"harmonize.translate.{space}: only phantoms can be imaged by another scanner, and {', '.join(real)} "
                "has real patients; remove it"
            )
    return problems


def _promises(config: Config, plan: Harmonize) -> list[str]:
    """What leaves without noise although noise was asked for, or although nobody allowed it."""
    problems = []
    if plan.synthesis.name == "real":
        closed = [name for name, site in config.sites.items() if not site.policy.pooling]
        if config.pooling == "refused" or closed:
            problems.append(
                "harmonize.synthesis: real shares training images as they are, in a simulation only; say pooling: "
                "allowed, and policy: {pooling: true} at every site"
            )
    limited = [name for name, site in config.sites.items() if site.policy.promises]
    if config.privacy == "none" and not limited:
        return problems
    who = "privacy is asked for" if config.privacy != "none" else f"{', '.join(limited)} promises it to its patients"
    problems += [
        f"harmonize.translate.{space}: {translator.name} learns from several patients, which no epsilon covers, "
        f"and {who}; use one that looks at one patient at a time (z_score, percentile, nyul, histogram_match)"
        for space, translator in plan.translate.items()
        if translator.learns
    ]
    if plan.sampling.name == "raw":
        problems.append(
            f"harmonize.sampling: raw selects by looking at patients, which no epsilon covers, and {who}; say surrogate"
        )
    if plan.score.release == "exact":
        problems.append(f"harmonize.score.release: exact has no noise, and {who}; say dp, or public with a target")
    if getattr(plan.synthesis, "variant", "") == "paper":
        problems.append(
            "harmonize.synthesis.variant: the paper's noise hangs on how many patients there are, so its cost is not "
            f"known before, and {who}; say consilium"
        )
    if not plan.synthesis.private:
        problems.append(f"harmonize.synthesis: {plan.synthesis.name} has no noise, and {who}; say dp_wgan_gp")
    return problems
