"""What no synthesis can do is foreseen without a patient, and what works is not refused."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from harmonize.foresight import count_doublings, find_impossible, measure_noise
from harmonize.networks import Critic
from harmonize.prior import PRIORS, draw_pictures
from harmonize.sampling import Sampling, TooFew, measure_gaps, sample_images
from harmonize.synthesis import AnySynthesis, FittedPrior, Real
from harmonize.wgan import WganGp

INPUTS = (1, 32, 32)
PRIOR = PRIORS["prostate_adc"]
PAPER = WganGp(variant="paper")
RULE = Sampling(name="raw", variant="paper")


def test_the_noise_is_that_of_the_papers_equation_2_counted_over_all_numbers_and_steps():
    """By hand: sigma_n = 2 q sqrt(5 ln 1e5) / 10 on the mean of 24, so 24 sigma_n on their sum."""
    noise = measure_noise(PAPER, INPUTS, 48)
    assert noise is not None
    numbers = sum(value.numel() for value in Critic(INPUTS, PAPER.width, 0).parameters())
    multiplier = 24 * 2 * (24 / 48) * math.sqrt(5 * math.log(1e5)) / 10
    assert noise.norm == pytest.approx(multiplier * math.sqrt(numbers))
    assert noise.share == pytest.approx(math.sqrt(400) * 24 / noise.norm)
    enough = measure_noise(WganGp(variant="paper", steps=noise.steps_needed), INPUTS, 48)
    assert enough is not None and 1 <= enough.share < 1.001


@pytest.mark.parametrize("settings", [FittedPrior(), Real(), WganGp(), WganGp(name="wgan_gp", epsilon=None)])
def test_only_a_whole_critic_with_noise_is_judged_by_it(settings: AnySynthesis):
    assert measure_noise(settings, INPUTS, 10) is None


def test_patients_part_of_the_noise_grows_with_patients_and_steps():
    shares = [
        noise.share
        for patients, steps in ((10, 400), (100, 400), (1000, 400), (1000, 4000))
        if (noise := measure_noise(WganGp(variant="paper", steps=steps), INPUTS, patients))
    ]
    assert len(shares) == 4 and shares == sorted(shares)


def test_the_literal_setting_of_the_paper_is_refused_with_its_values_and_ways_out():
    ((setting, text),) = find_impossible(PAPER, RULE, PRIOR, INPUTS, 48)
    assert setting == "synthesis"
    for part in ("400 steps", "18.2 x 1", "keeps none of 64", "allowed is below 0.2", "steps: ", "doublings: "):
        assert part in text, part


@pytest.mark.parametrize("way", ["steps", "doublings", "consilium", "surrogate", "patients", "unknown", "noiseless"])
def test_each_way_out_that_is_named_is_one(way):
    noise = measure_noise(PAPER, INPUTS, 48)
    assert noise is not None
    cases: dict[str, tuple[AnySynthesis, Sampling, int | None]] = {
        "steps": (WganGp(variant="paper", steps=noise.steps_needed), RULE, 48),
        "doublings": (PAPER, Sampling(name="raw", variant="paper", doublings=5), 48),
        "consilium": (WganGp(), RULE, 48),
        "surrogate": (PAPER, Sampling(), 48),
        "patients": (PAPER, RULE, 10_000),
        "unknown": (PAPER, RULE, None),
        "noiseless": (WganGp(name="wgan_gp", variant="paper", epsilon=None), RULE, 48),
    }
    settings, rule, patients = cases[way]
    assert not find_impossible(settings, rule, PRIOR, INPUTS, patients)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        (Sampling(closeness=1e-3), "closeness"),
        (Sampling(name="raw", closeness=1e-6), "closeness"),
        (Sampling(spacing=50.0), "spacing"),
    ],
)
def test_a_rule_that_rejects_faultless_images_is_refused_whatever_makes_them(rule: Sampling, word: str):
    ((setting, text),) = find_impossible(FittedPrior(), rule, PRIOR, INPUTS, None)
    assert setting == "sampling" and text.startswith(word)


def test_gaps_are_those_that_the_rule_compares_with_closeness():
    """A rule whose closeness is just above the least gap keeps something, and one just below keeps nothing."""
    reference, made = draw_pictures(PRIOR, torch.zeros(40, dtype=torch.long), INPUTS, 3).chunk(2)
    gaps = measure_gaps(Sampling(features="pca"), made, reference)
    for factor, keeps in ((1.001, True), (0.999, False)):
        rule = Sampling(closeness=float(gaps.min()) * factor, max_passes=1, spacing=0.0, features="pca")
        labels = torch.zeros(20, dtype=torch.long)
        sample = partial(sample_images, rule, lambda y, turn: made, reference, labels, count={0: 20}, seed=0)
        with pytest.raises(TooFew) as failure:
            sample()
        assert ("; 20 were not close" in str(failure.value)) is not keeps


@pytest.mark.parametrize("needed", [0.1, 0.2, 0.39, 0.4, 1.7])
def test_doublings_that_are_named_are_the_fewest_that_reach(needed: float):
    count = count_doublings(RULE, needed)
    assert 0.2 * 2**count > needed and (count == 0 or 0.2 * 2 ** (count - 1) <= needed)
