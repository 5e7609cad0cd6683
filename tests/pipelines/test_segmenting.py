"""Masks at a hospital: predictions in pieces, the mean mask, what leaves, what stays, and a whole small run."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evaluation.masks import Values
from evaluation.overlap import from_tensors, sum_over_patients, to_tensors
from federation.models.unet import UNet
from federation.task import Output, Task
from pipelines.hospital.segmentation import (
    FLOOR,
    patient_scores,
    read_patient_scores,
    select_shown_patients,
    select_worst_first,
    words_of_kind,
)
from pipelines.models.answers import predict_classes, predict_masks
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import from_bytes

TASK = Task(UNet(width=4, levels=2), (1, 16, 16), 2, "segmentation")


class Bright(nn.Module):
    """The class of a pixel by its own value alone."""

    def forward(self, x):
        return Output(torch.cat([-x, x], dim=1), x)


def test_in_pieces_a_pixelwise_network_answers_as_on_whole_images():
    x = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    whole = predict_classes(TASK, Bright(), x)
    assert torch.equal(whole, (x[:, 0] > 0).long())
    for window in ((8, 8), (16, 4), (5, 7)):
        assert torch.equal(predict_classes(TASK, Bright(), x, window=window), whole)
    volumes = torch.randn(2, 1, 6, 8, 8, generator=torch.Generator().manual_seed(1))
    deep = Task(UNet(width=4, levels=1), (1, 6, 8, 8), 2, "segmentation")
    assert torch.equal(predict_classes(deep, Bright(), volumes, window=(4, 4, 4)), (volumes[:, 0] > 0).long())
    with pytest.raises(ValueError, match="needed are 2 sides"):
        predict_classes(TASK, Bright(), x, window=(4, 4, 4))


def test_one_image_at_a_time_gives_what_all_at_once_give():
    module = TASK.network().eval()
    x = torch.randn(7, 1, 16, 16)
    assert torch.equal(
        predict_classes(TASK, module, x), torch.cat([predict_classes(TASK, module, one) for one in x.split(1)])
    )


def test_a_network_that_gives_no_number_finds_nothing():
    assert not predict_classes(TASK, Bright(), torch.full((2, 1, 16, 16), torch.nan)).any()


def found(dice):
    scores = np.stack([np.array(dice, float)[:, None], np.ones((len(dice), 1))], axis=-1)
    return Values(np.arange(len(dice)), scores, np.ones((len(dice), 1), bool), 9)


def test_best_median_and_worst_are_ranked_by_dice_and_nobody_twice():
    assert select_shown_patients(found([0.5, 0.9, 0.1, 0.7, np.nan])) == [("best", 1), ("median", 0), ("worst", 2)]
    assert select_shown_patients(found([0.5, 0.9])) == [("best", 1), ("worst", 0)]
    assert select_shown_patients(found([0.5])) == [("best", 0)] and select_shown_patients(found([np.nan])) == []


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=9))
def test_the_worst_stand_first_nobody_stands_twice_and_all_others_are_better(dice):
    chosen = select_worst_first(found(dice))
    rows = [row for _, row in chosen]
    known = sorted(value for value in dice if value == value)
    assert len(set(rows)) == len(rows) == min(5, len(known))
    assert [dice[row] for row in rows[:3]] == known[:3]
    assert not rows[3:] or dice[rows[-1]] == known[-1]
    assert [what for what, _ in chosen] == ["worst", "2. worst", "3. worst", "median", "best"][: len(rows)] or (
        len(rows) == 4 and chosen[3][0] == "best"
    )


def test_sizes_are_kept_at_home_and_are_in_no_reply():
    own = replace(found([0.5, 0.25]), sizes=np.arange(6.0).reshape(2, 1, 3))
    again = read_patient_scores(patient_scores(own, found([0.1, 0.2])))
    assert np.array_equal(again.sizes, own.sizes)
    assert read_patient_scores(patient_scores(own, found([0.1, 0.2])), FLOOR).sizes is None, "kept by an older version"
    bare, measured = (to_tensors(sum_over_patients(each, copies=3, seed=0)) for each in (found([0.5, 0.25]), own))
    assert bare.keys() == measured.keys() and all(torch.equal(bare[name], measured[name]) for name in bare)


@pytest.mark.parametrize("window", [None, (8, 8)])
def test_probabilities_add_up_to_the_expected_pixels(window):
    x = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    masks = predict_masks(TASK, Bright(), x, window=window)
    assert torch.equal(masks.classes, predict_classes(TASK, Bright(), x, window=window))
    assert torch.allclose(masks.expected[:, 0], (2 * x[:, 0].double()).sigmoid().sum(dim=(1, 2)), atol=1e-3)


def test_what_is_kept_is_read_again():
    own, low = found([0.5, np.nan]), found([0.25, 0.5])
    tensors = patient_scores(own, low)
    for prefix, values in (("", own), (FLOOR, low)):
        again = read_patient_scores(tensors, prefix)
        assert again is not None and again.images == values.images
        assert np.array_equal(again.scores, values.scores, equal_nan=True)
        assert np.array_equal(again.present, values.present)
    assert read_patient_scores(patient_scores(own, None), FLOOR) is None


def test_pictures_have_no_millimetres():
    assert (words_of_kind("pictures").length, words_of_kind("volumes").length) == ("pixels", "mm")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("segmenting"))
    sites = {
        name: {**site, "source": {**site["source"], "patients": 9, "slices": 4}, "policy": {}}
        for name, site in BASE["sites"].items()
    }
    settings = {
        **BASE,
        "sites": sites,
        "task": {"kind": "segmentation", "target": "gland"},
        "images": {"kind": "slices", "size": 16, "spacing_mm": 4.0, "centre": "image"},
        "model": {"name": "unet", "width": 4, "levels": 2},
        "train": {
            "schedule": {"rounds": 1},
            "work": {"lr": 0.01, "batch": 8},
            "methods": {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}},
        },
        "evaluate": {"copies": 5, "reference": "local"},
        "audit": {"membership": False},
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    assert main(["tiny.yaml"]) == Exit.OK
    folder = Path("runs/tiny").resolve()
    os.chdir(before)
    return folder


def test_sums_leave_and_single_patients_stay(run):
    (index,) = run.glob("evaluate/*/index.json")
    replies = {
        (e["label"], e["model_site"], e["test_site"]): from_bytes((index.parent / e["file"]).read_bytes()).tensors
        for e in json.loads(index.read_text())
    }
    floors = {key for key, tensors in replies.items() if f"{FLOOR}totals" in tensors}
    first = next(iter(replies))[0]  # asked for once, with the first method
    assert floors == {(first, model, test) for model in "ab" for test in "ab"}  # one global model is scored at home
    assert first == "fedavg"
    files = {path.name for path in index.parent.glob("*.safetensors")}
    own = {f"local.{model}.{test}.safetensors" for model in "ab" for test in "ab"}
    assert files == {*own, "fedavg.a.a.safetensors", "fedavg.b.b.safetensors"}, "and is kept once for each hospital"
    for tensors in replies.values():
        told = from_tensors({n: t for n, t in tensors.items() if not n.startswith(FLOOR)})
        assert told.totals.shape == (6, 1, 2) and set(tensors) >= {"totals", "known"} and "scores" not in tensors
    (home,) = run.glob("sites/a/scores/local*.safetensors")
    own = read_patient_scores(from_bytes(home.read_bytes()).tensors)
    assert np.allclose(np.nansum(own.scores, axis=0), replies["local", "a", "a"]["totals"][0])


def test_the_report_has_dice_distances_and_the_floor(run):
    (scores,) = run.glob("report/*/scores.json")
    rows = json.loads(scores.read_text())
    assert {row["measure"] for row in rows} == {"Dice", "HD95"}
    assert {row["method"] for row in rows} == {"local", "fedavg", "mean mask"}
    text = (run / "report.html").read_text()
    known = {row["measure"] for row in rows if row["method"] == "fedavg" and row["gain"] is not None}
    assert {measure for measure in ("Dice", "HD95") if f"{measure}: gain over local" in text} == known >= {"Dice"}
    assert "ROC" not in text
    assert "data:image/png" not in text
    assert "Summed area" not in text and "cm²" not in text


def test_the_hospitals_page_shows_its_worst_patients_first_and_how_large_masks_are(run):
    text = (run / "sites/a/report.html").read_text()
    for method in ("local", "fedavg"):
        assert f"{method}: the worst test patients first" in text
    captions = re.findall(r"<figcaption>([^:<]+): Dice (0\.\d{3}), HD95[^<]*, summed area ([\d.]+) cm² given, ", text)
    (home,) = run.glob("sites/a/scores/local*.safetensors")
    own = read_patient_scores(from_bytes(home.read_bytes()).tensors)
    assert [what for what, *_ in captions] == 2 * ["worst", "2. worst", "3. worst"]
    assert f"{np.nanmin(own.scores[..., 0]):.3f}" in [dice for _, dice, _ in captions]
    assert {f"{size / 100:.4g}" for size in own.sizes[:, 0, 0]} >= {size for *_, size in captions}
    assert np.isfinite(own.sizes).all() and "Summed area of masks" in text and "by probability" in text
    assert "mean mask" in text and "given mask" in text and "ROC curve" not in text
