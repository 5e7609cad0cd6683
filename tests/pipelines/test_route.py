"""Hospitals outside the federation: who gets models, from what they learn, and what is told of it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from evaluation.masks import Values
from evaluation.overlap import DICE, from_tensors
from federation.descent import Site
from federation.finetuning import Tuning, fine_tuned
from federation.models.unet import UNet
from federation.parameters import loaded, section
from federation.randomness import derive_seed, use_seed
from federation.task import Task
from pipelines.data.images import Slices
from pipelines.hospital.adaptation import file_of
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file, rows_of
from pipelines.hospital.opening import parse_opening
from pipelines.hospital.released_scores import average_values
from pipelines.hospital.segmentation import score_patients
from pipelines.hospital.withdrawn import list_earlier_uses
from pipelines.hospital.worker import make_worker
from pipelines.loader.validation import to_plain
from pipelines.models.answers import predict_classes
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.check import parse_question
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.checks import route as route_check
from pipelines.settings.sites import SiteSettings
from privacy.dp.access import open_access
from privacy.message import Call, Json, Message, from_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from route_settings import LINES, OPEN, settings


def write(folder: Path, said: dict[str, object]) -> str:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(said))
    return str(folder / "tiny.yaml")


@pytest.fixture
def done(finished_run) -> Path:
    """One finished run, not to be changed."""
    return finished_run(settings()) / "runs" / "tiny"


def scores(root: Path) -> dict[str, object]:
    (artifact,) = (path.parent for path in root.glob("route/*/index.json"))
    index = json.loads((artifact / "index.json").read_text())
    return {one["label"]: from_tensors(from_bytes((artifact / one["file"]).read_bytes()).tensors) for one in index}


def test_every_line_scores_all_patients_of_the_hospital_outside(done):
    found = scores(done)
    assert set(found) == set(LINES)
    for one in found.values():
        assert one.patients == 6
        assert len(one.totals) == 4
        assert 0 <= DICE.of(one)[0] <= 1


def test_the_hospital_outside_takes_no_part_in_training(done):
    requests = {line["request"] for line in ledgers.read_lines(done / "sites" / "west" / "ledger.jsonl")}
    assert "route" in requests
    assert not requests & {"introduce", "train", "finish", "export", "evaluate"}


def test_handing_out_models_is_booked_for_whom_it_is(done):
    for site in ("north", "south"):
        lines = [
            line for line in ledgers.read_lines(done / "sites" / site / "ledger.jsonl") if line["request"] == "export"
        ]
        assert len(lines) == 4, "one for each method that a line needs, and one for each line that matches moments"
        assert {line["recipient"] for line in lines} == {"outside"}


def test_what_adaptation_came_to_stays_at_the_hospital(done):
    files = list((done / "sites" / "west" / "scores").glob("route-*.safetensors"))
    told = {(facts := from_bytes(path.read_bytes()).facts)["line"]: facts for path in files}
    assert set(told) == set(LINES)
    assert len(told["routing"]["losses"]) == 3
    assert told["routing"]["experts"] == ["north", "south", "*"]
    assert told["routing"]["why"]
    assert "losses" not in told["ensemble"]


def test_an_average_is_the_mean_of_each_patients_scores_over_models_that_have_one():
    nothing = np.nan
    one = np.array([[[0.25, 3.0]], [[nothing, nothing]]])
    two = np.array([[[0.75, nothing]], [[nothing, nothing]]])
    present = np.array([[True], [True]])
    found = average_values([Values(np.arange(2), scores, present, 8) for scores in (one, two)])
    assert np.array_equal(found.scores, [[[0.5, 3.0]], [[nothing, nothing]]], equal_nan=True)
    assert found.images == 8


def test_the_pages_say_who_was_outside_and_how_it_went(done):
    rows = json.loads(next(done.glob("report/*/scores.json")).read_text())
    outside = {row["method"]: row["value"] for row in rows if row["protocol"] == "outside" and row["measure"] == "Dice"}
    assert outside == {label: pytest.approx(DICE.of(one)[0]) for label, one in scores(done).items()}
    page = (done / "report.html").read_text()
    assert "Hospitals outside the federation" in page
    assert "adapted on the images that it is scored on" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"outside": []}, "outside: missing"),
        ({"evaluate": {"checkpoint": "local"}}, "route: models of each site's own best round are no common one"),
        ({"outside": ["east"]}, "outside: 'east' is no site"),
        ({"outside": ["north", "south", "west"]}, "outside: names every site"),
        ({"route": {"shared": "fedavg", "personal": "nobody"}}, "route.personal: 'nobody' is no method"),
        (
            {"route": {"shared": "fedavg", "personal": "iopfl", "lines": {"ttt": {"how": {"name": "ttt"}}}}},
            "route.lines.ttt.shared: fedavg is fedavg; ttt goes with fedavg_turns",
        ),
        (
            {"task": {"kind": "classification"}, "model": {"name": "cnn", "widths": [8, 8]}},
            "route.lines.average.how: average is of the scores of masks; say ensemble",
        ),
        (
            {"route": {"shared": "iopfl", "personal": "iopfl"}},
            "route.shared: iopfl is iopfl, with a model for each hospital; say one like fedavg",
        ),
        (
            {"route": {"shared": "turns", "personal": "iopfl", "lines": {"x": {"how": {"name": "routing"}}}}},
            "route.lines.x.shared: turns is fedavg_turns; ttt goes with fedavg_turns, and nothing else does",
        ),
        (
            {"model": {"name": "unet", "width": 4, "levels": 4, "norm": "batch"}},
            "blocks.3.convs.conv_0.adn.N: one image has no variance of its own here",
        ),
        ({"evaluate": {"checkpoint": "latest", "window": [8, 8]}}, "evaluate.window: external sites use whole"),
    ],
)
def test_what_cannot_be_done_is_told_with_the_settings(tmp_path, capsys, change, said):
    assert run([write(tmp_path, settings(**change)), "--check"]) == Exit.CONFIG
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_look_ahead_asks_the_hospital_outside_for_its_files_too(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = settings()
    assert run([write(tmp_path, said), "--check", "--json"]) == Exit.OK
    assert list(json.loads(capsys.readouterr().out)["sites"]) == ["north", "south", "west"]
    said["sites"]["west"]["source"] = {"kind": "nifti", "folder": str(tmp_path / "nowhere")}
    said["sites"]["west"]["gland"] = {"folder": str(tmp_path / "nowhere")}
    assert run([write(tmp_path, said), "--check"]) == Exit.DATA
    assert "west" in capsys.readouterr().err


def test_a_policy_that_does_not_hand_models_out_is_named_before_and_kept_at_the_hospital(tmp_path, capsys, monkeypatch):
    said = settings()
    said["sites"]["north"]["policy"] = {}
    assert run([write(tmp_path, said), "--check"]) == Exit.CONFIG
    assert "sites.north.policy.recipients: route hands this site's models" in " ".join(capsys.readouterr().err.split())


def test_a_method_whose_models_differ_cannot_stand_for_one(tmp_path, monkeypatch, capsys):
    """Whatever the settings say of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(route_check, "has_common_model", lambda method: True)
    lines = {"as_trained": {"how": {"name": "as_trained"}}}
    said = settings(route={"shared": "iopfl", "personal": "iopfl", "lines": lines})
    said["train"]["methods"] = {"iopfl": {"name": "iopfl"}}
    assert run([write(tmp_path, said)]) != Exit.OK
    assert "iopfl stands for one model of all hospitals" in " ".join(capsys.readouterr().err.split())


