"""No step of training waits for a GPU, or copies to it, but where this says why.

`tests/other_device.py` stands for the GPU: it counts what Python reads from it and what is copied to it, and refuses
copies in silence. Each training is tried with few steps and with more: what is counted more often is of the steps.
Reads and copies of a request (its images, its models) are none of a step, and are not counted here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from other_device import OTHER, Crossings, other_device
from torch import Tensor

import methods
import small_clip
from consilium.testing import testbed
from federation.augmentation import AUGMENTATIONS
from federation.descent import Site, Work
from federation.local_steps import local_steps
from federation.models.planned import Planned
from federation.patches import build_patch_views
from federation.rehearsal import initial_parameters
from federation.rounds import Schedule
from federation.task import Task
from harmonize.cyclegan import CycleGan
from harmonize.game import Rules, make_players, train_adversarially
from harmonize.own import SiteImages
from harmonize.randomized import Randomized
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

QUIET = Protection(clip=0.5, sampling=1.0, views=2, noise=0.0, validation_noise=0.0)
FEW, MANY, ROUNDS = 1, 5, 2
SGD = Work(optimizer="sgd", lr=1e-2, batch=8)
ADAM = Work(lr=1e-2, batch=8)


@dataclass(frozen=True)
class Allowed:
    """How often a step may read from the other device and copy to it, and why."""

    reads: float
    uploads: float
    why: str


PLAIN = Allowed(0, 1, "the order of an epoch's rows, drawn on the CPU, goes there once an epoch")
PRIVATE = Allowed(
    2,
    2,
    "read: whether a network wrote its own weights, and how many gradients were not finite; copied: the rows of a "
    "sample, and noise, which the operating system gives to the CPU",
)
BY_METHOD = {
    "feddg": Allowed(1, 5, "which examples have an edge decides how many rows its contrast has"),
}


def there(splits: dict[str, Rows]) -> dict[str, Rows]:
    return {name: Rows(*(part.to(OTHER) for part in (r.x, r.y, r.patient))) for name, r in splits.items()}


def of_a_step(train: Callable[[int], object], few: int = FEW, many: int = MANY) -> Crossings:
    """What a step adds, by line of code, in the mean over steps."""
    counted = []
    for steps in (few, many):
        with other_device() as crossings:
            train(steps)
        counted.append(crossings)
    return Crossings(*(_more(getattr(counted[0], what), getattr(counted[1], what)) for what in ("reads", "uploads")))


def _more(fewer: Counter[str], more: Counter[str]) -> Counter[str]:
    rest = more.copy()
    rest.subtract(fewer)
    return Counter({place: count for place, count in rest.items() if count > 0})


def hold(found: Crossings, allowed: Allowed, steps: int) -> None:
    reads, uploads = sum(found.reads.values()) / steps, sum(found.uploads.values()) / steps
    assert reads <= allowed.reads, f"a step waits {reads:g} times: {dict(found.reads)}; {allowed.why}"
    assert uploads <= allowed.uploads, f"a step copies {uploads:g} times: {dict(found.uploads)}; {allowed.why}"


def ground(algorithm) -> tuple[Task, dict[str, Rows], dict[str, Rows]]:
    """A task that the method accepts, and two hospitals."""
    if algorithm.name in methods.ON_PROMPTS:
        return small_clip.task(), small_clip.table(1, n=12), small_clip.table(2, n=12)
    task = testbed.make_task()
    if algorithm.name in {known.name for known in methods.fit(task)}:
        return task, testbed.make_table(1, n=12), testbed.make_table(2, n=12)
    return testbed.mask_task(), testbed.make_scenes(1), testbed.make_scenes(2)


def trained_by(algorithm, private: bool) -> Callable[[int], object]:
    task, here, other = ground(algorithm)

    def train(steps: int) -> None:
        work = replace(methods.work_of(algorithm, ADAM, SGD), epochs=None, steps=steps)
        crew = testbed.make_federation(algorithm, {"a": there(here), "b": there(other)}, task=task, work=work)
        if private:
            crew = {name: replace(hospital, protection=QUIET) for name, hospital in crew.items()}
        testbed.train(algorithm, crew, task=task, work=work, schedule=Schedule(rounds=ROUNDS))

    return train


def gradients(algorithm) -> int:
    """How many gradients both hospitals take more in the longer training: some methods take several a step."""
    task = ground(algorithm)[0]
    initial = initial_parameters(algorithm, task, seed=1)
    base = methods.work_of(algorithm, ADAM, SGD)
    few, many = (
        local_steps(algorithm, task, replace(base, epochs=None, steps=steps), initial).fixed for steps in (FEW, MANY)
    )
    return ROUNDS * 2 * max(1, many - few)


@pytest.mark.repeats(12)
@pytest.mark.parametrize("algorithm", methods.ALL, ids=lambda one: one.name)
def test_a_step_of_a_method_reads_nothing(algorithm):
    hold(of_a_step(trained_by(algorithm, False)), BY_METHOD.get(algorithm.name, PLAIN), gradients(algorithm))


@pytest.mark.repeats(8)
@pytest.mark.parametrize("algorithm", methods.private(), ids=lambda one: one.name)
def test_a_private_step_of_a_method_reads_twice_however_many_patients_there_are(algorithm):
    hold(of_a_step(trained_by(algorithm, True)), PRIVATE, gradients(algorithm))


PLAN = Planned(
    patch=(8, 8), kernels=((3, 3),) * 4, strides=((1, 1), (2, 2), (2, 2), (1, 2)), filters=(8, 8, 8, 8), norm="group"
)
PLANNED = Task(PLAN, (1, 16, 16), 3, "segmentation")
VIEWS = {
    "flip": Allowed(0, 2, "which images are mirrored is drawn on the CPU, of images and of masks"),
    "affine": Allowed(0, 4, "as flip, and the maps"),
    "elastic": Allowed(0, 4, "as flip, and the displacements"),
}


def pictures(n: int = 8, side: int = 16) -> Rows:
    y = torch.arange(n)[:, None, None] % 3 * torch.ones(n, side, side, dtype=torch.int64)
    return Rows(torch.rand(n, 1, side, side), y, torch.arange(n))


def descends(task: Task, rows: Rows, work: Work, augment=None, *, private: bool = False) -> Callable[[int], object]:
    """A descent of one hospital."""

    def train(steps: int) -> None:
        splits = there({"train": rows})
        source = random.Random(0).randbytes
        access = (
            open_private(splits, QUIET, augment=augment, source=source)
            if private
            else open_access(splits, batch=work.batch, seed=0, augment=augment, mixup=work.mixup)
        )
        Site("a", task, work, access).descend(task.network().to(OTHER), task.objective, steps=steps)

    return train


@pytest.mark.parametrize("how", VIEWS)
def test_random_views_are_drawn_on_the_cpu_and_go_there_without_waiting(how):
    work = replace(SGD, batch=4)
    hold(of_a_step(descends(PLANNED, pictures(), work, AUGMENTATIONS[how])), _with_order(VIEWS[how]), MANY - FEW)


def _with_order(allowed: Allowed) -> Allowed:
    return replace(allowed, uploads=allowed.uploads + PLAIN.uploads)


def test_mixup_reads_nothing():
    task = testbed.make_task()
    allowed = Allowed(0, 2, "partners of rows are drawn on the CPU")
    found = of_a_step(descends(task, testbed.make_table(1)["train"], replace(SGD, mixup=0.4)))
    hold(found, allowed, MANY - FEW)


@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
def test_a_planned_networks_step_reads_where_its_patches_begin(private):
    """Once a batch, where a batch is of one patient in private training: a slice needs its place in Python."""
    batch, patients = 4, 8
    views = build_patch_views(PLAN.patch, 1.0, 3)
    found = of_a_step(descends(PLANNED, pictures(patients), replace(SGD, batch=batch), views, private=private))
    images = patients * QUIET.views if private else batch
    reads = PRIVATE.reads + patients if private else 1
    hold(found, Allowed(reads, images + PRIVATE.uploads, "numbers that were drawn for each image"), MANY - FEW)


def site_images(n: int = 6, side: int = 16) -> tuple[SiteImages, Tensor, Tensor]:
    numbers = torch.arange(n)
    g = torch.Generator().manual_seed(0)
    x, z = (torch.rand(n, 1, side, side, generator=g) * 2 - 1 for _ in range(2))
    return SiteImages(x, numbers % 2, numbers), z, numbers % 2


@pytest.mark.parametrize("by_class", [False, True])
def test_a_step_of_cyclegan_reads_nothing_and_copies_one_number(by_class):
    images, shared, labels = site_images()
    how = CycleGan(
        width=4,
        critic=4,
        classifier=4,
        blocks=1,
        copies=0,
        batch=4,
        pool=0 if by_class else 3,
        noise=0.1,
        by_class=by_class,
        patch=1,
    )

    def train(steps: int) -> None:
        settings = replace(how, steps=steps)
        settings.fit(images, shared, seed=0, device=OTHER, shared_labels=labels if by_class else None)

    hold(of_a_step(train), Allowed(0, 1, "the count of torch's running mean, which its own code copies"), MANY - FEW)


def test_a_step_of_the_unet_of_a_prior_copies_its_pictures_and_reads_nothing():
    def train(steps: int) -> None:
        Randomized(steps=steps, batch=2, width=4).learn_parameters((1, 16, 16), device=OTHER)

    hold(
        of_a_step(train), Allowed(0, 2, "pictures of a prior and their disturbed copies, drawn on the CPU"), MANY - FEW
    )


@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
def test_a_step_of_wgan_reads_what_a_private_gradient_reads(private):
    rows = site_images()[0]

    def train(steps: int) -> None:
        splits = there({"train": Rows(rows.images, rows.labels, rows.patient)})
        access = (
            open_private(splits, QUIET, source=random.Random(0).randbytes)
            if private
            else open_access(splits, batch=4, seed=0)
        )
        players = make_players(4, (1, 16, 16), 2, ema=0.9, start=None, seed=0, device=torch.device(OTHER))
        rules = Rules(steps=steps, critic_steps=1, batch=4, views=2, lr=1e-3, betas=(0.0, 0.9), gp_weight=10.0)
        train_adversarially(players, access, rules, seed=0)

    drawn = Allowed(0, 6, "z and alpha of the fakes, z and classes of the generator, and its running mean's count")
    allowed = replace(drawn, reads=PRIVATE.reads, uploads=drawn.uploads + PRIVATE.uploads) if private else drawn
    hold(of_a_step(train), allowed, MANY - FEW)
