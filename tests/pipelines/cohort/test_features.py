"""Lines of a table: coding, scaling by one site or by all, and the four hospitals of Fed-Heart-Disease."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from pipelines.cohort.cohort import read_cohort
from pipelines.cohort.features import Features, Moments, TableSource, moments, normalized_by, open_lines
from pipelines.run import load

KEY = b"k" * 16
FEATURES = Features(numbers=("age",), categories={"pain": ("none", "some", "much")}, normalize="none")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,age,pain,ill\na,60,none,0\nb,70,some,2\nc,?,none,1\nd,80,awful,0\ne,old,much,1\nf,50,much,1\n")
    return path


def source(path, **options):
    return TableSource(**{"file": str(path), "patient": "id", "label": "ill", **options})


def test_lines_are_coded_and_what_does_not_fit_has_a_reason(table):
    shares = {"train": 0.5, "validation": 0.0, "test": 0.5}
    cohort, rejected, facts, names = read_cohort(source(table), None, FEATURES, fractions=shares, seed=0, key=KEY)
    by_patient = {
        names[cohort.patients[p]]: x for p, x in zip(cohort.patient.tolist(), cohort.images.tolist(), strict=True)
    }
    assert by_patient == {"a": [60, 0, 0], "b": [70, 1, 0], "f": [50, 0, 1]}
    assert Counter(r.reason for r in rejected) == {"missing_value": 1, "unknown_category": 1, "not_a_number": 1}
    assert facts["positives"] == 2


def test_a_file_without_header_takes_its_names_from_the_settings(tmp_path):
    (tmp_path / "t.csv").write_text("60,none,0\n70,much,1\n")
    settings = source(tmp_path / "t.csv", columns=("age", "pain", "ill"), patient=None)
    opened = open_lines(settings, FEATURES)
    assert [one.patient for one in opened.waiting] == ["1", "2"]
    assert opened.waiting[1].admit().examples.images.tolist() == [[70, 0, 1]]


@pytest.mark.parametrize(
    ("text", "value"), [("3.0", [0, 1]), ("3", [0, 1]), ("1", [0, 0]), ("1.0", [0, 0]), ("2.00", [1, 0])]
)
def test_numbers_written_differently_are_one_category(tmp_path, text, value):
    (tmp_path / "t.csv").write_text(f"cp,y\n{text},1\n")
    features = Features(categories={"cp": ("1", "2", "3")})
    opened = open_lines(source(tmp_path / "t.csv", patient=None, label="y"), features)
    assert opened.waiting[0].admit().examples.images.tolist() == [value]


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
    found = normalized_by(x, moments(x)) * np.sqrt(n / (n - 1))  # sklearn divides by n
    assert np.allclose(found, StandardScaler().fit_transform(x.double().numpy()), atol=1e-3)


def test_a_constant_column_is_centred_and_a_new_value_in_it_does_not_explode():
    known = moments(torch.full((10, 1), 3.7))
    assert normalized_by(torch.tensor([[3.7], [4.7]]), known)[:, 0].tolist() == pytest.approx([0.0, 1.0], abs=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(2, 20))
def test_moments_of_sites_add_up_to_those_of_the_pool(seed, n, m):
    one, two = (torch.tensor(np.random.default_rng(seed + k).normal(size=(count, 4))) for k, count in ((0, n), (1, m)))
    a, b, whole = moments(one), moments(two), moments(torch.cat([one, two]))
    both = Moments(a.count + b.count, a.total + b.total, a.squares + b.squares)
    x = torch.randn(5, 4)
    assert torch.allclose(normalized_by(x, both), normalized_by(x, whole), atol=1e-5)


SIZES = {"cleveland": (199, 104), "hungary": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
PREVALENCE = {"cleveland": (0.457, 0.462), "hungary": (0.378, 0.371), "switzerland": (1.0, 0.938), "va": (0.776, 0.778)}


def test_fed_heart_disease_has_the_published_patients(data, monkeypatch):
    monkeypatch.setenv("CONSILIUM_DATA", str(data))
    config = load("heart_disease.yaml")
    assert config.images.inputs == (13,)
    for name, site in config.sites.items():
        cohort, _, facts, _ = read_cohort(
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