def test_parts_of_one_source_may_lie_inside_and_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = settings(route={"shared": "fedavg", "personal": "iopfl", "lines": {"x": {"how": {"name": "ensemble"}}}})
    source = {"kind": "phantom", "scanner": "A", "patients": 12, "slices": 4, "seed": 1}
    said["sites"] = {"one": {"source": source, "policy": OPEN, "part": {"kind": "even", "of": 3}}}
    said["outside"] = ["one-3"]
    del said["train"]["methods"]["turns"]
    assert run([write(tmp_path, said), "--until", "route"]) == Exit.OK
    folder = tmp_path / "runs" / "tiny" / "sites"
    seen = {
        site: set(json.loads(next((folder / site).glob("cohorts/*/split.json")).read_text())["train"])
        for site in ("one-1", "one-2", "one-3")
    }
    assert not (seen["one-1"] | seen["one-2"]) & seen["one-3"]


def test_where_a_line_trains_with_labels_every_line_is_scored_on_test_patients_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = {name: LINES[name] for name in ("as_trained", "tent")}
    lines["tuned"] = {"how": {"name": "fine_tuned", "epochs": 40, "lr": 0.05}}
    said = settings(route={"shared": "fedavg", "personal": "iopfl", "lines": lines})
    said["split"] = {"train": 0.5, "validation": 0.0, "test": 0.5}
    del said["train"]["methods"]["turns"]
    assert run([write(tmp_path, said), "--until", "route"]) == Exit.OK
    root = tmp_path / "runs" / "tiny"
    found = scores(root)
    assert {label: one.patients for label, one in found.items()} == dict.fromkeys(lines, 3)
    assert not np.array_equal(found["tuned"].totals, found["as_trained"].totals)
    ledger = ledgers.read_lines(root / "sites" / "west" / "ledger.jsonl")
    assert {line["request"] for line in ledger} >= {"route"}
    assert not {line["request"] for line in ledger} & {"introduce", "train"}


