from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.stats import rankdata
from torch import Tensor

from harmonize.drift import measure_drift
from harmonize.quality import coarsen_images, gland_correlation, gradient_correlation, measure_quality, new_spot_share

PATIENTS, SLICES, SIDE = 8, 2, 48
N = PATIENTS * SLICES
LESION_FIGURES = ("contrast_ratio", "cnr_before", "cnr_after", "lesion_correlation")
NO_MASKS = torch.zeros(N, 0, dtype=torch.uint8)


def disc(y: float, x: float, radius: float) -> np.ndarray:
    rows, columns = np.mgrid[:SIDE, :SIDE]
    return np.hypot(rows - y, columns - x) < radius


def drawn() -> dict[str, Tensor]:
    """Discs with texture; the images of every other patient have a dark lesion."""
    generator = np.random.default_rng(0)
    patient = np.repeat(np.arange(PATIENTS), SLICES)
    labels = patient % 2
    gland = np.stack([disc(24, 24, 14)] * N)
    lesion = np.stack([disc(20 + p, 20, 4) if y else disc(0, 0, 0) for p, y in zip(patient, labels, strict=True)])
    level = 0.4 + 0.02 * patient[:, None, None]
    texture = ndimage.gaussian_filter(generator.standard_normal((N, SIDE, SIDE)), (0, 2, 2))
    x = level * (1 + 0.3 * texture) * (1 - 0.4 * lesion * (1 + 0.1 * generator.random((N, 1, 1)))) * (0.3 + 0.7 * gland)
    return {
        "raw": torch.from_numpy(2 * x - 1).float()[:, None],
        "labels": torch.from_numpy(labels),
        "patient": torch.from_numpy(patient),
        "lesion": torch.from_numpy(lesion.astype(np.uint8)),
        "gland": torch.from_numpy(gland.astype(np.uint8)),
        "shared": torch.from_numpy(2 * (1.3 * x).clip(0, 1) - 1).float()[:, None],
    }


DRAWN = drawn()
GLAND = DRAWN["gland"].bool().numpy()
VALUES = coarsen_images(DRAWN["raw"])


@pytest.fixture(autouse=True)
def once(request, monkeypatch):
    """Classifiers are cross-validated once, not five times, where a test is not about them."""
    if "drift" not in request.node.name:
        monkeypatch.setattr("harmonize.drift.REPEATS", 1)


def judged(translated: Tensor, **other: Tensor | None) -> dict[str, float]:
    given_ = {**DRAWN, **other}
    return asdict(measure_quality(given_.pop("raw"), translated, **given_, seed=0))


def same(a: dict[str, float], b: dict[str, float], but: tuple[str, ...] = ()) -> bool:
    return {k: v for k, v in a.items() if k not in but} == pytest.approx(
        {k: v for k, v in b.items() if k not in but}, nan_ok=True, abs=1e-6
    )


def test_the_identity_changes_nothing():
    found = judged(DRAWN["raw"], cycled=DRAWN["raw"])
    for name in ("contrast_ratio", "lesion_correlation", "gland_correlation", "gradient_correlation"):
        assert found[name] == pytest.approx(1)
    assert (found["cycle_mae"], found["drift"], found["shift"], found["hallucinated"]) == (0, 0, 0, 0)
    assert found["sw_before"] == found["sw_after"] > 0
    assert found["cnr_before"] == found["cnr_after"]


def test_the_shared_images_themselves_have_no_distance_left_and_another_translation_has():
    found = judged(DRAWN["shared"])
    assert found["sw_after"] == 0 < found["sw_before"]


def test_lesion_figures_are_those_of_a_plain_loop():
    after = DRAWN["raw"] ** 2 * 0.5 - 0.2
    found = judged(after)
    contrast, cnr, level = ([], []), ([], []), ([], [])
    for k, images in enumerate((DRAWN["raw"], after)):
        for i in range(N):
            image, inside, spot = (x[i].tolist() for x in (images[:, 0], DRAWN["gland"], DRAWN["lesion"]))
            values = [(image[r][c], inside[r][c], spot[r][c]) for r in range(SIDE) for c in range(SIDE)]
            inner = [(v + 1) / 2 for v, _, lesion in values if lesion]
            outer = [(v + 1) / 2 for v, gland, lesion in values if gland and not lesion]
            if inner:
                mean = sum(outer) / len(outer)
                difference = mean - sum(inner) / len(inner)
                contrast[k].append(difference / mean)
                cnr[k].append(difference / math.sqrt(sum((v - mean) ** 2 for v in outer) / len(outer)))
                level[k].append(sum(inner) / len(inner))
    assert found["contrast_ratio"] == pytest.approx(sum(contrast[1]) / sum(contrast[0]), rel=1e-4)
    assert found["cnr_before"] == pytest.approx(np.mean(cnr[0]), rel=1e-4)
    assert found["cnr_after"] == pytest.approx(np.mean(cnr[1]), rel=1e-4)
    ranks = [rankdata(v) for v in level]
    assert found["lesion_correlation"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-6)


