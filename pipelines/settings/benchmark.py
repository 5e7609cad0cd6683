"""The settings of a benchmark: finished models, evaluated at hospitals that never trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from pipelines.loader.names import RESERVED, is_name, label_problems, name_problems
from pipelines.settings.checks import partition
from pipelines.settings.sites import SiteSettings
from privacy.message import Json
from privacy.settings_error import Problem, SettingsError, out_of_range, refuse, unmet

FORBID: dict[str, Any] = {"extra": "forbid"}
BENCHMARK_KEY = "benchmark"


@dataclass(frozen=True, kw_only=True)
class Models:
    """models: label -> the file of a finished model; its signature is FILE.sig in the same folder. copies: of the
    bootstrap over patients. epsilon: the privacy cost of one model's evaluation for each patient of a hospital that
    promises privacy, which sets the noise of its counts; null = such hospitals refuse. reference: the model with which
    the others are compared, null = the first.
    least: the score (AUC, or Dice of masks) that every hospital should reach; null = no such score.
    """

    __pydantic_config__: ClassVar = FORBID

    models: Mapping[str, str]
    copies: int = 1000
    epsilon: float | None = 1.0
    reference: str | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        problems = label_problems(self.models, "models")
        if not self.models:
            problems.append(Problem(("models",), "empty; name at least one, as in models: {ours: ours.safetensors}"))
        elif self.reference not in (None, *self.models):
            text = f"{self.reference!r} is none of the models; name one of {', '.join(self.models)}, or null"
            problems.append(Problem(("reference",), text))
        problems += out_of_range(self, copies=(0, 2000), least=(0, 1))
        good = self.epsilon is None or 0 < self.epsilon <= 100
        refuse(problems + unmet(self, epsilon=(good, "in (0, 100], or null")))

    @property
    def first(self) -> str:
        """The model by which hospitals are ordered, and with which the others are compared."""
        return self.reference or next(iter(self.models))


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """name, title: of the page. sites: hospitals, none of which trained the models. The other keys are those of a run.
    seed: of the parametric bootstrap of noised counts.
    """

    __pydantic_config__: ClassVar = FORBID

    name: str
    title: str = ""
    benchmark: Models
    sites: Mapping[str, SiteSettings] = field(default_factory=dict)
    seed: int = 0
    threads: int = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    runs: str = "runs"

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        try:
            object.__setattr__(self, "sites", partition.expand_parts(self.sites))
        except SettingsError as error:
            problems += error.problems
        problems += name_problems(self.name) + out_of_range(self, threads=(1, 256))
        if self.device == "cuda" and not torch.cuda.is_available():
            problems.append(Problem(("device",), "cuda, and torch finds no GPU here; say auto or cpu"))
        if not self.sites:
            problems.append(Problem(("sites",), "empty; name at least one hospital"))
        problems += [
            Problem(("sites",), f"the name {name!r} is not made of a-z 0-9 _ -, or is one of {', '.join(RESERVED)}")
            for name in self.sites
            if not is_name(name) or name in RESERVED
        ]
        problems += [
            Problem(("sites", name, key), "is for training, and nothing is trained here; remove it")
            for name, site in self.sites.items()
            for key in ("methods", "work", "images", "model")
            if getattr(site, key)
        ]
        refuse(problems)


def is_benchmark(data: Json) -> bool:
    """Whether a document is the settings of a benchmark."""
    return isinstance(data, dict) and BENCHMARK_KEY in data
