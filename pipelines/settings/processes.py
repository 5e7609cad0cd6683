"""The number of processes in which simulated hospitals work at the same time."""

from __future__ import annotations

import os

import torch

from federation.origins import list_origins
from pipelines.settings.run_settings import RunSettings


def count_processes(run: RunSettings) -> int:
    """The number of processes. `processes: 0` = one for each usable processor, or 1 if all hospitals must share a
    process.
    """
    if run.processes:
        return run.processes
    return 1 if list_single_process_reasons(run) else _count_processors()


def list_single_process_reasons(run: RunSettings) -> list[str]:
    """Reasons why all hospitals must work in the first process; empty if they need not."""
    reasons = []
    if run.device != "cpu" and torch.cuda.is_available():
        reasons.append("because several processes on one GPU were never tried; say device: cpu, or leave it away")
    names = [
        origin.what for origin in list_origins(run.model, run.train, run.harmonize, run.sites) if origin.offer is None
    ]
    if names:
        reasons.append(f"because only this process knows {', '.join(names)}; install it as a package, or leave it away")
    return reasons


def _count_processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux: those that this process may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