@given(gain=st.floats(0.2, 1.5), offset=st.floats(-0.2, 0.2))
def test_gradients_do_not_see_gain_and_offset(gain, offset):
    assert gradient_correlation(VALUES, gain * VALUES + offset, GLAND) == pytest.approx(1)


@pytest.mark.parametrize(("change", "low", "high"), [(-1, -1.001, -0.999), ("moved", -1, 0.6), ("noise", -0.3, 0.3)])
def test_gradients_see_inverted_moved_and_foreign_edges(change, low, high):
    other = {
        -1: -VALUES,
        "moved": np.roll(VALUES, 6, axis=1),
        "noise": np.random.default_rng(1).random(VALUES.shape),
    }[change]
    assert low <= gradient_correlation(VALUES, other, GLAND) <= high


@settings(max_examples=25)
@given(power=st.floats(0.6, 1.6))
def test_an_increasing_tone_map_invents_nothing_and_keeps_the_order_of_patients(power):
    after = VALUES**power
    assert new_spot_share(VALUES, after, GLAND, DRAWN["labels"].numpy()) == 0
    assert gland_correlation(VALUES, after, GLAND, DRAWN["patient"].numpy()) > 0.99


@settings(max_examples=25)
@given(share=st.integers(0, N // 2), place=st.integers(18, 30))
def test_the_share_of_images_with_an_added_spot_is_the_share_that_is_found(share, place):
    labels = DRAWN["labels"].numpy()
    after = VALUES.copy()
    after[np.flatnonzero(labels == 0)[:share]] *= 1 - 0.45 * disc(place, 48 - place, 4)
    assert new_spot_share(VALUES, after, GLAND, labels) == pytest.approx(share / (N // 2))


def test_spots_in_images_that_have_lesions_are_not_counted():
    labels = DRAWN["labels"].numpy()
    after = VALUES.copy()
    after[labels == 1] *= 1 - 0.45 * disc(28, 28, 4)
    assert new_spot_share(VALUES, after, GLAND, labels) == 0


def test_what_a_flat_translation_lost_is_zero_and_not_unknown():
    found = judged(torch.zeros_like(DRAWN["raw"]))
    lost = ("contrast_ratio", "cnr_after", "lesion_correlation", "gland_correlation", "gradient_correlation")
    assert {name: found[name] for name in lost} == dict.fromkeys(lost, 0.0)
    assert found["auc_after"] == pytest.approx(0.5)


def test_classes_that_are_told_apart_by_lesions_are_not_told_apart_without_them():
    erased = DRAWN["raw"].clone()
    where = DRAWN["lesion"].bool()[:, None]
    erased[where] = (erased[where] + 1) / 0.58 - 1
    found = judged(erased)
    assert found["auc_before"] > 0.9
    assert found["drift"] == pytest.approx(found["auc_after"] - found["auc_before"])
    assert found["drift"] < -0.2


def test_a_classifier_that_knew_nothing_has_no_drift():
    generator = torch.Generator().manual_seed(1)
    found = judged(DRAWN["shared"], raw=0.1 * torch.randn(DRAWN["raw"].shape, generator=generator))
    assert found["auc_before"] < 0.7 < found["auc_after"]
    assert math.isnan(found["drift"])


def test_drift_is_the_same_for_the_same_seed_and_small_for_a_small_change():
    args = (DRAWN["labels"].numpy(), DRAWN["patient"].numpy(), GLAND)
    once, again = (measure_drift(VALUES, VALUES + 5e-4, *args, seed=3) for _ in range(2))
    assert once == again
    assert abs(once.drift) < 0.01


@pytest.mark.parametrize(
    ("labels", "reason"),
    [(torch.zeros(N, dtype=torch.int64), "one class"), ((DRAWN["patient"] == 1).long(), "one positive patient")],
)
def test_there_is_no_drift_without_two_patients_of_either_class(labels, reason):
    found = judged(DRAWN["shared"], labels=labels)
    assert math.isnan(found["drift"]) and math.isnan(found["auc_before"]), reason


def test_without_images_of_label_0_nothing_can_be_invented_and_without_a_way_back_there_is_no_cycle_error():
    found = judged(DRAWN["shared"], labels=torch.ones(N, dtype=torch.int64))
    assert math.isnan(found["hallucinated"]) and math.isnan(found["cycle_mae"])


@pytest.mark.parametrize("lesion", [NO_MASKS, torch.zeros_like(DRAWN["lesion"])])
def test_without_lesion_masks_only_the_lesion_figures_are_unknown(lesion):
    found, full = judged(DRAWN["shared"], lesion=lesion), judged(DRAWN["shared"])
    assert all(math.isnan(found[name]) for name in LESION_FIGURES)
    assert same(found, full, but=LESION_FIGURES)


def test_lesions_that_nobody_sees_in_raw_images_have_no_contrast_ratio():
    plain = DRAWN["raw"].mean(dim=(2, 3), keepdim=True).expand_as(DRAWN["raw"]).contiguous()
    assert math.isnan(judged(DRAWN["shared"], raw=plain)["contrast_ratio"])


def test_four_patients_have_no_order():
    few = slice(0, 4 * SLICES)
    found = judged(DRAWN["shared"][few], **{k: v[few] for k, v in DRAWN.items()})
    assert math.isnan(found["gland_correlation"])
    assert not math.isnan(found["gradient_correlation"])


@pytest.mark.parametrize("gland", [NO_MASKS, torch.zeros_like(DRAWN["gland"])])
def test_without_gland_masks_the_middle_third_is_looked_at_and_that_is_told(gland):
    middle = torch.zeros_like(DRAWN["gland"])
    middle[:, 16:32, 16:32] = 1
    found, as_mask = judged(DRAWN["shared"], gland=gland), judged(DRAWN["shared"], gland=middle)
    assert (found["masked"], as_mask["masked"]) == (0, 1)
    assert same(found, as_mask, but=("masked",))


def test_finer_images_of_the_same_have_the_same_figures():
    def finer(x: Tensor) -> Tensor:
        return x.repeat_interleave(4, dim=-1).repeat_interleave(4, dim=-2)

    large = {k: finer(DRAWN[k]) for k in ("raw", "lesion", "gland", "shared")}
    found = judged(finer(DRAWN["shared"]), **large)
    assert same(found, judged(DRAWN["shared"]), but=("sw_before", "sw_after"))


def test_three_equal_colours_are_as_good_as_one():
    colours = {k: DRAWN[k].expand(-1, 3, -1, -1) for k in ("raw", "shared")}
    found = judged(DRAWN["shared"].expand(-1, 3, -1, -1), **colours)
    assert same(found, judged(DRAWN["shared"]), but=("sw_before", "sw_after"))


def test_the_order_of_rows_says_nothing():
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    found = judged(DRAWN["shared"][order], **{k: v[order] for k, v in DRAWN.items() if k != "shared"})
    assert same(found, judged(DRAWN["shared"]), but=("auc_before", "auc_after", "drift", "shift"))


def test_all_that_is_wrong_with_the_arguments_is_said_at_once():
    broken = DRAWN["raw"].clone()
    broken[0, 0, 0, 0] = math.nan
    with pytest.raises(
        ValueError, match=r"cycled has .*shared has .*labels has .*gland has .*translated is not finite"
    ):
        judged(
            broken,
            cycled=broken[:3],
            shared=DRAWN["shared"][:, :, :8],
            labels=DRAWN["labels"][:5],
            gland=DRAWN["gland"][:, :4],
        )
    with pytest.raises(ValueError, match=r"labels hold \[2\], allowed are 0 and 1"):
        judged(DRAWN["raw"], labels=DRAWN["labels"] * 2)
    with pytest.raises(ValueError, match=r"raw has shape \(48, 48\)"):
        judged(DRAWN["raw"], raw=DRAWN["raw"][0, 0])


def test_quality_is_a_value():
    # Without NaN: from Python 3.13 on, dataclasses with the same NaN are not equal.
    quality = replace(measure_quality(**{**DRAWN, "translated": DRAWN["raw"]}, seed=0), cycle_mae=0.0)
    assert replace(quality) == quality and hash(quality) == hash(replace(quality))