# -- at the hospital, whatever a coordinator says ---------------------------------------------------------------------

NAMES = ("north", "south", "*")
SMALL = UNet(width=4, levels=1)
OPENING: dict[str, Json] = {"label": "x", "algorithm": {"name": "fedavg"}, "work": {}, "seed": 0, "target": "gland"}
OPENING |= {"model": {"name": "unet", "width": 4, "levels": 1}, "inputs": [1, 16, 16], "classes": 2}
SAID: dict[str, Json] = {"personal": OPENING, "shared": OPENING, "experts": list(NAMES), "line": "x"}
SAID |= {"how": {"name": "as_trained"}, "copies": 2, "seed": 0}
RUNS = (f"r/x{number}" for number in itertools.count())
GONE = object()


def of(names: Iterable[str], channels: int = 1) -> dict[str, Tensor]:
    """A network for images of 16 x 16 under each name."""
    network = Task(SMALL, (channels, 16, 16), 2, "segmentation").network().state_dict()
    return {f"{name}/{key}": value for name in names for key, value in network.items()}


TENSORS = of(NAMES)


def stranger(root: Path, scanner: str, seed: int, patients: int) -> tuple[Hospital, str]:
    """A hospital that has read its patients, and the name of its cohort."""
    source = PhantomSource(scanner=scanner, patients=patients, seed=seed, slices=4)
    made = Hospital("west", root, SiteSettings(source=source), lambda: "2026-01-01T00:00:00Z")
    asked: dict[str, Json] = {"images": to_plain(Slices(size=16, spacing_mm=4.0, centre="image")), "seed": 0}
    asked["split"] = {"train": 0.5, "validation": 0.2, "test": 0.3}
    return made, str(make_worker(made)(Call("r/ingest", 0, "ingest", {}), Message({}, asked)).facts["cohort"])


@pytest.fixture(scope="module")
def external(tmp_path_factory) -> list[tuple[Hospital, str]]:
    """Two hospitals that have no patient in common."""
    root = tmp_path_factory.mktemp("external")
    return [stranger(root / "one", "D", 3, 6), stranger(root / "two", "A", 4, 8)]


@pytest.fixture
def own(external, tmp_path) -> tuple[Hospital, str]:
    """A copy of the first one, to be written on."""
    hospital, cohort = external[0]
    shutil.copytree(hospital.root, tmp_path / "own")
    return replace(hospital, root=tmp_path / "own"), cohort


def asked(
    hospital: Hospital, cohort: str, changes: Mapping[str, Any], tensors: Mapping[str, Tensor] = TENSORS
) -> tuple[str, Message]:
    """The run in which `route` was asked, and the answer."""
    run_ = next(RUNS)
    facts = {key: value for key, value in {**SAID, "cohort": cohort, **changes}.items() if value is not GONE}
    return run_, make_worker(hospital)(Call(run_, 0, "route", {}), Message(tensors, facts))


