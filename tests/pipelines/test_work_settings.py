"""What local work may be asked for, from the settings to the hospital: refusals with their reasons."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import yaml

import small_site
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.task import Task
from federation.torchio_views import Affine, BiasField, Noise
from pipelines.coordinator.spending import plan_method
from pipelines.data.images import IMAGES, pixel_spacing
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.opening import Opening, parse_opening
from pipelines.hospital.training import data_access
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.dp.protection import Protection
from privacy.release.gate import Refused


def settings(work: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(BASE)
    made["train"]["work"] = {**made["train"]["work"], **work}
    return made | changes


def validate(said: dict[str, Any]) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)


def problems(said: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(said)
    return "; ".join(f"{one.path}: {one.message}" for one in caught.value.problems)


def said(**how: Any) -> dict[str, Any]:
    """The facts of an introduction."""
    side = small_site.SIDE
    facts = {"label": "fedavg", "algorithm": to_plain(FedAvg()), "model": to_plain(Mlp()), "inputs": [1, side, side]}
    return {**facts, "classes": 2, "seed": 0, **how}


def test_defaults_leave_settings_as_they_were():
    plain = to_plain(Work())
    assert isinstance(plain, dict) and not {"label_smoothing", "torchio", "mixup"} & set(plain)
    assert validate(settings({"label_smoothing": 0.0, "torchio": [], "mixup": 0.0})) == validate(settings({}))


def test_label_smoothing_is_refused_where_labels_are_no_classes():
    grades = {"kind": "classification", "classes": ["low", "mid", "high"], "ordered": True}
    told = problems(settings({"label_smoothing": 0.1}, task=grades))
    assert "train.work.label_smoothing: 0.1, and label smoothing takes all wrong classes for equally wrong" in told
    assert validate(settings({"label_smoothing": 0.1})).train.work.label_smoothing == 0.1


def test_floors_and_moments_stand_beside_methods_with_smoothed_labels_and_mixup():
    made = settings({"label_smoothing": 0.1, "mixup": 0.2}, model={"name": "cnn", "norm": "group"})
    made["train"]["methods"]["moments"] = {"name": "moments"}
    validate(made)


def test_a_hospital_refuses_label_smoothing_too_whatever_the_coordinator_checked(tmp_path):
    hospital, cohort = small_site.hospital(tmp_path)
    work = {"label_smoothing": 0.1}
    assert parse_opening(hospital, said(work=work, cohort=cohort)).work.label_smoothing == 0.1
    with pytest.raises(Refused, match="malformed_opening") as found:
        parse_opening(hospital, said(work=work, cohort=cohort, ordered=True))
    assert "label_smoothing: 0.1" in str(found.value.__cause__)


SOME = [{"name": "bias_field", "coefficients": 0.3, "p": 0.5}, {"name": "noise", "std": 0.1}]


def test_torchios_transforms_are_read_in_their_order_and_written_back():
    config = validate(settings({"torchio": SOME}))
    work = config.train.work
    assert work.torchio == (BiasField(coefficients=0.3, p=0.5), Noise(std=0.1))
    assert validate(to_plain(config)) == config
    plain = to_plain(work)
    assert isinstance(plain, dict) and plain["torchio"] == SOME


def test_all_wrong_arguments_of_all_transforms_are_told_with_what_is_allowed():
    wrong = [
        {"name": "bias_field", "coefficients": 3.0, "order": 9},
        {"name": "sharpen"},
        {"name": "noise", "standard": 0.1},
        {"name": "motion", "p": 1.5},
        {"name": "affine", "default_pad_value": "maximum"},
        {"name": "ghosting", "axes": [0, 3]},
    ]
    told = problems(settings({"torchio": wrong}))
    assert "train.work.torchio[0].coefficients: must be a number in [0, 1], or two in [-1, 1]" in told
    assert "train.work.torchio[0].order: must be in [0, 5], found 9" in told
    assert 'train.work.torchio[1].name: unknown "sharpen"; allowed: bias_field, gamma, noise' in told
    assert "train.work.torchio[2].standard: unknown key" in told and "mean, std" in told
    assert "train.work.torchio[3].p: must be in [0, 1], found 1.5" in told
    assert "train.work.torchio[4].default_pad_value" in told and "'minimum'" in told
    assert "train.work.torchio[5].axes[1]" in told


def test_torchio_is_refused_for_tables_and_for_what_is_cached_of_images():
    table = {"images": {"kind": "features", "numbers": ["age", "height"]}, "model": {"name": "mlp"}}
    told = problems(settings({"torchio": SOME, "augment": "none"}, **table))
    assert "train.work.torchio: turns and blurs images (C, [D,] H, W), and examples are [2]" in told
    cached = settings({"torchio": SOME})
    cached["train"]["method_model"] = {
        "fedavg": {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc"}
    }
    told = problems(cached)
    assert "train.work.torchio: turns and blurs images" in told and "cached features" in told
    cached["train"]["method_work"] = {"fedavg": {"torchio": [], "augment": "none"}}
    validate(cached)


def test_cached_features_are_neither_mirrored_nor_disturbed():
    made = settings({"augment": "flip", "randomize": 1.0})
    made["train"]["method_model"] = {
        "fedavg": {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc"}
    }
    assert "train.work.augment: flip is for images, not for features; examples are [32]; say none" in problems(made)
    assert "train.work.randomize: 1 disturbs images, and examples are features, [32]; say 0" in problems(made)
    made["train"]["method_work"] = {"fedavg": {"augment": "none", "randomize": 0.0}}
    validate(made)


def test_floors_on_features_draw_no_batches_and_need_no_other_work():
    made = settings({"torchio": SOME})
    made["train"]["methods"]["local_ridge"] = {"name": "local_ridge"}
    made["train"]["method_model"] = {
        "local_ridge": {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc"}
    }
    validate(made)


def test_a_deformation_that_folds_the_images_is_refused_by_their_spacing():
    bend = [{"name": "elastic_deformation", "max_displacement": 8.0}]
    validate(settings({"torchio": bend}))
    told = problems(settings({"torchio": bend}, images={"kind": "slices", "size": 32, "spacing_mm": 1.5}))
    assert "train.work.torchio[0].max_displacement: must be at most [6.0, 6.0] along the axes" in told


def test_the_views_of_the_settings_reach_the_patients(tmp_path):
    """By the spacing of the cohort's images, in training alone, before `augment`."""
    hospital, cohort = small_site.hospital(tmp_path)
    side = small_site.SIDE
    task = Task(Cnn(widths=(8, 8), norm="group"), (1, side, side), 2)
    drawn = {}
    for name, views in (("none", ()), ("moved", (Affine(translation=(6.0, 6.0), scales=0.0, degrees=0.0),))):
        start = Opening(algorithm=FedAvg(), task=task, work=Work(batch=4, torchio=views), seed=0, cohort=cohort)
        access = data_access(hospital, cohort_of(hospital, cohort), start, 0)
        drawn[name] = access.draw()
    images = IMAGES.validate_python(cohort_of(hospital, cohort).recipe["images"])
    by = round(6.0 / pixel_spacing(images)[0])
    before, after = drawn["none"].x, drawn["moved"].x
    assert torch.equal(drawn["none"].y, drawn["moved"].y) and by >= 1
    shifted = {name: before.roll((place * by, across * by), (-2, -1)) for name, place, across in DIRECTIONS}
    inner = slice(by + 1, side - by - 1)
    near = {
        name: torch.allclose(after[..., inner, inner], expected[..., inner, inner], atol=1e-4)
        for name, expected in shifted.items()
    }
    assert sum(near.values()) == 1, near


