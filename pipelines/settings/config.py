"""The settings of a run: read strictly by the settings loader, plain frozen dataclasses from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from federation.descent import Work
from federation.models import AnyModel, NamedModel, OnFeatures
from federation.models.clip import Clip
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.asymmetric import list_shared
from pipelines.data.clip_file import find_clip_tensors
from pipelines.data.images import AnyImages, Slices
from pipelines.loader.overrides import override_settings
from pipelines.loader.recovery import select_causes
from pipelines.settings.augment import Augment
from pipelines.settings.checks import (
    augment,
    buffering,
    features,
    harmonization,
    merging,
    methods,
    partition,
    privacy,
    public_pictures,
    route,
    run,
    sites,
    start,
    sums,
    task,
    track,
    upload,
    variants,
)
from pipelines.settings.floors import add_floor_features
from pipelines.settings.foreign import guard_check
from pipelines.settings.harmonization import Harmonize
from pipelines.settings.image_spaces import make_portable_model
from pipelines.settings.learning import NO_TRAINING, Audits, Evaluation, Split, Training
from pipelines.settings.own_plans import find_plan_problems
from pipelines.settings.privacy import AnyPrivacy
from pipelines.settings.public_pictures import PublicPictures
from pipelines.settings.route import Route
from pipelines.settings.run_settings import RunSettings, has_own_plans, select_model
from pipelines.settings.sites import SiteSettings
from pipelines.settings.task import AnyTask, Classification
from pipelines.settings.track import Track
from privacy.settings_error import Problem, SettingsError, refuse

FORBID: dict[str, Any] = {"extra": "forbid"}
CHECKS: tuple[Callable[[RunSettings], Iterable[Problem]], ...] = (
    run.problems,
    sites.problems,
    partition.problems,
    public_pictures.problems,
    features.problems,
    start.problems,
    methods.problems,
    variants.problems,
    task.problems,
    route.problems,
    track.problems,
    privacy.problems,
    sums.problems,
    merging.problems,
    buffering.problems,
    upload.problems,
    harmonization.problems,
    augment.problems,
)
"""Checks between the parts of a run's settings, by subject."""
FOUNDATIONS = tuple((name,) for name in ("images", "task", "privacy", "outside", "pooling"))
"""Settings that all such checks depend on: if one of these is wrong, problems that may follow from it are not
reported.
"""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run. threads: of torch, in each process. processes: in which simulated hospitals work at the
    same time; 0 = one for each processor; above 1, one more process meanwhile learns what `features` and `pretrain`
    need of drawn pictures. device: where sites compute; auto = a GPU if there is one. `pooling: allowed` lets the
    simulation pool images, only for the central baseline.
    outside: external sites; `route` says how they get a model.
    augment: synthetic images for the training of some methods.
    track: tracking tools to which the coordinator's figures are copied. pages: whether each simulated hospital's page
    has pictures, where they are more than 32, or those that the coordinator's figures show; real ones always have them.
    public_pictures: name -> pictures that show no hospital's patients, for scales and starts that cost no privacy.
    Without `train` a run ends with harmonization, and needs no `model`.
    """

    __pydantic_config__: ClassVar = FORBID

    name: str
    title: str = ""
    privacy: AnyPrivacy
    seed: int = 0
    threads: int = 1
    processes: int = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    runs: str = "runs"
    pages: Literal["some", "all"] = "some"
    pooling: Literal["allowed", "refused"] = "refused"
    sites: Mapping[str, SiteSettings]
    images: AnyImages = Slices()
    task: AnyTask = Classification()
    split: Split = Split()
    model: NamedModel | None = None
    train: Training = NO_TRAINING
    harmonize: Harmonize | None = None
    augment: Augment | None = None
    public_pictures: Mapping[str, PublicPictures] = field(default_factory=dict)
    evaluate: Evaluation = Evaluation()
    audit: Audits = Audits()
    outside: tuple[str, ...] = ()
    route: Route | None = None
    track: Track | None = None

    def __post_init__(self) -> None:
        refuse(run.find_missing_model(self))  # without it nothing else can be checked
        refuse(find_plan_problems(self))
        problems: list[Problem] = []
        try:
            object.__setattr__(self, "sites", partition.expand_parts(self.sites))
        except SettingsError as error:
            problems += error.problems
        object.__setattr__(self, "train", add_floor_features(self.train, self.model, self.images, self.task))
        of_methods = () if self.train.methods else (("train",),)  # what names a method has none to name
        all_problems = [problem for check in CHECKS for problem in guard_check(check, self)]
        check_problems = select_causes([replace(each, needs=(*each.needs, *of_methods)) for each in all_problems])
        refuse([*problems, *(replace(each, needs=(*each.needs, *FOUNDATIONS)) for each in check_problems)])

    @property
    def harmonize_settings(self) -> Harmonize:
        """The settings of harmonization. Raises: ValueError: the run has none."""
        if self.harmonize is None:
            raise ValueError("harmonize: missing; say how, as in configs/prostate_adc.yaml")
        return self.harmonize

    @property
    def augment_settings(self) -> Augment:
        """The settings of generative augmentation. Raises: ValueError: the run has none."""
        if self.augment is None:
            raise ValueError("augment: missing; say how, as in configs/skin_lesion_augmented.yaml")
        return self.augment

    @property
    def independent(self) -> bool:
        """Whether the run promises privacy, so that no patient's split may depend on other patients."""
        syntheses = [plan.synthesis for plan in (self.harmonize, self.augment) if plan is not None]
        noised = self.route is not None and self.route.releases_noised
        scored = self.harmonize is not None and self.harmonize.score.release == "dp"
        return self.privacy != "none" or noised or scored or any(how.private for how in syntheses)

    def images_of(self, site: str) -> AnyImages:
        """What examples are at a hospital: the run's, with its own grid if it has one."""
        return override_settings(self.images, self.sites[site].images) if self.sites[site].images else self.images

    def model_of(self, label: str, site: str | None = None) -> AnyModel:
        """The model settings of one method, at a hospital with the fields of its own plan; classes of a Clip model are
        in the order of the task's classes.
        """
        model = select_model(self, label)
        if site is not None and self.sites[site].model:
            model = override_settings(model, self.sites[site].model)
        if not isinstance(model, Clip) or set(model.classes) != set(self.task.names):
            return model
        return replace(model, classes={name: model.classes[name] for name in self.task.names})

    def task_of(self, label: str, site: str | None = None) -> Task:
        """The task for one method, as it is sent to a hospital: the same for all, or the hospital's own where hospitals
        have plans of their own. Without a name it is that of the first hospital.
        """
        if not has_own_plans(self):
            return self._build_task(label, None)
        tasks = {name: self._build_task(label, name) for name in self.sites}
        task = tasks[next(iter(tasks)) if site is None else site]
        return task if len({*tasks.values()}) == 1 else replace(task, shared=list_shared(tasks.values()))

    def _build_task(self, label: str, site: str | None) -> Task:
        """The task for one method at a hospital, or as the run says it, without what hospitals share of it."""
        model_settings, classes = self.model_of(label, site), len(self.task.names)
        model = make_portable_model(model_settings)
        images = self.images if site is None else self.images_of(site)
        inputs = (model.width,) if isinstance(model, OnFeatures) else images.inputs
        frozen = find_clip_tensors(model_settings) if isinstance(model_settings, Clip) else None
        return Task(model, inputs, classes, self.task.kind, frozen=frozen, ordered=self.task.ordered)

    def method(self, label: str, site: str) -> AnyAlgorithm:
        """A method with one site's overrides."""
        return override_settings(self.train.methods[label], self.sites[site].methods.get(label, {}))

    def work(self, label: str, site: str) -> Work:
        """The local work of a method at a site: the common work with the method's changes, then the site's."""
        return override_settings(
            override_settings(self.train.work, self.train.method_work.get(label, {})), self.sites[site].work
        )


def select_device(device: Literal["cpu", "cuda", "auto"]) -> str:
    """The torch device of the setting on this machine."""
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
