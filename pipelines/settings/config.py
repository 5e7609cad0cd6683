"""The settings of a run: strict at the door (pydantic, in `pipelines/loader/validation.py`), plain frozen dataclasses
inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from federation.descent import Work
from federation.models import AnyModel
from federation.rehearsal import initial_parameters, rehearse
from federation.rounds import verdict
from federation.task import Task
from personalize import AnyAlgorithm
from pipelines.data.images import AnyImages, Slices
from pipelines.data.requirements import misfit
from pipelines.loader.names import RESERVED, named
from pipelines.loader.overrides import overridden as overridden
from pipelines.settings.checks.harmonization import misplaced
from pipelines.settings.checks.partition import expanded, handed_on, shared_patients
from pipelines.settings.checks.route import unfit_route
from pipelines.settings.checks.task import unfit_task
from pipelines.settings.harmonization import Harmonize
from pipelines.settings.learning import Audits, Evaluation, Training
from pipelines.settings.learning import Split as Split
from pipelines.settings.privacy import AnyPrivacy, PatientLevel
from pipelines.settings.route import Route
from pipelines.settings.sites import Elsewhere
from pipelines.settings.sites import SiteSettings as SiteSettings
from pipelines.settings.task import AnyTask, Classification
from pipelines.settings.variants import unfit_variants
from privacy.release.policy import Policy
from privacy.settings_error import SettingsError, problems_of

FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. device: where sites compute; auto = a GPU where there is one. `pooling: allowed` lets the simulation
    pool images for the central baseline, and only that. outside: sites that take no part in the federation; `route`
    says how they come to a model.
    """

    __pydantic_config__: ClassVar = FORBID

    name: str
    title: str = ""
    privacy: AnyPrivacy
    seed: int = 0
    threads: int = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    runs: str = "runs"
    pooling: Literal["allowed", "refused"] = "refused"
    sites: Mapping[str, SiteSettings]
    images: AnyImages = Slices()
    task: AnyTask = Classification()
    split: Split = Split()
    model: Annotated[AnyModel, Field(discriminator="name")]
    train: Training
    harmonize: Harmonize | None = None
    evaluate: Evaluation = Evaluation()
    audit: Audits = Audits()
    outside: tuple[str, ...] = ()
    route: Route | None = None

    def __post_init__(self) -> None:
        problems = []
        try:
            object.__setattr__(self, "sites", expanded(self.sites))
        except ValueError as error:
            problems.append(str(error))
        problems += self._site_problems()
        if not named(self.name):
            problems.append(f"name: made of a-z 0-9 _ -, at most 80, found {self.name!r}")
        if not 1 <= self.threads <= 256:
            problems.append(f"threads must be in [1, 256], found {self.threads}")
        if self.device == "cuda" and not torch.cuda.is_available():
            problems.append("device: cuda, and torch finds no GPU here; say auto or cpu")
        central = [label for label, method in self.train.methods.items() if method.name == "central"]
        if central and self.pooling == "refused":
            problems.append(
                f"train.methods.{central[0]}: central training pools images; say pooling: allowed, or remove it"
            )
        problems += [
            f"sites.{name}.policy.pooling: train.methods.{label} pools images, and this site's policy does not allow it"
            for name, site in self.sites.items()
            for label in central
            if not site.policy.pooling and name not in self.outside
        ]
        if self.evaluate.reference not in (None, *self.train.methods, *self.evaluate.variants):
            problems.append(
                f"evaluate.reference: {self.evaluate.reference!r} is no method and no variant; name one, or null"
            )
        problems += unfit_variants(self)
        if self.split.validation == 0 and self.evaluate.checkpoint != "latest":
            problems.append(
                f"evaluate.checkpoint: {self.evaluate.checkpoint} is chosen by validation loss, and split.validation "
                "is 0; give validation patients, or say latest"
            )
        if self.split.validation == 0:
            problems += [
                f"train.methods.{label}: fedfomo weighs models by validation patients, and split.validation is 0; give "
                "validation patients, or choose another method"
                for label, method in self.train.methods.items()
                if method.name == "fedfomo"
            ]
        problems += self._misfits()
        problems += unfit_task(self)
        problems += unfit_route(self)
        problems += self._complaints()
        problems += self._unprotected()
        problems += misplaced(self)
        problems += [] if problems else handed_on(self)  # which asks for every site's method
        if problems:
            raise SettingsError(problems)

    def _site_problems(self) -> list[str]:
        problems = [] if self.sites else ["sites: empty; name at least one hospital"]
        problems += shared_patients(self)
        problems += [
            f"sites.{name}.test: split.test is 0; name this site's test patients, or give split.test a share"
            for name, site in self.sites.items()
            if self.split.test == 0 and not site.test
        ]
        for name, site in self.sites.items():
            if not named(name) or name in RESERVED:
                reserved = f"or is reserved ({', '.join(RESERVED)})"
                problems.append(f"sites: the name {name!r} is not made of a-z 0-9 _ - ({reserved})")
            for label in sorted(set(site.methods) - set(self.train.methods)):
                problems.append(
                    f"sites.{name}.methods.{label}: no such method; methods are {', '.join(self.train.methods)}"
                )
            for label in set(site.methods) & set(self.train.methods):
                try:
                    self.method(label, name)
                except ValueError as error:
                    problems += [f"sites.{name}.methods.{label}.{text}" for text in problems_of(error)]
            problems += self._work_problems(name)
        return problems

    def _work_problems(self, name: str) -> list[str]:
        """What is wrong with a site's own local work; once, with the methods in whose work alone it is wrong."""
        told: dict[str, list[str]] = {}
        for label in self.train.methods:
            try:
                self.work(label, name)
            except ValueError as error:
                for text in problems_of(error):
                    told.setdefault(text, []).append(label)
        some = {text: f" (method {', '.join(labels)})" for text, labels in told.items()}
        every = len(self.train.methods)
        return [f"sites.{name}.work.{text}{'' if len(told[text]) == every else some[text]}" for text in told]

    def _misfits(self) -> list[str]:
        """Sources that cannot give such examples, and augmentations that make no sense of them."""
        problems = []
        for name, site in self.sites.items():
            if not isinstance(site.source, Elsewhere) and (said := misfit(site.source.kind, self.images)):
                problems.append(f"sites.{name}.{said}")
            for label in self.train.methods:
                try:
                    work = self.work(label, name)
                except ValueError:
                    continue  # told as a problem of this site's work
                if work.augment != "none" and self.images.kind == "features":
                    problems.append(f"train.work.augment: {work.augment} is for images, not for features; say none")
        return list(dict.fromkeys(problems))

    def _complaints(self) -> list[str]:
        problems = []
        for label in self.train.methods:
            try:
                task = self.task_of(label)
            except ValueError as error:
                problems.append(f"task.kind: {error} (method {label})")
                continue
            try:
                with torch.no_grad():
                    task.network().eval()(torch.zeros(2, *task.inputs))
            except (RuntimeError, ValueError, MemoryError) as error:
                problems.append(
                    f"images: the network cannot take examples of shape {list(task.inputs)}; give larger ones, a "
                    f"smaller network, or one for such examples: mlp for features, cnn or cam for images ({error})"
                )
                continue
            for site in self.sites:
                problems += self._objections(label, site, task)
        return list(dict.fromkeys(problems))

    def _objections(self, label: str, site: str, task: Task) -> list[str]:
        """What a method says against a site's own form of it, and why the coordinator could not read its replies."""
        try:
            common, own, work = self.train.methods[label], self.method(label, site), self.work(label, site)
        except ValueError:
            return []  # told as a problem of this site
        place = f"train.methods.{label}" if own == common else f"sites.{site}.methods.{label}"
        if own.name != common.name:
            return [f"{place}.name: {own.name}, but all sites run one method, {common.name} here; remove it"]
        problems = [f"{place}: {said}" for said in own.complaints(_network(own, task), work, self.privacy != "none")]
        if own != common and not problems and not alike(own, common, task, work):
            problems.append(
                f"{place}: replies would have other tensors or facts than those of the other sites, and each would be "
                "refused as malformed; change only what leaves the replies as they are"
            )
        return problems

    def _unprotected(self) -> list[str]:
        """What no epsilon covers, or no hospital's budget allows."""
        if isinstance(self.privacy, PatientLevel):
            from pipelines.settings.checks.privacy import unprotected  # Opacus: seconds that other runs save

            return unprotected(self)
        return [
            f"sites.{name}.policy.{_promised(site.policy)}, and privacy: none makes every release non-private; say "
            "privacy: {epsilon: ...}"
            for name, site in self.sites.items()
            if site.policy.promises
        ]

    @property
    def harmonized(self) -> Harmonize:
        """How images are harmonized. Raises: ValueError: they are not."""
        if self.harmonize is None:
            raise ValueError("harmonize: missing; say how, as in configs/prostate_adc.yaml")
        return self.harmonize

    @property
    def independent(self) -> bool:
        """Whether anything here promises privacy, so that nobody's split may follow from other patients."""
        made_up = self.harmonize is not None and self.harmonize.synthesis.private
        return self.privacy != "none" or made_up

    def task_of(self, label: str) -> Task:
        """What all sites learn by one method."""
        model, classes = self.train.method_model.get(label, self.model), len(self.task.names)
        return Task(model, self.images.inputs, classes, self.task.kind)

    def method(self, label: str, site: str) -> AnyAlgorithm:
        """A method as one site runs it."""
        return overridden(self.train.methods[label], self.sites[site].methods.get(label, {}))

    def work(self, label: str, site: str) -> Work:
        """The local work of a method at a site: the common one, the method's changes, the site's own changes."""
        return overridden(overridden(self.train.work, self.train.method_work.get(label, {})), self.sites[site].work)


@lru_cache(maxsize=64)
def _network(algorithm: AnyAlgorithm, task: Task) -> torch.nn.Module:
    """A network to be looked at, made once for all sites."""
    return algorithm.network(task)


def alike(one: AnyAlgorithm, other: AnyAlgorithm, task: Task, work: Work) -> bool:
    """Whether the replies of two forms of a method have the same names, shapes and facts."""
    try:
        replies = [rehearse(each, task, work, initial_parameters(each, task, seed=0)) for each in (one, other)]
    except (RuntimeError, ValueError):
        return False
    return verdict(replace(replies[0], facts={**replies[0].facts, "loss": None, "n": 0}), replies[1]) is None


def _promised(policy: Policy) -> str:
    """What a policy promises, as the key and what it comes to."""
    if policy.budget is not None:
        return f"budget: this hospital allows epsilon {policy.budget.epsilon}"
    return "require: this hospital lets nothing leave without a finite epsilon"


def chosen_device(device: Literal["cpu", "cuda", "auto"]) -> str:
    """The device that the setting means on this machine."""
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