DIRECTIONS = [(f"{a} {b}", a, b) for a in (-1, 1) for b in (-1, 1)]


def test_a_hospital_refuses_views_of_what_is_no_image_whatever_the_coordinator_checked(tmp_path):
    hospital, cohort = small_site.hospital(tmp_path)
    facts = said(work={"torchio": SOME}, cohort=cohort)
    assert parse_opening(hospital, facts).work.torchio == (BiasField(coefficients=0.3, p=0.5), Noise(std=0.1))
    with pytest.raises(Refused, match="malformed_opening") as found:
        parse_opening(hospital, facts | {"inputs": [30]})
    assert "torchio: turns and blurs images" in str(found.value.__cause__)


def test_views_of_torchio_cost_no_epsilon():
    """They are a part of a patient's views, before the clip: a private run takes them, and books what it would."""
    private = {"privacy": {"epsilon": 3.0}, "pooling": "refused", "model": {"name": "cnn", "norm": "group"}}
    plans = []
    for work in ({}, {"torchio": SOME}):
        made = settings(work, **private)
        made["sites"] = {name: site | {"policy": {"public": ["counts"]}} for name, site in made["sites"].items()}
        plans.append(plan_method(validate(made), "fedavg", "a"))
    assert plans[0] == plans[1] and plans[0].cost.epsilon > 0


def test_mixup_is_refused_in_a_private_run_and_by_a_hospital(tmp_path):
    told = problems(settings({"mixup": 0.2}, privacy={"epsilon": 3.0}, pooling="refused"))
    assert "train.work: mixup 0.2: it blends images of different patients" in told
    assert "no clip would bound what one patient changes; say mixup: 0" in told
    hospital, cohort = small_site.hospital(tmp_path)
    how = to_plain(Protection(clip=0.5, sampling=0.5, views=1, noise=1.0))
    with pytest.raises(Refused, match="malformed_opening") as found:
        parse_opening(hospital, said(work={"mixup": 0.2}, cohort=cohort, privacy=how))
    assert "blends images of different patients" in str(found.value.__cause__)
    start = parse_opening(hospital, said(work={"mixup": 0.2}, cohort=cohort))
    access = data_access(hospital, cohort_of(hospital, cohort), start, 0)
    assert access.draw().blend is not None


def test_mixup_is_refused_for_masks_and_for_methods_without_batches():
    made = settings({"mixup": 0.2}, model={"name": "cnn", "norm": "group"})
    validate(made)
    made["train"]["methods"] |= {"moments": {"name": "moments"}, "head": {"name": "dp_head"}}
    told = problems(made)
    assert "moments has none" not in told
    assert "train.work.mixup: 0.2 blends batches, and dp_head has none: each step takes all training examples" in told
