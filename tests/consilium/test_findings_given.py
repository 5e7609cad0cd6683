"""Several findings given as arrays: what is taken, what is refused, and a run from them to probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilium import ConfigError, Examples, Results, train
from federation.findings import decode_findings
from pipelines.data.cohort import from_message
from privacy.message import from_file

NAMES = ("edema", "effusion", "nodule")


def given(seed: int, patients: int = 40) -> dict[str, Any]:
    """Arguments of two examples a patient: features that show three findings, a tenth of them unknown."""
    chance = np.random.default_rng(seed)
    states = chance.integers(0, 2, (patients, 3)).repeat(2, axis=0).astype(float)
    x = np.concatenate([states, np.zeros((len(states), 1))], axis=1) + chance.normal(scale=0.4, size=(len(states), 4))
    states[chance.random(states.shape) < 0.1] = np.nan
    return {"x": x, "findings": states, "patient": [f"{seed}-{row // 2}" for row in range(len(x))]}


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Results:
    settings = {"evaluate": {"copies": 0, "rounds": True}, "audit": {"membership": False}}
    return train(
        {"north": Examples(**given(1)), "south": Examples(**given(2))},
        model={"name": "mlp", "hidden": [8]},
        method=["local", "fedavg"],
        rounds=6,
        work={"lr": 0.05},
        classes=NAMES,
        folder=tmp_path_factory.mktemp("findings"),
        settings=settings,
        quiet=True,
    )


def test_a_cohort_has_the_findings_that_were_given(done: Results):
    """Each example once, and an unknown finding stays unknown; one of which nothing is known is not used."""
    for seed, site in ((1, "north"), (2, "south")):
        (path,) = (done.folder / "sites" / site / "cohorts").glob("*/cohort.safetensors")
        cohort = from_message(from_file(path))
        states = np.nan_to_num(given(seed)["findings"], nan=2.0).astype(int).tolist()
        expected = sorted(each for each in states if each != [2, 2, 2])
        assert sorted(decode_findings(cohort.labels, 3).tolist()) == expected
        assert cohort.recipe["findings"] == list(NAMES)


def test_findings_are_learnt_scored_and_predicted(done: Results):
    score = done.score("fedavg", "north")
    assert score.value > 0.85 and done.score("fedavg", "south", "AUC edema").value > 0.85
    x = given(3)["x"]
    probabilities = done.probabilities("fedavg", "north", x)
    assert probabilities.shape == (len(x), 3) and not torch.allclose(probabilities.sum(dim=1), torch.ones(len(x)))
    rounds = [each for each in done.rounds if (each.method, each.hospital) == ("fedavg", "south")]
    assert [each.round for each in rounds] == [1, 2, 3, 4, 5, 6] and {len(each.confusion) for each in rounds} == {3}
    assert rounds[-1].score > rounds[0].score or rounds[0].score > 0.9


def test_none_counts_as_unknown_and_a_dataset_may_have_findings(tmp_path: Path):
    arguments = given(1, 3)
    as_none = [[None if np.isnan(state) else int(state) for state in row] for row in arguments["findings"]]
    made = Examples(**arguments | {"findings": as_none})
    assert (made.findings == Examples(**arguments).findings).all() and made.findings.dtype == np.int8
    items = list(zip(arguments["x"], arguments["findings"], arguments["patient"], strict=True))
    assert Examples.of(items).data(NAMES) == made.data(NAMES)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"findings": np.full((6, 3), -1.0)}, "must be 1, 0, or NaN where nobody knows, found -1"),
        ({"findings": np.zeros((6, 1))}, "K = 2 to 30 findings of each example, found [6, 1]"),
        ({"findings": np.zeros((5, 3))}, "must be (6, K)"),
        ({"findings": np.zeros(6)}, "found [6]"),
        ({"findings": [["yes", "no"]] * 6}, "must hold numbers"),
        ({"y": np.zeros(6, int)}, "found y and findings"),
    ],
)
def test_what_are_no_findings_is_told(change, told):
    with pytest.raises(ConfigError) as caught:
        Examples(**given(1, 3) | change)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("hospitals", "names", "told"),
    [
        ({"a": Examples(**given(1)), "b": Examples(**given(2))}, ("edema",), "1 names for 3 findings"),
        (
            {"a": Examples(**given(1)), "b": Examples(**given(2) | {"findings": given(2)["findings"][:, :2]})},
            (),
            "has 2 findings, unlike a",
        ),
        (
            {"a": Examples(**given(1) | {"findings": np.zeros((80, 3))})},
            (),
            "every class is 0",
        ),
    ],
)
def test_hospitals_must_mean_the_same_findings(hospitals, names, told, tmp_path):
    with pytest.raises(ConfigError, match=r"finding|class") as caught:
        train(hospitals, model="mlp", method="fedavg", rounds=1, folder=tmp_path, classes=names, quiet=True)
    assert told in str(caught.value)
