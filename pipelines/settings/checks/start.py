"""Checks of how networks begin: whether the labelled public pictures or the file of weights exist, and whether the
network fits them.
"""

from __future__ import annotations

from collections.abc import Iterator

from federation.models.features import Features
from federation.pretraining import Pretrained
from federation.weights import Weights
from pipelines.data.weights_file import load_start_weights
from pipelines.settings.checks.public_pictures import find_unit_problems
from pipelines.settings.run_settings import RunSettings, build_network, is_buildable, select_model
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
            yield from (Problem((*where, "file"), text) for text in _weights_problems(run, label, how))
            continue
        model = select_model(run, label)
        is_linear = isinstance(model, Features) and not model.hidden
        if model.name not in NETWORKS and not is_linear:
            remedy = f"say method_start: {{{label}: null}}"
            known_text = f"only {', '.join(NETWORKS)} begin on pictures, and features without hidden layers"
            yield Problem(where, f"{label} has the model {model.name}; {known_text}; {remedy}")
        elif is_linear and how.head == "fresh":
            yield Problem((*where, "head"), "fresh leaves nothing of a start on features, which is a head; say kept")
        else:
            yield from (Problem((*where, field), text) for field, text in _pretrained_problems(run, how))


def _weights_problems(run: RunSettings, label: str, how: Weights) -> Iterator[str]:
    """Why a file of weights cannot be the start of a method's network."""
    try:
        task = run.task_of(label)
        if is_buildable(task):
            build_network(run.train.methods[label], task)  # `checks.methods` reports its problems
    except (RuntimeError, ValueError, MemoryError):
        return
    try:
        load_start_weights(how, task)
    except ValueError as error:
        yield f"{error} (method {label})"


def _pretrained_problems(run: RunSettings, how: Pretrained) -> Iterator[tuple[str, str]]:
    """The field of a start on public pictures and what is wrong with it."""
    from harmonize.prior import PRIORS  # not needed by other runs
    from harmonize.stacks import find_form_problems

    if run.task.kind != "classification":
        what = {"segmentation": "segments", "regression": "gives a number"}.get(run.task.kind, "gives several findings")
        yield "on", f"public pictures have classes, so a network that {what} cannot begin on them"
    elif how.on in PRIORS:
        form_problems = find_form_problems(PRIORS[how.on], run.images.inputs, run.images.kind)
        yield from (("on", text) for text in form_problems or find_unit_problems(how.on, run.images))
        if len(run.task.names) != 2 and how.head == "kept":
            yield "head", f"a prior has two classes and the task has {len(run.task.names)}; say head: fresh"
    elif how.on not in run.public_pictures:
        known_names = ", ".join((*PRIORS, *run.public_pictures))
        yield "on", f"unknown pictures {how.on!r}; there are {known_names}; public_pictures: declares others"
    elif not run.public_pictures[how.on].has_labels:
        yield "on", f"{how.on} has no labels to learn from; give it a source with labels"
