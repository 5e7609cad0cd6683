"""The line at home that gains are over is chosen by validation patients, and the first screen says what its gain is."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.answers import describe_gain_over_home, describe_kept
from evaluation.at_home import Chosen, Contribution, HomeComparison, Validation, choose_line
from evaluation.notices import _score_notices
from evaluation.rows import PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.wording import Words, format_signed

LINES = ("svm", "ridge", "local")
SCORE = st.sampled_from((0.5, 0.6, 0.7, 0.8))
HOSPITALS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Validation, st.fixed_dictionaries(dict.fromkeys(LINES, SCORE)), st.integers(0, 30)),
)
ENDS = st.sampled_from((-0.05, -0.02, 0.01, 0.03))
INTERVAL = st.tuples(ENDS, ENDS).map(sorted)


def row(method: str, low: float = math.nan, high: float = math.nan) -> ScoreRow:
    return ScoreRow(
        *(method, PRIVATE_MEAN, ("a", "b"), "AUC", 0.8, 0.7, 0.9, 200, 0, 40, 80, 40, 40, 20, True, False),
        gain=(low + high) / 2,
        gain_low=low,
        gain_high=high,
    )


@given(HOSPITALS)
def test_the_line_has_the_highest_mean_and_every_hospital_counts_by_what_its_patients_tell(validated):
    found = choose_line(LINES, validated)
    telling = [each for each in validated.values() if each.weight]
    assert found.hospitals == len(telling)
    if not telling:
        assert found == Chosen()
        return
    sums = {line: sum(each.weight * each.scores[line] for each in telling) for line in LINES}
    assert sums[found.line] >= max(sums.values()) - 1e-9
    equal = [line for line in LINES if math.isclose(sums[line], sums[found.line])]
    assert found.line in equal and choose_line(equal[:1], validated).line == equal[0]


@given(HOSPITALS, st.sampled_from(LINES))
def test_a_hospital_of_one_class_and_a_line_that_one_lacks_have_no_say(validated, absent):
    silent = {**validated, "e": Validation(dict.fromkeys(LINES, 0.0) | {absent: 1.0}, 0), "f": Validation({}, 9)}
    assert choose_line(LINES, silent) == choose_line(LINES, validated)
    others = [line for line in LINES if line != absent]
    lacking = {**validated, "e": Validation(dict.fromkeys(others, 0.5), 1)}
    assert choose_line(LINES, lacking) == choose_line(others, lacking)


@given(INTERVAL, INTERVAL, st.integers(0, 2))
def test_the_first_sentence_says_what_the_intervals_say(first, second, hospitals):
    gains = (row("fedavg", *first), row("fedper", *second))
    said = " ".join(describe_gain_over_home(HomeComparison(LINES, "ridge", "fedavg", hospitals, gains)))
    assert ("A federated line beats" in said) == (first[0] > 0)
    assert ("No federated line" in said) == (first[0] <= 0 and second[0] <= 0)
    assert ("shown to beat" in said) == (first[0] <= 0 <= first[1])
    assert ("Above ridge by intervals of their own: fedper" in said) == (second[0] > 0)
    assert ("test patients had no part" in said) == bool(hospitals) == ("flatters it" not in said)
    assert ("the best at home of ridge, svm, local" in said) == bool(hospitals), (
        "the first of a list is not the best of it"
    )


def test_without_a_line_at_home_or_a_federated_one_nothing_is_said_of_a_gain():
    gains = (row("fedavg", -0.1, 0.1),)
    whole = HomeComparison(LINES, "svm", "fedavg", 2, gains)
    assert describe_gain_over_home(whole)
    for part in (HomeComparison(), replace(whole, reference=""), replace(whole, federated="", gains=())):
        assert not describe_gain_over_home(part)


def test_a_gain_that_has_no_interval_is_not_called_one():
    said = describe_gain_over_home(HomeComparison(LINES, "svm", "fedavg", 2, (row("fedavg"),)))
    assert "is not known" in said[0] and "beat" not in said[0]


@pytest.mark.parametrize("private", [False, True])
def test_why_nothing_was_validated_is_said_as_it_is(private):
    gains = (row("moments", 0.01, 0.02),)
    said = " ".join(
        describe_gain_over_home(HomeComparison(("alone",), "alone", "moments", 0, gains, private, ("svm_at_home",)))
    )
    assert ("a private run tells none" in said) == private == ("there are none" not in said)
    assert describe_kept(("svm_at_home",), "each hospital") in said and "cost no ε" in said


@given(INTERVAL, INTERVAL)
def test_a_hospital_loses_by_federated_lines_only(home, federated):
    rows = [replace(row(method, *ends), protocol=PRIVATE, sites=("a",)) for method, ends in
            (("ridge", home), ("fedavg", federated), ("svm", (0.0, 0.0)))]  # fmt: skip
    said = [one.text for one in _score_notices(rows, "svm", Words(), (), LINES) if one.what == "A hospital loses"]
    assert bool(said) == (federated[1] < 0) and not any("ridge" in text for text in said)


@given(INTERVAL, INTERVAL, st.booleans())
def test_what_others_add_to_methods_is_said_as_their_intervals_say(first, second, alone):
    ends = {"fenda": first, "ditto": second}
    contributions = tuple(Contribution(f"{name}_at_home", row(name, *each)) for name, each in ends.items())
    gains = () if alone else (row("fenda", *first),)
    sentence = describe_gain_over_home(HomeComparison(LINES, "svm", "fenda", 2, gains, contributions=contributions))[-1]
    for name, (low, high) in ends.items():
        conclusion = "a gain" if low > 0 else "a loss" if high < 0 else "not told from 0"
        assert f"{name} {format_signed((low + high) / 2)} (" in sentence
        assert f"over {name}_at_home, {conclusion}" in sentence


def test_what_cannot_be_compared_is_not_a_gain():
    comparison = HomeComparison(contributions=(Contribution("fenda_at_home", row("fenda")),))
    (sentence,) = describe_gain_over_home(comparison)
    assert "fenda not known" in sentence and "fenda_at_home" in sentence
