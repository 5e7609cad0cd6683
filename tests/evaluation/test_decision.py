"""One decision: page, file, command, Python and the coordinator's page name the same model, or none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.answers import run_answers, site_answers
from evaluation.choice import describe_decisions, describe_guessing, is_better, make_decisions, own_scores
from evaluation.decision import Decision, from_facts, to_facts
from evaluation.metrics import AUC, SENSITIVITY, SPECIFICITY
from evaluation.recommendation import (
    FLIP,
    SURE,
    Gain,
    Measured,
    OtherGains,
    Recommendation,
    Validated,
    measure_gains,
    recommend_model,
)
from evaluation.records import Model, RunPage, SitePage
from evaluation.rows import PRIVATE, ScoreRow
from evaluation.wording import Words
from federation.features.colour import Colour
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.features import Features
from federation.models.mlp import Mlp
from personalize import AnyAlgorithm
from personalize.at_home import AtHome
from personalize.moments import Moments
from pipelines.coordinator.report.asking import read_decisions
from pipelines.hospital.recommending import is_head
from pipelines.models.file import digest_of
from pipelines.models.recommended import FORMAT, RECOMMENDED, read_recommended, recommended_file, to_bytes
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit

KINDS = get_args(get_args(AnyAlgorithm)[0]) or get_args(AnyAlgorithm)
METHODS = ("local", "local_svm", "fedavg", "moments")


def row(method, measure, value, low=math.nan, *, many=True):
    high = min(1.0, value + 0.1)
    return ScoreRow(method, PRIVATE, ("a",), measure, value, low, high, 20, 0, 30, 60, 30, 30, 15, many, False)


@st.composite
def scores_of(draw, method, many):
    """A method's rows on test patients: none; an area with or without an interval; or the same answer for everybody."""
    kind = draw(st.sampled_from(["none", "good", "poor", "same", "bare"]))
    value = draw(st.floats(0.51, 1.0)) if kind != "poor" else draw(st.floats(0.2, 0.6))
    low = {"good": draw(st.floats(0.501, 0.51)), "poor": value - 0.2, "same": 0.505}.get(kind, math.nan)
    sees = draw(st.sampled_from([0.0, 1.0])) if kind == "same" else 0.6
    found = [row(method, AUC.name, value, low, many=many), row(method, SENSITIVITY.name, sees, many=many)]
    return [] if kind == "none" else [*found, row(method, SPECIFICITY.name, 1 - sees, many=many)]


@st.composite
def hospitals(draw):
    """Models, rows and recommendations of one hospital."""
    loss = st.one_of(st.just(math.nan), st.floats(0.1, 2.0))
    models = tuple(Model("a", m, draw(loss), draw(st.sampled_from(["", f"{m}.safetensors"]))) for m in METHODS)
    many = draw(st.booleans())
    rows = tuple(one for m in METHODS for one in draw(scores_of(m, many)))
    best = draw(st.sampled_from(METHODS))
    told = (Recommendation("a", best, "local_svm", best, 0.02, 0.0, 0.04, 0.8),) if draw(st.booleans()) else ()
    return models, rows, told


def site_page(models, rows, decided_):
    return SitePage("t", "a", "r", "d", True, "", (), rows, (), (), models=models, decisions=decided_)


def run_page(models, rows, decided_):
    none = dict.fromkeys(("sites", "gains", "methods", "left", "missing", "stages", "commands"), ())
    return RunPage("t", "r", "d", "w", True, "", scores=rows, settings="{}", models=models, decisions=decided_, **none)


