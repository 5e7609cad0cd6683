"""The first screen: a sentence that hangs on the kind of run stands there exactly when it is true, in every kind."""

import html
import itertools
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from evaluation import records, report
from evaluation.attacks import MembershipRow
from evaluation.choice import make_decisions
from evaluation.drawing import Picture
from evaluation.floors import add_floor
from evaluation.harmony import Harmony, SpaceRow
from evaluation.histograms import count_scores
from evaluation.leaving import Left
from evaluation.masks import score_masks
from evaluation.overlap import list_measures, sum_over_patients
from evaluation.records import Model
from evaluation.scoring import label_measures, score_rows
from evaluation.wording import Words
from privacy.release.statement import Row, Run, Statement

SITES = ("north", "south")
METHODS = ("local", "fedavg", "vafl", "central")
WORDS = Words("slice", "slices")
HARMONIES = ("none", "target", "other", "vetoed")
TWO = (False, True)
WHOLE = [
    kind
    for kind in itertools.product(TWO, HARMONIES, TWO, TWO, TWO)
    if not (kind[0] and kind[2])  # scores of masks have no noise yet: a private run that segments is refused
]
HALF = [kind for kind in WHOLE if (HARMONIES.index(kind[1]) + kind[0] + kind[2] + kind[3] + kind[4]) % 2 == 0]
"""Every combination of any four of the five: no sentence hangs on more than three."""
GRID = [pytest.param(kind, marks=[] if kind in HALF else pytest.mark.slow) for kind in WHOLE]
NAMES = ("private", "harmony", "masks", "near", "validated")


def words(page):
    """What a page says outside its head, as one line."""
    body = re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", body).split()))


def screen(page):
    """The first screen alone."""
    return words(page[page.index('<div class="first answers">') : page.index('<h2 id="figure">')])


