"""Seconds and memory of what a script compares."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def spend_seconds(way: Callable[[], object], device: str = "cpu", *, clock: Callable[[], float] | None = None) -> float:
    """Seconds of the processor, or of the clock where a GPU computes. clock: another one."""
    clock = clock or (time.process_time if device == "cpu" else time.perf_counter)
    begun = clock()
    way()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return clock() - begun


def time_in_turns(
    ways: Mapping[str, Callable[[], object]],
    turns: int,
    device: str = "cpu",
    *,
    clock: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each way in each turn, one way after another; each was tried once before."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            seconds[name].append(spend_seconds(way, device, clock=clock))
    return seconds


def measure_alone(measure: Callable[..., T], *arguments: object) -> T:
    """A measure taken in a fresh process, whose memory nothing else has grown."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def read_memory(field: str = "VmHWM") -> float:
    """MiB of this process, as Linux tells: VmHWM is the most so far, VmRSS what it holds, RssAnon without files; NaN on
    other systems. getrusage would hand down the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else ()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), float("nan"))


def forget_peak() -> None:
    """Let the most memory so far begin anew."""
    Path("/proc/self/clear_refs").write_text("5")