@given(hospitals())
def test_what_is_named_is_a_file_that_is_not_shown_to_guess_and_none_hides_nothing(hospital):
    models, rows, told = hospital
    (one,) = make_decisions(models, rows, told)
    own, filed = own_scores(rows), {model.method for model in models if model.file}
    scored = own.at("a", own.measure)
    good = {method for method in filed & {*scored} if is_better(scored[method], own)}
    assert not one.method or one.method in filed
    assert one.method or not good, "a usable model above chance is not hidden behind none"
    if one.method in scored and scored[one.method].assessable:
        assert not describe_guessing(scored[one.method], own)
    if one.withdrawn and one.method:
        assert one.method in good and not {*one.withdrawn} & good
    if told and told[0].method in good:
        assert (one.method, one.by) == (told[0].method, "recommended")
    (choice,) = describe_decisions([one], models, rows, "", Words())
    shown = " ".join(choice.said)
    for method in {*scored} if not one.method else set():
        assert not is_better(scored[method], own) or f"{method} (AUC" in shown
    for method in one.withdrawn:
        assert method in shown and "guessing" in shown


def test_few_test_patients_withdraw_no_model_unless_it_says_the_same_of_each_and_another_does_better():
    models = (Model("a", "local", 0.1, "l"), Model("a", "fedavg", 0.2, "f"))
    good, poor = row("fedavg", AUC.name, 0.9, 0.6, many=False), row("local", AUC.name, 0.5, 0.4, many=False)
    names = ((SENSITIVITY.name, 1.0), (SPECIFICITY.name, 0.0))
    same = tuple(row("local", name, value, many=False) for name, value in names)
    named = [make_decisions(models, rows)[0].method for rows in ((poor, good), (poor, *same, good), (poor, *same))]
    assert named == ["local", "fedavg", "local"]
    assert make_decisions(models, (replace(poor, assessable=True), good))[0].method == "fedavg"


def test_a_model_that_ranks_patients_and_answers_all_alike_is_no_guess_and_needs_another_threshold():
    """A network whose probabilities all lie below 0.5 has an area under the curve like any other."""
    names = ((SENSITIVITY.name, 0.0), (SPECIFICITY.name, 1.0))
    alike, models = tuple(row("local", name, value) for name, value in names), (Model("a", "local", 0.1, "l"),)
    for value, low, is_guess in ((0.9, 0.7, False), (0.6, 0.4, True), (0.9, math.nan, True)):
        rows = (row("local", AUC.name, value, low), *alike)
        own = own_scores(rows)
        why = describe_guessing(own.at("a", AUC.name)["local"], own)
        assert bool(why) == is_guess and (not why or ("the same answer" in why and f"{value:.3f}" in why))
        (choice,) = describe_decisions(make_decisions(models, rows), models, rows, "", Words())
        assert any("needs another" in text for text in choice.standing) == (choice.method == "local") == (not is_guess)


@given(hospitals())
def test_test_patients_had_a_part_in_a_choice_or_had_none_and_no_page_says_both(hospital):
    models, rows, told = hospital
    made = make_decisions(models, rows, told)
    answers = site_answers(site_page(models, rows, made))
    words = " ".join([*answers.sure, *(text for choice in answers.use for text in choice.said)])
    assert not ("had a part in the choice" in words and "without using the test patients" in words)
    assert ("had a part in the choice" in words) == bool(made[0].withdrawn and made[0].method)


def test_an_area_without_an_interval_takes_no_withdrawn_models_place():
    models = (Model("a", "local", 0.1, "l"), Model("a", "fedavg", 0.2, "f"), Model("a", "moments", 0.3, "m"))
    rows = (row("local", AUC.name, 0.5, 0.4), row("fedavg", AUC.name, 0.9), row("moments", AUC.name, 0.7, 0.6))
    assert [make_decisions(models[:n], rows[:n])[0].method for n in (1, 2, 3)] == ["", "", "moments"]
    assert make_decisions(models[1:], rows[1:])[0].method == "fedavg", "what nothing speaks against is not withdrawn"


