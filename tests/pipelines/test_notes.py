"""What methods note at a hospital is on its own page and nowhere else; what the coordinator holds is on its page."""

from __future__ import annotations

import copy
import json
import math
import re
from html import unescape
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation.conversation import answer_once, load_newest_memory
from pipelines.coordinator.report.methods import first_round_at, lowest_loss
from pipelines.coordinator.stages.train import read_matrices
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.page.notes import WARNINGS, by_site, collect_notes, describe_rounds, read_series
from pipelines.runs.store import DiskFolder
from pipelines_settings import BASE
from privacy.message import Call, Message

METHODS = {
    "local": {"name": "local"},
    "cusfl": {"name": "cusfl", "balance": "paper"},
    "apple": {"name": "apple", "eta_2": 5.0},
    "pgfed": {"name": "pgfed"},
    "apfl": {"name": "apfl"},
}


@pytest.fixture
def run(finished_run) -> Path:
    """Two rounds of the methods that note most; APPLE's relationships run away."""
    made = copy.deepcopy(BASE) | {
        "audit": {"membership": False},
        "model": {"name": "cam", "widths": [8, 8, 8, 8]},
    }
    made["train"] |= {"schedule": {"rounds": 2}, "work": {"lr": 0.01, "batch": 16}, "methods": METHODS}
    made["train"]["method_work"] = {"apple": {"optimizer": "sgd"}}
    for site in made["sites"].values():
        site["policy"] = {"recipients": ["coordinator", "sites"]}
    made["evaluate"] = {"copies": 0, "reference": "local", "public": False}
    return finished_run(made) / "runs" / "tiny"


def memory_of(run: Path, site: str, label: str) -> dict:
    (folder,) = (run / "sites" / site / "conversations").glob(f"*/{label}-*")
    return load_newest_memory(DiskFolder(folder)).facts["notes"]


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_hospitals_page_draws_what_its_own_memory_has(run, site):
    page = (run / "sites" / site / "report.html").read_text()
    noted_here = page[page.index('id="noted"') : page.index('id="left"')].replace("\N{MINUS SIGN}", "-")
    p, cusfl = memory_of(run, site, "apple"), memory_of(run, site, "cusfl")
    first, last = p["1"], p["2"]
    assert f"Round 1: a {first['p/a']:.3f}, b {first['p/b']:.3f}. " in noted_here
    assert f"Round 2: a {last['p/a']:.3f}, b {last['p/b']:.3f}." in noted_here
    assert (
        f"cusfl, lambda_2: {cusfl['1']['lambda2']:.3f} after round 1, {cusfl['2']['lambda2']:.3f} after 2" in noted_here
    )
    assert f"cusfl, |cosine| between images: {cusfl['1']['between']:.3f} after" in noted_here
    assert f"apfl, alpha: {memory_of(run, site, 'apfl')['1']['alpha']:.3f} after round 1" in noted_here


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_hospital_is_warned_exactly_of_what_it_noted(run, site):
    page = unescape((run / "sites" / site / "report.html").read_text())
    for label, note in (("apple", "own core climbs its loss (p_ii <= 0)"), ("cusfl", "collapsed"), ("cusfl", "asleep")):
        rounds = [int(r) for r, notes in memory_of(run, site, label).items() if notes.get(note, 0) > 0]
        said = f"{label}: {WARNINGS[note].split('{')[0]}"[:60]
        assert (said in page) == bool(rounds)
    assert 'class="banner"><strong>Warning.' in page, "with such a rate APPLE's own share must fall below 0"


def test_nothing_that_was_noted_is_in_what_the_coordinator_holds(run):
    own = [path for path in run.rglob("*") if path.is_file() and "sites" not in path.relative_to(run).parts[:1]]
    texts = [path.read_bytes() for path in own if path.suffix in {".html", ".json", ".md", ".csv"}]
    texts += [path.read_bytes() for path in (run / "federation").rglob("*") if path.is_file()]
    assert len(texts) > 10
    for site in ("a", "b"):
        for label in ("apple", "cusfl", "apfl"):
            for notes in memory_of(run, site, label).values():
                for value in notes.values():
                    if value not in (0.0, 1.0) and len(repr(value)) > 8:
                        assert not any(repr(value).encode() in text for text in texts), (label, notes)
    page = (run / "report.html").read_text()
    for word in ("L_sim", "lambda_2", "|cosine| between images", "What the methods noted", "p of apple", "Warning."):
        assert word not in page, word


