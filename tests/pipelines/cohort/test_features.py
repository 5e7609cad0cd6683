"""Lines of a table: coding, scaling by one site or by all, and the four hospitals of Fed-Heart-Disease."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.preprocessing import StandardScaler

from pipelines.data.cohort import read_cohort
from pipelines.data.images import IMAGES, Features
from pipelines.data.sources import TableSource
from pipelines.data.study import Unusable
from pipelines.data.tables.features import (
    Moments,
    _read_line,
    from_json,
    moments,
    open_lines,
    restore_table_values,
    standardize_features,
    to_json,
)
from pipelines.hospital.page.table import read_features
from pipelines.settings.load import load_config

KEY = b"k" * 16
FEATURES = Features(numbers=("age",), categories={"pain": ("none", "some", "much")}, normalize="none")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,age,pain,ill\na,60,none,0\nb,70,some,1\nc,?,none,1\nd,80,awful,0\ne,old,much,1\nf,50,much,1\n")
    return path


def source(path, **options):
    return TableSource(**{"file": str(path), "patient": "id", "label": "ill", **options})


def test_lines_are_coded_and_what_does_not_fit_has_a_reason(table):
    shares = {"train": 0.5, "validation": 0.0, "test": 0.5}
    cohort, rejected, facts, names, *_ = read_cohort(source(table), None, FEATURES, fractions=shares, seed=0, key=KEY)
    by_patient = {
        names[cohort.patients[p]]: x for p, x in zip(cohort.patient.tolist(), cohort.images.tolist(), strict=True)
    }
    assert by_patient == {"a": [60, 0, 0], "b": [70, 1, 0], "f": [50, 0, 1]}
    assert Counter(r.reason for r in rejected) == {"missing_value": 1, "unknown_category": 1, "not_a_number": 1}
    assert facts["positives"] == 2


CODINGS = [("0", "1"), ("1", "2"), ("-1", "1"), ("0", "0.5"), ("0", "1", "9"), ("0", "1", "2", "3", "4"), ("no", "yes")]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("above", [None, 0.0, 1.0])
def test_a_label_is_0_or_1_or_the_settings_say_what_is_positive(coding, above, tmp_path):
    """Without `positive_above` no line has a label by another coding: it says what to write."""
    lines = "".join(f"p{place},60,none,{text}\n" for place, text in enumerate(coding))
    (tmp_path / "t.csv").write_text("id,age,pain,ill\n" + lines)
    opened = open_lines(source(tmp_path / "t.csv", positive_above=above), FEATURES)
    for text, waiting in zip(coding, opened.waiting, strict=True):
        number = text not in ("no", "yes")
        if text in ("0", "1") if above is None else number:
            assert waiting.read().labels == [int(float(text) > (above or 0.0))]
            continue
        with pytest.raises(Unusable, match=f"ill h.*{re.escape(repr(text))}") as refused:
            waiting.read()
        assert number is False or "Say positive_above" in refused.value.detail
        assert refused.value.reason == ("bad_label" if above is None else "not_a_number")


def test_a_file_without_header_takes_its_names_from_the_settings(tmp_path):
    (tmp_path / "t.csv").write_text("60,none,0\n70,much,1\n")
    settings = source(tmp_path / "t.csv", columns=("age", "pain", "ill"), patient=None)
    opened = open_lines(settings, FEATURES)
    assert [one.patient for one in opened.waiting] == ["1", "2"]
    assert opened.waiting[1].read().examples.images.tolist() == [[70, 0, 1]]


@pytest.mark.parametrize(("separator", "sign"), [(None, ","), ("comma", ","), ("semicolon", ";"), ("tab", "\t")])
def test_the_settings_say_the_separator_of_a_file_without_header(tmp_path, separator, sign):
    (tmp_path / "t.csv").write_text("60,none,0\n70,much,1\n".replace(",", sign))
    settings = source(tmp_path / "t.csv", columns=("age", "pain", "ill"), patient=None, separator=separator)
    opened = open_lines(settings, FEATURES)
    assert [one.read().examples.images.tolist() for one in opened.waiting] == [[[60, 0, 0]], [[70, 0, 1]]]
    if sign != ",":
        with pytest.raises(ValueError, match=r"none of its 2 lines can be read.*1 field of 3.*`separator`"):
            open_lines(replace(settings, separator=None), FEATURES)


def test_a_line_that_cannot_be_read_keeps_its_number(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'age,pain,ill\n60,none,0\n70,"much,1\n,,\n70,none,1,1\n80,m\xfcch,1\n50,some,1\n')
    opened = open_lines(source(tmp_path / "t.csv", patient=None), FEATURES)
    assert [(one.study, one.reason) for one in opened.rejected] == [(f"line {n}", "unreadable") for n in (2, 3, 4)]
    assert [(one.patient, one.study) for one in opened.waiting] == [("1", "line 1"), ("5", "line 5")]
    assert opened.unselected == 0


@pytest.mark.parametrize(
    ("text", "value"), [("3.0", [0, 1]), ("3", [0, 1]), ("1", [0, 0]), ("1.0", [0, 0]), ("2.00", [1, 0])]
)
def test_numbers_written_differently_are_one_category(tmp_path, text, value):
    (tmp_path / "t.csv").write_text(f"cp,y\n{text},1\n")
    features = Features(categories={"cp": ("1", "2", "3")})
    opened = open_lines(source(tmp_path / "t.csv", patient=None, label="y"), features)
    assert opened.waiting[0].read().examples.images.tolist() == [value]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": "outcome"}, "no column outcome"),
        ({"file": "nowhere.csv"}, "cannot be read"),
        ({"where": {"id": ("z",)}}, "none of 6"),
    ],
)
def test_wrong_settings_are_told(table, change, said):
    with pytest.raises(ValueError, match=said):
        open_lines(source(table, **change), FEATURES)


@given(st.integers(2, 30), st.integers(0, 2**31), st.sampled_from([1.0, 1e-3, 1e4]))
def test_normalization_is_what_a_standard_scaler_does(n, seed, size):
    x = torch.tensor(np.random.default_rng(seed).normal(size, size, (n, 3)), dtype=torch.float32)
    found = standardize_features(x, moments(x)) * np.sqrt(n / (n - 1))  # sklearn divides by n
    assert np.allclose(found, StandardScaler().fit_transform(x.double().numpy()), atol=1e-3)


def test_a_constant_column_is_centred_and_a_new_value_in_it_does_not_explode():
    known = moments(torch.full((10, 1), 3.7))
    assert standardize_features(torch.tensor([[3.7], [4.7]]), known)[:, 0].tolist() == pytest.approx(
        [0.0, 1.0], abs=1e-5
    )


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(2, 20))
def test_moments_of_sites_add_up_to_those_of_the_pool(seed, n, m):
    one, two = (torch.tensor(np.random.default_rng(seed + k).normal(size=(count, 4))) for k, count in ((0, n), (1, m)))
    a, b, whole = moments(one), moments(two), moments(torch.cat([one, two]))
    both = Moments(a.count + b.count, a.total + b.total, a.squares + b.squares)
    x = torch.randn(5, 4)
    assert torch.allclose(standardize_features(x, both), standardize_features(x, whole), atol=1e-5)


DECLARED = Features(
    numbers=("age", "st"),
    categories={"pain": ("none", "some", "much")},
    normalize="declared",
    ranges={"age": (20.0, 90.0), "st": (-2.0, 6.0)},
)
LINES = [("a", 55, 0.0, "none"), ("b", 101, 6.0, "much"), ("c", 7, -7.5, "some"), ("d", 20, 2.0, "some")]


def declared(tmp_path, lines=LINES, images=DECLARED):
    text = "".join(f"{name},{age},{st_},{pain},{place % 2}\n" for place, (name, age, st_, pain) in enumerate(lines))
    (tmp_path / "t.csv").write_text(f"id,age,st,pain,ill\n{text}")
    shares = {"train": 0.5, "validation": 0.0, "test": 0.5}
    return read_cohort(source(tmp_path / "t.csv"), None, images, fractions=shares, seed=0, key=KEY)


def test_declared_ranges_cut_and_scale_numbers_and_leave_categories(tmp_path):
    cohort, rejected, _, names, *_ = declared(tmp_path)
    assert not rejected and cohort.recipe["scale"] is None
    found = {names[cohort.patients[p]]: x for p, x in zip(cohort.patient.tolist(), cohort.images.tolist(), strict=True)}
    assert found == {"a": [0.5, 0.25, 0, 0], "b": [1, 1, 0, 1], "c": [0, 0, 1, 0], "d": [0, 0.5, 1, 0]}


finite = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@given(st.lists(finite, min_size=1, max_size=6), finite, st.floats(1e-3, 1e6))
def test_declared_scaling_is_numpys_interpolation_and_has_an_inverse(values, low, width):
    """`numpy.interp` cuts at the ends too."""
    high = low + width
    images = Features(numbers=("v",), normalize="declared", ranges={"v": (low, high)})
    source = TableSource(file="", label="y")
    lines = [{"v": repr(value), "y": "0"} for value in values]
    rows = [_read_line(1, line, source, images, ("v", "y")).examples.images for line in lines]
    found = np.concatenate(rows)[:, 0]
    assert np.allclose(found, np.interp(values, [low, high], [0, 1]), atol=1e-6)
    back = restore_table_values(torch.from_numpy(found)[:, None], images, None)[:, 0].numpy()
    assert np.allclose(back, np.clip(values, low, high), rtol=1e-5, atol=2e-5 * (abs(low) + width))


@pytest.mark.parametrize("normalize", ["declared", "none", "site"])
def test_the_sites_own_page_tells_the_tables_numbers_however_they_were_scaled(tmp_path, normalize):
    images = DECLARED if normalize == "declared" else replace(DECLARED, normalize=normalize, ranges={})
    inside = [("a", 55, 0.0, "none"), ("b", 88, 6.0, "much"), ("c", 21, -2.0, "some"), ("d", 33, 2.7, "some")]
    cohort, _, _, names, *_ = declared(tmp_path, inside, images)
    order = [names[cohort.patients[p]] for p in cohort.patient.tolist()]
    wanted = {name: line for name, *line in inside}
    told = read_features(cohort)
    assert told["age"].tolist() == pytest.approx([wanted[name][0] for name in order], rel=1e-5)
    assert told["st"].tolist() == pytest.approx([wanted[name][1] for name in order], abs=1e-4)
    assert told["pain = none"].tolist() == [float(wanted[name][2] == "none") for name in order]


def test_new_patients_are_scaled_by_the_ranges_that_a_model_took_along(tmp_path):
    """`pipelines.predict` reads what the recipe says, and normalizes again only where it has a scale."""
    recipe = declared(tmp_path)[0].recipe
    images = IMAGES.validate_json(json.dumps(recipe["images"]), strict=True)
    assert images == DECLARED and from_json(recipe["scale"]) is None
    opened = open_lines(source(tmp_path / "t.csv"), images, labelled=False)
    assert opened.waiting[0].read().examples.images.tolist() == [[0.5, 0.25, 0, 0]]


def test_moments_survive_being_written_down():
    known = moments(torch.randn(9, 3))
    found = from_json(json.loads(json.dumps(to_json(known))))
    assert found is not None and found.count == known.count
    assert torch.equal(found.total, known.total) and torch.equal(found.squares, known.squares)


def test_what_is_wrong_with_ranges_is_told_all_at_once():
    good = {"numbers": ("age", "st", "bp"), "normalize": "declared"}
    with pytest.raises(ValueError, match="none for bp") as caught:
        Features(**good, ranges={"age": (20.0, 20.0), "hr": (0.0, 1.0), "st": (0.0, float("inf"))})
    said = str(caught.value)
    assert "none for bp" in said and "hr is not among numbers (age, st, bp)" in said
    assert "ranges.age must be two finite numbers" in said and "ranges.st must be" in said
    with pytest.raises(ValueError, match="none for age, st, bp"):
        Features(**good)
    for normalize in ("site", "pooled", "none"):
        with pytest.raises(ValueError, match="ranges: they go with normalize: declared"):
            Features(numbers=("age",), normalize=normalize, ranges={"age": (0.0, 1.0)})


@pytest.mark.parametrize("ends", [[1], [1, 2, 3], ["a", "b"], 5, []])
def test_a_range_has_two_ends(ends):
    said = {"kind": "features", "numbers": ["age"], "normalize": "declared", "ranges": {"age": ends}}
    with pytest.raises(ValidationError):
        IMAGES.validate_json(json.dumps(said), strict=True)
    IMAGES.validate_json(json.dumps({**said, "ranges": {"age": [20, 90]}}), strict=True)


SIZES = {"cleveland": (199, 104), "hungary": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
PREVALENCE = {"cleveland": (0.457, 0.462), "hungary": (0.378, 0.371), "switzerland": (1.0, 0.938), "va": (0.776, 0.778)}


def test_fed_heart_disease_has_the_published_patients(data, monkeypatch):
    monkeypatch.setenv("CONSILIUM_DATA", str(data))
    config = load_config("heart_disease.yaml")
    assert config.images.inputs == (13,)
    for name, site in config.sites.items():
        cohort, _, facts, *_ = read_cohort(
            site.source,
            None,
            config.images,
            fractions={"train": 0.8, "validation": 0.2, "test": 0.0},
            seed=2021,
            key=KEY,
            test=site.test,
        )
        held = cohort.split == 2
        assert (int((~held).sum()), int(held.sum())) == SIZES[name]
        share = (float(cohort.labels[~held].float().mean()), float(cohort.labels[held].float().mean()))
        assert share == pytest.approx(PREVALENCE[name], abs=1e-3)
        assert facts["unmatched_tests"] == 0
        train = cohort.images[cohort.split == 0]
        assert float(train.mean(dim=0).abs().max()) < 1e-5
        spread = train.std(dim=0)
        assert bool(((spread - 1).abs() < 1e-4).logical_or(spread == 0).all())
