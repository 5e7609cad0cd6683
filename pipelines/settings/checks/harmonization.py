"""Checks of harmonization: settings that cannot work, or would break a privacy promise."""

from __future__ import annotations

from collections.abc import Iterator

from harmonize import synthesis
from harmonize.prior import PRIORS
from harmonize.translation import CycleGan, Randomized, list_curve_translators
from pipelines.loader.names import is_name
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.checks.public_pictures import find_unit_problems
from pipelines.settings.harmonization import RAW, Exported, Harmonize, Oracle, Public
from pipelines.settings.image_spaces import list_routed_spaces
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem, problems_of

SMALLEST, LARGEST, STEP = 32, 256, 8
"""Pixels along each side of the images that the networks here take."""


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `harmonize` and `train.method_images`."""
    plan = run.harmonize
    more_spaces = () if run.augment is None else (run.augment.space,)
    known_spaces = [RAW, *(plan.translate if plan else ()), *more_spaces]
    for label, space in run.train.method_images.items():
        if space not in known_spaces:
            text = f"{space!r} is no space of images; known are {', '.join(known_spaces)}"
            spaces_are_named_in = (("harmonize", "translate"), ("augment", "space"))
            yield Problem(("train", "method_images", label), text, needs=spaces_are_named_in)
    if getattr(run.images, "ct", None) is not None and (plan is not None or run.augment is not None):
        text = "translators and syntheses know no scale of CT yet; remove it, or harmonize and augment"
        yield Problem(("images", "ct"), text)
    if plan is None or not run.sites:  # `checks.sites` reports that there are no sites
        return
    for problem in (*_image_problems(run, plan), *_site_problems(run, plan), *_promise_problems(run, plan)):
        yield problem if problem.where[:1] == ("images",) else problem.within("harmonize")


def _image_problems(run: RunSettings, plan: Harmonize) -> Iterator[Problem]:
    """Problems of images, names of spaces, priors and the number of sites."""
    kind, inputs = run.images.kind, run.images.inputs
    suitable = kind in ("slices", "pictures")
    if not suitable:
        yield Problem((), f"is for slices and pictures, found images.kind {kind}; remove it")
    elif not all(SMALLEST <= side <= LARGEST and side % STEP == 0 for side in inputs[1:]):
        text = f"must be a multiple of {STEP} in [{SMALLEST}, {LARGEST}] for harmonize, found {inputs[1]}"
        yield Problem(("images", "size"), text)
    for space in plan.translate:
        if not is_name(space):
            yield Problem(("translate",), f"the space {space!r} is not made of a-z 0-9 _ - (at most 80)")
    prior = plan.public_prior(run.images)
    if suitable and PRIORS[prior].channels != inputs[0]:
        text = f"{prior} has {PRIORS[prior].channels} channels, and images have {inputs[0]}; known are "
        yield Problem(("synthesis", "prior"), f"{text}{', '.join(PRIORS)}")
    elif suitable:
        yield from (Problem(("synthesis", "prior"), text) for text in find_unit_problems(prior, run.images))
    for space, translator in plan.translate.items():
        if suitable and isinstance(translator, Randomized):
            try:
                complaints = find_unit_problems(translator.prior_of(inputs[0]), run.images)
            except ValueError as error:
                complaints = [str(error)]
            yield from (Problem(("translate", space, "prior"), text) for text in complaints)
    if len(run.sites) < 2 and (run.train.methods or plan.translate):
        where: tuple[str, ...] = ("translate",) if plan.translate and not run.train.methods else ()
        yield Problem(where, "there is one hospital, and no other to share a space with; remove it")
    how = plan.synthesis
    if isinstance(how, Public) or not how.private or getattr(how, "variant", "") == "paper":
        return
    try:
        synthesis.make_protection(how, patients=1)
    except ValueError as error:
        yield from (Problem(("synthesis",), str(problem)) for problem in problems_of(error))


def _site_problems(run: RunSettings, plan: Harmonize) -> Iterator[Problem]:
    """Problems of targets that are no site, and of spaces that only phantoms can make."""
    known_names = () if len(run.sites) < 2 else (("target", plan.score.target), ("current", plan.score.current))
    inside = [site for site in run.sites if site not in run.outside]
    for field, name in known_names:
        if name is not None and name not in run.sites:
            yield Problem(("score", field), f"{name!r} is no site; sites are {', '.join(run.sites)}")
        elif name in run.outside:
            text = f"{name} is outside, and images are shared by a hospital inside: {', '.join(inside)}"
            yield Problem(("score", field), text, needs=(("outside",),))
    real_sites = [name for name, site in run.sites.items() if not isinstance(site.source, PhantomSource)]
    for space, translator in plan.translate.items():
        if isinstance(translator, Oracle | Exported) and real_sites:
            text = f"only phantoms can be imaged by another scanner, and {', '.join(real_sites)} has real patients; "
            yield Problem(("translate", space), f"{text}remove it")
        elif isinstance(translator, Exported) and getattr(run.images, "values", "adc") != "adc":
            text = "exported undoes the units of ADC maps, and images.values is standardized; remove it"
            yield Problem(("translate", space), text)
        if not (isinstance(translator, CycleGan) and translator.by_class):
            continue
        outside = run.outside if space in list_routed_spaces(run) else ()
        unlabelled = [name for name, site in run.sites.items() if site.unlabelled or name in outside]
        if unlabelled:
            text = f"needs labels where a translator learns, and {', '.join(unlabelled)} gives none; leave it out"
            needs = (("outside",), *(("sites", name, "unlabelled") for name in unlabelled))
            yield Problem(("translate", space, "by_class"), text, needs=needs)


def _promise_problems(run: RunSettings, plan: Harmonize) -> Iterator[Problem]:
    """Releases without noise although privacy is required, or without permission."""
    if plan.synthesis.name == "real":
        refusing_sites = [name for name, site in run.sites.items() if not site.policy.pooling]
        if run.pooling == "refused" or refusing_sites:
            text = "real shares training images as they are, in a simulation only; say pooling: allowed, and policy: "
            yield Problem(("synthesis",), f"{text}{{pooling: true}} at every site")
    promising_sites = [name for name, site in run.sites.items() if site.policy.promises]
    if run.privacy == "none" and not promising_sites:
        return
    reason = (
        "privacy is asked for" if run.privacy != "none" else f"{', '.join(promising_sites)} promises it to its patients"
    )
    for space, translator in plan.translate.items():
        if translator.learns:
            yield Problem(
                ("translate", space),
                f"{translator.name} learns from several patients, which no epsilon covers, and {reason}; use one that "
                f"looks at one patient at a time ({', '.join(list_curve_translators())})",
            )
    if plan.sampling.name == "raw":
        text = f"raw selects by looking at patients, which no epsilon covers, and {reason}; say surrogate"
        yield Problem(("sampling",), text)
    if plan.score.release == "exact":
        yield Problem(("score", "release"), f"exact has no noise, and {reason}; say dp, or public with a target")
    if getattr(plan.synthesis, "variant", "") == "paper":
        yield Problem(
            ("synthesis", "variant"),
            "the paper's noise hangs on how many patients there are, so its cost is not known before, and "
            f"{reason}; say consilium",
        )
    if not plan.synthesis.private and not isinstance(plan.synthesis, Public):
        yield Problem(("synthesis",), f"{plan.synthesis.name} has no noise, and {reason}; say dp_wgan_gp, or public")
