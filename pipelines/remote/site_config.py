"""site.yaml: the settings of a hospital that takes part from its own machine. The coordinator never sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from federation.origins import find_permission_problems, list_packages_in
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.files import read_document
from pipelines.loader.names import name_problems
from pipelines.loader.validation import validate_settings
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.settings_error import Problem, refuse

FORBID: dict[str, Any] = {"extra": "forbid"}
OF_THE_RUN = "a hospital's own plan stands in the run, whose coordinator must know the network"


@dataclass(frozen=True, kw_only=True)
class Place:
    """name: of the hospital, as in its kit and in the run's `sites`. kit: the folder that was provisioned for it. root:
    its own folder, for cohorts, models, its ledger and its page, which nobody else uses. site: its files, its policy
    and its own settings, with the keys of a run's `sites`. threads: 0 = as torch chooses. Paths are relative to the
    folder of this file.
    """

    __pydantic_config__: ClassVar = FORBID

    name: str
    kit: str
    root: str
    site: SiteSettings
    device: Literal["cpu", "cuda", "auto"] = "auto"
    threads: int = 0

    def __post_init__(self) -> None:
        problems = name_problems(self.name)
        if not 0 <= self.threads <= 256:
            text = f"must be in [0, 256], 0 = as torch chooses, found {self.threads}"
            problems.append(Problem(("threads",), text))
        if isinstance(self.site.source, Elsewhere):
            text = "elsewhere is here; say where this hospital's files are"
            problems.append(Problem(("site", "source"), text))
        problems += [
            Problem(("site", key), f"{why}; remove it")
            for key, value, why in (
                ("home", self.site.home, "root is the hospital's own folder already"),
                ("part", self.site.part, "dealing out one source is for simulations"),
                ("images", self.site.images or None, OF_THE_RUN),
                ("model", self.site.model or None, OF_THE_RUN),
            )
            if value is not None
        ]
        named = find_permission_problems(list_packages_in(self.site), self.site.policy.plugins)
        problems += [Problem(("site", "policy"), text) for text in named]
        refuse(problems)


def read_place(path: str) -> Place:
    """Read a hospital's own settings.

    Raises:
        ConfigError: everything that is wrong with them, or that they cannot be read.
    """
    return validate_settings(meant_for(read_document(path), "site", path), Place)
