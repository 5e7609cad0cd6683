"""Checks of a run as a whole."""

from __future__ import annotations

import torch

from pipelines.loader.names import name_problems
from pipelines.settings.processes import list_single_process_reasons
from pipelines.settings.run_settings import RunSettings
from privacy.settings_error import Problem, out_of_range


def problems(run: RunSettings) -> list[Problem]:
    """Problems of the name, processes, the device, the reference and the checkpoint."""
    found_problems = name_problems(run.name) + out_of_range(run, threads=(1, 256), processes=(0, 256))
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
    if run.split.validation == 0 and checkpoint != "latest":
        text = f"{checkpoint} is chosen by validation loss, and split.validation is 0; give validation patients, or say"
        found_problems.append(Problem(("evaluate", "checkpoint"), f"{text} latest"))
    return found_problems
