"""Checks of generative augmentation: settings that cannot work, or would break a privacy promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harmonize import synthesis
from harmonize.prior import PRIORS
from pipelines.settings.augment import Augment
from pipelines.settings.checks.harmonization import LARGEST, SMALLEST, STEP
from pipelines.settings.checks.public_pictures import find_unit_problems
from pipelines.settings.harmonization import Public
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem, problems_of


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `augment`."""
    plan = run.augment
    if plan is None:
        return
    for problem in (
        *_image_problems(run, plan),
        *_file_problems(plan),
        *_synthesis_problems(plan),
        *_promise_problems(run, plan),
    ):
        yield problem if problem.where[:1] == ("images",) else problem.within("augment")
    if run.harmonize is not None and plan.space in run.harmonize.translate:
        text = f"{plan.space!r} is a space of harmonize.translate too; give this one another name"
        yield Problem(("augment", "space"), text)
    if plan.space not in run.train.method_images.values():
        text = f"no method learns from {plan.space!r}; say which in train.method_images, or remove augment"
        yield Problem(("augment", "space"), text)


def _file_problems(plan: Augment) -> Iterator[Problem]:
    """A problem if the file of Inception's weights does not exist."""
    if plan.fid is not None and not Path(plan.fid.file).is_file():
        text = f"there is no file {plan.fid.file}; give Inception's weights as safetensors, or say fid: null"
        yield Problem(("fid", "file"), text)


def _image_problems(run: RunSettings, plan: Augment) -> Iterator[Problem]:
    """Problems of the task, the kind and size of images, and the prior of the synthesis."""
    kind, inputs = run.images.kind, run.images.inputs
    if run.task.target is not None or len(run.task.names) != 2:
        kind_text = "masks" if run.task.target is not None else f"{len(run.task.names)} classes"
        yield Problem((), f"balances two classes of labels, and this task has {kind_text}; remove it")
    if kind not in ("slices", "pictures"):
        yield Problem((), f"is for slices and pictures, found images.kind {kind}; remove it")
        return
    if not all(SMALLEST <= side <= LARGEST and side % STEP == 0 for side in inputs[1:]):
        text = f"must be a multiple of {STEP} in [{SMALLEST}, {LARGEST}] for augment, found {inputs[1]}"
        yield Problem(("images", "size"), text)
    prior = plan.public_prior(run.images)
    if PRIORS[prior].channels != inputs[0]:
        text = f"{prior} has {PRIORS[prior].channels} channels, and images have {inputs[0]}; known are "
        yield Problem(("synthesis", "prior"), f"{text}{', '.join(PRIORS)}")
    else:
        yield from (Problem(("synthesis", "prior"), text) for text in find_unit_problems(prior, run.images))


def _synthesis_problems(plan: Augment) -> Iterator[Problem]:
    """Syntheses that give no new images or no labelled ones, and privacy guarantees that no noise level reaches."""
    how = plan.synthesis
    if how.name == "real":
        text = "real gives training images again, which train.work.balance does without a copy; say balance: true there"
        yield Problem(("synthesis",), text)
    if getattr(how, "variant", "") == "paper":
        yield Problem(("synthesis", "variant"), "the paper's generator knows no classes; say consilium")
    elif how.private and not isinstance(how, Public):
        try:
            synthesis.make_protection(how, patients=1)
        except ValueError as error:
            yield from (Problem(("synthesis",), str(problem)) for problem in problems_of(error))


def _promise_problems(run: RunSettings, plan: Augment) -> Iterator[Problem]:
    """A synthesis without noise although privacy is required: one patient may shape all of a hospital's images."""
    promising_sites = [name for name, site in run.sites.items() if site.policy.promises]
    if (run.privacy == "none" and not promising_sites) or plan.synthesis.private or isinstance(plan.synthesis, Public):
        return
    reason = (
        "privacy is asked for" if run.privacy != "none" else f"{', '.join(promising_sites)} promises it to its patients"
    )
    text = (
        f"{plan.synthesis.name} has no noise, so that one patient may shape every synthetic image, and {reason}; say "
    )
    yield Problem(("synthesis",), f"{text}fitted_prior with an epsilon, or public")
