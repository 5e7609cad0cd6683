"""Checks of variants."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from federation.calibration import has_adaptable_norms
from federation.finetuning import has_tunable_parameters
from federation.matching import has_matchable_norms
from federation.participant import UNCHOSEN
from pipelines.settings.run_settings import RunSettings, build_network
from pipelines.settings.task import AnyTask
from pipelines.settings.variants import Variant
from privacy.settings_error import Problem


def problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of variants: unknown methods, networks that cannot be calibrated in this way, and private runs."""
    for label, variant in run.evaluate.variants.items():
        yield from (problem.within("evaluate", "variants", label) for problem in _variant_problems(run, label, variant))
    if run.evaluate.variants and run.privacy != "none":
        yield Problem(
            ("evaluate", "variants"),
            "offsets, statistics and tuned models come from training patients without noise, and would reach the "
            "histogram of test patients that a private run releases, which no epsilon covers; remove them, or say "
            "privacy: none",
        )


def _variant_problems(run: RunSettings, label: str, variant: Variant) -> Iterator[Problem]:
    """Problems of a variant's label, method, checkpoint, tuning and calibration."""
    methods, method_label, calibration = run.train.methods, variant.of, variant.calibration
    if label in methods:
        yield Problem((), f"is a method already; give the variant a label of its own, as {label}_centred")
    if method_label not in methods:
        yield Problem(("of",), f"{method_label!r} is no method; methods are {', '.join(methods)}")
        return
    if calibration == "largest":
        yield from _largest_problems(run)
    module = _build_network(run, method_label)
    if variant.checkpoint not in (None, *UNCHOSEN) and run.split.validation == 0:
        text = f"{variant.checkpoint} is chosen by validation loss, and split.validation is 0; give validation "
        yield Problem(("checkpoint",), f"{text}patients, or remove it")
    elif variant.tuning is not None and module is not None and not has_tunable_parameters(module, variant.tuning):
        yield Problem(("tuning", "trainable"), f"the network of {method_label} has no head of its own; say all")
    elif calibration == "matched" and methods[method_label].name == "central":
        text = f"{method_label} was trained on pooled images, whose moments no hospital sends; say adabn"
        yield Problem(("calibration",), text)
    elif calibration == "matched" and module is not None and not has_matchable_norms(module):
        text = f"matched changes scale and shift of norms, and the network of {method_label} has none; give it "
        yield Problem(("calibration",), f"{text}norm: group where it has a norm")
    elif "centred" in (calibration or "") and (task_text := describe_other_task(run.task)):
        text = f"{calibration} moves the threshold between two classes, and {task_text}; "
        yield Problem(("calibration",), f"{text}say adabn or fine_tuned")
    elif "adabn" in (calibration or "") and module is not None and not has_adaptable_norms(module):
        text = f"{calibration} recomputes batch-norm statistics, and the network of {method_label} has none; give it "
        yield Problem(("calibration",), f"{text}norm: batch where it has a norm, or say centred")


def describe_other_task(task: AnyTask) -> str:
    """What a task is that is not labels of two classes; empty if it is."""
    if task.kind == "classification":
        return f"the task has {len(task.names)}" if len(task.names) > 2 else ""
    return {"segmentation": "the task is masks", "regression": "the task is a number"}.get(
        task.kind, "the task is several findings"
    )


def _largest_problems(run: RunSettings) -> Iterator[Problem]:
    """Why components cannot be chosen among."""
    if run.task.kind != "segmentation":
        yield Problem(("calibration",), "largest is for masks, and the task has none; remove it")
    elif run.images.kind == "slices":
        text = "largest is for whole volumes or pictures, and a slice cuts a structure; remove it"
        yield Problem(("calibration",), text)
    if run.split.validation == 0:
        text = "largest is decided on validation patients, and split.validation is 0; give some"
        yield Problem(("calibration",), text)


def _build_network(run: RunSettings, label: str) -> nn.Module | None:
    """The network of a method; None if it cannot be built, which `checks.methods` reports."""
    try:
        return build_network(run.train.methods[label], run.task_of(label))
    except (RuntimeError, ValueError, MemoryError):
        return None
