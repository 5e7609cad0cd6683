"""A ledger that was put back from an older copy, with its head, lets nothing leave until a person says what is lost."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from small_run import PRIVATE

from pipelines.ledger import main as ledger_main
from pipelines.run import main
from pipelines.runs.exits import Exit
from privacy.dp.accounting import cost
from privacy.dp.events import NON_PRIVATE
from privacy.release import ledger as ledgers


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
    head = ledgers.head(ledger)
    ledger.with_suffix(".head").write_text(json.dumps(head._asdict()) + "\n")
    assert ledgers.verify(ledger) == [], "it is whole in itself"
    return epsilon(ledger)


def epsilon(ledger: Path) -> float:
    return cost(ledgers.spent(ledgers.lines(ledger)), 1e-5).epsilon


def lost(site: Path) -> str:
    return re.findall(r"sha256 ([0-9a-f]{64})", (site / "log.txt").read_text())[-1]


@pytest.mark.parametrize("back", [1, 2, 0.5, 0])
def test_an_older_copy_is_refused_by_name_whatever_it_lacks(here, capsys, back):
    site = here / "runs" / "tiny" / "sites" / "a"
    ledger = site / "ledger.jsonl"
    whole, spent = ledger.read_bytes().count(b"\n"), epsilon(ledger)
    assert put_back(ledger, whole - back if back >= 1 else int(whole * back)) <= spent
    assert main(["tiny.yaml"]) == Exit.SITE
    assert "a: older_ledger" in capsys.readouterr().err
    assert "pipelines.ledger restored" in (site / "log.txt").read_text()
    left = list(ledgers.lines(ledger))[whole - back if back >= 1 else int(whole * back) :]
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
    assert ledgers.verify(ledger) == []
    if said == "unknown":
        assert NON_PRIVATE in ledgers.spent(ledgers.lines(ledger))
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
