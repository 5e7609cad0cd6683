"""A protocol of a run's settings for the checks, so that they need not import `Config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from federation.algorithm import Algorithm
from federation.descent import Work
from federation.models import AnyModel
from federation.models.clip import Clip
from federation.rehearsal import Forms, initial_parameters, rehearse_forms
from federation.sizes import check_size, count_network_values
from federation.task import Task
from personalize import AnyAlgorithm
from pipelines.data.images import AnyImages
from pipelines.settings.augment import Augment
from pipelines.settings.harmonization import Harmonize
from pipelines.settings.learning import Audits, Evaluation, Split, Training
from pipelines.settings.privacy import AnyPrivacy
from pipelines.settings.public_pictures import PublicPictures
from pipelines.settings.route import Route
from pipelines.settings.sites import SiteSettings
from pipelines.settings.task import AnyTask
from pipelines.settings.track import Track
from privacy.message import LARGE


class RunSettings(Protocol):
    """The settings of a run, by their keys in YAML, and values derived for one method or one site."""

    @property
    def name(self) -> str: ...
    @property
    def privacy(self) -> AnyPrivacy: ...
    @property
    def threads(self) -> int: ...
    @property
    def processes(self) -> int: ...
    @property
    def device(self) -> Literal["cpu", "cuda", "auto"]: ...
    @property
    def pooling(self) -> Literal["allowed", "refused"]: ...
    @property
    def sites(self) -> Mapping[str, SiteSettings]: ...
    @property
    def images(self) -> AnyImages: ...
    @property
    def task(self) -> AnyTask: ...
    @property
    def split(self) -> Split: ...
    @property
    def model(self) -> AnyModel | None: ...
    @property
    def train(self) -> Training: ...
    @property
    def harmonize(self) -> Harmonize | None: ...
    @property
    def augment(self) -> Augment | None: ...
    @property
    def evaluate(self) -> Evaluation: ...
    @property
    def audit(self) -> Audits: ...
    @property
    def public_pictures(self) -> Mapping[str, PublicPictures]: ...
    @property
    def outside(self) -> tuple[str, ...]: ...
    @property
    def route(self) -> Route | None: ...
    @property
    def track(self) -> Track | None: ...
    @property
    def independent(self) -> bool: ...
    def images_of(self, site: str) -> AnyImages: ...
    def model_of(self, label: str, site: str | None = None) -> AnyModel: ...
    def task_of(self, label: str, site: str | None = None) -> Task: ...
    def method(self, label: str, site: str) -> AnyAlgorithm: ...
    def work(self, label: str, site: str) -> Work: ...


BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


def select_model(run: RunSettings, label: str) -> AnyModel:
    """A method's model settings: its own, or else the run's. Raises: ValueError: the run names neither."""
    model = run.train.method_model.get(label, run.model)
    if model is None:
        raise ValueError(f"model: missing, and {label} has no other")
    return model


def has_own_plans(run: RunSettings) -> bool:
    """Whether some hospital has a grid or a network of its own."""
    return any(site.images or site.model for site in run.sites.values())


def list_works(run: RunSettings) -> Iterator[tuple[str, str, Work]]:
    """Each method, site and the method's local work there, if it is valid; `checks.sites` reports invalid work."""
    for label in run.train.methods:
        for site in run.sites:
            try:
                yield label, site, run.work(label, site)
            except ValueError:
                continue


def is_buildable(task: Task) -> bool:
    """Whether the networks of a task can be built: those with a prompt need the tensors of a file."""
    return not isinstance(task.model, Clip) or task.frozen is not None


@lru_cache(maxsize=64)
def try_network(task: Task) -> bool:
    """Give two examples of zeros, or patches, to the network of a task; once, and without changing the random state.

    Returns: whether a batch norm gets one value a channel of each example, of which a batch of one has no variance.

    Raises:
        TooLarge: it has too many parameters; nothing of it was allocated.
        RuntimeError, OverflowError, ValueError, MemoryError: it cannot be built, cannot take them, or makes nothing but
            zeros of them.
    """
    check_size(None, task)
    needs_two = False

    def note_single_values(norm: nn.Module, _: object, output: Tensor) -> None:
        nonlocal needs_two
        needs_two |= output[0].numel() == output.shape[1]

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = task.network().eval()
        for batch_norm in (each for each in module.modules() if isinstance(each, BATCH_NORMS)):
            batch_norm.register_forward_hook(note_single_values)
        for norm in (each for each in module.modules() if isinstance(each, nn.GroupNorm)):
            norm.register_forward_hook(_refuse_single_values)
        module(torch.zeros(2, *task.trained_inputs))
    return needs_two


def _refuse_single_values(norm: nn.GroupNorm, _: object, output: Tensor) -> None:
    """Raises: ValueError: each group has one value, whose distance from its mean is 0, so that nothing is learnt."""
    if output[0].numel() == norm.num_groups:
        shape = list(output.shape[1:])
        raise ValueError(f"a group norm of {norm.num_groups} groups gets {shape}, and makes 0 of one value a group")


def rehearse_method(run: RunSettings, label: str, method: Algorithm) -> Forms | None:
    """The forms of a method's messages; None where they cannot be rehearsed, for reasons that other checks report."""
    try:
        task = run.task_of(label)
        if not is_buildable(task):
            return None
        return rehearse_forms(method, task, run.train.work, initial_parameters(method, task, seed=0))
    except (RuntimeError, ValueError, OverflowError, MemoryError):
        return None
    except (TypeError, AttributeError, LookupError):  # of a network that does not fit the method
        if method.complaints(method.network(run.task_of(label)), run.train.work, run.privacy != "none"):
            return None
        raise


def build_network(algorithm: AnyAlgorithm, task: Task) -> nn.Module:
    """A network for the checks, made once, if it is not large: one that is kept would lie in memory in the whole run.
    The global random state is not changed.

    Raises:
        TooLarge: it has too many parameters; nothing of it was allocated.
        RuntimeError, OverflowError, ValueError, MemoryError: it cannot be built.
    """
    check_size(algorithm, task)
    is_large = 4 * count_network_values(algorithm, task) > LARGE
    return _build_network(algorithm, task) if is_large else _build_network_once(algorithm, task)


def _build_network(algorithm: AnyAlgorithm, task: Task) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return algorithm.network(task)


_build_network_once = lru_cache(maxsize=64)(_build_network)
