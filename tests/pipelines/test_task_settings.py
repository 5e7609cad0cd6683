"""What is learnt, as a setting: what does not go with it is told with its place and its remedy."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from pipelines.hospital.files import cohort_settings
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain
from pipelines.loader.validation import validate_settings as checked
from pipelines.settings.config import Config
from pipelines_settings import BASE

MASKS = {"folder": "m", "values": {"disc": [1], "cup": [2]}}
PICTURE = {"kind": "picture", "folder": "p", "table": None, "masks": MASKS}


def settings(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(BASE)
    made["model"] = {"name": "unet", "levels": 2}
    made["task"] = {"kind": "segmentation", "target": "gland"}
    made["train"]["methods"] = {"fedavg": {"name": "fedavg"}}
    made["evaluate"] = {"copies": 5}
    made["audit"] = {"membership": False}
    made["images"]["centre"] = "image"
    return {**made, **changes}


def pictures(**changes: Any) -> dict[str, Any]:
    task = {"kind": "segmentation", "target": "masks", "classes": ["disc", "cup"]}
    sites = {"a": {"source": PICTURE}, "b": {"source": {**copy.deepcopy(PICTURE), "folder": "q"}}}
    return {**settings(task=task, sites=sites, images={"kind": "pictures", "size": 32}), **changes}


def validate(said: dict[str, Any], kind: type[Config]) -> Config:
    return checked(read_yaml(yaml.safe_dump(said), environment={}), kind)


def problems(said: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(said, Config)
    return "; ".join(f"{one.path}: {one.message}" for one in caught.value.problems)


def test_masks_of_glands_and_of_pictures_can_be_learnt():
    glands, discs = validate(settings(), Config), validate(pictures(), Config)
    assert glands.task_of("fedavg").kind == "segmentation"
    assert (glands.task.names, glands.task_of("fedavg").classes) == (("background", "gland"), 2)
    assert (discs.task.names, discs.task_of("fedavg").classes) == (("background", "disc", "cup"), 3)
    assert validate(to_plain(discs), Config) == discs


def test_labels_are_learnt_where_nothing_is_said():
    said = copy.deepcopy(BASE)
    config = validate(said, Config)
    assert config.task.kind == config.task_of("fedavg").kind == "classification"
    assert validate({**said, "task": {"kind": "classification"}}, Config) == config


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (settings(model={"name": "cnn", "widths": [8, 8]}), "the model cnn is for classification, the task is segmen"),
        ({**copy.deepcopy(BASE), "model": {"name": "unet"}}, "the model unet is for segmentation, the task is classif"),
        (settings(task={"kind": "segmentation", "target": "gland", "classes": ["gland"]}), "is one class of that name"),
        (settings(task={"kind": "segmentation", "target": "masks"}), "1 to 7 different names are needed"),
        (settings(task={"kind": "segmentation", "target": "masks", "classes": ["x", "x"]}), "1 to 7 different names"),
        (settings(task={"kind": "segmentation", "target": "liver"}), "liver"),
        (settings(audit={}), "audit.membership: it attacks labels of examples"),
        (settings(privacy={"epsilon": 8.0}), "its scores are not released with noise yet"),
        (settings(evaluate={"copies": 5, "window": [64, 64]}), "evaluate.window: must have 2 sides within [32, 32]"),
        (settings(evaluate={"copies": 5, "window": [18, 16]}), "evaluate.window: unet with levels 2 needs sides"),
        ({**copy.deepcopy(BASE), "evaluate": {"window": [8, 8]}}, "evaluate.window: it is for masks"),
        (settings(images={"kind": "slices", "size": 30, "centre": "image"}), "needs sides divisible by 2^2"),
        (settings(images={"kind": "slices", "size": 32}), "images.centre: images would be cut about the gland"),
        (
            settings(images={"kind": "slices", "size": 32, "centre": "image", "slices": "gland"}),
            "images.slices: those that show the gland",
        ),
        (pictures(task={"kind": "segmentation", "target": "gland"}), "needs images of kind slices or volumes"),
        (
            pictures(task={"kind": "segmentation", "target": "masks", "classes": ["disc"]}),
            "classes are cup, disc, and the task's are disc",
        ),
    ],
)
def test_what_does_not_go_together_is_told(said, told):
    assert told in problems(said)


def test_drawing_labels_equally_often_is_refused_where_there_are_none():
    said = settings()
    said["train"]["work"] = {**said["train"]["work"], "balance": True}
    assert "train.work.balance: it draws labels equally often" in problems(said)


def test_pictures_without_masks_cannot_be_segmented():
    said = pictures()
    said["sites"]["b"]["source"] = {"kind": "picture", "folder": "p", "table": "t.csv"}
    assert "sites.b.source.masks: missing" in problems(said)


def test_label_maps_of_volumes_are_of_files_and_name_the_classes_of_the_task():
    said = settings(task={"kind": "segmentation", "target": "masks", "classes": ["inner", "outer"]})
    told = problems(said)
    for site in said["sites"]:
        assert f"sites.{site}.source.kind: phantom has no label maps, and the target is masks" in told
    maps = {"folder": "m", "values": {"inner": [1], "outer": [2]}}
    for number, site in enumerate(said["sites"].values()):
        site["source"] = {"kind": ("nifti", "dicom")[number % 2], "folder": f"f{number}", "masks": maps}
        site.pop("labels", None)
    assert validate(said, Config).task.names == ("background", "inner", "outer")
    said["sites"]["b"]["source"]["masks"] = {"folder": "m", "values": {"inner": [1]}}
    assert "sites.b.source.masks.values: classes are inner, and the task's are inner, outer" in problems(said)
    said["sites"]["b"]["source"]["masks"] = {"folder": "m", "values": {"inner": [-1]}}
    assert problems(said).count("sites.b") == 1, "no labels are missing where those that are there are wrong"
    for inner in ([1], [17]):
        dicom = {"folder": "m", "pattern": "{patient}.dcm", "segments": {"inner": inner}}
        said["sites"]["b"]["source"] = {"kind": "dicom", "folder": "f", "masks": dicom}
        told = problems(said)
        wrong = "inner: must name segments" if inner == [17] else ": classes are inner, and the task's are inner, outer"
        assert told.count("sites.b") == 1 and f"sites.b.source.masks.segments{'.' * (inner == [17])}{wrong}" in told
    said["sites"]["b"] = {"source": {"kind": "nifti", "folder": "f"}, "gland": {"folder": "g"}}
    assert "sites.b.source.masks: missing" in problems(said)
    said["sites"]["b"]["source"] = {"kind": "dicomweb", "url": "https://pacs.example/dicom-web"}
    assert "sites.b.source.kind: dicomweb has no label maps" in problems(said)


def test_images_without_a_unit_are_no_adc_and_go_with_standardized_values():
    said = copy.deepcopy(BASE)
    said["sites"]["b"]["source"]["contrast"] = "t2w"
    told = problems(said)
    assert "sites.b.source.contrast" in told and "images.values is adc; say images: {values: standardized}" in told
    said["images"]["values"] = "standardized"
    assert validate(said, Config).sites["b"].source.contrast == "t2w"


def test_a_phantoms_cohort_and_files_do_not_hang_on_a_choice_that_there_was_not():
    said = copy.deepcopy(BASE)
    before = cohort_settings(validate(said, Config).sites["a"])
    assert "contrast" not in before["source"]
    said["sites"]["a"]["source"]["contrast"], said["images"]["values"] = "t2w", "standardized"
    assert cohort_settings(validate(said, Config).sites["a"])["source"]["contrast"] == "t2w"


def test_a_prior_in_another_unit_than_the_images_is_told_wherever_it_is_named():
    said = copy.deepcopy(BASE)
    said["images"]["values"] = "standardized"
    said["train"]["start"] = {"name": "pretrained", "on": "prostate_adc"}
    said["harmonize"] = {
        "synthesis": {"name": "public", "prior": "prostate_adc"},
        "translate": {"nobody": {"name": "randomized"}, "grey": {"name": "exported"}},
    }
    features = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "components": 8}
    said["train"]["method_model"] = {"fedper": features}
    told = problems(said)
    wrong = "prostate_adc draws images of values: adc, and images.values is standardized; say prostate_t2w"
    for place in ("train.start.on", "harmonize.synthesis.prior", "harmonize.translate.nobody.prior"):
        assert f"{place}: {wrong}" in told
    assert f"train.method_model.fedper.public: {wrong}" in told
    detector = {"name": "features", "of": {"name": "detector", "on": "prostate_t2w"}, "public": "prostate_t2w"}
    said["train"]["method_model"] = {"fedper": detector}
    assert "window must be what the prior draws for these images, -4.0 to 4.0; found window: [0.0, 3.5]" in problems(
        said
    )
    assert "exported undoes the units of ADC maps" in told
    assert "draws images of values: standardized, and images.values is adc; say prostate_adc" in problems(
        {**copy.deepcopy(BASE), "train": {**BASE["train"], "start": {"name": "pretrained", "on": "prostate_t2w"}}}
    )


@pytest.mark.parametrize("routed", ["translated", "raw"])
def test_a_translator_by_class_is_refused_where_a_hospital_that_trains_it_has_no_labels(routed):
    said = copy.deepcopy(BASE)
    said["harmonize"] = {"translate": {"vafl": {"name": "cyclegan", "by_class": True}}}
    said["train"]["method_images"] = {"fedavg": "vafl" if routed == "translated" else "raw"}
    said["sites"]["c"] = copy.deepcopy(said["sites"]["a"])
    said["outside"] = ["c"]
    said["route"] = {"shared": "fedavg", "personal": "fedavg", "lines": {"served": {"how": {"name": "as_trained"}}}}
    wrong = "harmonize.translate.vafl.by_class: needs labels where a translator learns, and c gives none; leave it out"
    assert (wrong in problems(said)) == (routed == "translated")


def test_where_no_prior_is_named_it_is_the_one_in_the_images_unit():
    said = copy.deepcopy(BASE)
    said["train"]["methods"]["ridge"] = {"name": "local_ridge"}
    said["harmonize"] = {"synthesis": {"name": "public"}}
    for values, prior in (("adc", "prostate_adc"), ("standardized", "prostate_t2w")):
        said["images"]["values"] = values
        config = validate(said, Config)
        assert config.train.method_model["ridge"].public == prior
        assert config.harmonize.public_prior(config.images) == prior