def test_the_coordinators_page_has_its_own_matrix_with_sites_and_values(run):
    (path,) = (run / "train").glob("*/pgfed.json")
    found = json.loads(path.read_text())["between"]["alpha"]
    page = (run / "report.html").read_text()
    assert found["sites"] == ["a", "b"]
    told = "; ".join(
        f"{i} from {j} {found['values'][x][y]:.3f}" for x, i in enumerate("ab") for y, j in enumerate("ab")
    )
    assert f"alpha of pgfed between hospitals: {told}." in page
    assert json.loads(path.with_name("apple.json").read_text())["between"] == {}


def test_rounds_to_reach_stand_in_the_table_of_sizes(run):
    results = {path.stem: json.loads(path.read_text()) for path in (run / "train").glob("*/*.json")}
    lowest = min(results["local"]["totals"].values())
    page = (run / "report.html").read_text()
    table = page[page.index('id="cost"') :]
    for label in METHODS:
        first = next((r for r in ("1", "2") if results[label]["totals"][r] <= lowest), "–")
        assert re.search(rf'<th scope="row">{label}</th>.*?class="num reached">([^<]*)<', table)[1] == first


def test_rounds_to_reach_by_hand():
    totals = {"1": 0.7, "2": 0.5, "3": 0.6}
    assert lowest_loss(totals) == 0.5
    assert lowest_loss({}) is None
    assert first_round_at({"1": 0.9, "2": 0.51, "3": 0.5}, 3, 0.5) == 3
    assert first_round_at({"1": 0.4, "2": 0.3}, 2, 0.5) == 1
    assert first_round_at({"1": 0.9, "2": 0.51}, 2, 0.5) is None
    assert first_round_at({"3": 0.2}, 3, 0.5) == 3, "a round that nobody scored is no round of 0"
    assert first_round_at(totals, 3, 0.5) == 2


def test_a_matrix_is_told_only_where_it_is_finite_and_has_a_row_for_every_site():
    good = torch.tensor([[0.5, 0.25], [1.0, 0.0]])
    facts = {"sites": ["a", "b"]}
    assert read_matrices(Message({"between/alpha": good, "model/w": good}, facts)) == {
        "alpha": {"sites": ["a", "b"], "values": [[0.5, 0.25], [1.0, 0.0]]}
    }
    assert read_matrices(Message({"between/alpha": good * math.nan}, facts)) == {}
    assert read_matrices(Message({"between/alpha": good[:1]}, facts)) == {}
    assert read_matrices(Message({"between/alpha": good}, {})) == {}


@given(st.sets(st.integers(1, 60), min_size=1))
def test_rounds_in_words_name_each_round_once(rounds):
    text = describe_rounds(sorted(rounds))
    found = [
        number
        for low, high in re.findall(r"(\d+)(?: to (\d+))?", text)
        for number in range(int(low), int(high or low) + 1)
    ]
    assert found == sorted(rounds)
    assert text.startswith("rounds " if len(rounds) > 1 else "round ")


def test_notes_that_are_no_finite_numbers_are_left_out_and_rounds_are_in_order(tmp_path):
    hospital = Hospital("a", tmp_path, None, lambda: "now", device="cpu")
    notes = {"10": {"x": 2.0, "p/a": 0.5}, "9": {"x": 1, "p/a": 0.25, "p/b": -1.5, "word": "no", "collapsed": 1.0}}
    call = Call("run/m-1", 1, "train", {})
    answer_once(hospital.conversation(call.run), call, "a", lambda _: (Message(), Message({}, {"notes": notes})))
    found = read_series(hospital, call.run)
    assert found["x"] == {9: 1.0, 10: 2.0} and list(found["x"]) == [9, 10]
    assert "word" not in found
    sites, rounds, values = by_site(found)["p"]
    assert (sites, rounds) == (["a", "b"], [9, 10])
    assert values[0].tolist() == [0.25, 0.5] and values[1][0] == -1.5 and math.isnan(values[1][1])
    page = collect_notes(hospital, [{"label": "m", "train_run": call.run}, {"label": "none", "train_run": "run/none"}])
    assert page.warnings == (f"m: {WARNINGS['collapsed'].format(rounds='round 9')}",)
    assert [picture.title for picture in page.pictures] == ["Notes by round", "m: p by round"]
    assert collect_notes(hospital, [{"label": "none", "train_run": "run/none"}]) == ((), ())
