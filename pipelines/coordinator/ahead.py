"""What no hospital shapes is learnt ahead: in a process of its own, while hospitals work and a core may be idle.

Networks that drawn pictures alone teach go into the folder where stages look for them. Who learns changes no bit, and a
stage that finds nothing there learns by itself, so this process may fail and be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch

from federation.engine import InProcess
from federation.features.detector import Detector
from federation.models.features import Features
from federation.pretraining import Pretrained
from federation.processes import Processes, run_alongside
from pipelines.coordinator.public_features import train_detector
from pipelines.coordinator.public_starts import is_kept
from pipelines.coordinator.stages import features, pretrain
from pipelines.coordinator.world import World
from pipelines.runs.plan import Step
from pipelines.runs.progress import send_progress
from pipelines.runs.stopping import Stop
from pipelines.settings.config import Config
from pipelines.settings.image_spaces import find_starts, list_features

ROUNDS = 2  # through what there is to learn: what another process learns at first is there later, or free


class _Taken(Exception):
    """Another process learns it."""


def learn_ahead(steps: Sequence[Step[World]], world: World) -> AbstractContextManager[None]:
    """While it lasts, one more process learns what planned stages will need; only where hospitals have such, too."""
    if not isinstance(world.engine, Processes):
        return nullcontext()
    detectors, starts = list_needed_networks(world.config, {step.stage.name for step in steps if step.state == "run"})
    work = partial(_learn_networks, world.config, world.root, detectors, starts)
    return run_alongside(work) if detectors or starts else nullcontext()


def list_needed_networks(config: Config, due: set[str]) -> tuple[list[Detector], list[str]]:
    """What stages of these names will look for: detectors, and names of starts. In the order in which it is learnt:
    what is needed first, but starts from the last one on, because their stage, once it begins, takes the first.
    """
    starts = find_starts(config) if pretrain.STAGE.name in due else {}
    models = [model for _, model in list_features(config)] if features.STAGE.name in due else []
    needed_starts = [
        model.of for model in (*models, *(begin.model for begin in starts.values())) if isinstance(model, Features)
    ]
    detectors = list(dict.fromkeys(of for of in needed_starts if isinstance(of, Detector)))
    return detectors, [name for name in reversed(starts) if is_kept(starts[name])]


def _learn_networks(config: Config, root: Path, detectors: Sequence[Detector], starts: Sequence[str]) -> None:
    """In a process of its own: learn detectors and starts, one after the other."""
    torch.set_num_threads(config.threads)
    send_progress(lambda _: None)
    world, begins = World(config, InProcess({}), root, Stop(), str), find_starts(config)
    left: list[Callable[[], object]] = [partial(train_detector, world, item, _raise_elsewhere) for item in detectors]
    for begin in (begins[name] for name in starts):
        if isinstance(begin.how, Pretrained):
            left.append(partial(pretrain.learn_start, world, begin, begin.how, _raise_elsewhere))
    for _ in range(ROUNDS):
        left = [work for work in left if _is_taken(work)]


def _is_taken(work: Callable[[], object]) -> bool:
    """Whether another process learns this already."""
    try:
        work()
    except _Taken:
        return True
    except Exception:
        return False  # its stage will learn it, and report what is wrong
    return False


def _raise_elsewhere() -> None:
    """Raise at once where a stage would wait: another process learns it."""
    raise _Taken