@settings(max_examples=60, deadline=None)
@given(hospitals(), st.booleans())
def test_page_file_command_and_coordinator_name_the_same(tmp_path_factory, hospital, promised):
    models, rows, told = hospital
    home = tmp_path_factory.mktemp("a")
    (home / "ready").mkdir()
    for one in models:
        (home / "ready" / f"{one.method}.safetensors").write_bytes(one.method.encode())
    models = tuple(replace(one, file=str(home / "ready" / one.file) if one.file else "") for one in models)
    made = make_decisions(models, rows, told)
    (page,) = site_answers(site_page(models, rows, made)).use
    (home / RECOMMENDED).write_bytes(to_bytes(made[0], page.said, "", page.file))
    kept = read_recommended(home)
    assert (kept.decision, page.method) == (made[0], made[0].method)
    if page.method:
        assert str(recommended_file(home)) == page.file
    else:
        with pytest.raises(ValueError, match="no model is recommended to a, as its page says"):
            recommended_file(home)
    said = {"a": None if promised else json.loads(json.dumps(to_facts(made[0])))}
    coordinators = read_decisions(said, models, rows)
    (use,) = run_answers(run_page(models, rows, coordinators)).use
    if promised:
        assert (use.method, use.file, use.named) == ("", "", "see its own page") and "Its own page decides" in use.said[
            0
        ]
    else:
        assert coordinators == made and (use.method, use.said) == (page.method, page.said)


@pytest.mark.parametrize(
    "told",
    [None, {}, {"site": "a", "method": 3}, {"method": "stranger", "site": "a"},
     {"site": "a", "method": "local", "by": "luck"}, {"site": "a", "withdrawn": ["x"]}],
)  # fmt: skip
def test_what_a_hospital_cannot_have_decided_is_not_believed(told):
    models, rows = (Model("a", "local", 0.5, "f"),), ()
    (one,) = read_decisions({"a": told}, models, rows)
    assert not one.final and one.site == "a"


@pytest.mark.parametrize("withdrawn", [(), ("local",), ("local", "fedavg")])
@pytest.mark.parametrize("method", ["", "moments"])
def test_where_a_hospital_did_not_tell_its_page_decides_whatever_is_known_here(method, withdrawn):
    models = tuple(Model("a", name, 0.5, f"{name}.safetensors") for name in METHODS)
    one = Decision("a", method, "validation" if method else "", withdrawn, final=False)
    (choice,) = describe_decisions([one], models, (), "", Words())
    assert choice.said[0].startswith("Its own page decides") and "No model can be" not in " ".join(choice.said)
    assert choice.named == "see its own page" and all(name in " ".join(choice.said) for name in withdrawn)


def test_another_hospitals_name_is_not_taken_over():
    facts = to_facts(Decision("b", "local", "validation"))
    (one,) = read_decisions({"a": facts}, (Model("a", "local", 0.5, "f"),), ())
    assert (one.site, one.method, one.final) == ("a", "local", True) and from_facts(facts).site == "b"


def test_predict_ends_with_words_where_the_page_withdrew_the_model(tmp_path, capsys):
    home, rows = tmp_path / "a", (row("local", AUC.name, 0.5, 0.4),)
    (home / "ready").mkdir(parents=True)
    models = (Model("a", "local", 0.5, str(home / "ready" / "local.safetensors")),)
    (home / "ready" / "local.safetensors").write_bytes(b"")
    (one,) = make_decisions(models, rows)
    (page,) = site_answers(site_page(models, rows, (one,))).use
    assert (one.method, one.withdrawn) == ("", ("local",)) and "no better than guessing" in page.said[0]
    (home / RECOMMENDED).write_bytes(to_bytes(one, page.said, "", page.file))
    arguments = [str(home), str(tmp_path), "--recommended", "--out", str(tmp_path / "out")]
    assert predict(arguments) == Exit.CONFIG
    assert "no better than guessing" in capsys.readouterr().err
    (home / RECOMMENDED).write_text(json.dumps({"format": 1, "method": "local", "digest": digest_of(b"")}))
    assert predict(arguments) == Exit.CONFIG
    assert "did not say whether its page withdrew" in capsys.readouterr().err
    (home / RECOMMENDED).write_text(json.dumps({"format": FORMAT + 1}))
    assert predict(arguments) == Exit.CONFIG
    assert "made by a later version" in capsys.readouterr().err


