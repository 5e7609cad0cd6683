"""What a budget cut off is said to be so, wherever a model is used or ranked; and no paid model is lost to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_run import smallest

from evaluation.choice import describe_decisions, make_decisions
from evaluation.records import Model
from evaluation.wording import Words
from pipelines.coordinator import run as coordinator
from pipelines.coordinator.report.methods import describe_early_end
from pipelines.coordinator.stages import train
from pipelines.hospital.finished_models import training_history
from pipelines.models.file import ended_in, read_ready
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.runs.exits import Exit
from privacy.dp.accounting import compute_cost
from privacy.release import ledger as ledgers

READY = Path("runs/tiny/sites/a/ready/fedavg.safetensors")


def settings(epsilon: float) -> dict[str, Any]:
    made = smallest(
        privacy={"epsilon": 3.0, "sampling": 0.5, "views": 2},
        pooling="refused",
        audit={"membership": False, "canaries": 0},
    )
    made["train"]["schedule"] = {"rounds": 3}
    made["sites"]["a"]["policy"] = {"budget": {"epsilon": epsilon}, "public": ["counts"]}
    return made


def written(folder: Path, epsilon: float) -> None:
    (folder / "tiny.yaml").write_text(json.dumps(settings(epsilon)))


def spent(root: Path = Path("runs/tiny")) -> float:
    return compute_cost(ledgers.spent_events(ledgers.read_lines(root / "sites" / "a" / "ledger.jsonl")), 1e-5).epsilon


@pytest.fixture
def whole(finished_run, tmp_path, monkeypatch) -> Path:
    shutil.copytree(finished_run(settings(50.0)), tmp_path / "whole")
    monkeypatch.chdir(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_paid_model_stays_where_a_second_training_is_cut_off_and_is_kept_where_it_is_whole(
    whole, monkeypatch, capsys
):
    first, before = spent(), READY.read_bytes()
    monkeypatch.setattr(train, "LEARNING", train.LEARNING + 1)
    newer = tuple(coordinator.replace(one, version=one.version + 1) for one in coordinator.STAGES)
    monkeypatch.setattr(coordinator, "STAGES", newer)
    shutil.copytree(whole, whole.with_name("enough"))
    written(whole, 1.15 * first)
    assert main(["tiny.yaml", "--spend"]) == Exit.OK
    lines = ledgers.read_lines(Path("runs/tiny/sites/a/ledger.jsonl"))
    assert any(line["request"] == "train" and line["refused"] == "budget" for line in lines), "it was not cut off"
    assert READY.read_bytes() == before, "the model that was paid for is the one in use"
    assert "not ranked" in Path("runs/tiny/sites/a/report.html").read_text()
    assert "not ranked" in Path("runs/tiny/report.html").read_text()
    monkeypatch.chdir(whole.with_name("enough"))
    assert main(["tiny.yaml", "--spend"]) == Exit.OK
    assert READY.read_bytes() != before
    (kept,) = [path for path in READY.parent.glob("fedavg.*.safetensors") if "statistics" not in path.name]
    assert kept.read_bytes() == before and read_ready(kept).digest in kept.name


def test_a_model_says_how_many_rounds_it_was_trained_and_predict_says_that_it_was_cut_off(whole, monkeypatch, capsys):
    origin = read_ready(READY).origin
    assert (origin.rounds_trained, origin.rounds, origin.ended) == (3, 3, "whole") and origin.program
    budget = 0.75 * spent()
    cut = whole.with_name("cut")
    cut.mkdir()
    monkeypatch.chdir(cut)
    written(cut, budget)
    assert main(["tiny.yaml"]) in (Exit.OK, Exit.SITE)
    capsys.readouterr()
    rounds = [line for line in ledgers.read_lines(Path("runs/tiny/sites/a/ledger.jsonl")) if line["request"] == "train"]
    assert rounds[-1]["refused"] == "budget"
    if not READY.exists():
        pytest.skip("no budget was left for an evaluation")
    origin = read_ready(READY).origin
    assert origin.ended == "budget" and origin.rounds_trained in (1, 2) and origin.rounds == 3
    (images,) = Path("runs/tiny/sites/a/phantom").glob("*/images")
    predict([str(READY), str(images), "--out", "found", "--no-gland", "--json"])
    out = capsys.readouterr()
    assert out.out, out.err
    assert json.loads(out.out)["cut_off"].startswith("cut off by the hospital's privacy budget after")


def test_a_model_that_was_paid_for_comes_back_though_nothing_of_the_budget_is_left(whole):
    before, paid = READY.read_bytes(), spent()
    written(whole, 1.001 * paid)
    READY.unlink()
    assert main(["tiny.yaml"]) == Exit.OK
    assert READY.read_bytes() == before and spent() == paid


def test_rounds_that_were_refused_or_are_of_other_requests_do_not_count_as_trained(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    told = [("r/x", "introduce", 0, None), *[("r/x", "train", 1, None)] * 2, ("r/x", "train", 2, None)]
    told += [("r/x", "train", 3, "disk"), ("r/y", "train", 4, None), ("r/x", "evaluate", 5, None)]
    for lines, reason in ((told, "whole"), ([("r/x", "train", 3, "budget")], "budget")):
        with ledgers.open_transaction(ledger) as opened:
            for run, request, round_, code in lines:
                opened.append({"run": run, "request": request, "round": round_, "refused": code})
        facts = training_history(SimpleNamespace(ledger=ledger), "r/x", 3)
        assert facts == {"rounds_trained": 2, "rounds": 3, "ended": reason}


def test_what_was_cut_off_is_never_named_whatever_its_scores():
    models = (Model("a", "whole", 0.9, "w"), Model("a", "cut", 0.1, "c", "cut off after 1 of 3 rounds"))
    (one,) = make_decisions(models, ())
    assert one.method == "whole"
    (none,) = make_decisions(models[1:], ())
    (words,) = describe_decisions([none], models[1:], (), "", Words())
    assert none.method == "" and "of none was the training whole" in " ".join(words.said)


def test_why_a_training_ended_is_said_of_the_site_that_left_only():
    missing = [(1, "b", "lost"), (2, "a", "budget")]
    assert describe_early_end(missing, 3, "a") == "cut off by the hospital's privacy budget after 1 of 3 rounds"
    assert describe_early_end(missing, 3, "b") == "" and describe_early_end([], 3, "a") == ""
    assert ended_in({}) == "", "older models say nothing"
