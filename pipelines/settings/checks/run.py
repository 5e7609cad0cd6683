"""Checks of a run as a whole."""

from __future__ import annotations

import torch

from federation.participant import UNCHOSEN
from pipelines.loader.names import name_problems
from pipelines.settings.learning import NO_TRAINING
from pipelines.settings.processes import list_single_process_reasons
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem, out_of_range

EXAMPLES = "methods: {fedavg: {name: fedavg}}"
ONLY = "only a run with harmonize may do without"
FOR_TRAINING = ("augment", "route", "track")
"""Settings that say what becomes of a run's models, or of images that only models see."""


def find_missing_model(run: RunSettings) -> list[Problem]:
    """The problem of methods without a network."""
    if run.model is None and (without := [label for label in run.train.methods if label not in run.train.method_model]):
        text = f"missing; name a network for {', '.join(without)}, as in model: {{name: cnn}}"
        return [Problem(("model",), text)]
    return []


def _find_untrained(run: RunSettings) -> list[Problem]:
    """The problem of a run without methods, unless it harmonizes and asks for nothing that only models give."""
    for_models = [field for field in FOR_TRAINING if getattr(run, field) is not None]
    for_models += [f"evaluate.{field}" for field in ("reference", "variants") if getattr(run.evaluate, field)]
    if run.harmonize is not None and not for_models:
        return []
    absent = run.train == NO_TRAINING
    where, what = (("train",), "missing") if absent else (("train", "methods"), "empty")
    why = f"{', '.join(for_models)} {'is' if len(for_models) == 1 else 'are'} for models" if for_models else ONLY
    return [Problem(where, f"{what}; name at least one method, as in {EXAMPLES}; {why}")]


def problems(run: RunSettings) -> list[Problem]:
    """Problems of the name, processes, the device, the reference and the checkpoint."""
    found_problems = [] if run.train.methods else _find_untrained(run)
    found_problems += name_problems(run.name) + out_of_range(run, threads=(1, 256), processes=(0, 256))
    if run.processes > 1:
        found_problems += [
            Problem(("processes",), f"must be 1 or 0, {why}") for why in list_single_process_reasons(run)
        ]
    if run.device == "cuda" and not torch.cuda.is_available():
        found_problems.append(Problem(("device",), "cuda, and torch finds no GPU here; say auto or cpu"))
    reference, checkpoint = run.evaluate.reference, run.evaluate.checkpoint
    if reference not in (None, *run.train.methods, *run.evaluate.variants):
        text = f"{reference!r} is no method and no variant; name one, or null"
        found_problems.append(Problem(("evaluate", "reference"), text))
    if run.train.repeats > 1 and run.privacy != "none":
        text = f"{run.train.repeats} trainings cost their patients {run.train.repeats} times the privacy; say 1"
        found_problems.append(Problem(("train", "repeats"), text))
    if run.train.methods and run.split.validation == 0 and checkpoint not in UNCHOSEN:
        text = f"{checkpoint} is chosen by validation loss, and split.validation is 0; give validation patients, or say"
        found_problems.append(Problem(("evaluate", "checkpoint"), f"{text} latest or average"))
    return found_problems