def test_a_recommended_model_is_used_only_while_its_file_is_the_one_that_was_recommended(tmp_path):
    home, file = tmp_path / "a", tmp_path / "a" / "ready" / "local.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"whole")
    (home / RECOMMENDED).write_bytes(to_bytes(Decision("a", "local", "validation"), (), "", str(file)))
    assert recommended_file(home) == file
    for damage in (lambda: file.write_bytes(b"hole"), file.unlink):
        damage()
        with pytest.raises(ValueError, match="is gone, or not the model that was recommended"):
            recommended_file(home)


scores = st.lists(st.floats(0, 1), min_size=12, max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 11), scores, scores, scores, scores, st.sampled_from([("cnn", "svm"), ("cnn",)]), st.integers(0, 5)
)
def test_a_network_is_named_only_where_validation_shows_it_above_every_head_that_it_displaces(
    positive, cnn, svm, fedavg, moments, own, seed
):
    """Without word from others. A network is the hospital's own, or one that all trained."""
    y = (np.arange(12) < positive).astype(np.int64)
    found = {"cnn": cnn, "fedavg": fedavg, "moments": moments} | ({"svm": svm} if "svm" in own else {})
    held = {name: np.stack([1 - np.array(p), np.array(p)], axis=1) for name, p in found.items()}
    at_home = measure_gains(Validated(y, np.arange(12), held), own, ("svm", "moments"), seed=seed)
    assert at_home.own == ("svm" if "svm" in own else "moments") and "cnn" in at_home.gains and at_home.networks
    one = recommend_model("a", at_home, OtherGains())
    if one.method in ("cnn", "fedavg"):
        assert at_home.gains[one.method].value > 0 and one.sure >= SURE
    if one.method != at_home.own:
        gain = at_home.gains[one.method]
        assert gain.value > 0.5 * math.sqrt(gain.variance), "P(g > 0) of .7 is half a standard error at the least"


@given(st.integers(1, 3), st.integers(0, 100))
def test_three_validation_patients_never_displace_a_head(patients, seed):
    y = np.arange(patients) % 2
    sharp, blunt = np.stack([1 - y, y], axis=1).astype(float), np.stack([y, 1 - y], axis=1).astype(float)
    found = Validated(y.astype(np.int64), np.arange(patients), {"cnn": sharp, "fedavg": sharp, "svm": blunt})
    one = recommend_model("a", measure_gains(found, ("cnn", "svm"), ("svm",), seed=seed), OtherGains())
    assert one.method == "svm"


def test_where_only_others_have_heads_one_of_them_goes_before_the_own_network():
    y = np.array([0, 1, 1])
    found = Validated(y, np.arange(3), {"local": np.eye(2)[y], "moments": np.eye(2)[1 - y], "dp_head": np.eye(2)[y]})
    one = recommend_model("a", measure_gains(found, ("local",), ("moments", "dp_head"), seed=0), OtherGains())
    assert (one.method, one.own, one.shared, one.networks) == ("dp_head", "dp_head", True, True)


def test_enough_patients_let_a_better_network_through():
    sure = Measured("svm", {"cnn": Gain(0.06, 2e-4 + (FLIP / 200) ** 2)}, 900, 200, False, True)
    assert recommend_model("a", sure, OtherGains()).method == "cnn"


def test_heads_are_what_learns_on_features_by_an_equation_or_a_linear_model():
    linear = {"local_ridge", "local_svm", "moments", "dp_head"}
    for kind in [kind for kind in KINDS if kind is not AtHome]:
        names = get_args(get_type_hints(kind)["name"])
        assert is_head(kind(name=names[0]) if len(names) > 1 else kind(), Cnn()) == bool(linear & {*names}), names
    assert is_head(AtHome(of=Moments()), Cnn()) and not is_head(AtHome(of=FedAvg()), Cnn())
    features = Features(of=Colour(), public="skin_lesion")
    assert is_head(FedAvg(), features) and is_head(FedAvg(), Mlp(hidden=()))
    assert not is_head(FedAvg(), replace(features, hidden=(4,))) and not is_head(FedAvg(), Mlp(hidden=(10,)))
