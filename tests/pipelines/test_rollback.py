"""A ledger that was put back from an older copy, with its head, lets nothing leave until a person says what is lost."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import PRIVATE

from pipelines.benchmark.report import MEANINGS
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.witness import check_witness
from pipelines.ledger import main as ledger_main
from pipelines.run import main
from pipelines.runs.exits import Exit
from privacy.dp.accounting import compute_cost
from privacy.dp.events import NON_PRIVATE
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from signed_models import finished, public_key, sees, table, write_signed


@pytest.fixture
def here(finished_run, tmp_path, monkeypatch) -> Path:
    """A copy of a finished private run, in which the current folder is."""
    folder = Path(shutil.copytree(finished_run(PRIVATE), tmp_path / "copy"))
    monkeypatch.chdir(folder)
    return folder


def put_back(ledger: Path, lines: int) -> float:
    """Put back a copy of when the ledger had so many lines; what it then says was spent."""
    older = ledger.read_bytes().splitlines(keepends=True)[:lines]
    ledger.write_bytes(b"".join(older))
    ledger.with_suffix(".head").unlink()
    head = ledgers.read_head(ledger)
    ledger.with_suffix(".head").write_text(json.dumps(head._asdict()) + "\n")
    assert ledgers.verify_ledger(ledger) == [], "it is whole in itself"
    return epsilon(ledger)


def epsilon(ledger: Path) -> float:
    return compute_cost(ledgers.spent_events(ledgers.read_lines(ledger)), 1e-5).epsilon


def lost(site: Path) -> str:
    return re.findall(r"sha256 ([0-9a-f]{64})", (site / "log.txt").read_text())[-1]


@pytest.mark.repeats(2)
@pytest.mark.parametrize("back", [1, 2, 0.5, 0])
def test_an_older_copy_is_refused_by_name_whatever_it_lacks(here, capsys, back):
    site = here / "runs" / "tiny" / "sites" / "a"
    ledger = site / "ledger.jsonl"
    whole, spent = ledger.read_bytes().count(b"\n"), epsilon(ledger)
    assert put_back(ledger, whole - back if back >= 1 else int(whole * back)) <= spent
    assert main(["tiny.yaml"]) == Exit.SITE
    assert "a: older_ledger" in capsys.readouterr().err
    assert "pipelines.ledger restored" in (site / "log.txt").read_text()
    left = list(ledgers.read_lines(ledger))[whole - back if back >= 1 else int(whole * back) :]
    assert {line["refused"] for line in left} == {"older_ledger"}
    assert main(["tiny.yaml"]) == Exit.SITE, "it is refused again"


@pytest.mark.parametrize("said", ["4.5", "unknown"])
def test_a_person_says_what_was_lost_and_it_counts_in_full(here, capsys, said):
    site = here / "runs" / "tiny" / "sites" / "a"
    ledger = site / "ledger.jsonl"
    before = put_back(ledger, ledger.read_bytes().count(b"\n") // 2)
    assert main(["tiny.yaml"]) == Exit.SITE
    sha256 = lost(site)
    assert ledger_main(["restored", str(ledger), "--lost", sha256, "--epsilon", said]) == Exit.OK
    assert ledgers.verify_ledger(ledger) == []
    if said == "unknown":
        assert NON_PRIVATE in ledgers.spent_events(ledgers.read_lines(ledger))
    else:
        assert before + 4.5 * 0.99 <= epsilon(ledger) <= before + 4.5 * 1.01
    with pytest.raises(SystemExit):  # once is enough
        ledger_main(["restored", str(ledger), "--lost", sha256, "--epsilon", said])
    capsys.readouterr()
    assert main(["tiny.yaml"]) == Exit.OK, capsys.readouterr().err
    assert main(["tiny.yaml", "--from", "report", "--fresh"]) == Exit.OK, capsys.readouterr().err
    assert ledger_main(["explain", str(ledger)]) == Exit.OK
    assert "put back from an older copy" in " ".join(capsys.readouterr().out.split())


def test_a_ledger_that_only_grew_is_never_refused(here):
    assert main(["tiny.yaml"]) == Exit.OK
    assert main(["tiny.yaml", "--from", "evaluate", "--fresh"]) == Exit.OK
    assert main(["tiny.yaml"]) == Exit.OK


def test_check_refuses_it_too_before_anybody_begins_anew(here, capsys):
    ledger = here / "runs" / "tiny" / "sites" / "a" / "ledger.jsonl"
    put_back(ledger, ledger.read_bytes().count(b"\n") // 2)
    assert main(["tiny.yaml", "--check"]) == Exit.SITE
    assert "a: older_ledger" in capsys.readouterr().err


SIMULATED = "in a simulation whose folders were deleted on purpose, delete witness.json and all of sites/ (both in"


def test_a_simulated_hospital_whose_folder_is_gone_is_told_from_a_real_one_and_what_to_delete_helps(here, capsys):
    run = here / "runs" / "tiny"
    shutil.rmtree(run / "sites" / "a")
    assert main(["tiny.yaml"]) == Exit.SITE
    said, log = " ".join(capsys.readouterr().err.split()), (run / "sites" / "a" / "log.txt").read_text()
    assert "a: older_ledger" in said and SIMULATED in said
    assert SIMULATED in log and str(Path("runs") / "tiny") in log and "pipelines.ledger restored" in log
    shutil.rmtree(run / "sites")
    (run / "witness.json").unlink()
    assert main(["tiny.yaml"]) == Exit.OK, capsys.readouterr().err


def test_a_real_hospital_is_not_told_to_delete_a_witness(here):
    """Its ledger is what the patients have; what the coordinator deletes does not give it back."""
    for simulation in (False, True):
        there = Hospital("a", here / str(simulation) / "sites" / "a", None, lambda: "now", simulation=simulation)
        with pytest.raises(Refused, match="older_ledger") as refused:
            check_witness(there, "0" * 64)
        said = str(refused.value.__cause__)
        assert "restored" in said and ("witness.json" in said) == (SIMULATED in said) == simulation
        assert ("data protection officer" in said) != simulation


def benchmark(folder: Path) -> str:
    """The settings of a benchmark of one model at two hospitals, of which one has a budget for one evaluation."""
    write_signed(folder / "ours.safetensors", finished(params=sees(2.0)))
    trusted = {"trusted_models": {"owner": public_key()}}
    careful = {**trusted, "budget": {"epsilon": 1.3}, "most": {"release": 1.1}, "public": ["counts"], "min_patients": 1}
    sites = {
        name: {"source": {"kind": "table", "file": str(table(folder / f"{name}.csv", 1)), "label": "y"}, "policy": own}
        for name, own in (("careful", careful), ("open", trusted))
    }
    said = {"models": {"ours": "ours.safetensors"}, "copies": 50, "epsilon": 1.0}
    (folder / "bench.yaml").write_text(yaml.safe_dump({"name": "bench", "benchmark": said, "sites": sites}))
    return "bench.yaml"


def said_of(folder: Path, site: str) -> dict[str, Any]:
    facts = json.loads((folder / "runs" / "bench" / "benchmark.json").read_text())
    return next(one for one in facts["hospitals"] if one["site"] == site)


@pytest.mark.parametrize("forgotten", ["nothing", "conversations"])
def test_a_benchmark_notices_it_too_and_spends_nothing_twice(tmp_path, monkeypatch, forgotten):
    monkeypatch.chdir(tmp_path)
    assert main([config := benchmark(tmp_path)]) == Exit.OK
    site = tmp_path / "runs" / "bench" / "sites" / "careful"
    whole = list(ledgers.read_lines(site / "ledger.jsonl"))
    before = next(place for place, line in enumerate(whole) if line["request"] == "benchmark")
    assert epsilon(site / "ledger.jsonl") == pytest.approx(1.0, rel=0.02)
    assert put_back(site / "ledger.jsonl", before) < 0.1
    if forgotten == "conversations":  # so that it would evaluate again, with other noise
        shutil.rmtree(site / "conversations")
    assert main([config]) == Exit.OK, "the other hospital answers as before"
    assert said_of(tmp_path, "careful")["reasons"]["ours"] == {
        "request": "survey",
        "code": "older_ledger",
        "meaning": MEANINGS["older_ledger"],
    }
    assert said_of(tmp_path, "open")["verdict"] == "scored"
    assert epsilon(site / "ledger.jsonl") < 0.1, "nothing more left"
    told = ["restored", str(site / "ledger.jsonl"), "--lost", lost(site), "--epsilon", "1.0"]
    assert ledger_main(told) == Exit.OK and main([config]) == Exit.OK
    after = said_of(tmp_path, "careful")["reasons"]
    assert after["ours"]["code"] == "budget", "what was lost counts in full"


def test_a_benchmark_that_goes_on_with_whole_ledgers_is_never_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = benchmark(tmp_path)
    for _ in range(3):
        assert main([config]) == Exit.OK
        assert said_of(tmp_path, "careful")["reasons"] == {}
