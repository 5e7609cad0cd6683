"""What is gone at a private hospital is made again: which work is charged to its patients a second time, and which not.

Each request of a run is taken once: the files that its answers wrote are deleted, once alone and once with the
committed replies, and the same command runs again. docs/how-to/operations.md (disk) says what is charged again.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harmonized_run
import pytest
from fault_sweep import epsilon
from small_run import smallest

from pipelines.hospital.released_counts import COUNTED_FILE
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import as_mapping
from privacy.release import ledger as ledgers

BUDGET = {"epsilon": 80.0, "delta": 1e-5}
"""It pays for counts with noise: they are not declared public."""
FEATURES = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 4}
COMMON: dict[str, Any] = {
    "pooling": "refused",
    "privacy": {"epsilon": 3.0, "sampling": 0.5, "views": 2},
    "audit": {"membership": False, "canaries": 0},
    "evaluate": {"copies": 5, "checkpoint": "latest", "public": False, "reference": None},
    "model": {"name": "cnn", "widths": [8, 8], "norm": "group"},
}


def budgeted(made: dict[str, Any], patients: int) -> dict[str, Any]:
    for site in made["sites"].values():
        site["source"] |= {"patients": patients}
        site["policy"] = {"budget": BUDGET, "min_patients": 1}
    return made | copy.deepcopy(COMMON)


def spaces() -> dict[str, Any]:
    """Two hospitals that translate and extract features."""
    made = budgeted(copy.deepcopy(BASE), 30)
    score = {"release": "public", "steps": 2, "seeds": 1, "perplexity": 5.0, "components": 5}
    made["harmonize"] = {**harmonized_run.HARMONIZE, "score": score, "translate": {"z": {"name": "z_score"}}}
    made["train"] = {
        "schedule": {"rounds": 1},
        "work": {"lr": 0.01, "batch": 16},
        "methods": {"z": {"name": "fedavg"}, "moments": {"name": "moments"}},
        "method_images": {"z": "z"},
        "method_model": {"moments": FEATURES},
    }
    return made


def augmented() -> dict[str, Any]:
    """Two hospitals that learn to synthesize, with noise."""
    made = budgeted(smallest(images={"kind": "slices", "size": 32, "spacing_mm": 2.0}), 30)
    for site in made["sites"].values():
        site["policy"]["public"] = ["counts"]
    made["augment"] = {"synthesis": {"name": "fitted_prior", "epsilon": 2.0, "pictures": 60}, "copies": 1}
    made["train"]["method_images"] = {"fedavg": "augmented"}
    return made


Here = Callable[[Mapping[str, Any]], Path]


@pytest.fixture
def here(finished_run, tmp_path, monkeypatch) -> Here:
    """Gives hospital a's folder in a copy of a finished run, in which the current folder is."""

    def copied(settings: Mapping[str, Any]) -> Path:
        folder = Path(shutil.copytree(finished_run(settings), tmp_path / "copy"))
        monkeypatch.chdir(folder)
        return folder / "runs" / "tiny" / "sites" / "a"

    return copied


def lose(site: Path, request: str, *, reply: bool) -> int:
    """Delete the files that answers to a request wrote, or their replies too; how many files there were."""
    answers = as_mapping(json.loads((site / "promises.json").read_text())["answers"])
    gone = 0
    for run, number, name in {(x["run"], x["round"], x["request"]) for x in ledgers.read_lines(site / "ledger.jsonl")}:
        if name != request:
            continue
        files = [site / file for file in as_mapping(answers.get(f"{run} {number} {name}", {})) if "/" in file]
        files += [site / "conversations" / str(run) / f"{name}-{number}"] if reply else []
        for path in files:
            gone += path.exists()
            path.unlink(missing_ok=True)
    return gone


def again(site: Path, capsys: pytest.CaptureFixture[str], *options: str) -> float:
    """The same command, twice: the ε that it added. The second time nothing is left to be done."""
    before, lines = epsilon(site / "ledger.jsonl"), site / "ledger.jsonl"
    assert main(["tiny.yaml", *options]) == Exit.OK, capsys.readouterr().err
    added = epsilon(lines) - before
    capsys.readouterr()
    assert main(["tiny.yaml"]) == Exit.OK and " done  " not in capsys.readouterr().err, "it is whole again"
    assert epsilon(lines) - before == added and ledgers.verify_ledger(lines) == []
    return added


