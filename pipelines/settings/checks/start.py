"""Checks of how networks begin: whether there are such public pictures, with labels, or such a file of weights, and the
network fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from federation.models.features import Features
from federation.pretraining import Pretrained
from federation.weights import Weights
from pipelines.data.weights_file import load_start_weights
from pipelines.settings.checks.public_pictures import unit_complaints
from pipelines.settings.run_settings import RunSettings, is_buildable, network
from privacy.settings_error import Problem

NETWORKS = ("cam", "cnn", "monai", "resnet18")


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `train.start` and `train.method_start`."""
    for label in run.train.methods:
        how = run.train.start_of(label)
        if how is None:
            continue
        where = ("train", "method_start", label) if label in run.train.method_start else ("train", "start")
        if isinstance(how, Weights):
            yield from (Problem((*where, "file"), text) for text in _of_file(run, label, how))
            continue
        model = run.train.method_model.get(label, run.model)
        linear = isinstance(model, Features) and not model.hidden
        if model.name not in NETWORKS and not linear:
            remedy = f"say method_start: {{{label}: null}}"
            known = f"only {', '.join(NETWORKS)} begin on pictures, and features without hidden layers"
            yield Problem(where, f"{label} has the model {model.name}; {known}; {remedy}")
        elif linear and how.head == "fresh":
            yield Problem((*where, "head"), "fresh leaves nothing of a start on features, which is a head; say kept")
        else:
            yield from (Problem((*where, field), text) for field, text in _of_one(run, how))


def _of_file(run: RunSettings, label: str, how: Weights) -> Iterator[str]:
    try:
        task = run.task_of(label)
        if is_buildable(task):
            network(run.train.methods[label], task)  # whose own problems `checks.methods` tells
    except (RuntimeError, ValueError, MemoryError):
        return
    try:
        load_start_weights(how, task)
    except ValueError as error:
        yield f"{error} (method {label})"


def _of_one(run: RunSettings, how: Pretrained) -> Iterator[tuple[str, str]]:
    from harmonize.prior import PRIORS  # not needed by other runs
    from harmonize.stacks import find_form_problems

    if run.task.kind != "classification":
        yield "on", "public pictures have labels and no masks, so a network that segments cannot begin on them"
    elif how.on in PRIORS:
        wrong = find_form_problems(PRIORS[how.on], run.images.inputs, run.images.kind)
        yield from (("on", text) for text in wrong or unit_complaints(how.on, run.images))
        if len(run.task.names) != 2 and how.head == "kept":
            yield "head", f"a prior has two classes and the task has {len(run.task.names)}; say head: fresh"
    elif how.on not in run.public_pictures:
        known = ", ".join((*PRIORS, *run.public_pictures))
        yield "on", f"unknown pictures {how.on!r}; there are {known}; public_pictures: declares others"
    elif not run.public_pictures[how.on].labelled:
        yield "on", f"{how.on} has no labels to learn from; give it a source with labels"