def refused(
    hospital: Hospital, cohort: str, changes: Mapping[str, Any], tensors: Mapping[str, Tensor] = TENSORS
) -> str:
    """The code, which is all that is told: to the coordinator, and in the ledger where work had begun."""
    before = len([*ledgers.read_lines(hospital.ledger)])
    with pytest.raises(Refused) as caught:
        asked(hospital, cohort, changes, tensors)
    for line in [*ledgers.read_lines(hospital.ledger)][before:]:
        assert (line["request"], line["bytes"], line["sha256"]) == ("route", 0, None)
        assert line["refused"] == caught.value.code
    assert caught.value.args == (caught.value.code,)
    return caught.value.code


LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "epochs": ([0, 1000], [-1, 1001, 10**12]),
    "batch": ([1, 1024], [0, 1025, 10**12]),
    "lr": ([1e-9, 10.0], [0.0, 10.1, 1e300]),
}
"""What is allowed at most and at least, and what is beyond."""


@pytest.mark.parametrize("way", ["tent", "ttt", "routing"])
@pytest.mark.parametrize("key", LIMITS)
def test_adaptation_beyond_all_bounds_is_refused_before_it_begins(external, way, key):
    allowed, beyond = LIMITS[key]
    for value in beyond:
        assert [refused(*one, {"how": {"name": way, key: value}}) for one in external] == ["malformed_route"] * 2
    for value in allowed:
        facts = {**SAID, "cohort": "c", "how": {"name": way, key: value}}
        assert getattr(parse_question("route", Message(TENSORS, facts)).how, key) == value


WRONG: dict[str, dict[str, Any]] = {
    "no way": {"how": GONE},
    "a way that is none": {"how": "routing"},
    "a way that nobody knows": {"how": {"name": "magic"}},
    "a setting that nobody knows": {"how": {"name": "tent", "hook": "x"}},
    "a number that is text": {"how": {"name": "tent", "epochs": "2"}},
    "no line": {"line": GONE},
    "no seed": {"seed": GONE},
    "a seed that is none": {"seed": "x"},
    "no cohort": {"cohort": GONE},
    "no copies": {"copies": GONE},
    "no list of experts": {"experts": GONE},
    "no experts": {"experts": []},
    "an expert twice": {"experts": ["*", "north", "*"]},
    "an expert without a model": {"experts": ["north", "east", "*"]},
    "no openings": {"personal": GONE, "shared": GONE},
    "another network": {"shared": {**OPENING, "model": {"name": "unet", "width": 8, "levels": 1}}},
    "one model to mix": {"how": {"name": "routing"}, "experts": ["*"]},
    "no head for turns": {"how": {"name": "ttt"}},
    "training on patients who are scored": {"how": {"name": "fine_tuned"}},
    "more epochs than anybody needs": {"how": {"name": "fine_tuned", "epochs": 1001}, "scored": "test"},
}
CODES = {"no copies": "malformed_copies", "a setting that nobody knows": "unknown_setting"}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_together_is_refused_with_one_code_that_is_the_same_for_all_patients(external, case):
    codes = [refused(*one, WRONG[case]) for one in external]
    assert codes == [CODES.get(case, "malformed_route")] * 2


def test_fine_tuning_learns_from_training_patients_alone(own):
    hospital, cohort = own
    held = read_cohort_file(hospital.cohort_folder(cohort) / COHORT)
    told = {"how": {"name": "fine_tuned", "epochs": 20, "lr": 0.05}, "scored": "test", "line": "tuned"}
    run_, answer = asked(hospital, cohort, told)
    start = parse_opening(hospital, {**OPENING, "cohort": cohort})
    splits, seed = rows_of(held, target=start.target), derive_seed(0, "west", "tuned")
    access = open_access({"train": splits["train"]}, batch=start.work.batch, seed=derive_seed(seed, "draws"))
    with use_seed(seed):
        site, shared = Site("west", start.task, start.work, access), loaded(start.task.network(), section(TENSORS, "*"))
        tuned = fine_tuned(site, shared, Tuning(epochs=20, lr=0.05))
    expected = score_patients(
        held, splits["test"], predict_classes(start.task, tuned, splits["test"].x), start.task.classes
    )
    kept = from_bytes((hospital.root / "scores" / file_of(run_)).read_bytes())
    assert np.array_equal(kept.tensors["scores"].numpy(), expected.scores, equal_nan=True)
    assert {int(who) for who in kept.tensors["patients"]} == set(splits["test"].patient.tolist())
    assert DICE.of(from_tensors(answer.tensors))[0] == pytest.approx(np.nanmean(expected.scores[:, :, 0]))


