"""`train.work.precision` and `channels_last`, from the settings to the patients; and how often images are moved."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import yaml
from torch.overrides import TorchFunctionMode

import small_site
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.planned import Planned
from federation.task import Task
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.opening import Opening, parse_opening
from pipelines.hospital.training import data_access
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.dp.passes import Passes
from privacy.dp.protection import Protection
from privacy.release.gate import Refused

TASK = Task(Cnn(widths=(8, 8), norm="group"), (1, small_site.SIDE, small_site.SIDE), 2)
MIXED = {"precision": "bf16", "channels_last": True}


def settings(work: dict, **changes) -> dict:
    made = copy.deepcopy(BASE)
    made["train"]["work"] = {**made["train"]["work"], **work}
    return made | changes


def said(**how) -> dict:
    """The facts of an introduction."""
    facts = {
        "label": "fedavg",
        "algorithm": to_plain(FedAvg()),
        "model": to_plain(TASK.model),
        "inputs": list(TASK.inputs),
    }
    return {**facts, "classes": 2, "seed": 0, **how}


def test_the_settings_reach_the_access_to_patients(tmp_path):
    hospital, cohort = small_site.hospital(tmp_path)
    start = Opening(algorithm=FedAvg(), task=TASK, work=Work(batch=4, **MIXED), seed=0, cohort=cohort)
    assert data_access(hospital, cohort_of(hospital, cohort), start, 0).passes == Passes("bf16", True)


def problems(said: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)
    return "; ".join(f"{one.path}: {one.message}" for one in caught.value.problems)


def test_a_private_run_refuses_both_and_says_why():
    told = problems(settings(MIXED, privacy={"epsilon": 3.0}, pooling="refused"))
    assert "train.work: precision bf16, channels_last True: private training computes each patient's gradient" in told
    assert "say precision: float32 and channels_last: false" in told


def test_features_have_no_channels():
    told = problems(
        settings({"channels_last": True}, images={"kind": "features", "numbers": ["age"]}, model={"name": "mlp"})
    )
    assert "train.work.channels_last: true is for images (channels, height, width)" in told


@pytest.mark.parametrize("work", [{"precision": "bf16"}, {"channels_last": True}])
def test_a_hospital_refuses_both_in_a_private_run_whatever_the_coordinator_checked(tmp_path, work):
    hospital, cohort = small_site.hospital(tmp_path)
    how = to_plain(Protection(clip=0.5, sampling=0.5, views=1, noise=1.0))
    with pytest.raises(Refused, match="malformed_opening") as found:
        parse_opening(hospital, said(work=work, cohort=cohort, privacy=how))
    assert "each patient's gradient in float32" in str(found.value.__cause__)
    assert parse_opening(hospital, said(work=work, cohort=cohort)).work.passes == Work(**work).passes


@pytest.mark.parametrize("batch", [3, 7, 11])
def test_batches_of_patches_are_whole_whatever_the_number_of_patients(tmp_path, batch):
    """A plan's memory counts so many, and eight patients give no batch of eight for one of seven."""
    hospital, cohort = small_site.hospital(tmp_path)
    sides = {"kernels": ((3, 3), (3, 3)), "strides": ((1, 1), (2, 2)), "filters": (4, 8)}
    planned = Task(Planned(patch=(8, 8), **sides), TASK.inputs, 2, "segmentation")
    start = Opening(algorithm=FedAvg(), task=planned, work=Work(batch=batch), seed=0, cohort=cohort, target="gland")
    access = data_access(hospital, cohort_of(hospital, cohort), start, 0)
    assert access.size("train") == 8
    assert [tuple(access.draw().x.shape) for _ in range(6)] == [(batch, 1, 8, 8)] * 6


def test_a_wrong_precision_is_told_with_what_is_allowed():
    told = problems(settings({"precision": "float16"}))
    assert "train.work.precision" in told and "float32" in told and "bf16" in told and "float16" in told


class Moves(TorchFunctionMode):
    """Counts how often images of one size or more are moved to a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu) and args[0].dim() == 4:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("work", [{}, MIXED], ids=["float32", "bf16"])
def test_images_are_moved_to_the_device_once_a_request_and_not_for_each_batch(tmp_path, work):
    hospital, cohort = small_site.hospital(tmp_path)
    found = []
    for steps in (2, 8):
        with Moves() as moves:
            own = replace(Work(batch=4, **work), epochs=None, steps=steps)
            start = Opening(algorithm=FedAvg(), task=TASK, work=own, seed=0, cohort=cohort)
            access = data_access(hospital, cohort_of(hospital, cohort), start, 0)
            module = TASK.network()
            for _ in range(steps):
                access.gradient(module, TASK.objective, access.draw())
        found.append(moves.count)
    assert found == [2, 2], "once for each split that is learnt from or validates"