@pytest.mark.repeats(3)
@pytest.mark.chance(1e-12, "noise leaves none of 15 training patients in three cells")
@pytest.mark.parametrize("reply", [False, True], ids=["files", "files and replies"])
@pytest.mark.parametrize("asked", ["ingest", "translate", "extract"])
def test_reading_translating_and_extracting_again_cost_nothing(here: Here, capsys, asked: str, reply: bool) -> None:
    site = here(spaces())
    first = [line["event"]["kind"] for line in ledgers.read_lines(site / "ledger.jsonl") if line["request"] == asked]
    assert first[0] == ("gaussian" if asked == "ingest" else "nothing"), "counts have noise, and were paid for once"
    counts = (site / COUNTED_FILE).read_bytes()
    assert lose(site, asked, reply=reply) >= 2
    assert again(site, capsys) == 0.0
    events = [line["event"]["kind"] for line in ledgers.read_lines(site / "ledger.jsonl") if line["request"] == asked]
    assert len(events) > len(first) and set(events[len(first) :]) == {"nothing"}, "it was asked again, and is free"
    assert (site / COUNTED_FILE).read_bytes() == counts


@pytest.mark.chance(1e-12, "noise leaves none of 15 training patients in three cells")
@pytest.mark.parametrize(("reply", "charged"), [(False, False), (True, True)])
def test_scores_cost_again_only_where_the_reply_is_gone_too_and_noise_is_drawn_again(
    here: Here, capsys, reply: bool, charged: bool
) -> None:
    site = here(spaces())
    assert lose(site, "evaluate", reply=reply)
    assert (again(site, capsys) > 0) is charged


@pytest.mark.chance(1e-12, "noise leaves none of 15 training patients in three cells")
def test_models_that_are_gone_are_trained_and_charged_again_where_a_person_says_so(here: Here, capsys) -> None:
    site = here(spaces())
    (models,) = (site / "models" / "tiny").glob("z-*")
    shutil.rmtree(models)
    before = epsilon(site / "ledger.jsonl")
    assert main(["tiny.yaml"]) == Exit.CONFIG and "--spend" in capsys.readouterr().err
    assert epsilon(site / "ledger.jsonl") == before, "nobody asked to pay"
    assert again(site, capsys, "--spend") > 0.5


@pytest.mark.chance(1e-12, "noise leaves none of 15 training patients in three cells")
def test_one_message_whose_records_the_coordinator_lost_is_charged_again_where_a_person_says_so(
    here: Here, capsys
) -> None:
    site = here(spaces())
    (state,) = (site.parent.parent / "federation").glob("moments-*/state")
    state.write_bytes(state.read_bytes()[:-1])
    before = epsilon(site / "ledger.jsonl")
    assert main(["tiny.yaml"]) == Exit.CONFIG and "--spend" in capsys.readouterr().err
    assert epsilon(site / "ledger.jsonl") == before, "nobody asked to pay"
    assert again(site, capsys, "--spend") > 0.1


@pytest.mark.chance(1e-12, "noise leaves none of 15 training patients in three cells")
def test_noised_counts_that_are_gone_are_drawn_and_charged_again(here: Here, capsys) -> None:
    site = here(spaces())
    (site / COUNTED_FILE).unlink()
    assert again(site, capsys) > 0.1


@pytest.mark.parametrize("reply", [False, True], ids=["files", "files and replies"])
def test_an_augmented_cohort_that_is_gone_is_learnt_and_charged_again(here: Here, capsys, reply: bool) -> None:
    site = here(augmented()).parent / "b"  # a's classes are balanced
    lines = [line for line in ledgers.read_lines(site / "ledger.jsonl") if line["request"] == "augment"]
    assert [line["event"]["kind"] for line in lines] != ["nothing"], "else nothing was synthesized"
    assert lose(site, "augment", reply=reply)
    assert again(site, capsys) > 0.5