def test_more_models_than_there_are_hospitals_are_not_even_loaded(external):
    many = [f"{number}" for number in range(1001)]
    assert [refused(*one, {"experts": many}, of(many)) for one in external] == ["malformed_route"] * 2


def test_models_of_other_images_are_refused(external):
    colour = {**OPENING, "inputs": [3, 16, 16]}
    said = {"personal": colour, "shared": colour}
    assert [refused(*one, said, of(NAMES, channels=3)) for one in external] == ["malformed_route"] * 2


@pytest.mark.parametrize("copies", [2001, 10**12, -1, 1.5, "many", None])
def test_more_bootstrap_copies_than_any_report_needs_are_refused(external, copies):
    assert [refused(*one, {"copies": copies}) for one in external] == ["malformed_copies"] * 2


@pytest.mark.parametrize("levels", [9, 40, 10**9])
def test_a_u_net_of_more_levels_than_images_have_is_refused(external, levels):
    deep = {**OPENING, "model": {"name": "unet", "width": 4, "levels": levels}}
    assert [refused(*one, {"shared": deep}) for one in external] == ["malformed_opening"] * 2
    with pytest.raises(ValueError, match=rf"levels must be in \[1, 8\], found {levels}$"):
        UNet(levels=levels)
    assert UNet(levels=8).levels == 8


@pytest.mark.parametrize("way", [{"name": "routing", "beta": 1e39, "radius": 2}, {"name": "tent"}])
def test_where_the_loss_is_no_number_an_answer_comes_all_the_same(own, way):
    """A failure instead would tell something of the images that the model met."""
    hospital, cohort = own
    broken = {key: value + torch.nan if value.is_floating_point() else value for key, value in TENSORS.items()}
    for tensors in (TENSORS, broken):
        _, answer = asked(hospital, cohort, {"how": {**way, "epochs": 1}}, tensors)
        assert from_tensors(answer.tensors).patients == 6


def test_a_hospital_that_takes_part_in_a_federation_is_not_outside_it(own):
    hospital, cohort = own
    _, answer = asked(hospital, cohort, {})
    assert from_tensors(answer.tensors).patients == 6
    make_worker(hospital)(Call("r/train", 0, "introduce", {}), Message({}, {**OPENING, "cohort": cohort}))
    assert refused(hospital, cohort, {}) == "policy_inside"
    assert refused(hospital, cohort, {"how": {"name": "magic"}}) == "malformed_route", "a question is read first"


def test_whose_images_a_model_was_adapted_to_is_told_when_they_are_withdrawn(own):
    hospital, cohort = own
    run_, _ = asked(hospital, cohort, {})
    assert hospital.settings is not None
    for patients in json.loads((hospital.cohort_folder(cohort) / "split.json").read_text()).values():
        settings_ = replace(hospital.settings, exclude=(patients[0],))
        (found,) = list_earlier_uses(replace(hospital, settings=settings_))
        assert found.run == run_
        assert found.how == "a model was adapted to their images"
    assert list_earlier_uses(replace(hospital, settings=replace(hospital.settings, exclude=("nobody",)))) == ()


def test_moments_are_matched_outside_and_what_came_of_it_stays_there(done):
    files = list((done / "sites" / "west" / "scores").glob("route-*.safetensors"))
    told = {(facts := from_bytes(path.read_bytes()).facts)["line"]: facts for path in files}
    assert told["matched"]["way"] == "matched"
    assert told["matched"]["experts"] == ["*"]


def test_moments_that_are_missing_or_of_another_network_are_refused(external):
    matched = {"how": {"name": "matched"}}
    assert refused(*external[0], matched) == "malformed_route"
    wrong = {"channel_mean": torch.zeros(3), "channel_square": torch.ones(3)}
    assert refused(*external[0], matched, {**TENSORS, **wrong}) == "malformed_route"