def labels(strength, site, noise):
    rng = np.random.default_rng(len(site))
    y = np.arange(120) % 2
    p = 1 / (1 + np.exp(-strength * (y - 0.5) + rng.normal(size=120)))
    made = count_scores(y, np.c_[1 - p, p], np.arange(120) // 2, copies=40, seed=0, site=site)
    return replace(made, noise=0.005) if noise else made


def outlines(miss, site):
    truth, found = np.zeros((2, 9, 12, 12), np.int64)
    truth[:, 2:10, 2:10], found[:, 2 + miss : 10, 2:10] = 1, 1
    found[:3, :6] = 0
    return sum_over_patients(
        score_masks(truth, found, np.arange(9), spacing_mm=(1, 1), classes=2), copies=20, seed=0, site=site
    )


@cache
def tables(private, masks):
    """vafl is fedavg, digit for digit."""
    strength = {"local": 1.0, "fedavg": 3.0, "vafl": 3.0, "central": 4.0}
    missed = {"local": 4, "fedavg": 1, "vafl": 1, "central": 0}
    return {
        method: {(s, s): outlines(missed[method], s) if masks else labels(strength[method], s, private) for s in SITES}
        for method in METHODS
    }


def scored(private, masks, site=None):
    found = tables(private, masks)
    if site is not None:
        found = {method: {(site, site): table[site, site]} for method, table in found.items() if method != "central"}
    floor = {s: outlines(5, s) for s in SITES if site in (None, s)} if masks else None
    of = list_measures(("gland",)) if masks else label_measures(found)
    return score_rows(add_floor(found, floor), reference="local", measures=of)


def statement(site, private, harmony):
    """Shared images may be made with noise in a run without privacy: the noised part of its ledger is then not 0."""
    noised = 3.0 if private else 10.0 if harmony != "none" else 0.0
    row = Row("train", "train", "Gaussian noise", 1.0, 1.1, 4, noised)
    return Statement(
        site=site, unit="patient", adjacency="two sets of patients", epsilon=3.0 if private else math.inf,
        noised=noised, replaced=2 * noised,
        delta=1e-5, accountant="PLD", meaning="What it means.", legend="", lines=3, torn=0, refused=0,
        first="", last="", budget=None, runs=(Run("r", noised, noised, (row,)),) if noised else (), splits=(),
        released=(), unprotected=(), stated=(), outside=(), paragraphs=(),
    )  # fmt: skip


def harmonized(kind, site):
    """As a hospital's page (site) or the coordinator's (empty) has it."""
    if kind == "none":
        return None
    target = "north" if kind != "target" or not site else site
    veto = ("contrast",) if kind == "vetoed" else ()
    rows = (SpaceRow("south", "vafl", "", veto, {"sw_before": 0.2, "sw_after": 0.1}),)
    told = Harmony(target="north", release="exact", synthesis="dp_wgan_gp", selected="100 images", rows=rows)
    if not site:
        return told
    return replace(told, target=target, rows=()) if kind == "target" else replace(told, target="", rows=rows)


def models(validated, site=None):
    """fedavg has the lower loss; vafl has no file, and central never has one."""
    losses = {"local": 0.6, "fedavg": 0.5, "vafl": 0.4, "central": math.nan}
    return tuple(
        Model(s, m, losses[m] if validated else math.nan, f"ready/{m}.safetensors" if m in ("local", "fedavg") else "")
        for s in SITES
        for m in METHODS
        if site in (None, s) and (site is None or m != "central")
    )


def shared(private, harmony, masks, near, validated, site=None):
    space = {method: "vafl" if method == "vafl" and harmony != "none" else "raw" for method in METHODS}
    return {
        "title": "T", "run": "r", "date": "today", "simulation": near, "reference": "local",
        "scores": scored(private, masks, site), "words": WORDS, "structures": ("gland",) if masks else (),
        "harmony": harmonized(harmony, site), "models": models(validated, site), "spaces": space,
        "decisions": make_decisions(models(validated, site), scored(private, masks, site)),
        "optimism": dict.fromkeys(SITES, 0.0125),
    }  # fmt: skip


def run_page(private, harmony, masks, near, validated, **more):
    sites = tuple(records.SiteCounts(s, (records.SplitCount("validation", 7, 9, 3),), {}) for s in SITES)
    left = tuple(Left(s, "train", 3, 1500, content="parameters") for s in SITES)
    page = records.RunPage(
        what="w", sites=sites, gains=(), methods=(), left=left, missing=(), stages=(), settings="{}", commands=(),
        statements=tuple(statement(s, private, harmony) for s in SITES),
        **shared(private, harmony, masks, near, validated),
    )  # fmt: skip
    return report.render_coordinator_page(replace(page, pictures=(PICTURE,), **more))


def site_page(private, harmony, masks, near, validated, **more):
    site = "south" if harmony != "target" else "north"
    page = records.SitePage(
        site=site, splits=(records.SplitCount("validation", 7, 9, 3),), quarantine=(), noised=private,
        left=(Left(site, "train", 3, 1500, content="parameters"),), statement=statement(site, private, harmony),
        **shared(False, harmony, masks, near, validated, site),
    )  # fmt: skip
    return report.render_site_page(replace(page, pictures=(PICTURE,), **more))


@cache
def page_of(make, kind):
    return make(*kind)


PICTURE = Picture("AUC", "a caption", '<svg role="img" aria-label="x"></svg>')


@pytest.mark.parametrize("kind", GRID, ids=lambda kind: " ".join(map(str, kind)))
@pytest.mark.parametrize("make", [run_page, site_page])
def test_a_conditional_sentence_stands_there_exactly_when_it_is_true(make, kind):
    private, harmony, masks, near, validated = kind
    coordinator, text = make is run_page, page_of(make, kind)
    said, first = words(text), screen(text)
    exact = not private or not coordinator
    facts = {
        "Simulation.": near,
        "the coordinator receives them with noise": private and not coordinator,
        "ε = 3 at δ = 1e-05": private,
        "ε = ∞: no formal guarantee": not private,
        "Nothing is proved about what all of this reveals about one patient": not private,
        "Replies with noise alone have ε = 10": not private and harmony != "none",
        "These scores come from noised counts": private and coordinator,
        "Chosen by the lowest loss on": validated,
        "Chosen by the highest": not validated,
        "by about 0.013 (bootstrap)" if not coordinator else "(bootstrap)": not validated or "The highest" in first,
        "This hospital is the target": harmony == "target" and not coordinator,
        "Veto.": harmony == "vetoed",
        "= fedavg: translation refused": harmony == "vetoed",
        "same scores as fedavg": harmony != "vetoed",
        "At the threshold 0.5 it finds": not masks,
        "Its probabilities are off by": not masks and exact,
        "calibration error": not masks and exact,
        "Nothing was found:": harmony != "vetoed",
        "No space was asked for": False,
        "it picks the right one": False,
    }
    wrong = {sentence: fact for sentence, fact in facts.items() if (sentence in said) is not fact}
    assert not wrong
    measure = "Dice" if masks else "AUC"
    assert f"{measure} " in first and "Better than local (+" in first
    assert re.findall(r"ready/(\w+)\.safetensors", first) == ["fedavg"] * (2 if coordinator else 1)
    assert first.index("1. Which model") < first.index("2. What left") < first.index("3. What needs a person's eye?")


@pytest.mark.parametrize("kind", HALF[::3], ids=str)
@pytest.mark.parametrize("make", [run_page, site_page])
def test_a_gain_is_coloured_only_where_its_interval_leaves_out_nought(make, kind):
    text = page_of(make, kind)
    cells = re.findall(
        r'class="(up|down|even)">([+−]\d\.\d+)</span>(?:</span>)?\s*<span class="sub">([+−][^<\s]+) to ([+−][^<\s]+)<',
        text,
    )
    assert len(cells) > 5
    for colour, _, low, high in cells:
        low, high = (float(number.replace("−", "-")) for number in (low, high))
        assert colour in ({"up", "even"} if low >= 0 else {"down", "even"} if high <= 0 else {"even"})
        assert colour != "even" or low <= 0 <= high


def test_what_was_rejected_lost_or_attacked_is_named_on_the_first_screen():
    kind = (False, "none", False, True, True)
    attack = MembershipRow("north", "fedavg", 0.77, 0.66, 0.86, 0.97, 30, 30)
    weak = replace(attack, method="local", auc=0.55, low=0.42, high=0.68)
    blind = replace(attack, method="vafl", control_auc=0.6)
    sites = (records.SiteCounts("north", (), {"gap": 3}), records.SiteCounts("south", (), {}))
    said = screen(
        run_page(
            *kind,
            membership=(attack, weak, blind),
            sites=sites,
            missing=(records.Missing("south", "train", "deadline", 2),),
        )
    )
    assert "for 1 of 2 models that were attacked" in said and "right one 77 times of 100" in said
    assert "95 % interval 66 to 86; guessing: 50" in said and "do not publish it" in said
    assert "3 studies were not used (north 3, south" not in said and "3 studies were not used (north 3)" in said
    assert "2 replies of south did not come (train: deadline)" in said
    assert "Nothing was found" not in said


def test_a_page_without_models_names_none():
    for make in (run_page, site_page):
        text = words(make(False, "none", False, True, True, models=(), decisions=()))
        assert "No model was made for" in text and "Chosen by" not in text
    filed = tuple(replace(one, file="") for one in models(True))
    assert "No model can be named" in words(
        run_page(False, "none", False, True, True, models=filed, decisions=make_decisions(filed, ()))
    )
